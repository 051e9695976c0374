"""Ways in which files are known to have lost acknowledged data, by the names under which they are known.

Those of replicated logs are in `tests.unit.replica.test_loss_scenarios`; the table of all is in
docs/internals/loss_scenarios.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from envelope.errors import CorruptDataError, StorageError, StreamOffline
from envelope.headers import MESSAGE_ID
from envelope.types import LeaderEpoch, LogIndex, NodeId, Offset, StreamName, SyncMode, Term
from jetstream.log.format.batch import BatchFlags, encode, verified_batches
from jetstream.log.log import Log, LogConfig
from jetstream.log.segments.segment import segment_path
from jetstream.node.disk.open_log import begin_reign, open_log
from jetstream.replica.desired_role import Repair, RoleStatus, next_step
from metadata.catalog.commands import DeleteStream
from metadata.node.catalogue.replicated_catalog import ReplicatedCatalog
from metadata.node.storage.file_storage import FileStorage
from metadata.node.storage.port import INITIAL_SNAPSHOT
from metadata.raft.state import Entry, HardState, Snapshot
from metadata.stream_config import StreamConfig
from tests.support.catalogs import apply, catalog_of, create, register
from tests.support.logs import (
    DIRECTORY,
    NOW,
    Record,
    append,
    begun,
    file_content,
    flipped,
    opened,
    overwrite,
    records_batch,
    stored_values,
)
from tests.support.memory_disk import Fault, FaultKind, MemoryDisk, everything_survives, nothing_survives

SMALL = LogConfig(segment_bytes=1_000)
VALUES = [b"zero", b"one", b"two", b"three"]
LAST = segment_path(DIRECTORY, Offset(len(VALUES) - 1))


def crashed(disk: MemoryDisk) -> MemoryDisk:
    """A disk on which every value was synced, and the process was killed."""
    _synced(disk, VALUES).checkpoint()
    return disk.power_loss(everything_survives)


def _synced(disk: MemoryDisk, values: Sequence[bytes]) -> Log:
    """A log in which each value was synced, in a segment of its own."""
    log = begun(disk, SMALL)
    for value in values:
        append(log, [value])
        log.writer.sync()
    return log


def is_refused_a_reign(log: Log) -> bool:
    try:
        log.writer.begin_epoch(LeaderEpoch(2), NOW)
    except StreamOffline:
        return True
    return False


def test_d12_corrupt_minority_becomes_leader() -> None:
    """Damage below what was synced is no torn tail: nothing is cut, and who has it at its end cannot lead."""
    pristine = crashed(MemoryDisk())
    whole = file_content(pristine, LAST)
    refused = 0
    for position in range(0, len(whole), 3):
        disk = pristine.power_loss(everything_survives)
        overwrite(disk, LAST, flipped(whole, position, position % 8))
        log = opened(disk, SMALL, full=True)
        assert log.log_end_offset == len(VALUES), "the end is not where the damage begins"
        served = stored_values(log)
        assert [served[offset] for offset in sorted(served)] == VALUES[: len(served)]
        assert (len(served) < len(VALUES)) is bool(log.reader.corrupt_ranges)
        refused += is_refused_a_reign(log)
    assert refused > len(whole) // 6


def test_d12_a_damaged_replica_is_copied_from_its_leader_once_nobody_counts_on_it() -> None:
    row = catalog_of(register("n1"), register("n2"), create(nodes=("n1", "n2"))).stream(StreamName("orders"))
    assert row is not None
    damaged = NodeId("n2")
    standing = RoleStatus(
        is_open=True,
        config=row.config,
        leads=False,
        leader=row.leader,
        leader_epoch=row.leader_epoch,
        declined_epoch=LeaderEpoch(0),
        is_damaged=True,
    )
    assert next_step(standing, row, damaged) != Repair(), "what it has is still counted on"
    left = replace(row, isr=tuple(member for member in row.isr if member.node_id != damaged))
    assert next_step(standing, left, damaged) == Repair()


def _stored_catalogue(disk: MemoryDisk) -> None:
    """Store a catalogue with a stream that lives and one that is deleted, as a snapshot."""
    catalog = catalog_of(register(), create(), create("gone", subject="gone.>"))
    apply(catalog, DeleteStream(StreamName("gone")))
    state = ReplicatedCatalog(INITIAL_SNAPSHOT)
    state.catalog.become(catalog)
    storage = FileStorage.open(disk, "metadata")
    state_term = HardState(Term(1), None)
    entries = [Entry(LogIndex(index), Term(1), b"") for index in range(1, catalog.applied + 1)]
    storage.append(tuple(entries), state_term)
    storage.compact(Snapshot(catalog.applied, Term(1), state.snapshot()))
    storage.close()


def _flips(data: bytes) -> Iterator[bytes]:
    for position in range(len(data)):
        yield flipped(data, position, position % 8)


def test_d13_snapshot_bitflip_must_not_delete_streams() -> None:
    """A damaged snapshot is refused whole, on disk and from a peer: no stream ever looks deleted."""
    disk = MemoryDisk()
    _stored_catalogue(disk)
    storage = FileStorage.open(disk, "metadata", create=False)
    snapshot = storage.load().snapshot
    storage.close()
    (path,) = [f"metadata/{name}" for name in disk.listdir("metadata") if name.endswith(".wal")]
    whole = file_content(disk, path)
    assert ReplicatedCatalog(snapshot).catalog.stream(StreamName("orders")) is not None
    for damaged in _flips(whole):
        overwrite(disk, path, damaged)
        with pytest.raises(CorruptDataError):
            FileStorage.open(disk, "metadata", create=False)
        assert file_content(disk, path) == damaged, "nothing is repaired by guessing"
    for payload in _flips(snapshot.payload):
        with pytest.raises(CorruptDataError):
            ReplicatedCatalog(Snapshot(snapshot.index, snapshot.term, payload))


def test_d21_dir_fsync() -> None:
    """A file whose name is not durable is gone after a power loss, whatever was synced in it."""
    for count in range(1, len(VALUES) + 1):
        disk = MemoryDisk()
        _synced(disk, VALUES[:count])
        assert disk.exists(segment_path(DIRECTORY, Offset(count - 1))), "every record begins a file"
        found = opened(disk.power_loss(nothing_survives), SMALL)
        assert list(stored_values(found).values()) == VALUES[:count]
    metadata = MemoryDisk()
    _stored_catalogue(metadata)
    after = FileStorage.open(metadata.power_loss(nothing_survives), "metadata", create=False).load()
    assert ReplicatedCatalog(after.snapshot).catalog.stream(StreamName("orders")) is not None


def test_d22_fsync_error_then_success() -> None:
    """After a failed sync the next one would succeed, with the records lost: it is never asked for."""
    disk = MemoryDisk()
    log = begun(disk)
    append(log, [b"acked"])
    log.writer.sync()
    append(log, [b"lost"])
    disk.faults[disk.calls + 1] = Fault(FaultKind.SYNC_ERROR)
    with pytest.raises(StorageError):
        log.writer.sync()
    calls = disk.calls
    for use in (
        log.writer.sync,
        lambda: append(log, [b"later"]),
        lambda: log.writer.begin_epoch(LeaderEpoch(2), NOW),
    ):
        with pytest.raises(StreamOffline):
            use()
    assert disk.calls == calls, "the disk is not asked again"
    assert list(stored_values(opened(disk.power_loss(nothing_survives))).values()) == [b"acked"]


def test_d25_ack_then_deposed_dedupe() -> None:
    """The next leader knows where a message is whose ack was lost, from its own log, also after a restart."""
    config = StreamConfig(
        name="orders", subject="orders.>", dedupe_window=timedelta(minutes=2), sync=SyncMode.ALWAYS
    )
    records = [Record(b"a", headers=[(MESSAGE_ID, b"m-1")]), Record(b"b", headers=[(MESSAGE_ID, b"m-2")])]
    frame = bytes(encode(records_batch(records), Offset(0), LeaderEpoch(1)).seal(BatchFlags.ROLL))
    disk = MemoryDisk()
    follower = open_log(disk, DIRECTORY, config, NOW, "tail")
    follower.log.writer.append_sealed(verified_batches(frame), NOW)
    follower.log.writer.sync()
    follower.replay_batches(verified_batches(frame))
    begin_reign(follower, LeaderEpoch(2), NOW)
    assert [follower.history.dedupe.lookup(name) for name in (b"m-1", b"m-2", b"m-3")] == [0, 1, None]
    restarted = open_log(disk.power_loss(nothing_survives), DIRECTORY, config, NOW, "tail")
    begin_reign(restarted, LeaderEpoch(3), NOW)
    assert [restarted.history.dedupe.lookup(name) for name in (b"m-1", b"m-2", b"m-3")] == [0, 1, None]
