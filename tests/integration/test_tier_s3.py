"""A stream in a store that speaks S3 over HTTP: moto's server on this machine stands in for a real one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from envelope.errors import InvalidConfig, TierUnavailable
from jetstream.tier.object_store import ObjectStore, without_secrets
from tests.support.nodes import run
from tests.support.s3_server import s3_server
from tests.support.tiered_nodes import check_life


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URI of a place in a bucket."""
    with s3_server() as server:
        yield server.uri("of-a-test")


def test_a_stream_lives_in_s3_and_comes_back_from_there(s3: str, tmp_path: Path) -> None:
    run(check_life(tmp_path, s3))


def test_secrets_are_not_shown(s3: str) -> None:
    assert without_secrets(s3) == "s3://streams/of-a-test"
    store = ObjectStore.at(s3)
    with pytest.raises(TierUnavailable) as caught:
        list(store.chunks("nothing"))
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidConfig) as refused:
        ObjectStore.at("ftp://user:secret@host/x")
    assert "secret" not in str(refused.value)
