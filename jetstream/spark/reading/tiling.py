"""Whether what came of a range is all of it, each record once and in order. Pure.

The client has checked already that the batches of a range tile it, by what their headers say. Here are the
records themselves: they come in order, none of them twice, and those that are missing are counted, whatever
a server says of its batches.
"""

import numpy as np
import numpy.typing as npt

from envelope.errors import CorruptDataError


class RangeCheck:
    """Follows the reading of one range ``[start, end)`` of a stream.

    Invariant:
        R1: the offsets that were taken are increasing and within the range.
    """

    def __init__(self, stream: str, start: int, end: int) -> None:
        """Begin at the start."""
        self._what = f"{stream!r} [{start}, {end})"
        self._end = end
        self._place = start
        self._missing = end - start

    @property
    def place(self) -> int:
        """The offset after the last one that was taken or skipped."""
        return self._place

    @property
    def missing(self) -> int:
        """How many offsets of the range have no record, but for those that were skipped; known at its end."""
        return self._missing

    def take(self, offsets: npt.NDArray[np.int64]) -> None:
        """Take the next records in, at least one.

        Raises:
            CorruptDataError: they do not come after those before, or not in this range.
        """
        first, last = int(offsets[0]), int(offsets[-1])
        if not self._place <= first <= last < self._end or bool((np.diff(offsets) <= 0).any()):
            raise CorruptDataError(
                f"{self._what}: got the offsets {first} to {last} where {self._place} comes next"
            )
        self._place = last + 1
        self._missing -= len(offsets)

    def skip(self, offset: int) -> None:
        """Go on at ``offset``, at most the end: what is before it is known to be gone."""
        assert self._place <= offset <= self._end, f"R1: from {self._place} to {offset} in {self._what}"
        self._missing -= offset - self._place
        self._place = offset

    def finish(self, reached: int) -> None:
        """Check that this was the end: ``reached`` is where the reader says it is.

        Raises:
            CorruptDataError: it is not.
        """
        if reached != self._end:
            raise CorruptDataError(f"{self._what}: it ended at offset {reached}")
