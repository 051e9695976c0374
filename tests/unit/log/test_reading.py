"""From an offset or a time to bytes."""

import pyarrow as pa
import pytest

from envelope.errors import CorruptDataError, OffsetOutOfRange
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import decode, encode_group, iter_frames
from jetstream.log.format.schema import SCHEMA_MESSAGE
from jetstream.log.log import LogConfig
from jetstream.log.reader import IndexUnloaded
from jetstream.log.segments.loaded_indexes import LOADED_MAX
from tests.support.logs import (
    NOW,
    SMALL,
    append,
    begun,
    file_content,
    filled,
    flipped,
    opened,
    overwrite,
    stored_values,
    values_batch,
)
from tests.support.memory_disk import MemoryDisk

# --- reading ---------------------------------------------------------------------------------------------


def test_a_read_returns_whole_batches_of_one_segment() -> None:
    log = filled(MemoryDisk(), 5)
    file_range = log.reader.plan_read(Offset(0), 1 << 20, Offset(5))
    assert (file_range.base, file_range.next) == (0, 2)
    assert file_range.position == len(SCHEMA_MESSAGE)
    assert log.reader.plan_read(Offset(1), 1 << 20, Offset(5)).base == 1


def test_a_read_returns_at_least_one_batch_and_no_more_than_fit() -> None:
    log = filled(MemoryDisk(), 6, LogConfig())
    one = log.reader.plan_read(Offset(2), 1, Offset(6))
    assert (one.base, one.next) == (2, 3)
    assert log.reader.plan_read(Offset(2), 2 * one.length, Offset(6)).next == 4
    assert log.reader.plan_read(Offset(2), 3 * one.length - 1, Offset(6)).next == 4


def test_a_read_never_passes_the_end_it_was_given() -> None:
    log = begun(MemoryDisk())
    append(log, [b"a", b"b"])
    append(log, [b"c", b"d"])
    assert log.reader.plan_read(Offset(0), 1 << 20, Offset(2)).next == 2
    assert log.reader.plan_read(Offset(0), 1 << 20, Offset(3)).next == 2
    assert log.reader.plan_read(Offset(0), 1 << 20, Offset(1)).length == 0
    assert log.reader.plan_read(Offset(3), 1 << 20, Offset(3)).length == 0


def test_a_read_stops_where_the_epoch_changes() -> None:
    log = filled(MemoryDisk(), 2, LogConfig())
    log.writer.begin_epoch(LeaderEpoch(2), NOW)
    append(log, [b"2"])
    first = log.reader.plan_read(Offset(0), 1 << 20, Offset(3))
    second = log.reader.plan_read(first.next, 1 << 20, Offset(3))
    assert (first.next, first.leader_epoch, second.leader_epoch) == (2, 1, 2)


def test_a_read_from_inside_a_batch_begins_with_the_batch() -> None:
    log = begun(MemoryDisk())
    append(log, [b"a", b"b", b"c"])
    frames = list(iter_frames(log.reader.read(Offset(2), 1, Offset(3))))
    assert decode(frames[0])[0].base == 0


@pytest.mark.parametrize("offset", [1, 6, 100])
def test_an_offset_outside_the_log_is_told_with_the_bounds(offset: int) -> None:
    log = filled(MemoryDisk(), 5)
    log.truncate_before(Offset(2), Offset(5))
    with pytest.raises(OffsetOutOfRange) as raised:
        log.reader.read(Offset(offset), 1000, Offset(5))
    assert raised.value.detail == {"offset": offset, "log_start_offset": 2, "log_end_offset": 5}


def test_what_this_process_wrote_is_not_checked_again_and_the_rest_once() -> None:
    disk = MemoryDisk()
    log = filled(disk, 5)
    calls = disk.calls
    log.reader.verify_range(log.reader.plan_read(Offset(4), 1 << 20, Offset(5)))
    assert disk.calls == calls
    log.close()
    log = opened(disk, SMALL)
    file_range = log.reader.plan_read(Offset(4), 1 << 20, Offset(5))
    reads = [call for call in disk.trace if call.startswith("read")]
    log.reader.verify_range(file_range)
    log.reader.verify_range(file_range)
    assert len([call for call in disk.trace if call.startswith("read")]) == len(reads) + 1


def test_many_sealed_segments_are_opened_by_their_index_headers_and_loaded_when_read() -> None:
    disk = MemoryDisk()
    filled(disk, 60).close()
    calls = disk.calls
    log = opened(disk, SMALL)
    assert len(log.reader.segments) == 30
    read = {call.split()[1] for call in disk.trace[calls:] if call.startswith("read")}
    assert {path for path in read if path.endswith(".arrows")} == {log.reader.segments[-1].path}
    assert len(stored_values(log)) == 60
    loaded = [segment for segment in log.reader.segments if segment.index is not None]
    assert len(loaded) <= LOADED_MAX + 1
    assert disk.open_files == 1, "the active segment, by the writer"


def test_the_time_of_a_record_is_told_without_reading_any_file() -> None:
    disk = MemoryDisk()
    filled(disk, 60).close()
    log = opened(disk, SMALL)
    log.reader.plan_read(Offset(10), 1, Offset(60))
    calls = disk.calls
    told = {offset: log.reader.newest_time_at(Offset(offset)) - NOW for offset in (4, 10, 11, 59, 60)}
    assert told == {4: 5, 10: 10, 11: 11, 59: 59, 60: 59}, "of the segment, where its index is not in memory"
    assert disk.calls == calls
    log.truncate_before(Offset(20), Offset(60))
    calls = disk.calls
    assert log.reader.newest_time_at(Offset(4)) - NOW in (20, 21)
    assert disk.calls == calls


def test_the_time_of_a_damaged_record_is_that_of_its_segment() -> None:
    disk = MemoryDisk()
    log = filled(disk, 5)
    place = log.reader.locate(Offset(1))
    log.close()
    path = place.segment.path
    overwrite(disk, path, flipped(file_content(disk, path), place.entry.position + 200, 0))
    disk.unlink(place.segment.index_path)
    log = opened(disk, SMALL)
    with pytest.raises(CorruptDataError):
        log.reader.locate(Offset(1))
    assert [log.reader.newest_time_at(Offset(offset)) - NOW for offset in (0, 1)] == [0, 0]


def test_a_read_can_be_planned_without_reading_any_file_or_not_at_all() -> None:
    disk = MemoryDisk()
    filled(disk, 60).close()
    log = opened(disk, SMALL)
    calls = disk.calls
    with pytest.raises(IndexUnloaded):
        log.reader.plan_read(Offset(0), 1 << 20, Offset(60), load=False)
    assert log.reader.plan_read(Offset(59), 1 << 20, Offset(60), load=False).next == 60, (
        "the active segment's is loaded"
    )
    assert disk.calls == calls
    loaded = log.reader.plan_read(Offset(0), 1 << 20, Offset(60))
    calls = disk.calls
    assert log.reader.plan_read(Offset(0), 1 << 20, Offset(60), load=False) == loaded
    assert disk.calls == calls


def test_the_indexes_of_segments_that_were_just_written_do_not_stay_in_memory_either() -> None:
    log = filled(MemoryDisk(), 60)
    assert len(log.reader.segments) == 30
    assert sum(segment.index is not None for segment in log.reader.segments) == LOADED_MAX + 1
    assert len(stored_values(log)) == 60
    assert log.reader.plan_read(Offset(0), 1 << 20, Offset(60)).is_verified, "written by this process"


def test_what_was_verified_stays_so_when_its_index_leaves_memory() -> None:
    disk = MemoryDisk()
    filled(disk, 60).close()
    log = opened(disk, SMALL)
    assert len(stored_values(log)) == 60
    assert log.reader.segments[0].index is None, "others were read since"
    file_range = log.reader.plan_read(Offset(0), 1 << 20, Offset(60))
    assert file_range.is_verified
    calls = disk.calls
    log.reader.verify_range(file_range)
    assert disk.calls == calls


def test_verifying_a_range_does_not_depend_on_its_index_still_being_in_memory() -> None:
    disk = MemoryDisk()
    filled(disk, 60).close()
    log = opened(disk, SMALL)
    file_range = log.reader.plan_read(Offset(0), 1 << 20, Offset(60))
    for offset in range(2, 40):
        log.reader.locate(Offset(offset))
    assert file_range.segment.index is None
    before = file_range.is_verified
    log.reader.verify_range(file_range)
    assert (before, file_range.is_verified) == (False, True)
    assert file_range.segment.index is None, "or nobody would count it among those in memory"


@pytest.mark.parametrize(
    ("timestamp", "offset"), [(0, 0), (NOW, 0), (NOW + 1, 2), (NOW + 10, 2), (NOW + 11, 4), (NOW + 21, 6)]
)
def test_a_time_is_found_at_its_first_record(timestamp: int, offset: int) -> None:
    log = begun(MemoryDisk(), SMALL)
    for later in (0, 10, 20):
        append(log, [b"a" * 400, b"b" * 400], NOW + later)
    assert len(log.reader.segments) == 3
    assert log.reader.offset_for_timestamp(TimestampUs(timestamp)) == offset


def test_a_time_is_found_inside_a_batch() -> None:
    log = begun(MemoryDisk())
    rows = [values_batch([b"x"], row, NOW + row) for row in range(5)]
    table = pa.Table.from_batches(rows).combine_chunks().to_batches()[0]
    log.writer.append_group(encode_group(table, Offset(0), log.reader.last_epoch), NOW)
    assert [log.reader.offset_for_timestamp(TimestampUs(NOW + row)) for row in range(6)] == [0, 1, 2, 3, 4, 5]


def test_a_time_below_the_log_start_is_found_at_the_start() -> None:
    log = filled(MemoryDisk(), 5)
    log.truncate_before(Offset(3), Offset(5))
    assert log.reader.offset_for_timestamp(TimestampUs(0)) == 3
    assert opened(MemoryDisk()).reader.offset_for_timestamp(TimestampUs(0)) == 0


def test_a_time_that_may_lie_in_damage_leads_to_the_damage() -> None:
    disk = MemoryDisk()
    log = filled(disk, 3, LogConfig())
    entry = log.reader.segments[0].load_index()[1]
    log.close()
    file = disk.open(log.reader.segments[0].path)
    file.write([bytes(50)], entry.position + 100)
    file.close()
    found = opened(disk, full=True)
    assert found.reader.offset_for_timestamp(TimestampUs(NOW + 2)) == 1
    with pytest.raises(CorruptDataError):
        found.reader.read(Offset(1), 1, Offset(3))
