"""A log whose time falls: an operator has let it go on from the clock, which it was ahead of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import CorruptDataError
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import decode, iter_frames, verified_batches
from jetstream.log.inspection import inspect_stream
from jetstream.log.log import Log, LogConfig
from jetstream.log.rewriting.compaction_plan import cleanable
from jetstream.log.rewriting.rewrite_plan import is_waiting
from jetstream.log.segments.log_config import CompactionConfig
from tests.support.logs import DIRECTORY, NOW, append, batch_for, begun, opened
from tests.support.memory_disk import MemoryDisk, everything_survives

YEAR = 365 * 24 * 3_600_000_000
SECOND = 1_000_000


def log_of(times: list[int], config: LogConfig | None = None) -> Log:
    """Return a log of one record a batch, from these times, which may fall."""
    log = begun(MemoryDisk(), config)
    for number, time in enumerate(times):
        append(log, [b"%d" % number], time)
    log.writer.sync()
    return log


def frames_of(log: Log) -> bytes:
    found = b""
    for segment in log.reader.segments:
        if segment.base < segment.next:
            found += bytes(log.reader.read(segment.base, 1 << 20, segment.next))
    return found


AHEAD = [NOW, NOW + YEAR, NOW + YEAR, NOW + 9, NOW + 10]


def test_a_batch_whose_time_falls_begins_a_segment() -> None:
    log = log_of(AHEAD)
    assert [segment.base for segment in log.reader.segments] == [0, 3]
    assert log.reader.last_timestamp == NOW + 10
    found = inspect_stream(log._disk, DIRECTORY)
    assert found.problems == ()


def test_the_fallen_time_is_that_of_the_log_after_a_restart() -> None:
    log = log_of(AHEAD)
    assert isinstance(log._disk, MemoryDisk)
    again = opened(log._disk.power_loss(everything_survives), full=True)
    assert (again.log_end_offset, again.reader.last_timestamp) == (5, NOW + 10)
    assert again.reader.corrupt_ranges == ()
    append(again, [b"5"], NOW + 11)
    assert again.reader.last_timestamp == NOW + 11


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(0, 10))
def test_the_first_record_in_log_order_that_reaches_a_time_is_found(times: list[int], wanted: int) -> None:
    log = log_of([NOW + time for time in times])
    first = next((offset for offset, time in enumerate(times) if time >= wanted), len(times))
    assert log.reader.offset_for_timestamp(TimestampUs(NOW + wanted)) == first


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_a_follower_takes_over_falls_with_their_segments(times: list[int]) -> None:
    leader, follower = log_of([NOW + time for time in times]), opened(MemoryDisk())
    frames = iter_frames(frames_of(leader))
    follower.writer.append_sealed([(decode(frame)[0], frame) for frame in frames], NOW)
    assert [segment.base for segment in follower.reader.segments] == [
        segment.base for segment in leader.reader.segments
    ]
    assert follower.reader.last_timestamp == leader.reader.last_timestamp == NOW + times[-1]


def test_a_time_that_falls_within_a_segment_is_no_leaders() -> None:
    ahead, now = log_of([NOW + YEAR]), log_of([NOW, NOW])
    follower = opened(MemoryDisk())
    follower.writer.append_sealed(verified_batches(frames_of(ahead)), NOW)
    _, (header, frame) = verified_batches(frames_of(now))
    with pytest.raises(CorruptDataError, match="does not follow"):
        follower.writer.append_sealed([(header, frame)], NOW)
    assert follower.log_end_offset == 1


def test_a_fall_into_an_empty_segment_needs_no_other() -> None:
    log = log_of([NOW + YEAR])
    log.writer.roll()
    append(log, [b"1"], NOW)
    assert [segment.base for segment in log.reader.segments] == [0, 1]
    assert log.reader.last_timestamp == NOW


def test_a_segment_that_began_ahead_of_the_clock_ages_from_its_first_append() -> None:
    log = begun(MemoryDisk(), LogConfig(segment_age_us=10 * SECOND))
    for later in (0, 9, 10, 11):
        batch = batch_for(log, [b"x"], NOW + YEAR)
        log.writer.append_group((batch,), TimestampUs(NOW + later * SECOND))
    assert [segment.base for segment in log.reader.segments] == [0, 2]


EAGER = CompactionConfig(dirty_ratio=0.0, age_us=1, tombstone_retention_us=1, lag_us=SECOND)


def test_segments_from_before_a_fall_are_cleaned_and_merged_when_those_behind_are_old_enough() -> None:
    log = log_of([NOW + YEAR, NOW, NOW + YEAR, NOW + 2, NOW + SECOND + 1])
    segments = log.reader.segments
    assert [segment.base for segment in segments] == [0, 1, 3]
    assert cleanable(segments, Offset(5), EAGER) == ()
    append(log, [b"5"], NOW + 2 * SECOND + 2)
    log.writer.roll()
    append(log, [b"6"], NOW + 3 * SECOND + 3)
    cleaned = cleanable(log.reader.segments, Offset(7), EAGER)
    assert [segment.base for segment in cleaned] == [0, 1, 3]
    assert is_waiting(log.reader.segments, Offset(0), TimestampUs(NOW + 4 * SECOND))
    assert not is_waiting(log.reader.segments, Offset(0), TimestampUs(NOW - 1))


def test_a_new_leader_goes_on_from_the_time_of_its_own_log() -> None:
    """One that has the first batch behind the fall has its time; one that has not is ahead as before."""
    for count, time in ((3, NOW + YEAR), (4, NOW + 9)):
        follower = opened(MemoryDisk())
        batches = verified_batches(frames_of(log_of(AHEAD)))[:count]
        follower.writer.append_sealed(batches, NOW)
        follower.writer.begin_epoch(LeaderEpoch(2), NOW)
        assert follower.reader.last_timestamp == time
        append(follower, [b"next"])
        assert follower.reader.last_timestamp == max(time, NOW)
