"""An event that wakes a task that waits for several things at once."""

import asyncio
from typing import Any, Final

from envelope.types import MonotonicNs
from metadata.node.timers.movable_timer import now
from metadata.raft.settings import NEVER

_NS_PER_SECOND: Final = 1_000_000_000


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

    async def wait(self, until: MonotonicNs, *others: "asyncio.Future[Any]") -> None:
        """Return when it was set, one of ``others`` is done, or at ``until``; `NEVER` is no time."""
        seconds = None if until == NEVER else max(0, until - now()) / _NS_PER_SECOND
        await asyncio.wait({self._woken, *others}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._woken.done():
            self._woken = self._loop.create_future()
