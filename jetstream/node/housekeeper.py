"""The node's slow clock: checkpoints of streams that fell quiet, retention.

The disk thread is handed a few streams at a time, so that a thousand that fall quiet together do not hold up
anybody's acks.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Final

from envelope.errors import DiskFull, JetstreamError
from jetstream.node.clock import Clock
from jetstream.node.disk_thread import DiskThread
from jetstream.node.stream import StreamOwner
from jetstream.node.upkeep import Upkeep

_log = logging.getLogger(__name__)

_STREAMS_AT_ONCE: Final = 16


class Housekeeper:
    """Runs upkeep for all streams of a node until cancelled."""

    def __init__(self, disk: DiskThread, clock: Clock, streams: Callable[[], Iterable[StreamOwner]]) -> None:
        self._disk = disk
        self._clock = clock
        self._streams = streams

    async def checkpoint_every(self, interval: timedelta) -> None:
        """Record synced ends of quiet streams and last txids, at most ``interval`` after they are due."""
        while True:
            await asyncio.sleep(interval.total_seconds())
            now = self._clock.wall()
            await self._upkeep(
                [s for s in self._streams() if s.upkeep.checkpoint_due(now)], Upkeep.checkpoint
            )
            await self._upkeep([s for s in self._streams() if s.upkeep.txid_note_due()], Upkeep.note_txid)

    async def retain_every(self, interval: timedelta) -> None:
        """Remove what the streams' retention rules no longer keep."""
        while True:
            await asyncio.sleep(interval.total_seconds())
            await self._upkeep(
                [s for s in self._streams() if s.upkeep.retention_due()], Upkeep.apply_retention
            )

    async def _upkeep(self, due: list[StreamOwner], work: Callable[[Upkeep], None]) -> None:
        for start in range(0, len(due), _STREAMS_AT_ONCE):
            some = due[start : start + _STREAMS_AT_ONCE]
            for stream, error in await self._disk.call(partial(_each, some, work)):
                if isinstance(error, DiskFull):
                    _log.warning("upkeep waits for space stream=%s error=%s", stream.name, error)
                else:
                    _log.error("upkeep failed stream=%s error=%r runbook=RB-01", stream.name, error)


def _each(
    streams: list[StreamOwner], work: Callable[[Upkeep], None]
) -> list[tuple[StreamOwner, JetstreamError]]:
    """Do ``work`` for each stream on the disk thread; one stream's failure is its own."""
    failures: list[tuple[StreamOwner, JetstreamError]] = []
    for stream in streams:
        try:
            work(stream.upkeep)
        except JetstreamError as error:
            failures.append((stream, error))
    return failures
