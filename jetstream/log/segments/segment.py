"""A segment: a file of batches, its index, and the readers that hold it open.

Theory of operation: each side closes only the files it has opened itself, so that no thread can pull a
descriptor from under another. The writer has a file of its own (`SegmentWriter`). Transfers on the event
loop share one, open while any of them holds a lease. Readers elsewhere open a file for each read. A
retired segment (removed by retention, or of a closed log) gives no new leases; a transfer under way ends on
the bytes it began with, which the file system keeps until the last descriptor is closed.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from envelope.errors import StorageError, UnavailableError
from envelope.types import FilePosition, LeaderEpoch, Offset, TimestampUs
from jetstream.log.disk.port import Disk, File
from jetstream.log.format.schema import END_OF_STREAM
from jetstream.log.segments.corrupt_ranges import OffsetRange
from jetstream.log.segments.index import BatchIndex, Covered, IndexSummary, storable
from jetstream.log.segments.index_file import read_index, write_index
from jetstream.log.segments.scan import Damage, SegmentScan, scan_segment

SEGMENT_SUFFIX: Final = ".arrows"
INDEX_SUFFIX: Final = ".index"
_NAME_DIGITS: Final = 20


def segment_path(directory: str, base: Offset) -> str:
    """Return the path of the segment that begins at ``base``."""
    return f"{directory}/{base:0{_NAME_DIGITS}d}{SEGMENT_SUFFIX}"


def base_of(name: str) -> Offset | None:
    """Return the base in a segment's file name, None if it is not one."""
    stem = name.removesuffix(SEGMENT_SUFFIX)
    if stem == name or len(stem) != _NAME_DIGITS or not (stem.isascii() and stem.isdigit()):
        return None
    return Offset(int(stem))


def _open_present(disk: Disk, temporary_path: str | None, path: str) -> File:
    """Open a file at either path, as it may be renamed meanwhile."""
    if temporary_path is not None:
        try:
            return disk.open(temporary_path)
        except StorageError:
            if disk.exists(temporary_path):
                raise
    return disk.open(path)


def newest_timestamp(segments: "Sequence[Segment]") -> TimestampUs:
    """Return the timestamp of a log's newest batch, 0 if there is none; only the last one may be empty."""
    return segments[-1].max_timestamp or segments[-2:][0].max_timestamp


def newest_in(segments: "Sequence[Segment]", segment: "Segment") -> TimestampUs:
    """Return an upper bound of the time of a segment's newest record.

    Where the stream's time has fallen, the segments before are no younger than those behind.
    """
    own = segment.max_timestamp
    if own <= newest_timestamp(segments):
        return own
    return min(each.max_timestamp or own for each in segments if each.base >= segment.base)


class PlanAgain(UnavailableError):
    """The segments a read was planned by have changed; the data is there, plan the read again."""


class SegmentReplaced(PlanAgain):
    """Another file is in the place of the segment's, or the segment was cut."""


def _gone(base: Offset, *, is_replaced: bool) -> UnavailableError:
    if is_replaced:
        return SegmentReplaced(f"segment {base} has been rewritten or cut")
    return UnavailableError(f"segment {base} is gone")


class Segment:
    """A segment file and its description; the writer changes it while readers look.

    Attributes:
        directory: of its log.
        base: first offset.
        next: offset after the last one; the next segment's base.
        data_end: position after the last batch.
        size: length of the file in bytes.
        sealed: nothing is appended any more.
        last_epoch: leader epoch of the last batch.
        max_timestamp: of all batches.
        last_txid: the largest transaction id of all batches, None if none has one.
        index: the entries; None for a sealed segment whose entries are not loaded.
        damages: parts of the file that a scan found not to be good batches.
        written_at: time of the last write by the file's own time, None unless it was needed.
        temporary_path: path of the file until it replaces another; None: it lies at ``path``.
        index_doubtful: the index file must not be trusted at the next start.

    Invariants:
        S1: the shared file is open if and only if there are leases.
        S2: a retired segment gains no leases, but beside one that is held.
    """

    __slots__ = (
        "_disk",
        "_file",
        "_leases",
        "_replaced",
        "_retired",
        "_verified",
        "base",
        "damages",
        "data_end",
        "directory",
        "index",
        "index_doubtful",
        "index_path",
        "last_epoch",
        "last_txid",
        "max_timestamp",
        "next",
        "path",
        "sealed",
        "size",
        "temporary_path",
        "written_at",
    )

    def __init__(self, disk: Disk, directory: str, base: Offset) -> None:
        self._disk = disk
        self._file: File | None = None
        self._leases = 0
        self._retired = self._replaced = False
        self._verified = bytearray()
        self.directory = directory
        self.base = base
        self.path = segment_path(directory, base)
        self.temporary_path: str | None = None
        self.index_path = self.path.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX
        self.next = base
        self.data_end = FilePosition(0)
        self.size = 0
        self.sealed = False
        self.last_epoch = LeaderEpoch(0)
        self.max_timestamp = TimestampUs(0)
        self.last_txid: int | None = None
        self.index: BatchIndex | None = BatchIndex()
        self.damages: tuple[Damage, ...] = ()
        self.written_at: TimestampUs | None = None
        self.index_doubtful = False

    # --- the file ---------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a transfer holds a lease."""
        return self._file is not None

    def acquire(self, *, beside: bool = False) -> File:
        """Take a lease and return the open file, for reading; each call is paired with one `release`.

        On the event loop's thread only, as `release`. ``beside``: one is held, which may be on a retired
        segment; it opens nothing.

        Raises:
            UnavailableError: the segment is retired; plan again.
        """
        assert self._leases > 0 or not beside, "S2: a lease is held"
        if self._file is None:
            self._file = self._opened()
        elif not beside:
            self.check_present()
        self._leases += 1
        return self._file

    def release(self) -> None:
        """Give a lease back; the last one closes the file."""
        assert self._leases > 0, "S1: a lease is held"
        assert self._file is not None, "S1: it is open until the last lease is gone"
        self._leases -= 1
        if self._leases == 0:
            file, self._file = self._file, None
            file.close()

    @contextlib.contextmanager
    def leased(self) -> Iterator[File]:
        """Open a file for the block alone, for reading, on any thread.

        Raises:
            UnavailableError: the segment is retired; plan again.
        """
        file = self._opened()
        try:
            yield file
        finally:
            file.close()

    def retire(self, *, is_replaced: bool = False) -> None:
        """Give no more leases; ``is_replaced``: another segment is about to lie at this one's path."""
        self._replaced, self._retired = is_replaced, True

    def come_back(self) -> None:
        """Undo `retire`: the file has kept its name."""
        self._replaced = self._retired = False

    def check_present(self) -> None:
        """Raise UnavailableError if the segment is retired; plan again."""
        if self._retired:
            raise _gone(self.base, is_replaced=self._replaced)

    def _opened(self) -> File:
        self.check_present()
        try:
            file = _open_present(self._disk, self.temporary_path, self.path)
        except StorageError:
            if self._retired:  # and removed, since it was looked at
                raise _gone(self.base, is_replaced=self._replaced) from None
            raise
        if self._replaced:  # since it was looked at: this may be the other file
            file.close()
            raise _gone(self.base, is_replaced=self._replaced)
        return file

    # --- what is known ----------------------------------------------------------------------------

    def extend(self, batch: Covered, position: int, length: int, last_txid: int | None) -> None:
        """Publish a batch that has been written behind the others."""
        assert self.index is not None, "the active segment's index is loaded"
        if last_txid is not None:
            last_txid = storable(last_txid)
        self.index.add(batch, position, length, last_txid, verified=True)
        self.data_end = self.size = FilePosition(position + length)
        self.last_epoch = batch.leader_epoch
        self.max_timestamp = batch.max_timestamp
        if last_txid is not None and (self.last_txid is None or last_txid > self.last_txid):
            self.last_txid = last_txid
        self.next = batch.next

    def cut(self, offset: Offset) -> "Segment":
        """Return this segment without its batches from ``offset`` on, as the active one.

        It is another object, with entries of its own: a reader or a rewrite of this one never takes batches
        that are written there later for those that were there.

        Raises:
            StorageError: the disk refused.
        """
        index = self.load_index()
        left = Segment(self._disk, self.directory, self.base)
        row = index.find(offset)
        left.index = index.head(row)
        left.damages = tuple(damage for damage in self.damages if damage.base < offset)
        left.index_doubtful = self.index_doubtful
        left._describe(left.index)
        if left.next < offset:  # damage before it stays where it is
            left.next = offset
            left.data_end = FilePosition(index.positions[row]) if row < len(index) else _batches_end(self)
        left.size = left.data_end
        return left

    def describe_scan(self, scan: SegmentScan, size: int) -> None:
        """Adopt the result of a scan of the whole file."""
        self.index = scan.index
        self.damages = tuple(scan.damages)
        self._describe(scan.index)
        self.next = scan.next
        self.data_end = scan.data_end
        self.size = size
        self.sealed = scan.sealed

    def describe_summary(self, summary: IndexSummary, size: int) -> None:
        """Adopt an index header that fits; the entries stay on disk until they are needed."""
        self.index = None
        self.next = summary.next
        self.data_end = summary.data_end
        self.last_epoch = summary.last_epoch
        self.max_timestamp = summary.max_timestamp
        self.last_txid = summary.last_txid
        self.size = size
        self.sealed = True

    def _describe(self, index: BatchIndex) -> None:
        self.last_txid = index.last_txid
        if len(index) == 0:
            self.next, self.data_end = self.base, FilePosition(0)
            self.last_epoch, self.max_timestamp = LeaderEpoch(0), TimestampUs(0)
            return
        last = index[len(index) - 1]
        self.next, self.data_end = last.next, last.end
        self.last_epoch, self.max_timestamp = last.leader_epoch, last.max_timestamp

    # --- the entries ------------------------------------------------------------------------------

    def load_index(self) -> BatchIndex:
        """Return the entries, from the index file or else from the segment's own bytes.

        Raises:
            StorageError: the disk refused.
        """
        index = self.index if self.index is not None else self.read_index()
        if index is None:
            scan = self.scan()
            self.adopt(scan)
            index = scan.index
        return index

    def read_index(self) -> BatchIndex | None:
        """Return and publish the entries in a sealed segment's index file; None if they must not be used.

        Raises:
            StorageError: the disk refused.
        """
        if self.index_doubtful:
            return None
        with self.leased() as file:
            index = read_index(self._disk, self.index_path, self.base, file)
        if self._replaced:  # the index file may be the other one's
            raise _gone(self.base, is_replaced=self._replaced)
        if index is None or index.nexts[-1] != self.next:
            return None
        if len(self._verified) == len(index):
            index.verified = self._verified
        self.index = index
        return index

    def scan(self) -> SegmentScan:
        """Return the content of a sealed segment's bytes, damage included; changes nothing.

        Raises:
            StorageError: the disk refused.
        """
        assert self.sealed, "only the writer knows where the active segment ends"
        with self.leased() as file:
            scan = scan_segment(file, self.base)
            size = FilePosition(file.size())
        if scan.next < self.next and not (scan.damages and scan.damages[-1].next is None):
            scan.damages.append(Damage(size, size, scan.next, None, f"the file ends at {scan.next}"))
        return scan

    def adopt(self, scan: SegmentScan) -> None:
        """Publish the result of `scan`; its damage must be refused before, as readers go by this."""
        self.index_doubtful = True
        self.damages = tuple(scan.damages)
        self.index = scan.index
        self.last_txid = scan.index.last_txid

    def unload_index(self) -> None:
        """Drop the entries of a sealed segment from memory, except one byte each: whether it is verified."""
        index = self.index
        if index is not None and self.sealed and not self.damages:
            self._verified = index.verified
            self.index = None

    def save_index(self, rows: int) -> None:
        """Write the index file for the first ``rows`` batches, all synced, unless the segment is damaged."""
        assert self.index is not None, "the writer has the entries"
        if rows > 0 and not self.damages and not self.index_doubtful:
            assert self.last_txid == self.index.last_txid, f"X3: {self.last_txid}, not {self.index.last_txid}"
            write_index(self._disk, self.index_path, self.index, rows)


def is_damaged(segment: Segment, corrupt: Sequence[OffsetRange]) -> bool:
    """Return whether a scan has found damage, or one of the log's refused ranges lies in the segment."""
    return bool(segment.damages) or any(start < segment.next and segment.base < end for start, end in corrupt)


def _batches_end(segment: Segment) -> FilePosition:
    """Return the end of the last batch of a sealed segment, even a damaged one."""
    end = segment.size - len(END_OF_STREAM)
    with segment.leased() as file:
        has_marker = file.read(end, len(END_OF_STREAM)) == END_OF_STREAM
    return FilePosition(end if has_marker else segment.size)
