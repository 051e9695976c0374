"""Hashes of record keys, a column at a time.

Multilinear hashing: a key is a row of 16-bit numbers, each multiplied by a random number of its place, summed
modulo 2**64; twice, with different random numbers. Two different keys have the same pair with a chance of at
most 2**-96, whatever the keys are, as nobody knows the random numbers. A keyed cryptographic hash takes the
place of the sum for long keys, of which there are few in a megabyte.

Source: Carter and Wegman, "Universal Classes of Hash Functions" (1979); Lemire and Kaser, "Strongly universal
string hashing is fast" (2012).
"""

import hashlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]
"""One row per key, two numbers each."""

_SHORT_BYTES_MAX: Final = 256
_ROWS: Final = 16_384
"""At once, so that the rows of numbers stay within a few megabytes."""


class KeyHasher:
    """Hashes with random numbers of its own: two hashers agree on nothing."""

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
