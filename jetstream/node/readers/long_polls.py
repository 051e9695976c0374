"""The long polls of all connections: which fetch waits for which stream, and when it is handed back.

A stream's own task only notes that its high watermark has moved; the waiting are answered in turns of
their own, some at a time, so that a stream with a thousand readers delays neither its publishers nor the
other streams.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from envelope.types import MonotonicNs, Offset, StreamName
from jetstream.fetch.parked import ParkedFetches
from jetstream.node.readers.ports import ReadableStream
from jetstream.node.readers.reader_connection import Pending, ReaderConnection
from jetstream.node.runtime.clock import Clock
from jetstream.protocol.requests import Fetch

_WOKEN_PER_TURN: Final = 64
"""Long polls answered before the event loop looks at anything else."""


class LongPolls:
    """Parks fetches, and hands them back when there may be something to answer.

    Invariants:
        N6: a stream is subscribed to exactly while one of its fetches is parked.
            Held by test_a_following_reader_is_woken_by_a_commit_and_by_nothing_else.
        N8: a parked fetch is handed back exactly once, unless it is cancelled or its connection is gone.
            Held by test_a_long_poll_ends_empty_when_its_time_is_over.
    """

    def __init__(self, clock: Clock, hand_back: Callable[[Pending], None]) -> None:
        """``hand_back`` is called, never from inside `park`, with fetches to look at again."""
        self._clock = clock
        self._hand_back = hand_back
        self._loop = asyncio.get_running_loop()
        self._parked = ParkedFetches[Pending]()
        self._by_connection: dict[ReaderConnection, set[Pending]] = {}
        self._watched: dict[StreamName, tuple[ReadableStream, Callable[[], None]]] = {}
        self._advanced: dict[StreamName, Offset] = {}
        self._woken: deque[Pending] = deque()
        self._waking = False
        self._timer: asyncio.Handle | None = None
        self._rings_at = MonotonicNs(0)

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, pending: Pending, stream: ReadableStream, offset: Offset) -> None:
        """Keep ``pending`` until ``stream`` passes ``offset`` or its deadline comes."""
        assert pending.deadline is not None, "a fetch that waits has a deadline"
        self._watch(stream)
        self._parked.park(pending, stream.name, offset, pending.deadline)
        self._by_connection.setdefault(pending.connection, set()).add(pending)
        pending.withdraw = partial(self._drop, pending)
        self._arm()

    def forget(self, connection: ReaderConnection) -> None:
        """Drop whatever is parked for a connection that is gone."""
        for pending in self._by_connection.pop(connection, ()):
            self._parked.drop(pending)
            self._unwatch_if_idle(_stream_of(pending))

    def _drop(self, pending: Pending) -> None:
        """Drop one that is cancelled; it may be about to be handed back."""
        self._parked.drop(pending)
        self._unwatch_if_idle(_stream_of(pending))
        self._forget_one(pending)

    def stream_gone(self, name: StreamName) -> None:
        """Hand back the fetches parked on a stream that was deleted or went offline."""
        self._wake(self._parked.release(name))
        self._unwatch_if_idle(name)

    def stop(self) -> None:
        """Hand back everything now, as if its time were over; no timer and no subscription is left."""
        while self._watched or self._woken:  # behind a fetch with a cursor the next one may park
            now = self._clock.monotonic()
            for name in tuple(self._watched):
                for pending in self._parked.release(name):
                    pending.deadline = now
                    self._woken.append(pending)
                self._unwatch_if_idle(name)
            while self._woken:
                self._return(self._woken.popleft())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- high watermarks -----------------------------------------------------------------------------

    def _watch(self, stream: ReadableStream) -> None:
        watched = self._watched.get(stream.name)
        if watched is not None and watched[0] is stream:
            return
        if watched is not None:
            self.stream_gone(stream.name)  # the name has a new life; fetches of the old one are answered
        name = stream.name
        stop = stream.subscribe(lambda high_watermark: self._on_advanced(name, high_watermark))
        self._watched[name] = (stream, stop)

    def _unwatch_if_idle(self, name: StreamName) -> None:
        if not self._parked.waits_on(name) and name in self._watched:
            _, stop = self._watched.pop(name)
            stop()

    def _on_advanced(self, name: StreamName, high_watermark: Offset) -> None:
        self._advanced[name] = high_watermark
        self._wake(())

    # --- deadlines -----------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Schedule the timer at the earliest deadline."""
        deadline = self._parked.next_deadline
        if deadline is None:
            return
        if self._timer is not None:
            # Kept here, because uvloop's handle for less than half a millisecond does not know it.
            if self._rings_at <= deadline:
                return
            self._timer.cancel()
        self._rings_at = deadline
        delay = max(0, deadline - self._clock.monotonic()) / 1e9
        self._timer = self._loop.call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        expired = self._parked.expire(self._clock.monotonic())
        for pending in expired:
            self._unwatch_if_idle(_stream_of(pending))
        self._wake(expired)
        self._arm()

    # --- handing back --------------------------------------------------------------------------------

    def _wake(self, pendings: Sequence[Pending]) -> None:
        self._woken.extend(pendings)
        if not self._waking:
            self._waking = True
            self._loop.call_soon(self._wake_some)

    def _wake_some(self) -> None:
        self._waking = False
        advanced, self._advanced = self._advanced, {}
        for name, high_watermark in advanced.items():
            self._woken.extend(self._parked.advance(name, high_watermark))
            self._unwatch_if_idle(name)
        for _ in range(min(len(self._woken), _WOKEN_PER_TURN)):
            self._return(self._woken.popleft())
        if self._woken:
            self._wake(())

    def _return(self, pending: Pending) -> None:
        if not self._forget_one(pending):
            return  # it is cancelled, or its connection is gone
        pending.withdraw = None
        self._hand_back(pending)

    def _forget_one(self, pending: Pending) -> bool:
        """Forget that ``pending`` waits; return whether it did."""
        waiting = self._by_connection.get(pending.connection)
        if waiting is None or pending not in waiting:
            return False
        waiting.remove(pending)
        if not waiting:
            del self._by_connection[pending.connection]
        return True


def _stream_of(pending: Pending) -> StreamName:
    assert isinstance(pending.request, Fetch), "only fetches wait"
    return StreamName(pending.request.stream)
