"""Which offsets of a log are refused, because their bytes are damaged or missing.

Theory of operation: several threads find damage while they read, and the disk thread takes away what is
truncated; neither may undo the other. So the ranges have one owner, the disk thread. The others hand in what
they find by appending to a list, and the owner takes that over when it changes the ranges. What is handed in
counts at once: whoever looks adds it up.
"""

from envelope.errors import CorruptDataError
from envelope.types import Offset
from jetstream.log.ranges import OffsetRange, above, below, with_range, without_range


class CorruptRanges:
    """The refused offsets of one log."""

    __slots__ = ("_directory", "_found", "_ranges")

    def __init__(self, directory: str) -> None:
        """Begin with none; ``directory`` is for messages."""
        self._directory = directory
        self._found: list[OffsetRange] = []
        self._ranges: tuple[OffsetRange, ...] = ()

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """All of them."""
        # In this order: what the owner takes over in between is seen twice, the other way round not at all.
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
        """Let ``ranges`` be what the owner knows, besides what was found in ``[log_start, log_end)``."""
        found = tuple(self._found)
        for start, end in above(below(found, log_end), log_start):
            ranges = with_range(ranges, start, end)
        self._ranges = ranges
        del self._found[: len(found)]

    def repaired(self, start: Offset, end: Offset) -> None:
        """Refuse ``[start, end)`` no more; by the owner, once nobody can read what was there."""
        found = tuple(self._found)
        ranges = self._ranges
        for damaged in found:
            ranges = with_range(ranges, *damaged)
        # In this order: what is looked at in between is refused once more, never too little.
        self._ranges = without_range(ranges, start, end)
        del self._found[: len(found)]

    def refuse(self, offset: Offset) -> None:
        """Raise CorruptDataError if ``offset`` is one of them."""
        for start, end in self.ranges:
            if start <= offset < end:
                raise CorruptDataError(
                    f"offset {offset} lies in the corrupt range [{start}, {end}) of {self._directory}",
                    offset=offset,
                    corrupt_start=start,
                    corrupt_end=end,
                )
