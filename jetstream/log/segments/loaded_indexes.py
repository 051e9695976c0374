"""The entries of a log's segments: loaded when they are needed, dropped when there are too many.

For any thread that may wait for the disk. Each step on the list is atomic between threads, and their order
is one in which no segment stays loaded uncounted: entries are published, then counted; a
segment is taken off the list, then its entries are dropped.
"""

from collections.abc import Callable
from typing import Final

from envelope.types import Offset
from jetstream.log.segments.index import BatchIndex
from jetstream.log.segments.segment import Segment

LOADED_MAX: Final = 8
"""Entries of this many sealed segments are kept in memory for one log."""


class LoadedIndexes:
    """Loads indexes, and counts the sealed segments whose entries are in memory."""

    __slots__ = ("_loaded", "_on_damage")

    def __init__(self, on_damage: Callable[[Offset, Offset], None]) -> None:
        """``on_damage`` gets each damaged range, before entries that leave it out are in use."""
        self._loaded: list[Segment] = []
        self._on_damage = on_damage

    def of(self, segment: Segment) -> BatchIndex:
        """Return a segment's entries, from its files if they are not in memory.

        Raises:
            StorageError: the disk refused.
            UnavailableError: the segment is retired.
        """
        index = segment.index
        if index is not None:
            return index
        index = segment.read_index()
        if index is None:
            return self.rescan(segment)
        self.count(segment)
        return index

    def rescan(self, segment: Segment) -> BatchIndex:
        """Derive the entries of a sealed segment from its bytes; raises as `of`."""
        scan = segment.scan()
        for damage in scan.damages:
            self._on_damage(damage.base, damage.next if damage.next is not None else segment.next)
        segment.adopt(scan)
        self.count(segment)
        return scan.index

    def count(self, segment: Segment) -> None:
        """Count a sealed segment among the loaded ones; of too many the eldest is dropped."""
        if segment not in self._loaded:
            self._loaded.append(segment)
        if len(self._loaded) > LOADED_MAX:
            self._loaded.pop(0).unload_index()
