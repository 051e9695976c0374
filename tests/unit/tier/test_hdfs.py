"""What is told of HDFS where Arrow tells less; `tests/hdfs` has the real one."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from jetstream.tier.hdfs import HdfsLookups, is_hdfs, signals_kept
from tests.support.object_stores import MemoryStore


@dataclass
class _AsArrowTells(MemoryStore):
    """Nothing is there, and deletes fail, if it is down or not; only a listing says which."""

    def get_file_info(self, paths: str | list[str]) -> list[pafs.FileInfo]:
        if self.is_down:
            return [pafs.FileInfo(path, pafs.FileType.NotFound) for path in paths]
        return super().get_file_info(paths)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        found = super().get_file_info_selector(selector)
        if not found and not selector.allow_not_found:
            raise FileNotFoundError(selector.base_dir)
        return found

    def delete_file(self, path: str) -> None:
        try:
            super().delete_file(path)
        except FileNotFoundError as error:
            raise OSError("input/output error") from error


@pytest.fixture
def arrow() -> _AsArrowTells:
    return _AsArrowTells(objects={"r/a/one": b"1", "r/a/b/two": b"12", "r/three": b"123"})


@pytest.fixture
def lookups(arrow: _AsArrowTells) -> HdfsLookups:
    return HdfsLookups(pafs.PyFileSystem(arrow))


def test_what_is_there_is_told(lookups: HdfsLookups) -> None:
    assert lookups.info("r/a/one").size == 1
    assert lookups.info("r/nothing").type is pafs.FileType.NotFound
    assert sorted(entry.path for entry in lookups.listed("r", recursive=False)) == ["r/a", "r/three"]
    inside = {entry.path for entry in lookups.listed("r", recursive=True)}
    assert inside == {"r/a", "r/a/one", "r/a/b", "r/a/b/two", "r/three"}
    assert lookups.listed("nothing", recursive=True) == []


def test_a_store_that_is_down_is_not_taken_for_an_empty_one(
    arrow: _AsArrowTells, lookups: HdfsLookups
) -> None:
    arrow.is_down = True
    with pytest.raises(OSError, match="no answer"):
        lookups.info("r/a/one")
    with pytest.raises(OSError, match="no answer"):
        lookups.listed("r", recursive=True)
    with pytest.raises(OSError, match="no answer"):
        lookups.delete("r/a/one")
    arrow.is_down = False
    assert lookups.info("r/a/one").size == 1


def test_a_file_that_is_not_there_is_deleted_and_one_that_stays_is_not(
    arrow: _AsArrowTells, lookups: HdfsLookups
) -> None:
    lookups.delete("r/three")
    lookups.delete("r/three")
    assert set(arrow.objects) == {"r/a/one", "r/a/b/two"}
    arrow.keeps_all = True
    with pytest.raises(PermissionError):
        lookups.delete("r/a")


@pytest.fixture
def _term_kept() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_term_kept")
def test_handlers_of_signals_are_put_back() -> None:
    def ignores_term() -> bool:
        [line] = [
            line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigIgn")
        ]
        return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    with signals_kept():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert ignores_term()
    assert not ignores_term()


@pytest.mark.parametrize(
    ("uri", "expected"), [("hdfs://h:1/x", True), ("viewfs://h/x", True), ("/hdfs", False), ("s3://b", False)]
)
def test_hdfs_is_known_by_its_uri(uri: str, expected: bool) -> None:
    assert is_hdfs(uri) is expected
