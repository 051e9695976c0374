"""The sealed rewrite of the node's streams: small batches of cold segments are merged.

Every replica rewrites its own log; a segment at a time, so that nobody has to wait for all of a long stream.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from envelope.errors import CorruptDataError, StorageError, StreamOffline
from envelope.types import NO_OFFSET, Offset, StreamName
from jetstream.log.disk.port import Disk
from jetstream.log.rewriting.replacement import RewrittenSegment
from jetstream.log.rewriting.rewrite_plan import RewriteBounds, due_segments
from jetstream.log.rewriting.sealed_rewrite import rewritten
from jetstream.log.segments.segment import Segment
from jetstream.node.disk.thread import DiskThread
from jetstream.node.maintenance.unreadable_segments import UnreadableSegments
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.paced_thread import PacedThread
from metadata.catalog.tables import Stream

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RewriteCounters:
    """Counts of the sealed rewrite since the start of the node; written on the loop."""

    segments: int = 0
    replaced_bytes: int = 0
    freed_bytes: int = 0
    failures: int = 0


class Rewriter:
    """Rewrites a stream's segments when they are due."""

    def __init__(
        self,
        disk: Disk,
        disk_thread: DiskThread,
        clock: Clock,
        thread: PacedThread,
        row_of: Callable[[StreamName], Stream | None],
    ) -> None:
        """``row_of`` returns the catalogue's row of a stream."""
        self.counters = RewriteCounters()
        self._disk = disk
        self._disk_thread = disk_thread
        self._clock = clock
        self._thread = thread
        self._row_of = row_of
        self._unreadable = UnreadableSegments(clock)

    def is_due(self, stream: StreamReplica) -> bool:
        """Whether it is time to look at the stream."""
        is_due = stream.context.upkeep.rewrite_due(_looked_at_end(stream))
        return is_due and self._unreadable.wait_is_over(stream)

    async def work_on(self, stream: StreamReplica) -> bool:
        """Look at what is due, up to the first segment that is rewritten; return whether one was.

        Damaged segments are passed over; one that turns out so now, at the next look.

        Raises:
            As `SegmentWork.work_on`.
        """
        log, upkeep = stream.log, stream.context.upkeep
        after_us = log.writer.config.rewrite_after_us
        assert after_us is not None, "it is due"
        after = timedelta(microseconds=after_us)
        bounds = RewriteBounds(stream.high_watermark, self._min_synced_end(stream, after), self._clock.wall())
        passed, damaged = None, self._unreadable.bases(stream)
        for segment in due_segments(log.reader.segments, _looked_at_end(stream), bounds, after_us):
            found = None if segment.base in damaged else await self._rewritten(stream, segment)
            if found is None:
                passed = segment
                continue
            if not await self._disk_thread.call(partial(upkeep.take_rewritten, found)):
                raise StreamOffline(f"segment {segment.base} is not what it was")
            self.counters.segments += 1
            self.counters.replaced_bytes += segment.size
            self.counters.freed_bytes += found.bytes
            _log.info(
                "rewritten stream=%s segment=%d bytes=%d from=%d",
                stream.name,
                segment.base,
                found.new.size,
                segment.size,
            )
            return True
        if passed is not None:
            await self._disk_thread.call(partial(upkeep.pass_rewritten, passed))
        return False

    async def _rewritten(self, stream: StreamReplica, segment: Segment) -> RewrittenSegment | None:
        work = partial(rewritten, stream.log.reader, self._disk, segment, self._thread.pace)
        try:
            return await self._thread.work(work)
        except (CorruptDataError, StorageError):
            self._unreadable.add(stream, segment)
            raise

    def _min_synced_end(self, stream: StreamReplica, away_max: timedelta) -> Offset:
        """Return an offset below which every replica has all records on disk, as far as that is known here.

        A follower knows it while all replicas are in sync: all of them have on disk what is committed. Its
        leader hears of each, and does not wait for one that has been away for ``away_max``.
        """
        if stream.leading is not None:
            return stream.leading.driver.min_synced_end(away_max)
        row = self._row_of(stream.name)
        is_complete = row is not None and set(row.replicas) == set(row.isr_nodes)
        return stream.high_watermark if is_complete else NO_OFFSET


def _looked_at_end(stream: StreamReplica) -> Offset:
    """Return the offset below which all is done, or in an object store, where segments stay as they are."""
    return max(stream.log.rewritten_end, stream.tiered.border or Offset(0))
