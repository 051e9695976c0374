import errno
from pathlib import Path

import pytest

from envelope.errors import InvalidConfig, TierUnavailable
from jetstream.tier.object_store import ObjectStore, without_secrets


def test_a_folder_is_a_store(tmp_path: Path) -> None:
    store = ObjectStore.at(str(tmp_path / "a" / "store"))
    assert store.directories() == []
    assert store.sizes("x") == {}
    store.put("x/one", [b"12", b"345"])
    store.put("x/one", [b"1234"])
    assert store.sizes("x") == {"x/one": 4}
    assert b"".join(store.chunks("x/one")) == b"1234"
    assert store.directories() == ["x"]
    store.delete("x/one")
    store.delete("x/one")
    with pytest.raises(TierUnavailable):
        list(store.chunks("x/one"))
    store.delete_directory("x")
    store.delete_directory("x")
    assert store.directories() == []


def test_a_folder_that_is_not_there_is_told_from_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        ObjectStore.at(str(tmp_path / "store")).check_folder()
    with pytest.raises(NotADirectoryError):
        ObjectStore.at(str(tmp_path / "file")).check_folder()
    (tmp_path / "store").mkdir()
    ObjectStore.at(str(tmp_path / "store")).check_folder()
    ObjectStore.at("/").check_folder()


def test_what_is_written_to_a_folder_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr("jetstream.tier.object_store._sync", lambda path, _flags: synced.append(path))
    ObjectStore.at(str(tmp_path / "store")).put("x/one", [b"1"])
    folders = [str(tmp_path / "store/x"), str(tmp_path / "store"), str(tmp_path)]
    assert synced == [str(tmp_path / "store/x/one"), *folders]
    synced.clear()
    ObjectStore.at(str(tmp_path / "store")).put_shared("x/one", [b"1"])
    assert synced[0].startswith(str(tmp_path / "store/x/one.")), "it is durable before it is there"
    assert synced[1:] == [*folders, str(tmp_path / "store/x/one"), *folders]


def test_what_could_not_be_synced_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages may be lost, though another sync succeeds."""

    def refused(_path: str, _flags: int) -> None:
        raise OSError(errno.EIO, "the disk is ill")

    monkeypatch.setattr("jetstream.tier.object_store._sync", refused)
    store = ObjectStore.at(str(tmp_path / "store"))
    for put in (store.put, store.put_shared):
        with pytest.raises(TierUnavailable, match="syncing x/one"):
            put("x/one", [b"1"])
        assert store.sizes("x") == {}


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("gs://anonymous@bucket/streams", "gcs"),
        ("s3://bucket/streams?region=eu-north-1", "s3"),
        ("file:///srv/tier", "local"),
        ("/srv/tier", "local"),
    ],
)
def test_the_kind_of_a_store_is_in_its_uri(uri: str, kind: str) -> None:
    assert ObjectStore.at(uri)._files.type_name == kind


@pytest.mark.parametrize("uri", ["srv/tier", "ftp://host/x", "", "s3://"])
def test_what_is_no_store_is_refused(uri: str) -> None:
    with pytest.raises(InvalidConfig):
        ObjectStore.at(uri)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://KEY:SECRET@bucket/x?region=eu-north-1", "s3://bucket/x"),
        ("s3://KEY:SEC/RET+=@bucket/x", "s3://bucket/x"),
        ("hdfs://user@namenode:8020/x", "hdfs://namenode:8020/x"),
        (
            "http://127.0.0.1:80/bucket/orders@1f/0.arrows?sig=SECRET",
            "http://127.0.0.1:80/bucket/orders@1f/0.arrows",
        ),
        ("s3://bucket/orders@1f", "s3://bucket/orders@1f"),
    ],
)
def test_a_uri_is_shown_without_its_secrets(uri: str, shown: str) -> None:
    assert without_secrets(uri) == shown


def test_an_error_shows_no_key_that_was_written_as_it_is() -> None:
    with pytest.raises(InvalidConfig) as refused:
        ObjectStore.at("s3://KEY:SEC/RET@bucket/x")
    assert "RET" not in str(refused.value)
