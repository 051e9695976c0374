"""The memory of the answers to fetches that leave something out: how much there may be, and whose turn it is.

Such an answer is made in memory, and stays there until its reader has taken it. All of a node share one
budget. One answer is made at a time, and a connection has one at a time; the others wait for a turn, each
connection once, in the order in which they came. A connection keeps its place until it has had an answer,
also if its fetch is meanwhile answered with nothing, so that no client waits in silence. Until that client
asks again, for `GRACE_NS` at most, the younger ones wait as if it had; a client that was once later than that
is waited for no more.

One that takes its answers at full size may have the next made meanwhile, while nobody else needs the memory.

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
GRACE_NS: Final = 500_000_000
"""How long a connection's place is kept free when its fetch was so answered, until it asks again."""


@dataclass(slots=True)
class _Hold:
    """The answers that a connection has not taken."""

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
    grace_until: MonotonicNs | None = None
    """Until when it holds up the younger ones without a fetch."""
    was_late: bool = False
    """Its client did not ask again in time, and has no more grace."""

    def has_grace(self, now: MonotonicNs) -> bool:
        """Return whether its client may be about to ask again."""
        return self.grace_until is not None and now < self.grace_until


class SelectionBudget(Generic[HolderT, TokenT]):
    """Decides which connection (holder) may have an answer made for one of its fetches (tokens).

    Invariants:
        F11: what is held is within the budget, but for one answer that is larger than was expected, or than
            the budget.
            Held by test_the_budget_is_kept_and_nobody_starves.
        F12: one answer is made at a time; a connection has a second one only while nobody waits.
        F13: an answer is made for the connection that has waited longest, once there is memory for it, if its
            client asks again within `GRACE_NS` whenever it is answered with nothing.
            Held by test_the_budget_is_kept_and_nobody_starves.
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
        self._making_bytes = 0
        """Reserved for that answer."""
        self.held_bytes = 0

    @property
    def waiting(self) -> int:
        """How many fetches wait."""
        return len(self._since)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held."""
        return not self._holds and self._maker is None

    @property
    def holders(self) -> tuple[HolderT, ...]:
        """The connections with an answer that is made."""
        return tuple(self._holds)

    def begin(self, holder: HolderT, token: TokenT, size: int, now: MonotonicNs) -> bool:
        """Reserve ``size`` bytes for an answer and return True; or keep the fetch until `next` returns it."""
        place = self._places.get(holder)
        if place is not None and not place.tokens:
            place.was_late |= not place.has_grace(now) and place.grace_until is not None
            place.grace_until = None
        first = self._first(now)
        is_first = first is None or (place is not None and place.number < first[0])
        if is_first and self._fits(size):
            self._places.pop(holder, None)
            self._maker, self._making_bytes = holder, size
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

    def next(self, now: MonotonicNs) -> list[TokenT]:
        """Remove and return the fetches of the connection whose turn it is, if the first of them fits."""
        first = self._first(now)
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
            place = self._places[holder]
            del place.tokens[token]
            if not place.tokens and not place.was_late:
                place.grace_until = MonotonicNs(now + GRACE_NS)
        for token in expired:
            del self._since[token]
        return expired

    def drop(self, token: TokenT) -> None:
        """Forget a fetch that waits; its connection keeps its place."""
        found = self._since.pop(token, None)
        if found is not None:
            del self._places[found[0]].tokens[token]

    def has_spare(self, size: int, now: MonotonicNs) -> bool:
        """Return whether one may be made for a connection that has one: nobody else needs the memory."""
        is_needed = self._maker is not None or self._first(now) is not None
        return not is_needed and self.held_bytes + size <= self._bytes_max // 2

    def made(self, holder: HolderT, size: int, now: MonotonicNs) -> None:
        """Record the bytes of the answer that has been made; 0: it is empty, or nobody wants it any more."""
        assert holder == self._maker, "F12: one answer is made at a time"
        self.held_bytes += size - self._making_bytes
        self._maker, self._making_bytes = None, 0
        if size:
            self._holds.setdefault(holder, _Hold(0, None, now)).size += size

    def release(self, holder: HolderT) -> None:
        """Give back what was made for a connection, if anything."""
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
        first = self._first(now)
        if first is None or self._has_memory(self._places[first[1]].size):
            return None
        longest: tuple[MonotonicNs, HolderT] | None = None
        for holder, hold in self._holds.items():
            total = taken(holder)
            if total is None or hold.taken is None or total - hold.taken >= STEP_BYTES:
                hold.taken, hold.at = total, now
            elif now - hold.at >= HOLD_NS and (longest is None or hold.at < longest[0]):
                longest = (hold.at, holder)
        return None if longest is None else longest[1]

    def _fits(self, size: int) -> bool:
        return self._maker is None and self._has_memory(size)

    def _has_memory(self, size: int) -> bool:
        return self.is_idle or self.held_bytes + size <= self._bytes_max

    def _first(self, now: MonotonicNs) -> tuple[int, HolderT] | None:
        """Return the connection that has waited longest, with its number; it may be about to ask again."""
        while self._order:
            number, holder = self._order[0]
            place = self._places.get(holder)
            if place is None or place.number != number:
                heapq.heappop(self._order)
            elif place.tokens or place.has_grace(now):
                return number, holder
            else:
                heapq.heappop(self._order)
                place.is_queued = False
        return None
