"""Opening, appending, rolling, syncing and epochs."""

import pyarrow as pa
import pytest

from envelope.errors import DiskFull, StorageError, StreamOffline, UnavailableError
from envelope.types import LeaderEpoch, Offset, SyncMode
from jetstream.log.format.batch import BatchFlags, encode_group, iter_frames, read_header
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA_MESSAGE
from jetstream.log.log import Log, LogConfig
from tests.support.logs import (
    DIRECTORY,
    NOW,
    SMALL,
    append,
    batch_for,
    begun,
    file_content,
    filled,
    opened,
    stored_values,
    values_batch,
)
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    everything_survives,
    nothing_survives,
)


def flags_of(log: Log) -> list[BatchFlags]:
    return [
        read_header(frame).flags
        for segment in log.reader.segments
        for frame in iter_frames(
            file_content(log._disk, segment.path)[len(SCHEMA_MESSAGE) : segment.data_end]
        )
    ]


# --- creating, opening, closing --------------------------------------------------------------------------


def test_a_new_log_is_empty_and_begins_at_the_first_offset() -> None:
    log = opened(MemoryDisk())
    assert (log.log_start_offset, log.log_end_offset, log.writer.synced_end) == (0, 0, 0)
    assert (len(log.reader.segments), log.reader.size, log.reader.last_epoch, log.reader.last_timestamp) == (
        1,
        0,
        0,
        0,
    )
    assert not log.writer.dirty
    assert log.reader.read(Offset(0), 1000, Offset(0)) == b""


def test_a_log_in_nested_directories_is_created_durably() -> None:
    disk = MemoryDisk()
    Log.open(disk, "streams/orders/1", LogConfig(), NOW).close()
    assert disk.power_loss(nothing_survives).exists("streams/orders/1/00000000000000000000.arrows")


def test_everything_is_there_after_a_clean_close() -> None:
    disk = MemoryDisk()
    filled(disk, 7).close()
    log = opened(disk, SMALL)
    assert log.recovery.clean
    assert log.recovery.problems == ()
    assert log.recovery.scanned_bytes == 0
    assert stored_values(log) == {offset: b"%d" % offset for offset in range(7)}
    assert log.reader.last_timestamp == NOW + 6


def test_only_what_the_index_does_not_cover_is_read_at_open() -> None:
    disk = MemoryDisk()
    log = filled(disk, 4)
    log.checkpoint()
    append(log, [b"4"], NOW + 4)
    log.writer.sync()
    size = log.reader.segments[-1].size
    again = opened(disk.power_loss(everything_survives), SMALL)
    assert not again.recovery.clean
    assert 0 < again.recovery.scanned_bytes < size + 1
    assert len(stored_values(again)) == 5


def test_a_closed_log_takes_and_plans_nothing_more() -> None:
    log = filled(MemoryDisk(), 3)
    file_range = log.reader.plan_read(Offset(0), 1, log.log_end_offset)
    log.close()
    with pytest.raises(StreamOffline, match="closed"):
        append(log, [b"more"])
    with pytest.raises(UnavailableError):
        file_range.segment.acquire()


def test_closing_twice_leaves_the_leases_of_readers_alone() -> None:
    log = filled(MemoryDisk(), 1)
    segment = log.reader.segments[-1]
    with segment.leased() as file:
        log.close()
        log.close()
        assert file.read(0, 8) == SCHEMA_MESSAGE[:8]
    assert not segment.is_open


def test_an_open_that_fails_leaves_no_file_open() -> None:
    pristine = MemoryDisk()
    log = filled(pristine, 3)
    append(log, [b"torn"], NOW + 3)
    found = pristine.power_loss(everything_survives)
    counted = found.power_loss(everything_survives)
    opened(counted, SMALL)
    for number in range(1, counted.calls + 1):
        disk = found.power_loss(everything_survives)
        disk.faults[number] = Fault(FaultKind.IO_ERROR)
        with pytest.raises(StorageError):
            opened(disk, SMALL)
        assert disk.open_files == 0
        disk.faults.clear()
        assert len(stored_values(opened(disk, SMALL))) == 4


def test_a_deleted_log_is_gone_and_deleting_again_is_no_error() -> None:
    disk = MemoryDisk()
    filled(disk, 3).close()
    Log.delete(disk, DIRECTORY)
    Log.delete(disk, DIRECTORY)
    found = disk.power_loss(nothing_survives)
    assert found.listdir("") == []
    assert opened(found).log_end_offset == 0


def test_a_log_is_deleted_whole_or_not_at_all() -> None:
    pristine = MemoryDisk()
    filled(pristine, 3).close()
    counted = pristine.power_loss(nothing_survives)
    Log.delete(counted, DIRECTORY)
    for number in range(1, counted.calls + 1):
        disk = pristine.power_loss(nothing_survives)
        disk.faults[number] = Fault(FaultKind.POWER_LOSS)
        with pytest.raises(PowerLostError):
            Log.delete(disk, DIRECTORY)
        found = disk.power_loss(nothing_survives)
        assert len(stored_values(opened(found, SMALL))) in (0, 3)
        Log.delete(found, DIRECTORY)
        assert found.listdir("") == []


# --- appending -------------------------------------------------------------------------------------------


def test_the_first_batch_of_a_segment_rolls_and_the_first_after_a_sync_starts_a_group() -> None:
    disk = MemoryDisk()
    log = begun(disk, SMALL)
    for synced in (True, False, True, False, False):
        append(log, [b"x"])
        if synced:
            log.writer.sync()
    start, roll, none = BatchFlags.GROUP_START, BatchFlags.ROLL, BatchFlags(0)
    assert flags_of(log) == [roll | start, start, roll | start, start, roll | start]
    append(log, [b"x"])
    assert flags_of(log)[-1] == none, "the batch before it was not synced"


def test_several_batches_are_written_with_one_call() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    calls = disk.calls
    records = values_batch([b"x" * (3 << 20)] * 6)
    batches = encode_group(records, Offset(0), log.reader.last_epoch)
    assert len(batches) == 3
    log.writer.append_group(batches, NOW)
    assert disk.trace[calls:] == [f"write {DIRECTORY}/{0:020d}.arrows"]
    assert log.log_end_offset == 6
    first = BatchFlags.ROLL | BatchFlags.GROUP_START
    assert flags_of(log) == [first, BatchFlags(0), BatchFlags(0)]


def test_a_batch_must_begin_at_the_log_end_in_the_current_epoch() -> None:
    log = filled(MemoryDisk(), 2)
    batch = batch_for(log, [b"x"])
    log.writer.append_group((batch,), NOW)
    with pytest.raises(AssertionError, match="L4"):
        log.writer.append_group((batch,), NOW)
    stale = batch_for(log, [b"x"])
    log.writer.begin_epoch(LeaderEpoch(2), NOW)
    with pytest.raises(AssertionError, match="L4"):
        log.writer.append_group((stale,), NOW)


def test_a_full_disk_refuses_the_batch_and_the_log_goes_on_when_there_is_space() -> None:
    disk = MemoryDisk()
    log = filled(disk, 3, LogConfig())
    size = log.reader.size
    disk.capacity_bytes = 100 + sum(
        len(file_content(disk, f"{DIRECTORY}/{name}")) for name in disk.listdir(DIRECTORY)
    )
    for _ in range(2):
        with pytest.raises(DiskFull):
            append(log, [b"refused"])
    assert (log.failed, log.log_end_offset, log.reader.size) == (None, 3, size)
    disk.capacity_bytes = None
    append(log, [b"stored"])
    log.writer.sync()
    found = opened(disk.power_loss(nothing_survives))
    assert stored_values(found) == {0: b"0", 1: b"1", 2: b"2", 3: b"stored"}


def test_a_disk_too_full_to_begin_a_segment_refuses_until_there_is_space() -> None:
    disk = MemoryDisk()
    log = filled(disk, 2)
    disk.capacity_bytes = disk.free_bytes() and 5100
    while True:
        try:
            append(log, [b"fill"])
        except DiskFull:
            break
    end = log.log_end_offset
    with pytest.raises(DiskFull):
        append(log, [b"refused"])
    disk.capacity_bytes = None
    append(log, [b"stored"])
    log.close()
    assert stored_values(opened(disk, SMALL))[end] == b"stored"


# --- rolling ---------------------------------------------------------------------------------------------


def test_a_segment_rolls_before_it_exceeds_its_bytes() -> None:
    log = filled(MemoryDisk(), 5)
    assert [segment.base for segment in log.reader.segments] == [0, 2, 4]
    assert all(segment.size <= SMALL.segment_bytes + len(END_OF_STREAM) for segment in log.reader.segments)


def test_a_batch_larger_than_a_segment_has_one_for_itself() -> None:
    log = begun(MemoryDisk(), SMALL)
    for size in (1, 5000, 1):
        append(log, [b"x" * size])
    assert [segment.base for segment in log.reader.segments] == [0, 1, 2]


def test_a_segment_rolls_when_its_first_record_is_too_old() -> None:
    log = begun(MemoryDisk(), LogConfig(segment_age_us=1000))
    for later in (0, 999, 1000, 1500):
        append(log, [b"x"], NOW + later)
    assert [segment.base for segment in log.reader.segments] == [0, 2]


def test_the_age_of_a_segment_survives_a_restart() -> None:
    disk = MemoryDisk()
    config = LogConfig(segment_age_us=1000)
    log = begun(disk, config)
    append(log, [b"x"], NOW)
    log.close()
    log = begun(disk, config)
    append(log, [b"y"], NOW + 1000)
    assert len(log.reader.segments) == 2


def test_a_sealed_segment_is_a_whole_arrow_stream_for_any_reader() -> None:
    disk = MemoryDisk()
    log = filled(disk, 5)
    for segment, values in zip(log.reader.segments[:-1], ([b"0", b"1"], [b"2", b"3"]), strict=True):
        content = file_content(disk, segment.path)
        assert content.startswith(SCHEMA_MESSAGE)
        assert content.endswith(END_OF_STREAM)
        table = pa.ipc.open_stream(content).read_all()
        assert table.column("value").to_pylist() == values


# --- durability ------------------------------------------------------------------------------------------


def test_only_synced_records_count_where_every_record_is_synced() -> None:
    log = filled(MemoryDisk(), 2)
    append(log, [b"more"])
    assert (log.writer.synced_end, log.log_end_offset, log.writer.dirty) == (2, 3, True)
    log.writer.sync()
    assert (log.writer.synced_end, log.writer.dirty) == (3, False)


@pytest.mark.parametrize("mode", [SyncMode.INTERVAL, SyncMode.OS])
def test_appended_records_count_in_the_weaker_modes(mode: SyncMode) -> None:
    log = begun(MemoryDisk(), LogConfig(sync=mode))
    append(log, [b"more"])
    assert (log.writer.synced_end, log.writer.durable_end, log.writer.dirty) == (1, 0, True)


def test_a_clean_sync_asks_nothing_of_the_disk() -> None:
    disk = MemoryDisk()
    log = filled(disk, 2)
    calls = disk.calls
    log.writer.sync()
    assert disk.calls == calls


def test_appending_and_syncing_cost_one_call_each() -> None:
    disk = MemoryDisk()
    log = filled(disk, 2, LogConfig())
    calls = disk.calls
    append(log, [b"x"])
    log.writer.sync()
    assert [call.split()[0] for call in disk.trace[calls:]] == ["write", "sync"]


def test_a_process_that_is_killed_loses_nothing_that_was_written() -> None:
    disk = MemoryDisk()
    log = filled(disk, 2)
    append(log, [b"unsynced"])
    assert len(stored_values(opened(disk.power_loss(everything_survives), SMALL))) == 3


# --- epochs ----------------------------------------------------------------------------------------------


def test_epochs_are_durable_when_begun_even_without_records() -> None:
    disk = MemoryDisk()
    log = filled(disk, 3)
    for epoch in (2, 5):
        log.writer.begin_epoch(LeaderEpoch(epoch), NOW)
    found = opened(disk.power_loss(nothing_survives), SMALL)
    assert found.reader.last_epoch == 5
    assert [
        found.reader.epochs.end_of(LeaderEpoch(epoch), found.log_end_offset) for epoch in (1, 2, 3, 5)
    ] == [3, 3, None, 3]
    assert (found.reader.epoch_at(Offset(2)), found.reader.epoch_at(Offset(3))) == (1, 5)


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_an_epoch_that_is_not_newer_is_refused(epoch: int) -> None:
    log = filled(MemoryDisk(), 1)
    log.writer.begin_epoch(LeaderEpoch(2), NOW)
    with pytest.raises(StorageError):
        log.writer.begin_epoch(LeaderEpoch(epoch), NOW)
    assert log.failed is None


def test_epochs_are_derived_from_the_batches_if_their_file_is_gone() -> None:
    disk = MemoryDisk()
    log = filled(disk, 3)
    log.writer.begin_epoch(LeaderEpoch(4), NOW)
    append(log, [b"x"])
    log.close()
    disk.unlink(f"{DIRECTORY}/epochs")
    found = opened(disk, SMALL)
    assert [(entry.epoch, entry.start) for entry in found.reader.epochs.starts] == [(1, 0), (4, 3)]
    assert found.recovery.problems
