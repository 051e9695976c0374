"""The sealed rewrite in tests."""

from envelope.types import Offset, TimestampUs
from jetstream.log.disk.port import Disk
from jetstream.log.log import Log
from jetstream.log.rewriting.rewrite_plan import RewriteBounds, due_segments
from jetstream.log.rewriting.sealed_rewrite import rewritten
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.runtime.clock import SystemClock
from tests.support.compaction import no_pace

LATE = TimestampUs(10**17)


def rewrite(
    disk: Disk, log: Log, *, high_watermark: int | None = None, min_synced_end: int | None = None
) -> int:
    """Do all that is due as a node does, on one thread; return how many segments were replaced."""
    end = log.log_end_offset
    bounds = RewriteBounds(
        Offset(end if high_watermark is None else high_watermark),
        Offset(end if min_synced_end is None else min_synced_end),
        LATE,
    )
    upkeep = Upkeep(log, SystemClock(), lambda: bounds.high_watermark)
    replaced = 0
    for segment in due_segments(log.reader.segments, log.rewritten_end, bounds, 0):
        is_damaged = segment.base in log.reader.damaged
        found = None if is_damaged else rewritten(log.reader, disk, segment, no_pace)
        if found is None:
            upkeep.pass_rewritten(segment)
        else:
            assert upkeep.take_rewritten(found)
            replaced += 1
    return replaced
