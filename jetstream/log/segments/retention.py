"""The decision which old segments the configuration no longer keeps; pure."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Protocol

from envelope.limits import SEGMENT_BYTES_MIN
from envelope.types import Offset, TimestampUs
from jetstream.log.segments.log_config import LogConfig

TIME_AHEAD_US: Final = 5_000_000
"""A timestamp that is further ahead of the clock is not believed."""
_EARLY_SEGMENTS_MAX: Final = 64
"""So many segments at most are begun early for the bytes of one: 4 MiB each by default."""


class Retained(Protocol):
    """A segment in the log or in the object store, as retention sees it."""

    @property
    def base(self) -> Offset:
        """Its first offset."""

    @property
    def next(self) -> Offset:
        """The offset after its last one."""

    @property
    def size(self) -> int:
        """Its length in bytes."""

    @property
    def max_timestamp(self) -> TimestampUs:
        """Largest timestamp of its records."""

    @property
    def written_at(self) -> TimestampUs | None:
        """When its file was last written, where that has been looked up."""

    @property
    def damages(self) -> Sequence[object]:
        """Its parts that cannot be read."""


def retained_start(
    segments: Sequence[Retained], high_watermark: Offset, now: TimestampUs, config: LogConfig
) -> Offset:
    """Return the base of the first segment to keep.

    The oldest segment goes if its newest record is older than the age, or if the rest still holds the bytes
    or the records to keep and that record is older than the lag, and only if all of it is committed. The
    last one, being written, always stays.
    """
    start = segments[0].base
    rest_bytes = sum(segment.size for segment in segments)
    log_end_offset = segments[-1].next
    times = record_times(segments, now)
    lag_from = max(now, times[-1] or now)  # the time to go by may be held back
    for segment, newest_at in zip(segments[:-1], times, strict=False):
        rest_bytes -= segment.size
        rest_messages = log_end_offset - segment.next
        if segment.next > high_watermark or not (
            is_expired(newest_at, now, config)
            or (
                _is_enough(rest_bytes, rest_messages, config)
                and not _is_young(newest_at, lag_from, config.retention_lag_us)
            )
        ):
            break
        start = segment.next
    return start


def record_times(segments: Sequence[Retained], now: TimestampUs) -> list[TimestampUs | None]:
    """Return upper bounds of the times at which the segments' newest records came; None: damage hides it.

    A timestamp ahead of the clock is of a clock that was wrong. Its record is not newer than its file, nor
    than the records behind it.
    """
    times = [_newest_at(segment, following) for segment, following in pairwise(segments)]
    times.append(segments[-1].max_timestamp)
    if not any(is_ahead(time, now) for time in times):
        return times
    behind: TimestampUs | None = None
    for row in reversed(range(len(times))):
        time = times[row]
        if is_ahead(time, now):
            bounds = (time, segments[row].written_at, behind)
            times[row] = min(bound for bound in bounds if bound is not None)
        behind = times[row] or behind
    return times


def is_ahead(timestamp: TimestampUs | None, now: TimestampUs) -> bool:
    """Return whether a timestamp is so far ahead of the clock that one of the two is wrong."""
    return timestamp is not None and timestamp > now + TIME_AHEAD_US


def is_overfull(active: Retained, config: LogConfig) -> bool:
    """Return whether the active segment alone holds all that is to be kept, and is worth sealing.

    Sealed, it goes as soon as what follows is enough; otherwise only once it has grown to the size of a
    segment, and as much again has come.
    """
    is_enough = _is_enough(active.size, active.next - active.base, config)
    return is_enough and is_worth_sealing(active.size, config)


def is_worth_sealing(size: int, config: LogConfig) -> bool:
    """Return whether ``size`` bytes that are to go make it worth to begin a segment before it is due."""
    return size >= max(SEGMENT_BYTES_MIN, config.segment_bytes // _EARLY_SEGMENTS_MAX)


def is_expired(newest_at: TimestampUs | None, now: TimestampUs, config: LogConfig) -> bool:
    """Return whether records whose newest is from ``newest_at`` are older than the age to keep."""
    if config.retention_age_us is None or newest_at is None:
        return False
    return newest_at < now - config.retention_age_us


def _is_enough(rest_bytes: int, rest_messages: int, config: LogConfig) -> bool:
    return (config.retention_bytes is not None and rest_bytes >= config.retention_bytes) or (
        config.retention_messages is not None and rest_messages >= config.retention_messages
    )


def _is_young(newest_at: TimestampUs | None, now: TimestampUs, lag_us: int) -> bool:
    return lag_us > 0 and (newest_at is None or newest_at >= now - lag_us)


def _newest_at(segment: Retained, following: Retained) -> TimestampUs | None:
    """Return an upper bound of the times of ``segment``'s records; None if damage hides it."""
    if not segment.damages:
        return segment.max_timestamp
    return following.max_timestamp or None
