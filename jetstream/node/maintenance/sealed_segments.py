"""Work that reads sealed segments whole: compaction, the sealed rewrite and the scrub, on one thread.

That thread reads and writes for long; the disk thread, on which publishers wait, is called for moments: to
put a rewritten segment in its place, and a state on record. Compaction comes first. A segment that it has
written anew is looked at by the rewrite again, as what is left of its batches may be small.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Protocol

from envelope.errors import CorruptDataError, DiskFull, JetstreamError, StorageError
from jetstream.node.maintenance.compactor import CompactionCounters
from jetstream.node.maintenance.rewriter import RewriteCounters
from jetstream.node.maintenance.scrubber import ScrubCounters
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.paced_thread import PacedThread

_log = logging.getLogger(__name__)


class SegmentWork(Protocol):
    """Compaction, the sealed rewrite or the scrub."""

    @property
    def counters(self) -> CompactionCounters | RewriteCounters | ScrubCounters:
        """Counts since the start of the node."""

    def is_due(self, stream: StreamReplica) -> bool:
        """Whether there may be something to do; the stream is open."""

    async def work_on(self, stream: StreamReplica) -> bool:
        """Do some of it; return whether there may be more to do at once.

        Raises:
            DiskFull: there is no space for it.
            CorruptDataError, StorageError, FsyncFailed: a batch is damaged, or the disk refused.
            UnavailableError, StreamOffline: the log was cut or closed meanwhile, or the node is stopping.
        """


class SegmentKeeper:
    """Runs the segment work that is due until cancelled."""

    def __init__(
        self,
        thread: PacedThread,
        works: Sequence[SegmentWork],
        streams: Iterable[StreamReplica],
    ) -> None:
        """``thread`` is that of ``works``, and ends with this."""
        self._thread = thread
        self._works = works
        self._streams = streams

    async def run(self, interval: timedelta) -> None:
        """Look at all streams every ``interval``, until cancelled."""
        try:
            while True:
                await asyncio.sleep(interval.total_seconds())
                while await self._look_at_all():
                    pass
        finally:
            await self._thread.stop()  # the disk is not to be closed under it

    async def _look_at_all(self) -> bool:
        """Give every stream a turn; return whether one of them wants another at once."""
        wants_more = False
        for stream in list(self._streams):
            for work in self._works:
                if stream.is_open and work.is_due(stream):
                    wants_more |= await _attempt(work, stream)
        return wants_more


async def _attempt(work: SegmentWork, stream: StreamReplica) -> bool:
    what = type(work).__name__
    try:
        return await work.work_on(stream)
    except DiskFull as error:
        _log.warning("waiting for space what=%s stream=%s error=%s", what, stream.name, error)
    except (StorageError, CorruptDataError) as error:
        work.counters.failures += 1
        _log.error("failed what=%s stream=%s error=%r runbook=RB-01", what, stream.name, error)
    except JetstreamError as error:  # closed, removed or truncated meanwhile
        _log.info("given up what=%s stream=%s error=%s", what, stream.name, error)
    return False
