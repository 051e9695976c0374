"""Readers that catch up and wait for a turn, in order of arrival; `CatchUpScheduler` grants the turns."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from jetstream.fetch.catch_up_scheduler import CatchUpScheduler
from jetstream.node.runtime.clock import Clock

_TICK_S: Final = 0.001
"""uvloop's timers are no finer: with less they would ring at once, over and over."""

_LOOK_S: Final = 0.01
"""Perhaps nothing is stored any more, and everybody may go on."""

Resume = Callable[[], None]


class CatchUpQueue:
    """Gives them their turns; used on the loop's thread.

    Invariant:
        N12: whoever waits is called once, unless it leaves before.
            Held by test_readers_have_their_turns_in_the_order_they_came.
    """

    def __init__(self, scheduler: CatchUpScheduler, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._loop = loop
        self._waiting = OrderedDict[Resume, None]()
        self.awaited = 0
        """How often somebody had to wait."""
        self._timer: asyncio.TimerHandle | None = None

    def appending(self) -> None:
        """Record that an append begins; `appended` records its end."""
        self._scheduler.appending(self._loop.time())

    def appended(self, appends: int) -> None:
        """Record the end of so many appends, whose publishers have been notified."""
        is_moment = self._scheduler.appended(appends, self._loop.time())
        if is_moment and self._waiting and self._wait_s() == 0.0:
            self._loop.call_soon(self._ring)

    @property
    def are_taken(self) -> bool:
        """Whether there are readers that catch up."""
        return bool(self._waiting) or self._loop.time() <= self._scheduler.taken_until_s

    @property
    def bytes_at_once(self) -> int:
        """How many bytes go to one reader at once."""
        return self._scheduler.length(self._loop.time())

    def rest_s(self, worked_s: float) -> float:
        """Return the rest of a thread after work for readers: see `CatchUpScheduler`; may be called on it."""
        return self._scheduler.rest_s(worked_s, self._loop.time())

    def is_due(self, *, goes_on: bool) -> bool:
        """Return whether a reader that catches up may have its turn now; those who wait are first.

        A reader that ``goes_on``, in the middle of a body, is before them: a reader has work to do once it
        has all of it, and so they do it one after the other, and not all at once.
        """
        return (goes_on or not self._waiting) and self._wait_s() == 0.0

    def took(self, begun_ns: int, local_bytes: int) -> None:
        """Record a turn from ``begun_ns`` of the clock until now; see `CatchUpScheduler.taken`."""
        self._scheduler.taken((self._clock.monotonic() - begun_ns) / 1e9, self._loop.time(), local_bytes)

    def wait(self, resume: Resume, *, goes_on: bool) -> None:
        """Call ``resume``, never from here, when its turn is due; who waits already keeps its place."""
        self.awaited += resume not in self._waiting
        self._waiting.setdefault(resume)
        if goes_on:
            self._waiting.move_to_end(resume, last=False)
        if self._timer is None:
            self._set_timer()

    def leave(self, resume: Resume) -> None:
        """Forget readers that are gone."""
        self._waiting.pop(resume, None)

    def _wait_s(self) -> float:
        return self._scheduler.wait_s(self._loop.time())

    def _set_timer(self) -> None:
        self._timer = self._loop.call_later(min(max(_TICK_S, self._wait_s()), _LOOK_S), self._ring)

    def _ring(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for _ in range(len(self._waiting)):  # and no more, whoever comes again: the loop has others, too
            if not self._waiting or self._wait_s():
                break
            resume, _none = self._waiting.popitem(last=False)
            resume()
        if self._waiting and self._timer is None:
            self._set_timer()


class ReaderTurn:
    """A reader's turn: it comes, is used once, and the next one has to be waited for."""

    def __init__(self, queue: CatchUpQueue, resume: Resume, *, is_local: bool) -> None:
        """``resume`` is called when the turn comes that was waited for; ``is_local``: the reader is here."""
        self._queue = queue
        self._resume = resume
        self._is_local = is_local
        self._is_here = False
        self.is_awaited = False
        """Nothing is to be done before it comes."""
        self.behind_in: str | None = None
        """A stream of which the reader was given the place of a range, and there was more: what comes next in
        it is not looked for before its turn."""

    def comes(self, *, goes_on: bool = False) -> bool:
        """Return whether it is here; otherwise it is awaited from now on; see `CatchUpQueue.is_due`."""
        if self._is_here or self._queue.is_due(goes_on=goes_on):
            return True
        self.is_awaited = True
        self._queue.wait(self._take, goes_on=goes_on)
        return False

    def took(self, begun_ns: int, length: int) -> None:
        """Record that ``length`` bytes, or their place, were sent from ``begun_ns`` until now."""
        self._is_here = False
        self._queue.took(begun_ns, length if self._is_local else 0)

    def leave(self) -> None:
        """Await it no more."""
        self._queue.leave(self._take)

    def _take(self) -> None:
        self.is_awaited, self._is_here = False, True
        self._resume()
        self._is_here = False
