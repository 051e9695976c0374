from pathlib import Path

import pytest

from envelope.errors import CorruptDataError, DiskFull, RequestError, StreamExists, UnknownStream
from envelope.limits import MIB
from envelope.types import LogIndex, NodeId, StreamName, Term
from jetstream.log.memory_disk import MemoryDisk
from jetstream.log.os_disk import OsDisk
from metadata.catalog import snapshot
from metadata.catalog.commands import DeleteStream
from metadata.catalog.events import NodeRegistered, StreamCreated, StreamFound
from metadata.node.disk_port import MetadataDisk
from metadata.node.file_storage import FileStorage
from metadata.node.local import LocalMetadata
from metadata.raft.state import Entry, HardState, Snapshot
from tests.support.catalogs import create, register, update

N1 = NodeId("n1")


def opened(disk: MetadataDisk, snapshot_log_bytes_min: int = MIB) -> LocalMetadata:
    return LocalMetadata(FileStorage.open(disk, "metadata"), N1, snapshot_log_bytes_min)


def compaction_refused(metadata: LocalMetadata) -> DiskFull | None:
    return metadata.compaction_refused


@pytest.mark.parametrize("kind", ["memory", "os"])
def test_what_was_proposed_is_applied_now_and_after_a_restart(kind: str, tmp_path: Path) -> None:
    disk: MetadataDisk = MemoryDisk() if kind == "memory" else OsDisk(tmp_path)
    metadata = LocalMetadata.open(disk, "metadata", N1)
    results = metadata.propose([register(), create("orders"), create("orders"), create("orders", ack="none")])
    assert [type(result.events[0]) for result in results[:3]] == [NodeRegistered, StreamCreated, StreamFound]
    assert isinstance(results[3].refusal, StreamExists)
    with pytest.raises(StreamExists):
        results[3].answer()
    assert isinstance(results[1].answer(), StreamCreated)
    assert [result.index for result in results] == [1, 2, 3, 4]
    before = snapshot.encode(metadata.catalog)
    metadata.close()
    again = LocalMetadata.open(disk, "metadata", N1, create=False)
    assert snapshot.encode(again.catalog) == before
    again.close()


def test_many_commands_cost_one_sync() -> None:
    disk = MemoryDisk()
    metadata = opened(disk)
    before = sum(call.startswith("sync ") for call in disk.trace)
    metadata.propose([register(), *(create(f"s{number}", f"l{number}") for number in range(100))])
    assert sum(call.startswith("sync ") for call in disk.trace) == before + 1
    assert metadata.catalog.count_streams() == 100
    assert metadata.propose([]) == []


def test_every_start_is_a_new_term_with_its_own_vote() -> None:
    disk = MemoryDisk()
    for term in (1, 2, 3):
        metadata = opened(disk)
        metadata.propose([register()])
        metadata.close()
        stored = FileStorage.open(disk, "metadata").load()
        assert stored.hard_state == HardState(Term(term), N1)
        assert stored.entries[-1].term == term


def test_a_start_that_proposes_nothing_writes_no_term() -> None:
    disk = MemoryDisk()
    opened(disk).close()
    assert FileStorage.open(disk, "metadata").load().hard_state == HardState(Term(0), None)


def test_a_long_log_becomes_a_snapshot_and_the_catalogue_stays_the_same() -> None:
    disk = MemoryDisk()
    metadata = opened(disk, snapshot_log_bytes_min=4096)
    metadata.propose([register(), create("orders")])
    for number in range(200):
        metadata.propose([update("orders", labels={"turn": str(number)})])
    before = snapshot.encode(metadata.catalog)
    metadata.close()
    stored = FileStorage.open(disk, "metadata").load()
    assert stored.snapshot.index > 100
    assert len(stored.entries) < 50
    again = opened(disk)
    assert snapshot.encode(again.catalog) == before
    stream = again.catalog.stream(StreamName("orders"))
    assert stream is not None
    assert stream.config.labels == {"turn": "199"}


def test_a_log_does_not_grow_over_many_short_runs() -> None:
    disk = MemoryDisk()
    for _ in range(60):
        metadata = opened(disk, snapshot_log_bytes_min=2048)
        metadata.propose([register()])
        metadata.close()
    assert len(FileStorage.open(disk, "metadata").load().entries) < 20


def test_a_full_disk_refuses_a_proposal_and_the_same_one_succeeds_later() -> None:
    disk = MemoryDisk()
    metadata = opened(disk)
    metadata.propose([register()])
    disk.capacity_bytes = 0
    with pytest.raises(DiskFull):
        metadata.propose([create("orders")])
    assert metadata.catalog.stream(StreamName("orders")) is None
    disk.capacity_bytes = None
    (result,) = metadata.propose([create("orders")])
    assert isinstance(result.answer(), StreamCreated)
    metadata.close()
    assert opened(disk).catalog.count_streams() == 1


def test_a_snapshot_that_finds_no_room_waits_and_takes_nothing_back() -> None:
    disk = MemoryDisk()
    metadata = opened(disk, snapshot_log_bytes_min=2048)
    metadata.propose([register(), create("orders")])
    disk.capacity_bytes = 2700
    for number in range(20):
        metadata.propose([update("orders", labels={"turn": str(number)})])
        if compaction_refused(metadata):
            break
    assert isinstance(compaction_refused(metadata), DiskFull)
    disk.capacity_bytes = None
    for number in range(40):
        metadata.propose([update("orders", labels={"turn": str(number)})])
    assert compaction_refused(metadata) is None
    metadata.close()
    stream = opened(disk).catalog.stream(StreamName("orders"))
    assert stream is not None
    assert stream.config.labels == {"turn": "39"}


def test_a_command_too_large_for_an_entry_is_refused_before_anything_is_stored() -> None:
    disk = MemoryDisk()
    metadata = opened(disk)
    with pytest.raises(RequestError, match="exceeds"):
        metadata.propose([register(), DeleteStream(StreamName("x" * (5 * MIB)))])
    assert metadata.catalog.applied == 0
    assert isinstance(metadata.propose([DeleteStream(StreamName("x"))])[0].refusal, UnknownStream)


def test_a_log_that_no_catalogue_wrote_is_refused() -> None:
    disk = MemoryDisk()
    storage = FileStorage.open(disk, "metadata")
    storage.append([Entry(LogIndex(1), Term(1), b"make tea")], HardState(Term(1), N1))
    storage.close()
    with pytest.raises(CorruptDataError, match="metadata entry 1"):
        LocalMetadata.open(disk, "metadata", N1)


def test_a_snapshot_of_another_index_is_refused() -> None:
    disk = MemoryDisk()
    metadata = opened(disk)
    metadata.propose([register()])
    data = snapshot.encode(metadata.catalog)
    metadata.close()
    storage = FileStorage.open(disk, "metadata")
    storage.compact(Snapshot(LogIndex(7), Term(1), data))
    storage.close()
    with pytest.raises(CorruptDataError, match="snapshot 7 holds the catalogue of 1"):
        LocalMetadata.open(disk, "metadata", N1)
