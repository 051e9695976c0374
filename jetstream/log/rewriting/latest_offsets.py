"""The last offset of each key, for as many keys as a budget of bytes holds.

Sixteen bytes of hash and eight of offset per key, sorted by the hash's first half. New keys wait beside until
they are as many as the sorted ones, so that sorting costs a logarithmic number of rounds.

`KeyHasher` hashes record keys, a column at a time.

Multilinear hashing: a key is a row of 16-bit numbers, each multiplied by a random number of its place, summed
modulo 2**64; twice, with different random numbers. Two different keys have the same pair with a chance of at
most 2**-96, whatever the keys are, as the random numbers are secret. A keyed cryptographic hash takes the
place of the sum for long keys, of which there are few in a megabyte.

Source: Carter and Wegman, "Universal Classes of Hash Functions" (1979); Lemire and Kaser, "Strongly universal
string hashing is fast" (2012).
"""

import hashlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SHORT_BYTES_MAX: Final = 256
_ROWS: Final = 16_384
"""Keys at once, so that the rows of numbers stay within a few megabytes."""

ENTRY_BYTES: Final = 24

Hashes = npt.NDArray[np.uint64]
"""One row per key, two numbers each."""


class KeyHasher:
    """Hashes with random numbers of its own: two hashers never agree."""

    def __init__(self) -> None:
        random = np.random.default_rng()
        self._factors = random.integers(0, 1 << 64, (_SHORT_BYTES_MAX // 2 + 1, 2), dtype=np.uint64)
        self._secret = random.bytes(32)

    def hashes(self, keys: "pa.Array[Any]") -> Hashes:
        """Return the hashes of ``keys``, of type binary and without nulls."""
        assert keys.null_count == 0, "a record without a key has no hash"
        count = len(keys)
        found = np.empty((count, 2), np.uint64)
        if count == 0:
            return found
        _, ends_buffer, data_buffer = keys.buffers()
        assert ends_buffer is not None, "an array of binary has offsets"
        ends = np.frombuffer(memoryview(ends_buffer), np.int32, count + 1, keys.offset * 4)
        data = np.frombuffer(memoryview(data_buffer if data_buffer is not None else b""), np.uint8)
        for row in range(0, count, _ROWS):
            part = ends[row : row + _ROWS + 1]
            found[row : row + len(part) - 1] = self._some(data, part)
        return found

    def _some(self, data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int32]) -> Hashes:
        lengths = np.diff(ends)
        is_long = lengths > _SHORT_BYTES_MAX
        short = np.where(is_long, 0, lengths)
        width = -(-int(short.max()) // 2) * 2
        padded = np.zeros((len(lengths), width), np.uint8)
        where = np.arange(width) < short[:, None]
        content = data[ends[0] : ends[-1]]
        padded[where] = content if not is_long.any() else content[np.repeat(~is_long, lengths)]
        numbers = padded.view("<u2").astype(np.uint64)
        hashes: Hashes = numbers @ self._factors[1 : width // 2 + 1]
        hashes += short.astype(np.uint64)[:, None] * self._factors[0]  # or padding would be like zeros
        for row in np.flatnonzero(is_long):
            key = data[ends[row] : ends[row + 1]].tobytes()
            digest = hashlib.blake2b(key, digest_size=16, key=self._secret)
            hashes[row] = np.frombuffer(digest.digest(), np.uint64)
        return hashes


Offsets = npt.NDArray[np.int64]
_NO_HASHES: Final[Hashes] = np.empty((0, 2), np.uint64)
_NO_OFFSETS: Final[Offsets] = np.empty(0, np.int64)


class LatestOffsets:
    """The last offset of each key; filled in the order of offsets, then read."""

    def __init__(self, bytes_max: int) -> None:
        """Hold at most ``bytes_max`` bytes, and the last addition; while sorting, four times that."""
        self._entries_max = bytes_max // ENTRY_BYTES
        self._hashes, self._offsets = _NO_HASHES, _NO_OFFSETS
        self._new: list[tuple[Hashes, Offsets]] = []
        self._new_rows = 0

    def __len__(self) -> int:
        self._sort()
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """Whether no more records are to be added."""
        if len(self._offsets) + self._new_rows < self._entries_max:
            return False
        return len(self) >= self._entries_max

    def add(self, hashes: Hashes, offsets: Offsets) -> None:
        """Add records that come after all others; the last one of each key counts."""
        self._new.append((hashes, offsets))
        self._new_rows += len(offsets)
        if self._new_rows > len(self._offsets):
            self._sort()

    def are_superseded(self, hashes: Hashes, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Return for each record whether a later one with its key was added."""
        self._sort()
        found = np.zeros(len(offsets), np.bool_)
        if len(self._offsets) == 0:
            return found
        # Sorted look-ups walk through memory in order; they are several times as fast.
        order = np.argsort(hashes[:, 0])
        wanted = hashes[order]
        first = np.searchsorted(self._hashes[:, 0], wanted[:, 0])
        for step in (0, 1):  # two keys may share the first half; three do not
            place = np.minimum(first + step, len(self._offsets) - 1)
            same = (self._hashes[place] == wanted).all(axis=1)
            found[order] |= same & (self._offsets[place] > offsets[order])
        return found

    def _sort(self) -> None:
        """Merge the new keys, and drop all but the last offset of each."""
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
