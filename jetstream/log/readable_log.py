"""The reading half of a log: from an offset or a time to bytes in a file.

Readers run on any thread while the writer appends: the tuple of segments is replaced as a whole, an index
only grows, and `log_end_offset` is published after the entries it covers.
"""

import builtins
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from envelope.errors import CorruptDataError, JetstreamError, OffsetOutOfRange, UnavailableError
from envelope.types import FilePosition, LeaderEpoch, Offset, TimestampUs
from jetstream.log.batch import decode
from jetstream.log.batch_index import BatchIndex, IndexEntry
from jetstream.log.epochs import EpochHistory
from jetstream.log.ranges import OffsetRange, with_range
from jetstream.log.scan import FileWindow, read_batch
from jetstream.log.segment import Segment

_LOADED_INDEXES_MAX = 8
"""Entries of this many sealed segments are kept in memory for one log."""


class IndexRebuilt(UnavailableError):
    """An index file was wrong and has been derived anew; the data is good, plan the read again."""


@dataclass(frozen=True, slots=True)
class Location:
    """The batch that holds an offset."""

    segment: Segment
    index: BatchIndex
    row: int
    entry: IndexEntry


@dataclass(frozen=True, slots=True)
class FileRange:
    """Whole batches that lie together in one segment and were written under one epoch.

    Attributes:
        segment: where; take a lease before using its file.
        position: first byte.
        length: bytes; 0 if no batch qualified.
        base: first offset of the first batch.
        next: offset after the last batch.
        leader_epoch: of all its batches.
    """

    segment: Segment
    position: FilePosition
    length: int
    base: Offset
    next: Offset
    leader_epoch: LeaderEpoch


class ReadableLog:
    """What can be asked of a log; see the module for what is safe on which thread.

    Attributes (read only for users):
        directory: path on the log's disk.
        log_start_offset: first kept offset.
        log_end_offset: next offset to be written.
        corrupt_ranges: offsets that are refused because their bytes are damaged or missing.
        epochs: which leader epoch wrote what.
        failed: why nothing more can be appended; None if it can.

    Invariants:
        L1: log_start_offset <= log_end_offset.
        L2: segments tile: each one's next is the following one's base; there is at least one.
    """

    __slots__ = (
        "_loaded",
        "_segments",
        "corrupt_ranges",
        "directory",
        "epochs",
        "failed",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, directory: str, segments: tuple[Segment, ...]) -> None:
        """Begin with what recovery found; `Log` publishes every change after it."""
        self.directory = directory
        self._segments = segments
        self._loaded: list[Segment] = []
        self.log_start_offset = Offset(0)
        self.log_end_offset = Offset(0)
        self.corrupt_ranges: tuple[OffsetRange, ...] = ()
        self.epochs = EpochHistory()
        self.failed: JetstreamError | None = None

    @property
    def bytes(self) -> int:
        """Length of all segment files."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> int:
        """Number of segment files."""
        return len(self._segments)

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The newest leader epoch, 0 before the first."""
        return self.epochs.last

    @property
    def last_timestamp(self) -> TimestampUs:
        """The largest timestamp of any batch, 0 if there is none."""
        return max(segment.max_timestamp for segment in self._segments[-2:])

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Return the epoch that wrote, or would write, ``offset``."""
        return self.epochs.at(offset)

    def epoch_end(self, epoch: LeaderEpoch) -> Offset | None:
        """Return the offset after the last that ``epoch`` may have written; None if it is unknown here."""
        return self.epochs.end_of(epoch, self.log_end_offset)

    def locate(self, offset: Offset) -> Location:
        """Return the batch that holds ``offset``.

        Raises:
            OffsetOutOfRange: it is below the log start, or not yet written.
            CorruptDataError: it lies in a corrupt range.
        """
        if not self.log_start_offset <= offset < self.log_end_offset:
            raise self._out_of_range(offset)
        self._refuse_corrupt(offset)
        segment, index = self._segment_with(offset)
        row = index.find(offset)
        self._refuse_corrupt(offset)  # Loading a doubtful index may have found damage.
        assert row < len(index), f"L2: offset {offset} in segment {segment.base}"
        return Location(segment, index, row, index[row])

    def plan_read(self, offset: Offset, max_bytes: int, end: Offset) -> FileRange:
        """Return whole batches from the one that holds ``offset``, none of them reaching beyond ``end``.

        At least one batch, however large, then as many as fit ``max_bytes`` within one segment and one
        epoch, before the next corrupt range. Empty if ``offset`` is the log's end, or if its batch reaches
        beyond ``end``.

        Raises:
            OffsetOutOfRange: ``offset`` is below the log start or above the log end.
            CorruptDataError: ``offset`` lies in a corrupt range.
        """
        if offset == self.log_end_offset:
            segment = self._segments[-1]
            return FileRange(segment, segment.data_end, 0, offset, offset, self.epochs.last)
        found = self.locate(offset)
        stop = min([end, *(start for start, _ in self.corrupt_ranges if start > offset)])
        entry = found.entry
        last = found.index.last_row_until(found.row, entry.position + max_bytes, stop)
        if last < found.row:
            return FileRange(found.segment, entry.position, 0, offset, offset, entry.leader_epoch)
        final = found.index[last]
        length = final.end - entry.position
        return FileRange(found.segment, entry.position, length, entry.base, final.next, entry.leader_epoch)

    def verify_range(self, file_range: FileRange) -> None:
        """Check the CRC of every batch in the range that this process has not checked or written.

        Raises:
            CorruptDataError: a batch is damaged; its offsets are refused from now on.
            IndexRebuilt: the batches are not where the index said; plan again.
        """
        segment = file_range.segment
        index = segment.load_index()
        first, last = index.find(file_range.base), index.find(Offset(file_range.next - 1))
        if file_range.length == 0 or index.verified.find(0, first, last + 1) < 0:
            return
        with segment.leased() as file:
            window = FileWindow(file, file_range.position + file_range.length)
            for row in range(first, last + 1):
                if not index.verified[row]:
                    self._verify_row(segment, index, row, window)

    def read(self, offset: Offset, max_bytes: int, end: Offset) -> builtins.bytes:
        """Return the bytes of `plan_read`, verified.

        Raises:
            OffsetOutOfRange, CorruptDataError: as `plan_read` and `verify_range`.
        """
        try:
            file_range = self.plan_read(offset, max_bytes, end)
            self.verify_range(file_range)
        except IndexRebuilt:
            file_range = self.plan_read(offset, max_bytes, end)
            self.verify_range(file_range)
        with file_range.segment.leased() as file:
            return file.read(file_range.position, file_range.length)

    def offset_for_timestamp(self, timestamp: TimestampUs) -> Offset:
        """Return the first kept offset whose timestamp is at least ``timestamp``; the log end if none is.

        The start of a corrupt range if it may be in there, so that the reader is told.

        Raises:
            CorruptDataError: the batch that would hold it is damaged, as is found now.
        """
        for segment in self._segments:
            if segment.next == segment.base or segment.max_timestamp < timestamp:
                continue
            index = self._index_of(segment)
            row = index.find_timestamp(timestamp)
            if row < len(index):
                return self._offset_in(index[row], timestamp)
        return self.log_end_offset

    # --- inside -----------------------------------------------------------------------------------

    def _offset_in(self, entry: IndexEntry, timestamp: TimestampUs) -> Offset:
        """Return the first offset of a batch that reaches ``timestamp``, or of the damage before it."""
        if entry.next <= self.log_start_offset:
            return self.log_start_offset
        for start, end in self.corrupt_ranges:
            if end == entry.base:
                return start
        _, records = decode(self.read(max(entry.base, self.log_start_offset), 1, entry.next))
        row = int(np.searchsorted(records.column(1).cast(pa.int64()).to_numpy(), timestamp))
        return max(Offset(records.column(0)[row].as_py()), self.log_start_offset)

    def _segment_with(self, offset: Offset) -> tuple[Segment, BatchIndex]:
        segments = self._segments
        segment = segments[bisect_right(segments, offset, key=_base) - 1]
        return segment, self._index_of(segment)

    def _index_of(self, segment: Segment) -> BatchIndex:
        """Return a segment's entries; those of few sealed segments stay in memory."""
        index = segment.index
        if index is not None:
            return index
        index = segment.load_index()
        self._note_damages(segment)
        self._loaded.append(segment)
        if len(self._loaded) > _LOADED_INDEXES_MAX:
            self._loaded.pop(0).unload_index()
        return index

    def _verify_row(self, segment: Segment, index: BatchIndex, row: int, window: FileWindow) -> None:
        entry = index[row]
        try:
            header, length = read_batch(window, entry.position)
        except CorruptDataError:
            found = None
        else:
            found = IndexEntry.of(header, entry.position, length)
        if found == entry:
            index.verified[row] = True
            return
        if segment.sealed and not segment.index_doubtful:
            segment.rescan()
            self._note_damages(segment)
        else:
            self.corrupt_ranges = with_range(self.corrupt_ranges, entry.base, entry.next)
        segment.index_doubtful = True
        self._refuse_corrupt(entry.base)
        raise IndexRebuilt(f"the index of segment {segment.base} was wrong and has been derived anew")

    def _note_damages(self, segment: Segment) -> None:
        for damage in segment.damages:
            end = damage.next if damage.next is not None else segment.next
            self.corrupt_ranges = with_range(self.corrupt_ranges, damage.base, end)

    def _refuse_corrupt(self, offset: Offset) -> None:
        for start, end in self.corrupt_ranges:
            if start <= offset < end:
                raise CorruptDataError(
                    f"offset {offset} lies in the corrupt range [{start}, {end}) of {self.directory}",
                    offset=offset,
                    corrupt_start=start,
                    corrupt_end=end,
                )

    def _out_of_range(self, offset: Offset) -> OffsetOutOfRange:
        start, end = self.log_start_offset, self.log_end_offset
        return OffsetOutOfRange(
            f"offset {offset} is outside the log [{start}, {end})",
            offset=offset,
            log_start_offset=start,
            log_end_offset=end,
        )


def _base(segment: Segment) -> Offset:
    return segment.base
