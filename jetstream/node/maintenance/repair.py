"""Repair of the node's logs: what is damaged in one is put back from another replica's files.

Which damaged part is asked of whom is decided by `RepairSearch`, what fits by `Log.fill`.
"""

import asyncio
import logging
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Final

from envelope.errors import JetstreamError
from envelope.types import Incarnation
from jetstream.log.rewriting.repair import Hole
from jetstream.node.disk.thread import DiskThread
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.clock import Clock
from jetstream.node.streams.repair_exchange import RepairExchange
from jetstream.replica.repair_search import Attempt, RepairSearch

_log = logging.getLogger(__name__)

REPAIRED: Final = "repaired_offsets"
"""Among the counts of a stream's parts."""

_HOLES_AT_ONCE: Final = 16


class Repairing:
    """Looks after the damaged logs of a node until cancelled."""

    def __init__(
        self, exchange: RepairExchange, disk: DiskThread, clock: Clock, streams: Iterable[StreamReplica]
    ) -> None:
        self._exchange = exchange
        self._disk = disk
        self._clock = clock
        self._streams = streams
        self._searches: dict[Incarnation, RepairSearch] = {}

    async def run(self, interval: timedelta) -> None:
        """Repair what is damaged, at most ``interval`` after it was found, if anybody can help."""
        while True:
            await asyncio.sleep(interval.total_seconds())
            damaged = [stream for stream in self._streams if stream.log.reader.corrupt_ranges]
            kept = {stream.context.incarnation for stream in damaged}
            self._searches = {each: search for each, search in self._searches.items() if each in kept}
            for stream in damaged:
                while await self._repair(stream):
                    pass

    async def _repair(self, stream: StreamReplica) -> bool:
        """Try to repair some of what is due; return when something is repaired, or nothing can be now."""
        search = self._searches.setdefault(stream.context.incarnation, RepairSearch())
        for hole, attempt in await self._due(stream, search):
            if await self._has_repaired(stream, search, hole, attempt):
                return True  # the other holes may be in other rows of the index now
        return False

    async def _has_repaired(
        self, stream: StreamReplica, search: RepairSearch, hole: Hole, attempt: Attempt
    ) -> bool:
        try:
            batches = await self._exchange.batches(stream, hole, attempt.peer)
            await self._disk.call(partial(stream.log.fill, hole, batches))
        except JetstreamError as error:
            is_news = search.failed(attempt, self._clock.monotonic())
            level = logging.WARNING if is_news else logging.DEBUG
            self._log_outcome(level, "not repaired", stream, attempt, f"error={error} runbook=RB-01")
            return False
        stream.context.counts[REPAIRED] += hole.next - hole.base
        self._log_outcome(logging.WARNING, "repaired", stream, attempt, "runbook=RB-01")
        return True

    async def _due(self, stream: StreamReplica, search: RepairSearch) -> list[tuple[Hole, Attempt]]:
        """Return what is due at the first holes that have something; none if the log cannot be looked at.

        Those that nobody could help with a moment ago are passed over, or the others would wait behind them.
        """
        peers, now = self._exchange.peers(stream), self._clock.monotonic()

        def look() -> list[tuple[Hole, Attempt]]:
            due = ((hole, search.due(hole.base, hole.next, peers, now)) for hole in stream.log.holes())
            first = islice(((hole, attempts) for hole, attempts in due if attempts), _HOLES_AT_ONCE)
            return [(hole, attempt) for hole, attempts in first for attempt in attempts]

        try:
            return await self._disk.call(look) if peers else []
        except JetstreamError as error:
            _log.warning("damage not looked at stream=%s error=%s", stream.name, error)
            return []

    def _log_outcome(self, level: int, what: str, stream: StreamReplica, attempt: Attempt, why: str) -> None:
        span = f"start={attempt.base} end={attempt.next} peer={attempt.peer}"
        _log.log(level, "%s stream=%s %s %s", what, stream.name, span, why)
