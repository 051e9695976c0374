"""The offsets of a log that are refused, because their bytes are damaged or missing.

Theory of operation: several threads find damage while they read, and the disk thread removes truncated
ranges; neither may undo the other. So the ranges have one owner, the disk thread. The other threads append
their findings to a list, which the owner merges when it changes the ranges. A finding counts at once: every
look at the ranges adds the list.

Sets of offsets are sorted, disjoint, half-open ranges.
"""

from envelope.errors import CorruptDataError
from envelope.types import Offset

OffsetRange = tuple[Offset, Offset]


def with_range(ranges: tuple[OffsetRange, ...], start: Offset, end: Offset) -> tuple[OffsetRange, ...]:
    """Return ``ranges`` with ``[start, end)`` added; ranges that touch become one."""
    if start >= end:
        return ranges
    apart = [found for found in ranges if found[1] < start or found[0] > end]
    joined = [found for found in ranges if found not in apart]
    start = min([start, *(found[0] for found in joined)])
    end = max([end, *(found[1] for found in joined)])
    return tuple(sorted([*apart, (start, end)]))


def above(ranges: tuple[OffsetRange, ...], start: Offset) -> tuple[OffsetRange, ...]:
    """Return the part of ``ranges`` from ``start`` on."""
    return tuple((max(found[0], start), found[1]) for found in ranges if found[1] > start)


def below(ranges: tuple[OffsetRange, ...], end: Offset) -> tuple[OffsetRange, ...]:
    """Return the part of ``ranges`` before ``end``."""
    return tuple((found[0], min(found[1], end)) for found in ranges if found[0] < end)


def without_range(ranges: tuple[OffsetRange, ...], start: Offset, end: Offset) -> tuple[OffsetRange, ...]:
    """Return ``ranges`` without ``[start, end)``."""
    return (*below(ranges, start), *above(ranges, end)) if start < end else ranges


class CorruptRanges:
    """The refused offsets of one log."""

    __slots__ = ("_directory", "_found", "_ranges")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._found: list[OffsetRange] = []
        self._ranges: tuple[OffsetRange, ...] = ()

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """All refused ranges."""
        # In this order: a finding that the owner merges in between is seen twice; the other way round never.
        found = tuple(self._found)
        ranges = self._ranges
        for start, end in found:
            ranges = with_range(ranges, start, end)
        return ranges

    def add(self, start: Offset, end: Offset) -> None:
        """Refuse ``[start, end)`` from now on; on any thread."""
        ranges = self.ranges
        if with_range(ranges, start, end) != ranges:
            self._found.append((start, end))

    def replace(self, ranges: tuple[OffsetRange, ...], log_start: Offset, log_end: Offset) -> None:
        """Replace the ranges by ``ranges`` and the new findings in ``[log_start, log_end)``; by the owner."""
        found = tuple(self._found)
        for start, end in above(below(found, log_end), log_start):
            ranges = with_range(ranges, start, end)
        self._ranges = ranges
        del self._found[: len(found)]

    def repaired(self, start: Offset, end: Offset) -> None:
        """Refuse ``[start, end)`` no more; by the owner, once no reader can get the damaged bytes."""
        found = tuple(self._found)
        ranges = self._ranges
        for damaged in found:
            ranges = with_range(ranges, *damaged)
        # In this order: a look in between refuses once too often, never too little.
        self._ranges = without_range(ranges, start, end)
        del self._found[: len(found)]

    def refuse(self, offset: Offset) -> None:
        """Raise CorruptDataError if ``offset`` is refused."""
        for start, end in self.ranges:
            if start <= offset < end:
                raise CorruptDataError(
                    f"offset {offset} lies in the corrupt range [{start}, {end}) of {self._directory}",
                    offset=offset,
                    corrupt_start=start,
                    corrupt_end=end,
                )
