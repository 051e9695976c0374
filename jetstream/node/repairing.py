"""Repair of the node's logs: what is damaged in one is put back from another replica's files.

Which damaged part is asked of whom is decided by `RepairSearch`, what fits by `Log.fill`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Final

from envelope.errors import JetstreamError
from envelope.types import Incarnation
from jetstream.log.repair import Hole
from jetstream.node.clock import Clock
from jetstream.node.disk_thread import DiskThread
from jetstream.node.repair_exchange import RepairExchange
from jetstream.node.replica import StreamReplica
from jetstream.replica.repair_search import Attempt, RepairSearch

_log = logging.getLogger(__name__)

REPAIRED: Final = "repaired_offsets"
"""Among the counts of a stream's parts."""

_HOLES_AT_ONCE: Final = 16


class Repairing:
    """Looks after the damaged logs of a node until cancelled."""

    def __init__(self, exchange: RepairExchange, disk: DiskThread, clock: Clock) -> None:
        self._exchange = exchange
        self._disk = disk
        self._clock = clock
        self._searches: dict[Incarnation, RepairSearch] = {}

    async def run(self, streams: Callable[[], Iterable[StreamReplica]], interval: timedelta) -> None:
        """Repair what is damaged, at most ``interval`` after it was found, if anybody can help."""
        while True:
            await asyncio.sleep(interval.total_seconds())
            damaged = [stream for stream in streams() if stream.log.corrupt_ranges]
            kept = {stream.parts.incarnation for stream in damaged}
            self._searches = {each: search for each, search in self._searches.items() if each in kept}
            for stream in damaged:
                while await self._repair(stream):
                    pass

    async def _repair(self, stream: StreamReplica) -> bool:
        """Make the next attempt that is due; tell whether there was one."""
        search = self._searches.setdefault(stream.parts.incarnation, RepairSearch())
        holes = await self._holes(stream)
        parts = [(hole.base, hole.next) for hole in holes]
        attempt = search.next(parts, self._exchange.peers(stream), self._clock.monotonic())
        if attempt is None:
            return False
        hole = holes[parts.index((attempt.base, attempt.next))]
        try:
            batches = await self._exchange.batches(stream, hole, attempt.peer)
            await self._disk.call(partial(stream.log.fill, hole, batches))
        except JetstreamError as error:
            is_news = search.failed(attempt, self._clock.monotonic())
            level = logging.WARNING if is_news else logging.DEBUG
            self._tell(level, "not repaired", stream, attempt, f"error={error} runbook=RB-01")
        else:
            stream.parts.counts[REPAIRED] += hole.next - hole.base
            self._tell(logging.WARNING, "repaired", stream, attempt, "runbook=RB-01")
        return True

    async def _holes(self, stream: StreamReplica) -> list[Hole]:
        """Return the first holes; none if the log cannot be looked at."""
        try:
            return await self._disk.call(lambda: list(islice(stream.log.holes(), _HOLES_AT_ONCE)))
        except JetstreamError as error:
            _log.warning("damage not looked at stream=%s error=%s", stream.name, error)
            return []

    def _tell(self, level: int, what: str, stream: StreamReplica, attempt: Attempt, why: str) -> None:
        span = f"start={attempt.base} end={attempt.next} peer={attempt.peer}"
        _log.log(level, "%s stream=%s %s %s", what, stream.name, span, why)
