"""The decision which sealed segments get their small batches merged; pure.

Oldest first: they are sealed, cold, committed, and on the disk of every replica. Each is looked at once: up
to the recorded `rewritten_end` all is done, whether it paid or not, or is damaged. A segment that is cut,
or that compaction puts in the place of another, is looked at again.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from envelope.limits import KIB
from envelope.types import Offset, TimestampUs
from jetstream.log.segments.index import BatchIndex
from jetstream.log.segments.segment import Segment, newest_in

SMALL_BATCH_BYTES: Final = 64 * KIB
"""Segments with larger batches, in the mean, stay: merging them would save next to nothing."""
SAVED_MIN: Final = 0.1
"""A replacement is put in place only if it is smaller by this part."""


@dataclass(frozen=True, slots=True)
class RewriteBounds:
    """The bounds of the rewrite that come from outside of the log.

    Attributes:
        high_watermark: only committed records are rewritten.
        min_synced_end: every replica has the records below on disk.
        now: wall clock.
    """

    high_watermark: Offset
    min_synced_end: Offset
    now: TimestampUs


def is_waiting(segments: Sequence[Segment], looked_at_end: Offset, cold_end: TimestampUs) -> bool:
    """Return whether a segment is to be looked at, all of whose records are at or before ``cold_end``.

    Called for every stream all the time; nearly always nothing is due.
    """
    row = _first_after(segments, looked_at_end)
    return row < len(segments) - 1 and newest_in(segments, segments[row]) <= cold_end


def due_segments(
    segments: Sequence[Segment], looked_at_end: Offset, bounds: RewriteBounds, after_us: int
) -> tuple[Segment, ...]:
    """Return the segments to look at now, oldest first; never the last one.

    Args:
        segments: of the log.
        looked_at_end: everything below has been looked at.
        bounds: of the rewrite.
        after_us: least age of a segment's newest record.
    """
    found: list[Segment] = []
    end = min(bounds.high_watermark, bounds.min_synced_end)
    for segment in segments[_first_after(segments, looked_at_end) : -1]:
        is_cold = newest_in(segments, segment) <= bounds.now - after_us
        if not (segment.sealed and is_cold and segment.next <= end):
            break
        found.append(segment)
    return tuple(found)


def _first_after(segments: Sequence[Segment], offset: Offset) -> int:
    return bisect_right(segments, offset, key=lambda segment: segment.next)


def may_pay(index: BatchIndex) -> bool:
    """Return whether a segment with these batches is likely to become smaller by merging them."""
    batches, epochs = len(index), len(set(index.epochs))
    return batches >= 2 * epochs and sum(index.lengths) < batches * SMALL_BATCH_BYTES


def has_paid(size_before: int, size_after: int) -> bool:
    """Return whether a replacement is enough smaller to be put in place."""
    return size_after <= size_before * (1 - SAVED_MIN)
