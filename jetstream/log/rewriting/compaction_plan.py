"""The decision which segments compaction cleans next, if any; pure.

The oldest segments are cleaned, as far as they are sealed, committed and old enough. All up to
`CompactionState.cleaned_end` is clean; the rest is dirty. When enough of it is dirty, or it is old enough,
the keys of the dirty part are gathered, and all records that it replaces go, its own included. The last
record of the log always stays, as it is in a segment that is not cleaned.

Damaged segments are gone around: they are neither read nor rewritten. A record goes only because a later one
of its key was read, so what was not read takes nothing away. It may hold an older value, though: no tombstone
from there on goes, and the recorded clean part ends there. How far the other segments are clean is a
`Detour`, known to the process alone; once a damaged segment is repaired, all behind it is dirty again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from typing import Final

from envelope.types import Offset, TimestampUs
from jetstream.log.segments.log_config import CompactionConfig
from jetstream.log.segments.segment import Segment, newest_in, newest_timestamp
from jetstream.log.state.compaction_state import CompactionState

_NOTHING: Final = Offset(0)


@dataclass(frozen=True, slots=True)
class Detour:
    """How far a log is compacted around its damage, since the start of the process.

    Attributes:
        state: the state that was recorded then; another object after a cut.
        skipped: where the damage began that was gone around.
        end: the segments without damage are clean below.
    """

    state: CompactionState = field(default_factory=CompactionState)
    skipped: frozenset[Offset] = frozenset()
    end: Offset = _NOTHING

    def end_in(self, state: CompactionState, damaged: frozenset[Offset]) -> Offset:
        """Return the end, 0 if the log was cut or some of the damage repaired: that part is dirty then."""
        return self.end if state is self.state and self.skipped <= damaged else _NOTHING


@dataclass(frozen=True, slots=True)
class CompactionBounds:
    """The bounds of a pass that come from outside of the log.

    Attributes:
        high_watermark: only committed records are cleaned.
        min_synced_end: every replica has the records below on disk.
        now: wall clock.
        border: nothing below it is rewritten, and no tombstone goes: older records may be in an object
            store, where they stay as they are. None: the log has no part there.
        damaged: bases of the segments that cannot be read, and starts of what is missing before the first.
        detour: how far the log is compacted around damage.
    """

    high_watermark: Offset
    min_synced_end: Offset
    now: TimestampUs
    border: Offset | None = None
    damaged: frozenset[Offset] = frozenset()
    detour: Detour = field(default_factory=Detour)


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """A pass.

    Attributes:
        segments: those that are read, and rewritten if a record goes.
        dirty_start: start of the gathered keys.
        end: end of the gathered keys, unless they are too many; no record at or above it goes.
        purge_end: tombstones below it go.
        skipped: where the damage begins that the pass goes around.
    """

    segments: tuple[Segment, ...]
    dirty_start: Offset
    end: Offset
    purge_end: Offset
    skipped: frozenset[Offset] = frozenset()

    @property
    def only_purges(self) -> bool:
        """Whether nothing is dirty."""
        return self.dirty_start >= self.end


def cleanable(
    segments: Sequence[Segment],
    high_watermark: Offset,
    config: CompactionConfig,
    border: Offset | None = None,
) -> tuple[Segment, ...]:
    """Return the segments that may be cleaned, oldest first; never the one that holds the last record."""
    log_end_offset = segments[-1].next
    youngest = newest_timestamp(segments) - config.lag_us
    return tuple(
        takewhile(
            lambda segment: (
                segment.sealed
                and segment.next <= high_watermark
                and segment.next < log_end_offset
                and newest_in(segments, segment) <= youngest
            ),
            dropwhile(lambda segment: border is not None and segment.base < border, segments[:-1]),
        )
    )


def dirty_ratio(segments: Sequence[Segment], cleaned_end: Offset) -> float:
    """Return the part of ``segments``, by bytes, that is dirty; 0 if there are none."""
    total = sum(segment.size for segment in segments)
    dirty = sum(segment.size for segment in segments if segment.next > cleaned_end)
    return dirty / total if total else 0.0


def plan_compaction(
    segments: Sequence[Segment], state: CompactionState, bounds: CompactionBounds, config: CompactionConfig
) -> CompactionPlan | None:
    """Return the pass that is due now, if any."""
    found = cleanable(segments, bounds.high_watermark, config, bounds.border)
    damaged = frozenset(at for at in bounds.damaged if bounds.border is None or at >= bounds.border)
    whole = tuple(segment for segment in found if segment.base not in damaged)
    if not whole:
        return None
    skipped = frozenset(at for at in damaged if at < found[-1].next)
    purge_end = state.purgeable_end(bounds.min_synced_end, bounds.now, config.tombstone_retention_us)
    if bounds.border is not None:
        purge_end = state.purged_end
    purge_end = min([purge_end, *skipped])
    dirty_start = max(state.cleaned_end, whole[0].base, bounds.detour.end_in(state, damaged))
    dirty = [segment for segment in whole if segment.next > dirty_start]
    is_old = bool(dirty) and dirty[0].max_timestamp < bounds.now - config.age_us
    if dirty and (is_old or dirty_ratio(whole, dirty_start) >= config.dirty_ratio):
        return CompactionPlan(whole, dirty_start, whole[-1].next, purge_end, skipped)
    # While a replica catches up the end moves all the time: whole segments are worth a pass.
    is_worth_it = purge_end == state.waiting_end or any(
        state.purged_end < segment.next <= purge_end for segment in whole
    )
    if purge_end > state.purged_end and is_worth_it:
        purged = tuple(segment for segment in whole if segment.base < purge_end)
        return CompactionPlan(purged, dirty_start, dirty_start, purge_end, skipped)
    return None
