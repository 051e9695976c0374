"""The node's slow clock: checkpoints of streams that fell quiet, retention.

The disk thread is handed a few streams at a time, so that a thousand that fall quiet together do not hold up
anybody's acks.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Final

from envelope.errors import DiskFull, JetstreamError, StreamOffline
from envelope.types import TimestampUs
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.disk.thread import DiskThread
from jetstream.node.disk.unsynced_marker import BootMarker
from jetstream.node.maintenance.stream_times import StreamTimes, time_ahead_us
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.removal_clock import RemovalClock

_log = logging.getLogger(__name__)

_STREAMS_AT_ONCE: Final = 16


class Housekeeper:
    """Runs upkeep for all streams of a node until cancelled."""

    def __init__(
        self,
        disk: DiskThread,
        clock: RemovalClock,
        streams: Iterable[StreamReplica],
        witness: BootMarker,
    ) -> None:
        self._witness = witness
        self._times = StreamTimes()
        self._disk = disk
        self._clock = clock
        self._streams = streams

    async def run(self, checkpoint_interval: timedelta, maintenance_interval: timedelta) -> None:
        """Do both jobs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.checkpoint_every(checkpoint_interval))
            tasks.create_task(self.retain_every(maintenance_interval))

    async def checkpoint_every(self, interval: timedelta) -> None:
        """Record synced ends of quiet streams, and notes, at most ``interval`` after they are due."""
        while True:
            await asyncio.sleep(interval.total_seconds())
            now = self._clock.monotonic()
            contexts = [(stream, stream.context) for stream in self._streams]
            checkpoints = [stream for stream, context in contexts if context.upkeep.checkpoint_due(now)]
            notes = [stream for stream, context in contexts if context.upkeep.note_due()]
            await self._upkeep(checkpoints, Upkeep.checkpoint)
            await self._upkeep([stream for stream in notes if stream.is_open], Upkeep.write_note)
            if [stream for stream, context in contexts if context.log.writer.may_lack_writes]:
                await self._distrust()

    async def retain_every(self, interval: timedelta) -> None:
        """Remove what the streams' retention rules no longer keep, where they are led; followers follow."""
        while True:
            await asyncio.sleep(interval.total_seconds())
            self._warn_of_clocks()
            due = [s for s in self._streams if s.leading is not None and s.context.upkeep.retention_due()]
            times = {s.context.upkeep: self._clock.wall_for(s.log.found_until) for s in due}
            await self._upkeep(due, partial(_retain, times))
            for stream in due:
                if stream.leading is not None:
                    stream.leading.log_start_moved()

    def _warn_of_clocks(self) -> None:
        self._clock.wall()  # notices a jump, also where nothing is to be removed
        now = self._clock.clock.wall()
        led = [stream for stream in self._streams if stream.leading is not None]
        self._times.warn({stream.name: time_ahead_us(stream, now) for stream in led})

    async def _distrust(self) -> None:
        try:
            await self._disk.call(self._witness.distrust)
        except JetstreamError as error:
            _log.error("not on record that a log has failed error=%r runbook=RB-01", error)

    async def _upkeep(self, due: list[StreamReplica], work: Callable[[Upkeep], None]) -> None:
        for start in range(0, len(due), _STREAMS_AT_ONCE):
            some = due[start : start + _STREAMS_AT_ONCE]
            for stream, error in await self._disk.call(partial(_each, some, work)):
                if isinstance(error, DiskFull):
                    _log.warning("upkeep waits for space stream=%s error=%s", stream.name, error)
                else:
                    _log.error("upkeep failed stream=%s error=%r runbook=RB-01", stream.name, error)


def _retain(times: Mapping[Upkeep, TimestampUs], upkeep: Upkeep) -> None:
    upkeep.apply_retention(times[upkeep])


def _each(
    streams: list[StreamReplica], work: Callable[[Upkeep], None]
) -> list[tuple[StreamReplica, JetstreamError]]:
    """Do ``work`` for each stream on the disk thread; one stream's failure is its own."""
    failures: list[tuple[StreamReplica, JetstreamError]] = []
    for stream in streams:
        try:
            work(stream.context.upkeep)
        except StreamOffline as offline:  # closed since it was due; or failed, which was reported then
            _log.debug("no upkeep any more stream=%s reason=%s", stream.name, offline)
        except JetstreamError as error:
            failures.append((stream, error))
    return failures
