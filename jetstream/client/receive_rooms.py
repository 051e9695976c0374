"""Memory for bodies, used again when nobody looks at them any more.

A body is received where it stays: Arrow batches, and whatever an application makes of them, view it. Memory
fresh from the system costs a page fault and a cleared page for every 4 KiB, a sixth of a reader's time; so
what comes back is kept for the next body, up to a bound.
"""

import weakref
from typing import Any, Final

import numpy as np

from envelope.limits import KIB, MIB

_ROOM_BYTES_MIN: Final = 256 * KIB
"""Smaller ones come from the heap, which is as fast."""

KEPT_BYTES_MAX: Final = 32 * MIB

_Room = np.ndarray[Any, np.dtype[np.uint8]]


class ReceiveRooms:
    """Lends writable memory.

    Invariant:
        C13: memory is lent again only after the last view of it is gone.
    """

    def __init__(self) -> None:
        self._kept: dict[int, list[_Room]] = {}

    @property
    def kept_bytes(self) -> int:
        """Bytes that wait to be lent again."""
        return sum(size * len(rooms) for size, rooms in tuple(self._kept.items()))

    def take(self, length: int) -> memoryview:
        """Return room for ``length`` bytes, with any content; called by one thread.

        It comes back by itself, from whichever thread drops the last view.
        """
        if length < _ROOM_BYTES_MIN:
            return np.empty(length, np.uint8).data
        size = 1 << (length - 1).bit_length()
        kept = self._kept.setdefault(size, [])
        room = kept.pop() if kept else np.empty(size, np.uint8)
        view = room[:length]
        weakref.finalize(view, self._give_back, room).atexit = False
        return view.data

    def _give_back(self, room: _Room) -> None:
        if self.kept_bytes + len(room) <= KEPT_BYTES_MAX:
            self._kept[len(room)].append(room)
