"""Retention of records whose timestamps are ahead of the clock."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from envelope.types import Offset, TimestampUs
from jetstream.log.segments.log_config import LogConfig
from jetstream.log.segments.retention import TIME_AHEAD_US, record_times, retained_start
from tests.support.logs import NOW, SMALL, append, begun
from tests.support.memory_disk import MemoryDisk

AGE = 60_000_000
YEAR = 365 * 24 * 3_600_000_000
BY_AGE = replace(SMALL, retention_age_us=AGE)


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment as retention sees it."""

    base: Offset
    max_timestamp: TimestampUs
    written_at: TimestampUs | None = None
    size: int = 100
    damages: tuple[()] = ()

    @property
    def next(self) -> Offset:
        return Offset(self.base + 1)


def stored(*times: tuple[int, int | None]) -> list[StoredSegment]:
    return [
        StoredSegment(Offset(base), TimestampUs(time), None if written is None else TimestampUs(written))
        for base, (time, written) in enumerate(times)
    ]


def test_segments_that_were_written_after_a_jump_expire_by_their_files() -> None:
    """The clock was ahead for a moment and is right again: the times of all records behind stand still."""
    ahead = NOW + YEAR
    segments = stored((NOW, None), (ahead, ahead), (ahead, NOW + 1), (ahead, NOW + 2), (ahead, NOW + AGE))
    rules = LogConfig(retention_age_us=AGE)
    starts = [
        retained_start(segments, Offset(5), TimestampUs(NOW + AGE + later), rules) for later in range(4)
    ]
    assert starts == [0, 1, 3, 4], "the one that was written while it was ahead goes with the next one"


def test_a_file_from_before_its_records_times_proves_nothing_once_the_clock_has_reached_them() -> None:
    """The clock was behind, at its epoch, as the file was written: the records go by their own time."""
    segments = stored((NOW, 5), (NOW, 5))
    assert record_times(segments, TimestampUs(NOW + 1)) == [NOW, NOW]


@given(
    st.lists(st.tuples(st.integers(1, 30), st.none() | st.integers(1, 30)), min_size=1, max_size=8),
    st.integers(1, 30),
)
def test_times_are_bounded_by_files_and_by_records_behind_only_if_they_are_ahead(
    seconds: list[tuple[int, int | None]], now_s: int
) -> None:
    second = 1_000_000
    segments = stored(*((time * second, None if file is None else file * second) for time, file in seconds))
    now = TimestampUs(now_s * second)
    times = record_times(segments, now)
    for row, (segment, time) in enumerate(zip(segments, times, strict=True)):
        assert time is not None
        if segment.max_timestamp <= now + TIME_AHEAD_US:
            assert time == segment.max_timestamp
        else:
            files = [each.written_at for each in segments[row:] if each.written_at is not None]
            assert time <= segment.max_timestamp
            behind = [each for each in times[row + 1 :] if each is not None]
            assert time >= min([segment.max_timestamp, *files, *behind])
            assert not behind or time <= behind[0]


def test_retention_by_bytes_waits_for_its_lag_alone_while_the_time_to_go_by_is_held_back() -> None:
    minute = 60_000_000
    segments = stored(*((NOW + YEAR + row * minute, None) for row in range(6)))
    rules = LogConfig(retention_bytes=100, retention_lag_us=2 * minute)
    assert retained_start(segments, Offset(6), TimestampUs(NOW), rules) == 3


def test_a_log_in_which_time_stands_still_loses_what_is_too_old_all_the_same() -> None:
    disk = MemoryDisk()
    log = begun(disk, BY_AGE)
    ahead = NOW + YEAR
    for second in range(6):
        disk.wall_us = NOW + second * 1_000_000
        append(log, [b"%d" % second], ahead)
    log.writer.sync()
    assert [segment.base for segment in log.reader.segments] == [0, 2, 4]
    log.apply_retention(TimestampUs(NOW + AGE), Offset(6))
    assert log.log_start_offset == 0
    log.apply_retention(TimestampUs(NOW + AGE + 2_000_001), Offset(6))
    assert log.log_start_offset == 2
    log.apply_retention(TimestampUs(NOW + 2 * AGE), Offset(6))
    assert (log.log_start_offset, log.reader.size) == (6, 0)
