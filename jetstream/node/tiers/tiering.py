"""The leaders' work on the object store: upload sealed segments, apply retention, delete what nothing names.

One stream after the other, a few segments of each, with the blocking parts on the store's own thread; while
that waits for the store, the retention of the other streams goes on beside it. Each step can fail, and the
order makes that harmless: an object is read back before a manifest names it, the manifest is read back before
the catalogue names it, and only what the catalogue names may be missing locally. Objects are deleted once the
catalogue has answered that it names them no more, to a leader of no earlier reign than they were written in.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Final, TypeVar

from envelope.errors import (
    CorruptDataError,
    Fenced,
    JetstreamError,
    StorageError,
    StreamOffline,
    UnknownStream,
)
from envelope.types import Incarnation, MonotonicNs
from jetstream.node.runtime.removal_clock import RemovalClock
from jetstream.node.tiers.segment_cache import Tier
from jetstream.node.tiers.upload_round import LedStream, TierProgress, TierTurn, silence
from jetstream.tier.retries import failed_again

_log = logging.getLogger(__name__)
T = TypeVar("T")

AGAIN_NS_MAX: Final = 60_000_000_000
"""The longest pause between two attempts at a stream's uploads."""


class Tiering:
    """Runs the tiering that is due until cancelled."""

    def __init__(
        self,
        tier: Tier,
        clock: RemovalClock,
        streams: Iterable[LedStream],
        retry_removals: Callable[[], None],
    ) -> None:
        self._tier = tier
        self._clock = clock
        self._streams = streams
        self._retry_removals = retry_removals
        self._progress: dict[Incarnation, TierProgress] = {}
        self._busy: set[Incarnation] = set()
        self._turn_began_at: MonotonicNs | None = None
        self._was_silent = False

    async def run(self, interval: timedelta) -> None:
        """Look at all streams every ``interval``, until cancelled.

        A call of the store may take for ever, and cannot be ended: meanwhile the other streams' retention
        goes on beside it.
        """
        async with asyncio.TaskGroup() as tasks:
            turns: asyncio.Task[None] | None = None
            while True:
                await asyncio.sleep(interval.total_seconds())
                self._retry_removals()
                if turns is None or turns.done():
                    turns = tasks.create_task(self._take_turns(), name="tier turns")
                else:
                    await self._retain()
                self._log_problems()

    async def _take_turns(self) -> None:
        """Give every stream one turn after the other, until none has more to do."""
        while True:
            wants_more = [await self._take_turn(stream) for stream in self._led()]
            if not any(wants_more):
                return

    async def _take_turn(self, stream: LedStream) -> bool:
        """Do what is due for a stream; return whether more is."""
        turn = self._turn_of(stream)
        if turn is None:
            return False
        self._turn_began_at = self._clock.monotonic()
        try:
            return bool(await self._attempt(turn, turn.run))
        finally:
            self._turn_began_at = None
            stream.tiered.problem = turn.progress.problem

    async def _retain(self) -> None:
        """Apply the retention of the streams that wait for their turn."""
        for stream in self._led():
            turn = self._turn_of(stream)
            if turn is not None:
                await self._attempt(turn, turn.retain)

    def _led(self) -> tuple[LedStream, ...]:
        """Return the streams that this node leads now, and forget what is known of others."""
        streams = self._tiered()
        living = {stream.incarnation for stream in streams}
        self._progress = {key: known for key, known in self._progress.items() if key in living}
        return tuple(stream for stream in streams if stream.leads)

    def _tiered(self) -> tuple[LedStream, ...]:
        return tuple(stream for stream in self._streams if stream.tiered.border is not None)

    def _turn_of(self, stream: LedStream) -> TierTurn | None:
        """Return a turn for a stream, None if it is not the time for it: the others took a while."""
        if not stream.leads or stream.incarnation in self._busy:
            return None
        progress = self._progress_of(stream)
        if not progress.is_due(self._clock.monotonic()):
            return None
        return TierTurn(stream, progress, self._tier, self._clock)

    def _progress_of(self, stream: LedStream) -> TierProgress:
        known = self._progress.get(stream.incarnation)
        if known is None or known.leader_epoch != stream.leader_epoch:
            known = self._progress[stream.incarnation] = TierProgress(stream.leader_epoch)
        return known

    async def _attempt(self, turn: TierTurn, step: Callable[[], Awaitable[T]]) -> T | None:
        """Take a step of a turn, beside which there is no other of that stream; None: it failed."""
        stream, progress = turn.stream, turn.progress
        incarnation = stream.incarnation
        self._busy.add(incarnation)
        try:
            return await step()
        except (Fenced, StreamOffline, UnknownStream) as error:  # another leads, or it is gone
            _log.info("tiering given up stream=%s error=%s", stream.name, error)
        except JetstreamError as error:
            self._tier.counters.objects["upload_failed"] += 1
            progress.failed = failed_again(progress.failed, error, self._clock.monotonic(), AGAIN_NS_MAX)
            is_ours = isinstance(error, StorageError | CorruptDataError)
            runbook = "RB-01" if is_ours else "RB-11"
            _log.error("tiering failed stream=%s error=%s runbook=%s", stream.name, error, runbook)
        finally:
            self._busy.discard(incarnation)
        return None

    def _log_problems(self) -> None:
        """Record for every stream why its uploads fail or wait; a silent store keeps all of them waiting."""
        silent = None
        if self._turn_began_at is not None:
            since = max(self._turn_began_at, self._tier.answered_at)
            silent = silence(since, self._clock.monotonic())
        if silent is not None and not self._was_silent:
            _log.error("tiering waits error=%s runbook=RB-11", silent)
        self._was_silent = silent is not None
        for stream in self._tiered():
            known = self._progress.get(stream.incarnation)
            problem = known.problem if known is not None else None
            stream.tiered.problem = (problem or silent) if stream.leads else None
