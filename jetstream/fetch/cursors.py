"""Cursors: fetches of one connection that go on where the one before them ended.

A reader that names a cursor may fetch ``next`` several times before the first response has arrived; the
server knows the start of each fetch once the one before it is answered. So a round trip is paid once, not for
every fetch. Fetches of different cursors are independent: a parked one delays its own cursor only.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from envelope.errors import RequestError
from envelope.types import Incarnation, LeaderEpoch, Offset

TokenT = TypeVar("TokenT", bound=Hashable)

CURSORS_KEPT_MAX: Final = 256
"""Cursors of one connection without a fetch in flight; beyond it the least recently used is forgotten."""


@dataclass(frozen=True, slots=True)
class CursorPlace:
    """Stream and offset at which a cursor goes on."""

    stream: str
    incarnation: Incarnation
    offset: Offset
    last_epoch: LeaderEpoch | None
    """Leader epoch of the record before ``offset``, if it was served or named."""


@dataclass(slots=True)
class _Cursor(Generic[TokenT]):
    place: CursorPlace | None = None
    waiting: deque[TokenT] = field(default_factory=deque)


class ConnectionCursors(Generic[TokenT]):
    """The cursors of one connection, by the number the reader gave them.

    Invariants:
        F5: of each cursor at most one fetch has its turn; the others wait in the order they came.
            Held by test_fetches_of_a_cursor_have_their_turn_in_order.
        F6: a cursor stands where its last fetch ended, and has no place if that one failed.
            Held by test_a_cursor_that_failed_stands_nowhere.
        F7: at most ``CURSORS_KEPT_MAX`` cursors without a fetch in flight are known.
            Held by test_the_idle_cursor_used_longest_ago_is_forgotten.
    """

    def __init__(self) -> None:
        self._busy: dict[int, _Cursor[TokenT]] = {}
        self._idle: dict[int, _Cursor[TokenT]] = {}  # least recently used first

    def enter(self, cursor: int, token: TokenT) -> bool:
        """Add a fetch; return whether it has its turn now; if not, it waits until `leave` returns it."""
        busy = self._busy.get(cursor)
        if busy is not None:
            busy.waiting.append(token)
            return False
        self._busy[cursor] = self._idle.pop(cursor) if cursor in self._idle else _Cursor()
        return True

    def drop(self, cursor: int, token: TokenT) -> bool:
        """Forget a fetch that waits for its turn; return whether it did."""
        busy = self._busy.get(cursor)
        if busy is None or token not in busy.waiting:
            return False
        busy.waiting.remove(token)
        return True

    def place(self, cursor: int, stream: str) -> CursorPlace:
        """Return the place at which the fetch that has its turn begins.

        Raises:
            RequestError: the cursor has no place, or one in another stream.
        """
        place = self._busy[cursor].place
        if place is None:
            raise RequestError(
                f"cursor {cursor} stands nowhere: its last fetch failed, or there was none; name an offset"
            )
        if place.stream != stream:
            raise RequestError(f"cursor {cursor} stands in another stream; name an offset")
        return place

    def leave(self, cursor: int, place: CursorPlace | None) -> TokenT | None:
        """End the fetch that had its turn, at ``place`` or by failure; return the next one."""
        left = self._busy[cursor]
        left.place = place
        if left.waiting:
            return left.waiting.popleft()
        del self._busy[cursor]
        if place is not None:
            self._idle[cursor] = left
            if len(self._idle) > CURSORS_KEPT_MAX:
                del self._idle[next(iter(self._idle))]
        return None

    def clear(self) -> None:
        """Forget everything."""
        self._busy.clear()
        self._idle.clear()
