"""FileStorage on a disk in memory and on the real one; faults are in tests/crash."""

from pathlib import Path

import pytest

from envelope.errors import CorruptDataError, DiskFull, StorageError
from envelope.types import LogIndex, NodeId, Term
from jetstream.log.disk.os_disk import OsDisk
from metadata.node.storage.disk_port import MetadataDisk
from metadata.node.storage.file_storage import FileStorage
from metadata.node.storage.port import INITIAL_HARD_STATE, INITIAL_SNAPSHOT, Storage, Stored
from metadata.raft.state import Entry, HardState, Snapshot
from tests.support.memory_disk import MemoryDisk

VOTE = HardState(Term(1), NodeId("n1"))


def entries(first: int, last: int, term: int = 1) -> tuple[Entry, ...]:
    return tuple(
        Entry(LogIndex(index), Term(term), f"{index}@{term}".encode()) for index in range(first, last + 1)
    )


def opened(disk: MetadataDisk) -> FileStorage:
    return FileStorage.open(disk, "metadata")


def reopened(storage: FileStorage, disk: MetadataDisk) -> Stored:
    before = storage.load()
    storage.close()
    again = opened(disk)
    found = again.load()
    again.close()
    assert found == before
    return found


def test_an_empty_directory_begins_before_the_first_entry() -> None:
    disk = MemoryDisk()
    assert opened(disk).load() == Stored(INITIAL_HARD_STATE, INITIAL_SNAPSHOT, ())
    assert disk.listdir("metadata") == ["00000000000000000001.wal", "synced"]


@pytest.mark.parametrize("kind", ["memory", "os"])
def test_what_was_appended_is_there_after_a_restart(kind: str, tmp_path: Path) -> None:
    disk: MetadataDisk = MemoryDisk() if kind == "memory" else OsDisk(tmp_path)
    storage: Storage = opened(disk)
    storage.append(entries(1, 3), VOTE)
    storage.append(entries(4, 4))
    storage.append((), HardState(Term(2), None))
    storage.append((), HardState(Term(2), NodeId("n2")))
    assert isinstance(storage, FileStorage)
    found = reopened(storage, disk)
    assert found == Stored(HardState(Term(2), NodeId("n2")), INITIAL_SNAPSHOT, entries(1, 4))
    assert found.last_index == 4


def test_an_append_replaces_everything_from_its_first_index_on() -> None:
    disk = MemoryDisk()
    storage = opened(disk)
    storage.append(entries(1, 5), VOTE)
    storage.append(entries(3, 4, term=2), HardState(Term(2), None))
    assert reopened(storage, disk).entries == entries(1, 2) + entries(3, 4, term=2)


def test_a_snapshot_replaces_its_entries_and_keeps_those_behind() -> None:
    disk = MemoryDisk()
    storage = opened(disk)
    storage.append(entries(1, 5), VOTE)
    before = storage.log_bytes
    storage.compact(Snapshot(LogIndex(3), Term(1), b"state of three"))
    assert storage.log_bytes < before
    storage.append(entries(6, 6))
    found = reopened(storage, disk)
    assert found.snapshot == Snapshot(LogIndex(3), Term(1), b"state of three")
    assert found.entries == entries(4, 6)
    assert found.hard_state == VOTE


def test_a_snapshot_of_everything_leaves_no_entries() -> None:
    disk = MemoryDisk()
    storage = opened(disk)
    storage.append(entries(1, 5), VOTE)
    storage.compact(Snapshot(LogIndex(5), Term(1), b"all"))
    found = reopened(storage, disk)
    assert (found.entries, found.last_index) == ((), 5)


@pytest.mark.parametrize(("index", "term"), [(9, 2), (3, 2)])
def test_a_snapshot_of_another_history_replaces_the_log_whole(index: int, term: int) -> None:
    """Raft, section 7: what a leader sends supersedes a log that does not hold its last entry."""
    disk = MemoryDisk()
    storage = opened(disk)
    storage.append(entries(1, 5), HardState(Term(2), None))
    storage.compact(Snapshot(LogIndex(index), Term(term), b"the leader's"))
    storage.append(entries(index + 1, index + 1, term=2))
    assert reopened(storage, disk).entries == entries(index + 1, index + 1, term=2)


def test_only_one_generation_is_left_behind() -> None:
    disk = MemoryDisk()
    storage = opened(disk)
    storage.append(entries(1, 5), VOTE)
    for index in (1, 3, 5):
        storage.compact(Snapshot(LogIndex(index), Term(1), b"s"))
    storage.close()
    opened(disk)
    assert disk.listdir("metadata") == ["00000000000000000005.wal", "synced"]


def test_leftovers_of_an_interrupted_compaction_are_removed_and_strangers_are_not() -> None:
    disk = MemoryDisk()
    storage = opened(disk)
    storage.append(entries(1, 2), VOTE)
    old = disk.open("metadata/00000000000000000001.wal")
    stale = disk.create("metadata/00000000000000000000.wal")
    stale.write((old.read(0, old.size()),), 0)
    disk.create("metadata/00000000000000000002.wal.new")
    disk.create("metadata/notes.new")
    storage.close()
    assert opened(disk).load().entries == entries(1, 2)
    assert disk.listdir("metadata") == ["00000000000000000002.wal", "notes.new", "synced"]


def test_a_missing_log_is_corruption_wherever_something_says_there_was_one() -> None:
    disk = MemoryDisk()
    with pytest.raises(CorruptDataError, match="missing"):
        FileStorage.open(disk, "metadata", create=False)
    opened(disk).close()
    FileStorage.open(disk, "metadata", create=False).close()
    for name in disk.listdir("metadata"):
        if name.endswith(".wal"):
            disk.unlink(f"metadata/{name}")
    with pytest.raises(CorruptDataError, match="missing"):
        opened(disk)
    assert disk.listdir("metadata") == ["synced"]


def test_an_older_log_than_the_mark_knows_is_corruption() -> None:
    disk = MemoryDisk()
    storage = opened(disk)
    storage.append(entries(1, 2), VOTE)
    file = disk.open("metadata/00000000000000000001.wal")
    backup = file.read(0, file.size())
    storage.compact(Snapshot(LogIndex(2), Term(1), b"s"))
    storage.close()
    disk.unlink("metadata/00000000000000000002.wal")
    disk.create("metadata/00000000000000000001.wal").write((backup,), 0)
    with pytest.raises(CorruptDataError, match="followed by 2"):
        opened(disk)


def test_after_closing_nothing_works_any_more() -> None:
    storage = opened(MemoryDisk())
    storage.close()
    for call in (storage.load, lambda: storage.append(entries(1, 1), VOTE)):
        with pytest.raises(StorageError, match="closed"):
            call()
    storage.close()


@pytest.mark.parametrize(
    ("appended", "hard_state", "invariant"),
    [
        (entries(4, 4), None, "S1"),
        (entries(2, 2) + entries(4, 4), None, "S1"),
        (entries(3, 3, term=2), None, "S2"),
        (entries(3, 3, term=0), None, "S2"),
        ((), HardState(Term(0), None), "S3"),
        ((), HardState(Term(1), None), "S3"),
        ((), HardState(Term(1), NodeId("n2")), "S3"),
    ],
)
def test_an_append_that_breaks_an_invariant_is_our_bug(
    appended: tuple[Entry, ...], hard_state: HardState | None, invariant: str
) -> None:
    storage = opened(MemoryDisk())
    storage.append(entries(1, 2), VOTE)
    with pytest.raises(AssertionError, match=invariant):
        storage.append(appended, hard_state)
    assert storage.load().entries == entries(1, 2)


def test_a_snapshot_never_goes_back() -> None:
    storage = opened(MemoryDisk())
    storage.append(entries(1, 3), VOTE)
    storage.compact(Snapshot(LogIndex(2), Term(1), b"s"))
    with pytest.raises(AssertionError, match="S1"):
        storage.compact(Snapshot(LogIndex(1), Term(1), b"s"))
    with pytest.raises(AssertionError, match="S2"):
        storage.compact(Snapshot(LogIndex(3), Term(2), b"s"))


def test_an_append_that_finds_no_room_gives_back_what_it_took() -> None:
    disk = MemoryDisk()
    storage = opened(disk)
    storage.append(entries(1, 1), VOTE)
    before = disk.open("metadata/00000000000000000001.wal").size()
    disk.capacity_bytes = 64 + before + 10
    with pytest.raises(DiskFull):
        storage.append(entries(2, 100))
    assert disk.open("metadata/00000000000000000001.wal").size() == before
    disk.capacity_bytes = None
    storage.append(entries(2, 3))
    assert reopened(storage, disk).entries == entries(1, 3)


def test_an_append_costs_one_write_one_sync_and_one_note() -> None:
    disk = MemoryDisk()
    storage = opened(disk)
    storage.append(entries(1, 1), VOTE)
    before = len(disk.trace)
    storage.append(entries(2, 100))
    assert [call.split()[0] for call in disk.trace[before:]] == ["write", "sync", "write"]
    assert disk.trace[-1] == "write metadata/synced"
    storage.append(())
    assert len(disk.trace) == before + 3, "nothing to store is nothing to sync"
