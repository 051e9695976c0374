"""Many times of which the next one is wanted; each can be moved."""

from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from consumer_groups.coordinator.sessions import NEVER
from envelope.types import MonotonicNs

KeyT = TypeVar("KeyT", bound=str)

_STALE_MIN: Final = 64


class Alarms(Generic[KeyT]):
    """A time for each key. Setting it costs as much as its logarithm, however often it is moved."""

    def __init__(self) -> None:
        self._at: dict[KeyT, MonotonicNs] = {}
        self._heap: list[tuple[MonotonicNs, KeyT]] = []
        """Also has times that were moved since."""

    def set(self, key: KeyT, at: MonotonicNs) -> None:
        """Set or move the time of ``key``; `NEVER` takes it away."""
        if at == NEVER:
            self.clear(key)
        elif self._at.get(key) != at:
            self._at[key] = at
            heappush(self._heap, (at, key))
        if len(self._heap) > 2 * len(self._at) + _STALE_MIN:
            self._heap = [(at, key) for key, at in self._at.items()]
            heapify(self._heap)

    def clear(self, key: KeyT) -> None:
        """Take the time of ``key`` away, if it has one."""
        self._at.pop(key, None)

    def next(self) -> MonotonicNs:
        """Return the first time; `NEVER` if there is none."""
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else NEVER

    def due(self, now: MonotonicNs) -> list[KeyT]:
        """Take away the times that have come; return their keys, the first one first."""
        keys: list[KeyT] = []
        while self.next() <= now:
            _, key = heappop(self._heap)
            del self._at[key]
            keys.append(key)
        return keys
