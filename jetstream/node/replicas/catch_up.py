"""The order in which the node serves the followers that are not in sync."""

import asyncio
from collections.abc import Callable, Hashable

from envelope.types import MonotonicNs
from jetstream.replica.throttle import Throttle


class CatchUp:
    """Serves them one after the other as `Throttle` allows; used on the loop's thread."""

    def __init__(self, throttle: Throttle | None = None) -> None:
        """Serve at once if there is no throttle."""
        self._throttle = throttle or Throttle(None)
        self._waiting: dict[Hashable, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def serve(self, follower: Hashable, serve: Callable[[], None]) -> None:
        """Call ``serve`` when it is the follower's turn; at its turn the newest call counts alone."""
        self._waiting[follower] = serve
        self._serve_some()

    def spend(self, count: int) -> None:
        """Note how much was served, in bytes."""
        self._throttle.spend(count, _now())

    def _serve_some(self) -> None:
        while self._waiting and self._throttle.ready_at() <= _now():
            serve = self._waiting.pop(next(iter(self._waiting)))
            serve()
        if self._waiting and self._timer is None:
            delay_ns = self._throttle.ready_at() - _now()
            self._timer = asyncio.get_running_loop().call_later(delay_ns / 1e9, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._serve_some()


def _now() -> MonotonicNs:
    return MonotonicNs(int(asyncio.get_running_loop().time() * 1e9))
