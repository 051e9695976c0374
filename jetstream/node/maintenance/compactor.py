"""Compaction of the node's streams, each replica's log by itself."""

import logging
from dataclasses import dataclass
from functools import partial

from envelope.errors import StreamOffline
from envelope.types import NO_OFFSET, Offset
from jetstream.log.disk.port import Disk
from jetstream.log.rewriting.compaction import CompactionPass
from jetstream.log.rewriting.compaction_plan import CompactionBounds, plan_compaction
from jetstream.node.disk.thread import DiskThread
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.paced_thread import PacedThread

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class CompactionCounters:
    """Counts of compaction since the start of the node; written on the loop, but for the bytes."""

    passes: int = 0
    failures: int = 0
    segments: int = 0
    records: int = 0
    freed_bytes: int = 0
    read_bytes: int = 0


class Compactor:
    """Compacts a stream when it is due."""

    def __init__(self, disk: Disk, disk_thread: DiskThread, clock: Clock, thread: PacedThread) -> None:
        self.counters = CompactionCounters()
        self._disk = disk
        self._disk_thread = disk_thread
        self._clock = clock
        self._thread = thread

    def is_due(self, stream: StreamReplica) -> bool:
        """Whether the stream is one that is compacted, and can be."""
        return stream.context.upkeep.compaction_due()

    async def work_on(self, stream: StreamReplica) -> bool:
        """Do a pass if it is time for one; return False: the next one can wait.

        Raises:
            As `SegmentWork.work_on`.
        """
        log, upkeep = stream.log, stream.context.upkeep
        config = log.writer.config.compaction
        assert config is not None, "it is due"
        bounds = CompactionBounds(
            stream.high_watermark, _min_synced_end(stream), self._clock.wall(), stream.tiered.border
        )
        state = log.compaction
        plan = plan_compaction(log.reader.segments, state, bounds, config)
        if plan is None:
            return False
        run = CompactionPass(log.reader, self._disk, plan, config.codec, self._pace)
        await self._thread.work(run.gather)
        # Before the first tombstone goes: who has not got past it must not build on this log any more.
        purged = state.purged(plan.purge_end)
        state = await self._disk_thread.call(partial(upkeep.note_compaction, state, purged))
        for segment in run.segments:
            rewritten = await self._thread.work(partial(run.rewritten, segment))
            if rewritten is None:
                continue
            if not await self._disk_thread.call(partial(upkeep.replace_segment, state, rewritten)):
                raise StreamOffline(f"segment {segment.base} is not what it was")
            self.counters.segments += 1
            self.counters.records += rewritten.records
            self.counters.freed_bytes += rewritten.bytes
        outcome = run.outcome(state, bounds.now)
        await self._disk_thread.call(partial(upkeep.note_compaction, state, outcome))
        self.counters.passes += 1
        _log.info("compacted stream=%s from=%d to=%d", stream.name, plan.dirty_start, run.end)
        return False

    def _pace(self, size: int) -> None:
        self.counters.read_bytes += size
        self._thread.pace(size)


def _min_synced_end(stream: StreamReplica) -> Offset:
    """Return an offset below which every replica has all records on disk, as far as that is known here."""
    if stream.leading is not None:
        return stream.leading.driver.min_synced_end(stream.config.tombstone_retention)
    return stream.following.min_synced_end if stream.following is not None else NO_OFFSET
