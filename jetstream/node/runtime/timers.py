"""The timers of a node's replicas.

One timer for all of them: an idle replica wants nothing and costs nothing, and a busy one changes its mind a
thousand times before it is its turn.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from envelope.types import MonotonicNs
from jetstream.node.runtime.clock import Clock
from jetstream.replica.settings import NEVER

_TURN_SECONDS: Final = 0.05
"""How late a tick may come."""
_NS_PER_SECOND: Final = 1_000_000_000


class Sleeper(Protocol):
    """A machine that says itself when it is to be given a tick."""

    @property
    def wake_at(self) -> MonotonicNs:
        """When; `NEVER` if time alone gives it nothing to do."""
        ...


class Timers:
    """Ticks by whom they are for; used on the loop's thread.

    Attributes:
        to_ask: the machines that have changed since they were asked when to wake, by their ticks.

    A turn in which nothing is due and no machine has changed is followed by a rest until something is: a node
    with nothing to do has no turns.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rest: asyncio.Future[None] | None = None
        self._wanted: dict[Callable[[], None], MonotonicNs] = {}
        self.to_ask: dict[Callable[[], None], Sleeper] = {}

    def at(self, tick: Callable[[], None], when: MonotonicNs) -> None:
        """Call ``tick`` once, at ``when`` or a little later, instead of when it was wanted before."""
        if when == NEVER:
            self._wanted.pop(tick, None)
        else:
            self._wanted[tick] = when
            if self._rest is not None:
                self._end_rest()

    def changed(self, tick: Callable[[], None], machine: Sleeper) -> None:
        """Call ``tick`` when the machine is to wake; it is asked at the next turn, not before.

        Once is enough until then: a machine that is in `to_ask` need not be named again.
        """
        self.to_ask[tick] = machine
        if self._rest is not None:
            self._end_rest()

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(_TURN_SECONDS)
            is_busy = bool(self.to_ask)
            for tick, machine in self.to_ask.items():
                self.at(tick, machine.wake_at)
            self.to_ask.clear()
            now = self._clock.monotonic()
            for tick in [tick for tick, when in self._wanted.items() if when <= now]:
                is_busy = True
                del self._wanted[tick]
                tick()
            if not is_busy:
                await self._rest_until_due(now)

    async def _rest_until_due(self, now: MonotonicNs) -> None:
        """Return a turn before the next tick is due, or when one is asked for."""
        due_at = min(self._wanted.values(), default=NEVER)
        seconds = None if due_at == NEVER else (due_at - now) / _NS_PER_SECOND - _TURN_SECONDS
        if seconds is not None and seconds <= 0:
            return
        self._rest = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((self._rest,), timeout=seconds)
        finally:
            self._rest = None

    def _end_rest(self) -> None:
        assert self._rest is not None, "nothing rests"
        if not self._rest.done():
            self._rest.set_result(None)
