"""Long polls that wait: found by stream and offset when a high watermark moves, and by deadline.

Dropped tokens leave their heap entries behind; these are skipped when they surface, and the heaps are
rebuilt when more than half is dead, so memory stays in proportion to the waiting tokens.
"""

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from envelope.types import MonotonicNs, Offset, StreamName

TokenT = TypeVar("TokenT", bound=Hashable)

_DEAD_ENTRIES_MIN: Final = 64


@dataclass(frozen=True, slots=True)
class _Place:
    stream: StreamName
    offset: Offset
    deadline: MonotonicNs
    number: int


class ParkedFetches(Generic[TokenT]):
    """The fetches of one node that wait for their stream's high watermark to pass their offset.

    Invariants:
        F2: a token is parked at most once.
        F3: every parked token is in its stream's heap and in the deadline heap.
            Held by test_a_high_watermark_wakes_only_those_it_has_passed.
        F4: the heaps hold at most twice as many entries as tokens are parked, and a few.
            Held by test_memory_follows_what_waits.
    """

    def __init__(self) -> None:
        self._places: dict[TokenT, _Place] = {}
        # The running number breaks ties, so that tokens are never compared and waiters keep their order.
        self._by_offset: dict[StreamName, list[tuple[Offset, int, TokenT]]] = {}
        self._by_deadline: list[tuple[MonotonicNs, int, TokenT]] = []
        self._offset_entries = 0
        self._number = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, token: TokenT) -> bool:
        return token in self._places

    def park(self, token: TokenT, stream: StreamName, offset: Offset, deadline: MonotonicNs) -> None:
        """Park ``token`` until ``stream`` passes ``offset``, ``deadline`` comes, or it is dropped."""
        assert token not in self._places, "F2: a token is parked once"
        self._number += 1
        self._places[token] = _Place(stream, offset, deadline, self._number)
        heapq.heappush(self._by_offset.setdefault(stream, []), (offset, self._number, token))
        self._offset_entries += 1
        heapq.heappush(self._by_deadline, (deadline, self._number, token))

    def advance(self, stream: StreamName, high_watermark: Offset) -> list[TokenT]:
        """Remove and return the tokens of ``stream`` with something to read, lowest offset first."""
        return self._take(stream, lambda offset: offset < high_watermark)

    def release(self, stream: StreamName) -> list[TokenT]:
        """Remove and return all tokens of ``stream``."""
        return self._take(stream, lambda _: True)

    def expire(self, now: MonotonicNs) -> list[TokenT]:
        """Remove and return the tokens whose deadline is at or before ``now``, earliest first."""
        expired: list[TokenT] = []
        while self._by_deadline and self._by_deadline[0][0] <= now:
            _, number, token = heapq.heappop(self._by_deadline)
            if self._lives(token, number):
                self.drop(token)
                expired.append(token)
        return expired

    def drop(self, token: TokenT) -> None:
        """Forget ``token`` if it is parked."""
        place = self._places.pop(token, None)
        if place is None:
            return
        heap = self._by_offset[place.stream]
        while heap and not self._lives(heap[0][2], heap[0][1]):
            heapq.heappop(heap)
            self._offset_entries -= 1
        if not heap:
            del self._by_offset[place.stream]
        if max(self._offset_entries, len(self._by_deadline)) > 2 * len(self._places) + _DEAD_ENTRIES_MIN:
            self._rebuild()

    @property
    def next_deadline(self) -> MonotonicNs | None:
        """The earliest deadline of a parked token, or None."""
        while self._by_deadline and not self._lives(self._by_deadline[0][2], self._by_deadline[0][1]):
            heapq.heappop(self._by_deadline)
        return self._by_deadline[0][0] if self._by_deadline else None

    def waits_on(self, stream: StreamName) -> bool:
        """Return whether some token of ``stream`` is parked."""
        return stream in self._by_offset

    def _take(self, stream: StreamName, ready: Callable[[Offset], bool]) -> list[TokenT]:
        taken: list[TokenT] = []
        while (heap := self._by_offset.get(stream)) and ready(heap[0][0]):
            token = heap[0][2]
            assert self._lives(token, heap[0][1]), "the top of an offset heap is never dead"
            self.drop(token)
            taken.append(token)
        return taken

    def _lives(self, token: TokenT, number: int) -> bool:
        place = self._places.get(token)
        return place is not None and place.number == number

    def _rebuild(self) -> None:
        self._by_offset, self._by_deadline = {}, []
        for token, place in self._places.items():
            self._by_offset.setdefault(place.stream, []).append((place.offset, place.number, token))
            self._by_deadline.append((place.deadline, place.number, token))
        for heap in self._by_offset.values():
            heapq.heapify(heap)
        heapq.heapify(self._by_deadline)
        self._offset_entries = len(self._places)
