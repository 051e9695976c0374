"""What is damaged of one replica's log: on its disk, and as far as the process that has it open knows.

Which offsets are refused is the product's to say (`CorruptRanges`).
"""

from collections.abc import Iterable
from typing import Protocol

from envelope.types import Offset, StreamName
from jetstream.log.segments.corrupt_ranges import CorruptRanges, OffsetRange, above, below
from jetstream.log.segments.segment import Segment
from tests.support.memory_disk import MemoryDisk


class _Batch(Protocol):
    @property
    def base(self) -> Offset:
        """First offset."""

    @property
    def next(self) -> Offset:
        """Offset after the last."""


class StoredDamage:
    """The batches whose bytes are not what was written, by base; and which of them were found."""

    __slots__ = ("_directory", "_found", "_segment", "flipped", "missing")

    def __init__(self, stream: StreamName) -> None:
        self._directory = str(stream)
        self._found = CorruptRanges(self._directory)
        self._segment = Segment(MemoryDisk(), self._directory, Offset(0))
        self.flipped: dict[Offset, Offset] = {}
        """Base and end of every damaged batch."""
        self.missing: set[Offset] = set()
        """The bases of those that a start has found: the index that it makes has no entry of them."""

    @property
    def is_none(self) -> bool:
        """Whether all is well, and nothing is refused."""
        return not self.flipped and not self.refused

    @property
    def refused(self) -> tuple[OffsetRange, ...]:
        """The offsets that are refused."""
        return self._found.ranges

    def segment_at(self, base: Offset) -> Segment:
        """Return the one file of a log that begins there; another one for another log."""
        if self._segment.base != base:
            self._segment = Segment(MemoryDisk(), self._directory, base)
        return self._segment

    def overlaps(self, start: int, end: int) -> bool:
        """Tell whether bytes of ``[start, end)`` are not what was written."""
        return any(base < end and start < after for base, after in self.flipped.items())

    # --- what a process does ----------------------------------------------------------------------------

    def opened(self, batches: Iterable[_Batch], *, reads_all: bool) -> None:
        """Begin a life of the process; ``reads_all``: with all of the log read, and its indexes made anew.

        The end is known by its index always: a log whose end is damaged is copied anew.
        """
        self._found, self.missing = CorruptRanges(self._directory), set()
        if reads_all:
            self.look()
            last_intact = max((batch.base for batch in batches if batch.base not in self.flipped), default=0)
            self.missing = {base for base in self.flipped if base < last_intact}

    def look(self) -> None:
        """Read everything."""
        for base, end in self.flipped.items():
            self._found.add(base, end)

    def read(self, batch: _Batch) -> None:
        """Read the bytes of a batch: its checksum tells."""
        if batch.base in self.flipped:
            self._found.add(batch.base, batch.next)

    def refuse(self, offset: Offset) -> None:
        """Raise CorruptDataError if ``offset`` is refused."""
        self._found.refuse(offset)

    # --- what becomes of it -----------------------------------------------------------------------------

    def flip(self, batch: _Batch) -> None:
        """Damage a batch."""
        self.flipped[batch.base] = batch.next

    def kept(self, start: Offset, end: Offset) -> None:
        """Only ``[start, end)`` is left of the log."""
        if self.is_none:
            return
        self.flipped = {base: after for base, after in self.flipped.items() if start <= base < end}
        self.missing &= self.flipped.keys()
        self._found.replace(above(below(self._found.ranges, end), start), start, end)

    def put_back(self, start: Offset, end: Offset) -> None:
        """What was there is there again."""
        self.flipped = {base: after for base, after in self.flipped.items() if not start <= base < end}
        self.missing &= self.flipped.keys()
        self._found.repaired(start, end)
