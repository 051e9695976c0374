"""The memory of the answers to fetches that leave something out: how much there may be, and whose turn it is.

Such an answer is made in memory, and stays there until its reader has taken it. All of a node share one
budget. One answer is made at a time, and a connection holds one at most; the others wait for a turn, each
connection once, in the order in which they came. A connection keeps its place until it has had an answer,
also if its fetch is meanwhile answered with nothing, so that no client waits in silence.

A connection's first answer is small, and each that it takes lets the next be twice as large: a thousand
readers that never read fit the default budget, and nobody waits for them.

Readers that take nothing cannot hold the budget for ever: while a connection waits for it, a holder that
takes less than `STEP_BYTES` in `HOLD_NS` is overdue, and is closed. So each answer is gone after as many such
times as it has steps, and whoever waits moves up, whatever the readers before it do.
"""

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from envelope.limits import KIB, MIB
from envelope.types import MonotonicNs

HolderT = TypeVar("HolderT", bound=Hashable)
TokenT = TypeVar("TokenT", bound=Hashable)

SELECTION_BYTES_DEFAULT: Final = 64 * MIB
SELECTED_BYTES_FIRST: Final = 64 * KIB
"""Of a connection's first answer; the next is twice as large when it is taken, up to `SELECTED_BYTES_MAX`."""

STEP_BYTES: Final = 64 * KIB
"""Taken of an answer in `HOLD_NS` by a reader that reads."""
EXPIRED_MAX: Final = 64
"""Fetches that are answered with nothing before the event loop looks at anything else."""
HOLD_NS: Final = 3_000_000_000
WAIT_NS: Final = 5_000_000_000
"""How long a fetch waits before it is answered with nothing; clients wait 10 s for an answer."""


@dataclass(slots=True)
class _Hold:
    """An answer, from the moment its bytes are reserved."""

    size: int
    taken: int | None
    """Bytes that the connection had taken in all at the last step; None before it is first looked at."""
    at: MonotonicNs
    """Time of that step."""


@dataclass(slots=True)
class _Place(Generic[TokenT]):
    """The place of a connection among those that wait; its number is its age."""

    number: int
    tokens: dict[TokenT, None] = field(default_factory=dict)
    size: int = 0
    """Bytes that its first fetch needs."""
    is_queued: bool = False
    """It is among those that are looked at."""


class SelectionBudget(Generic[HolderT, TokenT]):
    """Decides which connection (holder) may have an answer made for one of its fetches (tokens).

    Invariants:
        F11: what is held is within the budget, but for one answer that is larger than was expected, or than
            the budget.
            Held by test_the_budget_is_kept_and_nobody_starves.
        F12: a connection holds one answer at most, and one is made at a time.
        F13: an answer is made for the connection that has waited longest, once there is memory for it.
            Held by test_a_small_answer_does_not_overtake_a_large_one.
    """

    def __init__(self, bytes_max: int) -> None:
        """Begin with nothing held."""
        self._bytes_max = bytes_max
        self._holds: dict[HolderT, _Hold] = {}
        self._places: dict[HolderT, _Place[TokenT]] = {}
        self._order: list[tuple[int, HolderT]] = []  # a heap; places without a fetch that waits are skipped
        self._since: dict[TokenT, tuple[HolderT, MonotonicNs]] = {}  # longest wait first
        self._numbers = 0
        self._maker: HolderT | None = None
        """The connection whose answer is being made."""
        self.held_bytes = 0

    @property
    def waiting(self) -> int:
        """How many fetches wait."""
        return len(self._since)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held."""
        return not self._holds

    @property
    def holders(self) -> tuple[HolderT, ...]:
        """The connections with an answer."""
        return tuple(self._holds)

    def begin(self, holder: HolderT, token: TokenT, size: int, now: MonotonicNs) -> bool:
        """Reserve ``size`` bytes for an answer and return True; or keep the fetch until `next` returns it."""
        assert holder not in self._holds, "F12: one answer at most"
        place = self._places.get(holder)
        first = self._first()
        is_first = first is None or (place is not None and place.number < first[0])
        if is_first and self._fits(size):
            self._places.pop(holder, None)
            self._holds[holder], self._maker = _Hold(size, None, now), holder
            self.held_bytes += size
            return True
        if place is None:
            self._numbers += 1
            place = self._places[holder] = _Place(self._numbers)
        if not place.tokens:
            place.size = size
        if not place.is_queued:
            place.is_queued = True
            heapq.heappush(self._order, (place.number, holder))
        place.tokens[token] = None
        self._since[token] = (holder, now)
        return False

    def next(self) -> list[TokenT]:
        """Remove and return the fetches of the connection whose turn it is, if the first of them fits."""
        first = self._first()
        if first is None or not self._fits(self._places[first[1]].size):
            return []
        place = self._places[first[1]]
        tokens, place.tokens = list(place.tokens), {}
        for token in tokens:
            del self._since[token]
        return tokens

    def expire(self, now: MonotonicNs) -> list[TokenT]:
        """Remove and return some that have waited for `WAIT_NS`; their connections keep their places."""
        expired: list[TokenT] = []
        for token, (holder, since) in self._since.items():
            if now - since < WAIT_NS or len(expired) == EXPIRED_MAX:
                break
            expired.append(token)
            del self._places[holder].tokens[token]
        for token in expired:
            del self._since[token]
        return expired

    def drop(self, token: TokenT) -> None:
        """Forget a fetch that waits; its connection keeps its place."""
        found = self._since.pop(token, None)
        if found is not None:
            del self._places[found[0]].tokens[token]

    def made(self, holder: HolderT, size: int) -> None:
        """Record the bytes of the answer that has been made; 0: it is empty, or nobody wants it any more."""
        assert holder == self._maker, "F12: one answer is made at a time"
        self._maker = None
        hold = self._holds[holder]
        self.held_bytes += size - hold.size
        hold.size = size
        if not size:
            self.release(holder)

    def release(self, holder: HolderT) -> None:
        """Give back what a connection holds, if it does and it has been made."""
        if holder == self._maker:
            return
        hold = self._holds.pop(holder, None)
        if hold is not None:
            self.held_bytes -= hold.size
        assert self.held_bytes >= 0, f"F11: {self.held_bytes} bytes are held"

    def forget(self, holder: HolderT) -> None:
        """Drop a connection that is gone; an answer that is being made is held until `made`."""
        self.release(holder)
        place = self._places.pop(holder, None)
        for token in place.tokens if place is not None else ():
            del self._since[token]

    def overdue(self, taken: Callable[[HolderT], int | None], now: MonotonicNs) -> HolderT | None:
        """Return the holder to close, if a connection waits for memory: the one longest overdue.

        Args:
            taken: returns the bytes that a connection has taken since it began; None: it has nothing to take.
            now: the time.
        """
        first = self._first()
        if first is None or self._has_memory(self._places[first[1]].size):
            return None
        longest: tuple[MonotonicNs, HolderT] | None = None
        for holder, hold in self._holds.items():
            total = taken(holder)
            before = None if holder == self._maker else hold.taken
            if total is None or before is None or total - before >= STEP_BYTES:
                hold.taken, hold.at = total, now
            elif now - hold.at >= HOLD_NS and (longest is None or hold.at < longest[0]):
                longest = (hold.at, holder)
        return None if longest is None else longest[1]

    def _fits(self, size: int) -> bool:
        return self._maker is None and self._has_memory(size)

    def _has_memory(self, size: int) -> bool:
        return not self._holds or self.held_bytes + size <= self._bytes_max

    def _first(self) -> tuple[int, HolderT] | None:
        """Return the connection that has waited longest, with its number."""
        while self._order:
            number, holder = self._order[0]
            place = self._places.get(holder)
            if place is not None and place.number == number and place.tokens:
                return number, holder
            heapq.heappop(self._order)
            if place is not None and place.number == number:
                place.is_queued = False
        return None
