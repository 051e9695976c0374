"""Compaction of the node's streams, each replica's log by itself."""

import logging
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

from envelope.errors import JetstreamError, StreamOffline
from envelope.types import NO_OFFSET, Offset
from jetstream.log.disk.port import Disk
from jetstream.log.rewriting.compaction import CompactionPass
from jetstream.log.rewriting.compaction_plan import CompactionBounds, CompactionPlan, Detour, plan_compaction
from jetstream.log.state.compaction_state import CompactionState
from jetstream.node.disk.thread import DiskThread
from jetstream.node.maintenance.unreadable_segments import UnreadableSegments
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.paced_thread import PacedThread
from jetstream.node.runtime.removal_clock import RemovalClock

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

    def __init__(self, disk: Disk, disk_thread: DiskThread, clock: RemovalClock, thread: PacedThread) -> None:
        self.counters = CompactionCounters()
        self._disk = disk
        self._disk_thread = disk_thread
        self._clock = clock
        self._thread = thread
        self._unreadable = UnreadableSegments(clock)
        self._detours: WeakKeyDictionary[StreamReplica, Detour] = WeakKeyDictionary()
        self._reported: WeakKeyDictionary[StreamReplica, frozenset[Offset]] = WeakKeyDictionary()

    def is_due(self, stream: StreamReplica) -> bool:
        """Whether the stream is one that is compacted, and can be."""
        return stream.context.upkeep.compaction_due() and self._unreadable.wait_is_over(stream)

    async def work_on(self, stream: StreamReplica) -> bool:
        """Do a pass if it is time for one; return False: the next one can wait.

        Raises:
            As `SegmentWork.work_on`.
        """
        log, upkeep = stream.log, stream.context.upkeep
        config = log.writer.config.compaction
        assert config is not None, "it is due"
        bounds = CompactionBounds(
            high_watermark=stream.high_watermark,
            min_synced_end=_min_synced_end(stream),
            now=self._clock.wall(),
            border=stream.tiered.border,
            damaged=self._unreadable.bases(stream),
            detour=self._detours.get(stream, Detour()),
        )
        state = log.compaction
        plan = plan_compaction(log.reader.segments, state, bounds, config)
        if plan is None:
            return False
        self._report(stream, plan)
        run = CompactionPass(log.reader, self._disk, plan, config.codec, self._pace)
        try:
            state = await self._run(stream, plan, run)
        except JetstreamError:
            if run.unreadable is not None:
                self._unreadable.add(stream, run.unreadable)
            raise
        # Not the time that removal goes by: from a later one on tombstones wait longer, never shorter.
        outcome = run.outcome(state, self._clock.clock.wall())
        state = await self._disk_thread.call(partial(upkeep.note_compaction, state, outcome))
        self._detours[stream] = run.detour(state)
        self.counters.passes += 1
        _log.info("compacted stream=%s from=%d to=%d", stream.name, plan.dirty_start, run.end)
        return False

    async def _run(self, stream: StreamReplica, plan: CompactionPlan, run: CompactionPass) -> CompactionState:
        """Replace the segments that lose a record; return the state that is on record meanwhile."""
        upkeep, state = stream.context.upkeep, stream.log.compaction
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
        return state

    def _report(self, stream: StreamReplica, plan: CompactionPlan) -> None:
        """Log which damage a pass goes around, unless an earlier one has done so."""
        if news := plan.skipped - self._reported.get(stream, frozenset()):
            offsets = ",".join(map(str, sorted(news)))
            _log.warning("compacted around damage stream=%s segments=%s runbook=RB-01", stream.name, offsets)
        self._reported[stream] = plan.skipped

    def _pace(self, size: int) -> None:
        self.counters.read_bytes += size
        self._thread.pace(size)


def _min_synced_end(stream: StreamReplica) -> Offset:
    """Return an offset below which every replica has all records on disk, as far as that is known here."""
    if stream.leading is not None:
        return stream.leading.driver.min_synced_end(stream.config.tombstone_retention)
    return stream.following.min_synced_end if stream.following is not None else NO_OFFSET
