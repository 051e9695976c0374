"""A timer that is moved often and goes off seldom."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from envelope.types import MonotonicNs
from metadata.raft.settings import NEVER

_NS_PER_MILLISECOND: Final = 1_000_000


class MovableTimer:
    """Calls back at a time that may move; a time that moves back leaves the timer of the loop alone."""

    def __init__(self, call: Callable[[], None]) -> None:
        """Prepare to call ``call`` on the present loop."""
        self._loop = asyncio.get_running_loop()
        self._call = call
        self._wanted_at = NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER

    def at(self, moment: MonotonicNs) -> None:
        """Call back at ``moment``, and at no other; `NEVER` not at all."""
        self._wanted_at = moment
        if moment < self._timer_at:
            self.cancel()
            self._wanted_at, self._timer_at = moment, moment
            self._timer = self._loop.call_later(seconds_until(moment), self._gone_off)

    def cancel(self) -> None:
        """Call back no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at, self._wanted_at = None, NEVER, NEVER

    def _gone_off(self) -> None:
        wanted_at = self._wanted_at
        self._timer, self._timer_at = None, NEVER
        if now() >= wanted_at:
            self._call()
        else:
            self.at(wanted_at)


def seconds_until(moment: MonotonicNs) -> float:
    """Return how long it is until ``moment``, rounded up to milliseconds.

    uvloop's timers are no finer: one that goes off too early would be set again, over and over.
    """
    return max(0, -((now() - moment) // _NS_PER_MILLISECOND)) / 1000


def now() -> MonotonicNs:
    """Return the time of the monotonic clock."""
    return MonotonicNs(time.monotonic_ns())
