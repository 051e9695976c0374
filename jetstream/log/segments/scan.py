"""Reading a segment's bytes as they are: good batches, and the damage between them.

The scan trusts only checksums. It does not judge: `jetstream.log.recovery`, which also knows the synced end,
decides whether damage is a torn tail or corruption.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from envelope.errors import CorruptDataError
from envelope.limits import MIB
from envelope.types import FilePosition, Offset
from jetstream.log.disk.port import File
from jetstream.log.format.batch import BatchFlags, BatchHeader, verified_at
from jetstream.log.format.message import METADATA_BYTES_MAX, PREFIX_BYTES, find_frame
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA_MESSAGE
from jetstream.log.format.txid_column import last_txid_in
from jetstream.log.segments.index import BatchIndex, IndexEntry

FIRST_BATCH: Final = FilePosition(len(SCHEMA_MESSAGE))
"""Position of the first batch of every segment."""

FOLLOWED_GROUPS_MAX: Final = 32
"""A follower writes at most so many of its leader's groups before it syncs; see `SegmentScan.proven_end`."""

_WINDOW_BYTES: Final = 4 * MIB
_CANDIDATE: Final = re.compile(rb"\xff\xff\xff\xff.[\x00-\x10]\x00\x00", re.DOTALL)
"""A continuation marker and a metadata length up to the limit."""

_ALIGNMENT: Final = 8

assert METADATA_BYTES_MAX == 0x1000, "the pattern above knows the limit"


class Damage(NamedTuple):
    """Bytes that are not a good batch where one should be.

    Attributes:
        position: first such byte.
        end: position of the next good batch, or the file's length.
        base: offset that was expected at ``position``.
        next: base of the next good batch; None if none follows in this file.
        reason: what is wrong, for people.
    """

    position: FilePosition
    end: FilePosition
    base: Offset
    next: Offset | None
    reason: str


@dataclass(slots=True, kw_only=True)
class SegmentScan:
    """The content of a segment file.

    Attributes:
        index: the good batches; those read by this scan count as verified.
        damages: everything else, in order.
        next: offset expected after the last good batch.
        data_end: position after the last good batch; 0 in an empty file.
        sealed: the file ends with the end-of-stream marker, right after the last good batch.
        base: of the segment.
        group_starts: bases of the last batches that begin a write group.
    """

    index: BatchIndex
    damages: list[Damage]
    next: Offset
    data_end: FilePosition
    sealed: bool
    base: Offset
    group_starts: deque[Offset] = field(default_factory=lambda: deque(maxlen=FOLLOWED_GROUPS_MAX + 1))

    def proven_end(self, *, followed: bool) -> Offset:
        """Return an offset below which every batch had been synced, as the good batches prove.

        A batch with ``GROUP_START`` proves all before it. In a followed log it proves the leader's disk only:
        the follower may have written it together with batches before it, in one unsynced piece. But the piece
        has at most `FOLLOWED_GROUPS_MAX` such batches, so a batch with as many behind it lies before the
        piece or begins it.
        """
        if not followed:
            return self.group_starts[-1] if self.group_starts else self.base
        return self.group_starts[0] if len(self.group_starts) > FOLLOWED_GROUPS_MAX else self.base

    @property
    def intact(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damages


class FileWindow:
    """Sequential views into a file through one bounded buffer."""

    __slots__ = ("_data", "_file", "_start", "size")

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self._data = memoryview(b"")
        self._start = 0
        self.size = size

    def view(self, position: int, length: int) -> memoryview:
        """Return ``length`` bytes from ``position``, fewer at the end; valid until dropped by the caller."""
        length = max(min(length, self.size - position), 0)
        start = position - self._start
        if start < 0 or start + length > len(self._data):
            # A torn batch may claim an end behind the end of the file.
            wanted = max(min(max(length, _WINDOW_BYTES), self.size - position), 0)
            self._data = memoryview(self._file.read(position, wanted))
            self._start = position
            start = 0
        return self._data[start : start + length]


def read_batch(window: FileWindow, position: int) -> tuple[BatchHeader, int]:
    """Return header and length of the good batch at ``position``; raises as `read_frame`."""
    header, frame = read_frame(window, position)
    return header, len(frame)


def read_frame(window: FileWindow, position: int) -> tuple[BatchHeader, memoryview]:
    """Return header and bytes of the good batch at ``position``.

    Raises:
        CorruptDataError: there is none.
        Unsupported: an intact batch of a format this version does not know.
    """
    frame = find_frame(window.view(position, PREFIX_BYTES + METADATA_BYTES_MAX))
    if frame is None or position + frame.end > window.size:
        raise CorruptDataError(f"the file ends inside the batch at {position}")
    view = window.view(position, frame.end)
    return verified_at(view, frame), view


def scan_segment(file: File, base: Offset, known: BatchIndex | None = None) -> SegmentScan:
    """Read a segment from behind the batches in ``known``, or whole.

    Raises:
        StorageError: the disk refused.
        Unsupported: an intact batch of a format this version does not know.
    """
    window = FileWindow(file, file.size())
    index = known if known is not None else BatchIndex()
    scan = SegmentScan(index=index, damages=[], next=base, data_end=FilePosition(0), sealed=False, base=base)
    if len(index):
        last = index[len(index) - 1]
        scan.next, scan.data_end = last.next, last.end
    elif window.size > 0:
        _check_schema(window, scan)
    position = scan.data_end or FIRST_BATCH
    while position < window.size:
        if position + len(END_OF_STREAM) == window.size and bytes(window.view(position, 8)) == END_OF_STREAM:
            scan.sealed = True
            break
        position = _step(window, position, scan)
    if window.size == FIRST_BATCH and scan.intact:
        end = FilePosition(window.size)
        scan.damages.append(Damage(FIRST_BATCH, end, base, None, "a schema message without a batch"))
    return scan


def _check_schema(window: FileWindow, scan: SegmentScan) -> None:
    """Record a schema message that is not ours; batches begin behind it all the same."""
    if bytes(window.view(0, FIRST_BATCH)) == SCHEMA_MESSAGE:
        scan.data_end = FIRST_BATCH
        return
    end = FilePosition(min(FIRST_BATCH, window.size))
    following = scan.next if window.size > FIRST_BATCH else None
    scan.damages.append(Damage(FilePosition(0), end, scan.next, following, "not the log's schema message"))


def _step(window: FileWindow, position: FilePosition, scan: SegmentScan) -> FilePosition:
    """Record the good batch at ``position``, or the damage up to the next one; return its end."""
    try:
        header, frame = _read_expected(window, position, scan.next)
    except CorruptDataError as error:
        found = _next_batch(window, position, scan.next)
        end, following = found if found is not None else (FilePosition(window.size), None)
        scan.damages.append(Damage(position, end, scan.next, following, error.description))
        if following is not None:
            scan.next = following
        return end
    entry = IndexEntry.of(header, position, len(frame), last_txid_in(frame))
    scan.index.append(entry, verified=True)
    scan.next = header.next
    scan.data_end = entry.end
    if BatchFlags.GROUP_START in header.flags:
        scan.group_starts.append(header.base)
    return scan.data_end


def _read_expected(window: FileWindow, position: int, expected: Offset) -> tuple[BatchHeader, memoryview]:
    header, frame = read_frame(window, position)
    if header.base != expected:
        raise CorruptDataError(f"a batch has base {header.base} where {expected} was expected")
    return header, frame


def _next_batch(window: FileWindow, position: int, expected: Offset) -> tuple[FilePosition, Offset] | None:
    """Return position and base of the first good batch behind the damage at ``position``.

    First at the end that the damaged batch claims: its body may hold a copy of a batch, which a publisher
    can put there. Anywhere else only without a batch there, and then behind at least one lost offset.
    """
    end = _claimed_end(window, position)
    base = _base_at(window, end) if end is not None else None
    if end is not None and base is not None and base >= expected:
        return FilePosition(end), base
    return _search(window, position + _ALIGNMENT, expected)


def _claimed_end(window: FileWindow, position: int) -> int | None:
    """Return the end that the batch at ``position`` claims; None if it claims none."""
    try:
        frame = find_frame(window.view(position, PREFIX_BYTES + METADATA_BYTES_MAX))
    except CorruptDataError:
        return None
    return position + frame.end if frame is not None else None


def _search(window: FileWindow, position: int, expected: Offset) -> tuple[FilePosition, Offset] | None:
    """Return position and base of the first good batch from ``position`` with a base above ``expected``."""
    while position < window.size:
        view = bytes(window.view(position, _WINDOW_BYTES))
        for match in _CANDIDATE.finditer(view):
            candidate = position + match.start()
            if candidate % _ALIGNMENT == 0:
                base = _base_at(window, candidate)
                if base is not None and base > expected:
                    return FilePosition(candidate), base
        position += max(len(view) - PREFIX_BYTES + 1, 1)
    return None


def _base_at(window: FileWindow, position: int) -> Offset | None:
    try:
        return read_batch(window, position)[0].base
    except CorruptDataError:
        return None
