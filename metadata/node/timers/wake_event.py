"""An event that wakes a task that waits for several things at once."""

import asyncio
from typing import Any

from envelope.types import MonotonicNs
from metadata.node.timers.movable_timer import seconds_until
from metadata.raft.settings import NEVER


class WakeEvent:
    """For one task that waits; made on its event loop."""

    def __init__(self) -> None:
        """Begin unset."""
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()

    def set(self) -> None:
        """Wake the task that waits, or the next that will."""
        if not self._woken.done():
            self._woken.set_result(None)

    def clear(self) -> None:
        """Let the next wait begin anew, whatever has set this before."""
        if self._woken.done():
            self._woken = self._loop.create_future()

    async def wait(self, until: MonotonicNs, *others: "asyncio.Future[Any]") -> None:
        """Return when it was set, one of ``others`` is done, or at ``until``; `NEVER` is no time."""
        timer = None if until == NEVER else self._loop.call_later(seconds_until(until), self.set)
        for other in others:
            other.add_done_callback(self._other_done)
        try:
            await self._woken
        finally:
            self.clear()
            if timer is not None:
                timer.cancel()
            for other in others:
                other.remove_done_callback(self._other_done)

    def _other_done(self, _: "asyncio.Future[Any]") -> None:
        self.set()
