"""A reader's progress, for a listener that shows it."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from envelope.types import Offset
from jetstream.client.read.fetch_pipeline import ReaderPlace
from jetstream.client.read.read_range import ResolvedRange


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """The records and bytes that a reader has handed out so far."""

    records: int
    """Those that were wanted; what the node left out is not counted."""
    bytes: int
    """Of these records as Arrow columns."""
    offset: Offset
    """After the last record handed out or left out: at first the start of the range."""
    end: Offset | None
    """Where the reader will stop, exclusive; None if it follows the stream to no offset in particular."""


ReadProgressTold = Callable[[ReadProgress], None]
"""Called when the range is known, whenever a fetch is used up, and at the end."""

PlaceTold = Callable[[Offset], None]
"""Called likewise, with the `ReadProgress.offset` alone."""


class ProgressCount:
    """Counts the records and bytes handed out; calls the listener, never twice with the same."""

    def __init__(self, listener: ReadProgressTold | None) -> None:
        self._told = listener
        self._records = 0
        self._bytes = 0
        self._last: ReadProgress | None = None

    def add(self, records: pa.RecordBatch) -> None:
        """Count one batch in."""
        if self._told is not None:
            self._records += records.num_rows
            self._bytes += records.nbytes

    def report(self, place: ReaderPlace | None, resolved: ResolvedRange | None) -> None:
        """Call the listener with the reader's place, if it is known and has changed."""
        if self._told is None or place is None or resolved is None:
            return
        now = ReadProgress(self._records, self._bytes, place.offset, resolved.end)
        if now != self._last:
            self._last = now
            self._told(now)


class PlaceCount:
    """Calls the listener with a reader's place as `ProgressCount` does; counting bytes would take time."""

    def __init__(self, listener: PlaceTold) -> None:
        self._told = listener
        self._last: Offset | None = None

    def add(self, records: pa.RecordBatch) -> None:
        """Count nothing."""

    def report(self, place: ReaderPlace | None, resolved: ResolvedRange | None) -> None:
        """Call the listener with the reader's place, if it is known and has changed."""
        if place is not None and resolved is not None and place.offset != self._last:
            self._last = place.offset
            self._told(place.offset)
