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


class Sleeper(Protocol):
    """A machine that says itself when it is to be given a tick."""

    @property
    def wake_at(self) -> MonotonicNs:
        """When; `NEVER` if time alone gives it nothing to do."""
        ...


class Timers:
    """Ticks by whom they are for; used on the loop's thread.

    Attributes:
        changed: call it with a tick and its machine when the machine may have another time to wake; the
            machine is asked at the next turn, not before.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wanted: dict[Callable[[], None], MonotonicNs] = {}
        self._changed: dict[Callable[[], None], Sleeper] = {}
        self.changed: Callable[[Callable[[], None], Sleeper], None] = self._changed.__setitem__

    def at(self, tick: Callable[[], None], when: MonotonicNs) -> None:
        """Call ``tick`` once, at ``when`` or a little later, instead of when it was wanted before."""
        if when == NEVER:
            self._wanted.pop(tick, None)
        else:
            self._wanted[tick] = when

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(_TURN_SECONDS)
            for tick, machine in self._changed.items():
                self.at(tick, machine.wake_at)
            self._changed.clear()
            now = self._clock.monotonic()
            for tick in [tick for tick, when in self._wanted.items() if when <= now]:
                del self._wanted[tick]
                tick()
