"""The last offset of each key, for as many keys as a budget of bytes holds.

Sixteen bytes of hash and eight of offset per key, sorted by the hash's first half. What is new waits beside
until it is as much as what is sorted, so that sorting costs a logarithmic number of rounds.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from jetstream.log.key_hash import Hashes

ENTRY_BYTES: Final = 24

Offsets = npt.NDArray[np.int64]
_NO_HASHES: Final[Hashes] = np.empty((0, 2), np.uint64)
_NO_OFFSETS: Final[Offsets] = np.empty(0, np.int64)


class LatestOffsets:
    """Filled in the order of offsets, then asked."""

    def __init__(self, bytes_max: int) -> None:
        """Hold at most ``bytes_max`` bytes, and what is added last; while sorting, four times that."""
        self._entries_max = bytes_max // ENTRY_BYTES
        self._hashes, self._offsets = _NO_HASHES, _NO_OFFSETS
        self._new: list[tuple[Hashes, Offsets]] = []
        self._new_rows = 0

    def __len__(self) -> int:
        """Number of keys."""
        self._sort()
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be added."""
        if len(self._offsets) + self._new_rows < self._entries_max:
            return False
        return len(self) >= self._entries_max

    def add(self, hashes: Hashes, offsets: Offsets) -> None:
        """Take in records that come after all others; the last one of each key counts."""
        self._new.append((hashes, offsets))
        self._new_rows += len(offsets)
        if self._new_rows > len(self._offsets):
            self._sort()

    def are_superseded(self, hashes: Hashes, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Tell of each record whether a later one with its key was added."""
        self._sort()
        found = np.zeros(len(offsets), np.bool_)
        if len(self._offsets) == 0:
            return found
        # Sorted questions walk through memory in order; they are several times as fast.
        order = np.argsort(hashes[:, 0])
        wanted = hashes[order]
        first = np.searchsorted(self._hashes[:, 0], wanted[:, 0])
        for step in (0, 1):  # two keys may share the first half; three do not
            place = np.minimum(first + step, len(self._offsets) - 1)
            same = (self._hashes[place] == wanted).all(axis=1)
            found[order] |= same & (self._offsets[place] > offsets[order])
        return found

    def _sort(self) -> None:
        """Sort what is new in, and drop all but the last of each key."""
        if not self._new:
            return
        hashes = np.concatenate([self._hashes, *(part for part, _ in self._new)])
        offsets = np.concatenate([self._offsets, *(part for _, part in self._new)])
        self._new.clear()
        self._new_rows = 0
        order = np.argsort(hashes[:, 0], kind="stable")  # so that the last of a key stays behind the others
        hashes, offsets = hashes[order], offsets[order]
        is_last = np.ones(len(offsets), np.bool_)
        is_last[:-1] = (hashes[1:] != hashes[:-1]).any(axis=1)
        self._hashes, self._offsets = hashes[is_last], offsets[is_last]
