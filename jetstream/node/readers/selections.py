"""The answers to fetches that leave something out: made on a thread of their own, held within one budget.

`SelectionBudget` decides whose turn it is. The thread makes one answer after the other, so that neither the
event loop, nor what reads files for other readers, nor the disk thread is held up by any number of them.
While something is stored it rests between the pieces of its work: the interpreter runs one thread at a time.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from envelope.errors import CorruptDataError, StorageError
from envelope.limits import MIB, SELECTED_BYTES_MAX
from envelope.types import Offset
from jetstream.fetch.selection import Selected, Selection
from jetstream.fetch.selection_budget import EXPIRED_MAX, SelectionBudget
from jetstream.log.reader import FileRange, LogReader
from jetstream.node.readers.reader_connection import Pending, ReaderConnection
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.paced_thread import PacedThread

_log = logging.getLogger(__name__)

_KEPT_BYTES_MAX: Final = 64 * MIB
"""Bytes of answers after which unused memory is given back when no answer is held."""

_LOOK_S: Final = 0.25
"""How often fetches that wait, and those they wait for, are looked at."""


@dataclass(frozen=True, slots=True)
class WaitListener:
    """Hears of fetches that have waited for the budget."""

    again: Callable[[Pending], None]
    """Looks at a fetch, as if it had just come."""
    over: Callable[[Pending], None]
    """Answers a fetch that has waited for long, with nothing."""
    serve: Callable[[ReaderConnection], None]
    """Goes on with a connection that has been answered."""


class Selections:
    """The selected answers of a node; used on the loop's thread.

    Invariant:
        N14: a fetch that waits for the budget is handed back once, unless it is cancelled or its connection
            is gone.
            Held by test_readers_that_do_not_read_share_one_budget.
    """

    def __init__(
        self,
        budget: SelectionBudget[ReaderConnection, Pending],
        thread: PacedThread,
        clock: Clock,
        listener: WaitListener,
    ) -> None:
        """``listener`` is never called from inside `begin`; `stop` ends the ``thread``."""
        self.pace = thread.pace
        """Lets the thread rest between the pieces of its work; called on it."""
        self._budget = budget
        self._thread = thread
        self._clock = clock
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.hoarders = 0
        """Connections that were closed because they did not take what others needed."""
        self._is_looking = False
        self._is_stopped = False
        self._made_bytes = 0  # since unused memory was given back
        self._trimming: asyncio.Future[None] | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of the answers that are being made, or wait to be taken."""
        return self._budget.held_bytes

    @property
    def waiting(self) -> int:
        """How many fetches wait for the budget."""
        return self._budget.waiting

    def begin(self, pending: Pending, size: int) -> bool:
        """Reserve ``size`` bytes for the answer, which `make` makes; or keep the fetch until its turn."""
        connection = pending.connection
        if self._budget.begin(connection, pending, size, self._clock.monotonic()):
            return True
        pending.withdraw = partial(self._drop, pending)
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_S, self._look)
        return False

    def has_spare(self, connection: ReaderConnection) -> bool:
        """Return whether the next answer may be made while the connection takes the last: it reads."""
        size = connection.selected_max
        return size == SELECTED_BYTES_MAX and self._budget.has_spare(size, self._clock.monotonic())

    def _drop(self, pending: Pending) -> None:
        """Drop a fetch that is cancelled: another connection may be the first now."""
        self._budget.drop(pending)
        self._after_release()

    def make(self, pending: Pending, work: Callable[[], Selected]) -> asyncio.Future[Selected]:
        """Make the answer for which `begin` has reserved the bytes; its future's first listener is this."""
        future = self._thread.begin(work)
        future.add_done_callback(lambda made: self._made(pending, made))
        return future

    def _made(self, pending: Pending, made: asyncio.Future[Selected]) -> None:
        connection = pending.connection
        is_made = not made.cancelled() and made.exception() is None
        is_wanted = is_made and not connection.closed and not pending.is_cancelled
        size = len(made.result().body) if is_wanted else 0
        self._made_bytes += size
        self._budget.made(connection, size, self._clock.monotonic())
        if is_wanted and not size:
            self._allow_more(connection)
        self._after_release()

    def taken(self, connection: ReaderConnection) -> None:
        """Give back what a connection holds, which its peer has taken: the next answer may be larger."""
        self._allow_more(connection)
        self._budget.release(connection)
        self._after_release()

    def forget(self, connection: ReaderConnection) -> None:
        """Drop what a connection that is gone holds and waits for."""
        self._budget.forget(connection)
        self._after_release()

    async def stop(self) -> None:
        """Return when the thread has ended."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        await self._thread.stop()

    def _allow_more(self, connection: ReaderConnection) -> None:
        connection.selected_max = min(2 * connection.selected_max, SELECTED_BYTES_MAX)

    def _after_release(self) -> None:
        if self._is_stopped:
            return
        if self._budget.is_idle and self._made_bytes > _KEPT_BYTES_MAX:
            self._made_bytes = 0
            self._trimming = self._thread.begin(pa.default_memory_pool().release_unused)
        if self._budget.waiting and not self._is_looking:
            self._is_looking = True
            self._loop.call_soon(self._hand_on)

    def _hand_on(self) -> None:
        """Hand back the fetches of the connections whose turn it is."""
        self._is_looking = False
        while pendings := self._budget.next(self._clock.monotonic()):
            for pending in pendings:
                pending.withdraw = None
                if not pending.connection.closed:
                    self._listener.again(pending)

    def _look(self) -> None:
        """End waits that are over, and close those that hold the budget and take nothing."""
        self._timer = None
        now = self._clock.monotonic()
        expired = self._budget.expire(now)
        for pending in expired:
            if not pending.connection.closed:
                self._listener.over(pending)
                self._listener.serve(pending.connection)
        while (connection := self._budget.overdue(lambda holder: holder.taken, now)) is not None:
            _log.info("connection closed peer=%s overdue=selection", connection.peer)
            self.hoarders += 1
            connection.close()
        self._hand_on()  # one that needed more may have given up
        if self._budget.waiting and self._timer is None:
            soon_s = 0.0 if len(expired) == EXPIRED_MAX else _LOOK_S
            self._timer = self._loop.call_later(soon_s, self._look)


def selected(
    log: LogReader,
    file_range: FileRange,
    offset: Offset,
    selection: Selection,
    pace: Callable[[int], None],
) -> Selected:
    """Return what is wanted of a range from ``offset`` on; reads it, on a thread.

    Raises:
        CorruptDataError, PlanAgain: the log knows better now; plan again.
        StorageError: the disk refused, or what was intact a moment ago is not.
    """
    log.verify_range(file_range)
    data = log.read_range(file_range)
    base, end, epoch = file_range.base, file_range.next, file_range.leader_epoch
    try:
        return selection.select(data, base, offset, end, epoch, pace=pace)
    except CorruptDataError as error:  # of data that was verified a moment ago
        raise StorageError(f"the disk reads differently each time: {error.description}") from error
