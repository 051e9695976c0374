"""The reading half of a log: from an offset or a time to bytes in a file.

Readers run on any thread while the writer appends: the tuple of segments is replaced as a whole, an index
only grows, and `log_end_offset` is published after the entries it covers. Readers change only the corrupt
ranges and the set of indexes in memory, which are made for several threads.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from envelope.errors import CorruptDataError, OffsetOutOfRange, UnavailableError
from envelope.types import FilePosition, LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import BatchHeader, decode, first_timestamp, read_header, tail_of
from jetstream.log.segments.corrupt_ranges import CorruptRanges, OffsetRange
from jetstream.log.segments.index import BatchIndex, IndexEntry
from jetstream.log.segments.loaded_indexes import LoadedIndexes
from jetstream.log.segments.scan import FileWindow, read_batch
from jetstream.log.segments.segment import PlanAgain, Segment, is_damaged, newest_timestamp
from jetstream.log.state.epochs import EpochHistory

_NO_ENTRIES: Final = BatchIndex()


class IndexUnloaded(UnavailableError):
    """A read cannot be planned without an index file: plan it on a thread that may wait."""


class IndexRebuilt(PlanAgain):
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
        index: the entries it was planned by; the segment may have others by now.
        position: first byte.
        length: bytes; 0 if no batch qualified.
        base: first offset of the first batch.
        next: offset after the last batch.
        leader_epoch: of all its batches.
    """

    segment: Segment
    index: BatchIndex
    position: FilePosition
    length: int
    base: Offset
    next: Offset
    leader_epoch: LeaderEpoch

    @property
    def is_verified(self) -> bool:
        """Whether this process has written or checked every batch in it; reads nothing."""
        return self.length == 0 or self.index.are_verified(self.base, self.next)


class LogReader:
    """Plans and verifies reads of one log, on any thread; see the module.

    Attributes (read only for users):
        directory: path on the log's disk.
        log_start_offset: first kept offset.
        log_end_offset: next offset to be written.
        segments: oldest first; the last one is being written. Replaced as a whole.
        corrupt: the offsets that are refused.
        epochs: the leader epochs of its offsets.
        indexes: of its segments.

    Invariants:
        L1: log_start_offset <= log_end_offset.
            Held by test_log_model.py.
        L2: segments tile: each one's next is the following one's base; there is at least one.
            Held by test_log_model.py.
        L6: damage that a scan found is in corrupt_ranges before the scan's index is in use.
            Held by test_damage_is_refused_before_the_entries_that_leave_it_out_are_used.
    """

    __slots__ = (
        "corrupt",
        "directory",
        "epochs",
        "indexes",
        "log_end_offset",
        "log_start_offset",
        "segments",
    )

    def __init__(self, directory: str, segments: tuple[Segment, ...]) -> None:
        """Begin with the segments of recovery; `Log` and its writer publish every change after it."""
        self.directory = directory
        self.segments = segments
        self.corrupt = CorruptRanges(directory)
        self.indexes = LoadedIndexes(self.corrupt.add)
        self.log_start_offset = Offset(0)
        self.log_end_offset = Offset(0)
        self.epochs = EpochHistory()

    @property
    def corrupt_ranges(self) -> tuple[OffsetRange, ...]:
        """Offsets that are refused because their bytes are damaged or missing."""
        return self.corrupt.ranges

    @corrupt_ranges.setter
    def corrupt_ranges(self, ranges: tuple[OffsetRange, ...]) -> None:
        """Replace them, on the disk thread; damage that readers found meanwhile stays refused."""
        self.corrupt.replace(ranges, self.log_start_offset, self.log_end_offset)

    @property
    def damaged(self) -> frozenset[Offset]:
        """Bases of the segments with damage; starts of refused ranges before the first segment."""
        segments, ranges = self.segments, self.corrupt_ranges
        return frozenset(segment.base for segment in segments if is_damaged(segment, ranges)) | frozenset(
            start for start, _ in ranges if start < segments[0].base
        )

    @property
    def size(self) -> int:
        """Bytes of all segment files."""
        return sum(segment.size for segment in self.segments)

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The newest leader epoch, 0 before the first."""
        return self.epochs.last

    @property
    def last_timestamp(self) -> TimestampUs:
        """The timestamp of the newest batch, 0 if there is none."""
        return newest_timestamp(self.segments)

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Return the epoch that wrote, or would write, ``offset``."""
        return self.epochs.at(offset)

    def locate(self, offset: Offset) -> Location:
        """Return the batch that holds ``offset``; may read files.

        Raises:
            OffsetOutOfRange: it is below the log start, or not yet written.
            CorruptDataError: it lies in a corrupt range.
        """
        return self._locate(offset, self.indexes.of)

    def plan_read(
        self,
        offset: Offset,
        max_bytes: int,
        end: Offset,
        *,
        max_records: int | None = None,
        load: bool = True,
    ) -> FileRange:
        """Return whole batches from the one that holds ``offset``, none of them reaching beyond ``end``.

        At least one batch, however large, then as many as fit ``max_bytes`` and ``max_records`` within one
        segment and one epoch, before the next corrupt range. Empty if ``offset`` is the log's end, or if its
        batch reaches beyond ``end``. Reads an index file where it must, and no file at all with ``load`` off.

        Raises:
            OffsetOutOfRange: ``offset`` is below the log start or above the log end.
            CorruptDataError: ``offset`` lies in a corrupt range.
            IndexUnloaded: it needs an index file, and ``load`` is off.
        """
        if offset == self.log_end_offset:
            segment = self.segments[-1]
            return FileRange(
                segment=segment,
                index=_NO_ENTRIES,
                position=segment.data_end,
                length=0,
                base=offset,
                next=offset,
                leader_epoch=self.epochs.last,
            )
        found = self._locate(offset, self.indexes.of if load else _index_in_memory)
        stop = min([end, *(start for start, _ in self.corrupt_ranges if start > offset)])
        entry = found.entry
        last = found.index.last_row_until(found.row, entry.position + max_bytes, stop)
        if last < found.row:
            return FileRange(
                segment=found.segment,
                index=found.index,
                position=entry.position,
                length=0,
                base=offset,
                next=offset,
                leader_epoch=entry.leader_epoch,
            )
        if max_records is not None:
            last = min(last, max(found.row, found.index.find(Offset(entry.base + max_records)) - 1))
        final = found.index[last]
        length = final.end - entry.position
        return FileRange(
            segment=found.segment,
            index=found.index,
            position=entry.position,
            length=length,
            base=entry.base,
            next=final.next,
            leader_epoch=entry.leader_epoch,
        )

    def verify_range(self, file_range: FileRange) -> None:
        """Check the CRC of every batch in the range that this process has not checked or written.

        Raises:
            CorruptDataError: a batch is damaged; its offsets are refused from now on.
            IndexRebuilt: the batches are not where the index said; plan again.
        """
        if file_range.is_verified:
            return
        segment, index = file_range.segment, file_range.index
        first, last = index.find(file_range.base), index.find(Offset(file_range.next - 1))
        with segment.leased() as file:
            window = FileWindow(file, file_range.position + file_range.length)
            for row in range(first, last + 1):
                if not index.verified[row]:
                    self._verify_row(segment, index, row, window)

    def read(self, offset: Offset, max_bytes: int, end: Offset) -> bytes:
        """Return the bytes of `plan_read`, verified.

        Raises:
            OffsetOutOfRange, CorruptDataError: as `plan_read` and `verify_range`.
        """
        try:
            file_range = self.plan_read(offset, max_bytes, end)
            self.verify_range(file_range)
            return self.read_range(file_range)
        except PlanAgain:
            file_range = self.plan_read(offset, max_bytes, end)
            self.verify_range(file_range)
        return self.read_range(file_range)

    def read_range(self, file_range: FileRange) -> bytes:
        """Return the bytes of a range, not verified."""
        with file_range.segment.leased() as file:
            return file.read(file_range.position, file_range.length)

    def offset_for_timestamp(self, timestamp: TimestampUs) -> Offset:
        """Return the first kept offset whose timestamp is at least ``timestamp``; the log end if none is.

        The start of a corrupt range if it may be in there, so that the reader gets the error.

        Raises:
            CorruptDataError: the batch that would hold it is found damaged now.
        """
        for segment in self.segments:
            if segment.next == segment.base or segment.max_timestamp < timestamp:
                continue
            index = self.indexes.of(segment)
            for row in range(index.find_timestamp(timestamp), len(index)):
                found = self._offset_in(index[row], timestamp)
                if found is not None:
                    return found
        return self.log_end_offset

    def newest_time_at(self, offset: Offset) -> TimestampUs:
        """Return a time that the record at ``offset``, or the first kept one, is not after; read no file.

        That of its batch, or of its segment where the segment's index is not in memory.
        """
        segment = segment_at(self.segments, max(offset, self.log_start_offset))
        index = segment.index
        if index is not None and (row := index.find(offset)) < len(index):  # it leaves out what is damaged
            return TimestampUs(index.timestamps[row])
        return segment.max_timestamp

    def boundary_below(self, offset: Offset) -> Offset:
        """Return the base of the batch that holds ``offset``; ``offset`` itself if a batch ends there.

        Raises:
            OffsetOutOfRange, CorruptDataError: as `locate`; or that base is below the log start.
        """
        base = offset if self._is_boundary(offset) else self.locate(offset).entry.base
        if base < self.log_start_offset:
            raise OffsetOutOfRange(
                f"the log cannot be cut at {base}, it begins at {self.log_start_offset}",
                offset=offset,
                log_start_offset=self.log_start_offset,
            )
        return base

    # --- inside -----------------------------------------------------------------------------------

    def _is_boundary(self, offset: Offset) -> bool:
        # By the index: the batch that begins or ends there may be damaged.
        segment = segment_at(self.segments, offset)
        index = self.indexes.of(segment)
        row = index.find(offset)
        begins = row < len(index) and index.bases[row] == offset
        return begins or (row > 0 and index.nexts[row - 1] == offset) or segment.base == offset

    def _offset_in(self, entry: IndexEntry, timestamp: TimestampUs) -> Offset | None:
        """Return the first offset of a batch that reaches ``timestamp``, or of the damage before it.

        None: compaction has left no such record there.
        """
        if entry.next <= self.log_start_offset:
            return self.log_start_offset
        for start, end in self.corrupt_ranges:
            if end == entry.base:
                return start
        # Whole, whatever its end: compaction may have given the batch a longer range meanwhile.
        _, records = decode(self.read(max(entry.base, self.log_start_offset), 1, self.log_end_offset))
        row = int(np.searchsorted(records.column(1).cast(pa.int64()).to_numpy(), timestamp))
        if row == records.num_rows:
            return None
        return max(Offset(records.column(0)[row].as_py()), self.log_start_offset)

    def _locate(self, offset: Offset, index_of: Callable[[Segment], BatchIndex]) -> Location:
        # In this order: the end is published after its segment, the start before the segments below it go.
        end, segments, start = self.log_end_offset, self.segments, self.log_start_offset
        if not start <= offset < end:
            raise _out_of_range(offset, start, end)
        self.corrupt.refuse(offset)
        segment = segment_at(segments, offset)
        index = index_of(segment)
        row = index.find(offset)
        self.corrupt.refuse(offset)  # L6: the entries leave out damage that a scan found since.
        if row == len(index):
            raise PlanAgain(f"offset {offset} has been cut off")  # since the end was looked at
        return Location(segment, index, row, index[row])

    def _verify_row(self, segment: Segment, index: BatchIndex, row: int, window: FileWindow) -> None:
        entry = index[row]
        try:
            header, length = read_batch(window, entry.position)
        except CorruptDataError:
            found = None
        else:
            found = IndexEntry.of(header, entry.position, length, entry.last_txid)
        if found == entry:
            index.verified[row] = True
            return
        segment.check_present()
        if not segment.sealed:
            self.corrupt.add(entry.base, entry.next)
            segment.index_doubtful = True
        elif segment.index is index:  # otherwise it was replaced or dropped meanwhile
            self.indexes.rescan(segment)
        self.corrupt.refuse(entry.base)
        raise IndexRebuilt(f"the index of segment {segment.base} was wrong and has been derived anew")


def _index_in_memory(segment: Segment) -> BatchIndex:
    index = segment.index
    if index is None:
        raise IndexUnloaded(f"the index of segment {segment.base} is not in memory")
    return index


def segment_at(segments: tuple[Segment, ...], offset: Offset) -> Segment:
    """Return the last segment that begins at or below ``offset``."""
    return segments[bisect_right(segments, offset, key=_base) - 1]


def _base(segment: Segment) -> Offset:
    return segment.base


def _out_of_range(offset: Offset, start: Offset, end: Offset) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"offset {offset} is outside the log [{start}, {end})",
        offset=offset,
        log_start_offset=start,
        log_end_offset=end,
    )


def read_tail(log: LogReader, offset: Offset, end: Offset) -> tuple[BatchHeader, memoryview]:
    """Return the part from ``offset`` on of the batch that holds it, as a batch of its own; reads files.

    Args:
        log: in it compaction has given the batch a longer range than in other replicas.
        offset: inside the batch's range.
        end: the batch does not reach beyond.

    Raises:
        PlanAgain: the log was written anew meanwhile.
        OffsetOutOfRange, CorruptDataError: as `LogReader.read`.
    """
    frame = log.read(offset, 1, end)
    follows = read_header(frame).next
    if follows == log.log_end_offset:
        return tail_of(frame, offset, log.last_timestamp)
    # Not the last timestamp of the following batch: its record may go, and an earlier one come next.
    following = log.read(follows, 1, log.log_end_offset)
    if read_header(following).base != follows:
        raise PlanAgain(f"batch {follows} was joined with the one before")
    # The following batch may be the one in which the stream's time falls.
    return tail_of(frame, offset, max(read_header(frame).max_timestamp, first_timestamp(following)))
