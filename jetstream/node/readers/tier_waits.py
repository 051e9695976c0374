"""Requests that wait for the object store; those behind them on their connection go on meanwhile."""

import asyncio
from collections.abc import Callable
from typing import Final

from jetstream.node.readers.ports import ReadableStream
from jetstream.node.readers.reader_connection import Pending, ReaderConnection
from jetstream.tier.tiered_log import SegmentAway

TIER_SECONDS: Final = 5.0
"""How long a request waits; clients wait 10 s for an answer."""


class TierWaits:
    """The requests that wait until a segment has been brought in or the time is over."""

    def __init__(
        self,
        again: Callable[[Pending], None],
        over: Callable[[Pending, ReadableStream, SegmentAway], None],
        serve: Callable[[ReaderConnection], None],
    ) -> None:
        """Call these.

        Args:
            again: answers a request that need not wait any more, as if it had just come.
            over: answers one that has waited for too long.
            serve: goes on with a connection that has been answered.
        """
        self._again = again
        self._over = over
        self._serve = serve
        self._waiting = 0
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return self._waiting

    def begin(self, pending: Pending, stream: ReadableStream, away: SegmentAway) -> None:
        """Bring in what is away, and answer then.

        Raises:
            TierUnavailable: the store did not give it a moment ago.
        """
        brought = stream.tiered.bring_in(away)
        self._waiting += 1

        def over() -> None:
            if not brought.remove_done_callback(done):
                return  # it has come in this very turn of the loop: `done` is about to be called
            self._waiting -= 1
            pending.withdraw = None
            if not pending.connection.closed:
                self._over(pending, stream, away)
                self._serve(pending.connection)

        timer = self._loop.call_later(TIER_SECONDS, over)

        def done(_: "asyncio.Task[None]") -> None:
            timer.cancel()
            self._waiting -= 1
            pending.withdraw = None
            if not pending.connection.closed and not pending.is_cancelled:
                self._again(pending)

        def withdraw() -> None:
            timer.cancel()
            self._waiting -= brought.remove_done_callback(done)  # 0: it is about to be called

        pending.withdraw = withdraw
        brought.add_done_callback(done)
