"""The index of one segment: a fixed-width entry per batch, in memory as columns, on disk as a derived file.

Index file (little-endian):

    offset  size  field
    0       4     magic "JSIX"
    4       4     version (2; 1 had no txids)
    8       8     number of entries N
    16      8     base: the segment's first offset
    24      8     next: offset after the last entry's range
    32      8     data end: position after the last entry's batch
    40      8     leader epoch of the last entry
    48      8     largest timestamp, microseconds
    56      8     largest transaction id, signed; -2**63: there is none
    64      4     CRC32C of the entries
    68      4     CRC32C of bytes 0 to 67
    72      56*N  entries: base, next, position, length, leader epoch, max timestamp, largest transaction id
                  of the batch alone (8 bytes each)

Nothing depends on the file: it is written when a segment is sealed or a checkpoint made, only if the
entries tile the segment without a gap, and only for batches that are synced. If it is missing, fails a
checksum or does not fit the segment, the segment itself is scanned.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from envelope.errors import CorruptDataError
from envelope.types import FilePosition, LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.checksum import crc32c

HEADER_BYTES: Final = 72
ENTRY_BYTES: Final = 56
NO_TXID: Final = -(1 << 63)
"""Stands for "no transaction id"; an id that is this number itself counts as the next larger."""

_HEADER: Final = struct.Struct("<4sIQQQQQQqI")
_KIND: Final = struct.Struct("<4sI")
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = b"JSIX"
_VERSION: Final = 2
_COLUMNS: Final = 7

assert _HEADER.size + _CRC.size == HEADER_BYTES


class Covered(Protocol):
    """The range, epoch and time of a batch, for its index entry."""

    @property
    def base(self) -> Offset:
        """First offset."""

    @property
    def next(self) -> Offset:
        """Offset after the range."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Epoch that wrote it."""

    @property
    def max_timestamp(self) -> TimestampUs:
        """Largest timestamp."""


class IndexEntry(NamedTuple):
    """Place, range ``[base, next)``, epoch and time of one batch.

    ``last_txid`` is the largest transaction id of its records, None if none has one; see `NO_TXID`.
    """

    base: Offset
    next: Offset
    position: FilePosition
    length: int
    leader_epoch: LeaderEpoch
    max_timestamp: TimestampUs
    last_txid: int | None

    @property
    def end(self) -> FilePosition:
        """Position after the batch."""
        return FilePosition(self.position + self.length)

    @classmethod
    def of(cls, header: Covered, position: int, length: int, last_txid: int | None) -> "IndexEntry":
        """Describe a batch that lies at ``position``."""
        return cls(
            base=header.base,
            next=header.next,
            position=FilePosition(position),
            length=length,
            leader_epoch=header.leader_epoch,
            max_timestamp=header.max_timestamp,
            last_txid=None if last_txid is None else storable(last_txid),
        )


def storable(last_txid: int) -> int:
    """Return the largest transaction id of a batch as an entry has it: see `NO_TXID`."""
    return max(last_txid, NO_TXID + 1)


class StoredBatches(NamedTuple):
    """Batches that follow each other: the offset after the last one, and their stored bytes."""

    next: Offset
    bytes: int


class IndexSummary(NamedTuple):
    """The header of an index file, enough to open a sealed segment without its entries."""

    entries: int
    base: Offset
    next: Offset
    data_end: FilePosition
    last_epoch: LeaderEpoch
    max_timestamp: TimestampUs
    last_txid: int | None
    entries_crc: int

    def fits(self, base: Offset, next_base: Offset, data_end: int) -> bool:
        """Return whether this describes a sealed segment of that range and length."""
        return (self.base, self.next, self.data_end) == (base, next_base, data_end)


class BatchIndex:
    """Entries in file order, append-only while readers look.

    Readers on another thread find an entry through `nexts` first; it is appended to last, so every entry that
    they find is complete.

    Invariants:
        X1: ``bases`` and ``nexts`` strictly increase, and entry i+1 begins at or after the end of entry i
            (after it only where corrupt bytes lie between).
        X2: ``epochs`` and ``timestamps`` never decrease.
            Held by test_entries_that_do_not_tile_are_refused.
        X3: ``txids`` has the largest transaction id of each batch's own records, `NO_TXID` only where none of
            them has one; the largest of all is the segment's ``last_txid``.
    """

    __slots__ = ("bases", "epochs", "lengths", "nexts", "positions", "timestamps", "txids", "verified")

    def __init__(self) -> None:
        self.bases = array("q")
        self.positions = array("q")
        self.lengths = array("q")
        self.epochs = array("q")
        self.timestamps = array("q")
        self.txids = array("q")
        self.verified = bytearray()
        """1 per entry whose CRC this process has computed, as writer or as reader."""
        self.nexts = array("q")

    def __len__(self) -> int:
        return len(self.nexts)

    def __getitem__(self, row: int) -> IndexEntry:
        return IndexEntry(
            base=Offset(self.bases[row]),
            next=Offset(self.nexts[row]),
            position=FilePosition(self.positions[row]),
            length=self.lengths[row],
            leader_epoch=LeaderEpoch(self.epochs[row]),
            max_timestamp=TimestampUs(self.timestamps[row]),
            last_txid=_txid(self.txids[row]),
        )

    def append(self, entry: IndexEntry, *, verified: bool) -> None:
        """Add the entry of the batch behind all others."""
        self.add(entry, entry.position, entry.length, entry.last_txid, verified=verified)

    def add(
        self, batch: Covered, position: int, length: int, last_txid: int | None, *, verified: bool
    ) -> None:
        """Add the entry of the batch behind all others, whose largest transaction id is `storable`."""
        if self.nexts:
            assert batch.base >= self.nexts[-1], f"X1: base {batch.base} after {self.nexts[-1]}"
            assert position >= self.positions[-1] + self.lengths[-1], f"X1: position {position}"
        self.bases.append(batch.base)
        self.positions.append(position)
        self.lengths.append(length)
        self.epochs.append(batch.leader_epoch)
        self.timestamps.append(batch.max_timestamp)
        if last_txid is None:
            self.txids.append(NO_TXID)
        else:
            assert last_txid > NO_TXID, "X3: that number says that there is none"
            self.txids.append(last_txid)
        self.verified.append(verified)
        self.nexts.append(batch.next)

    def head(self, count: int) -> "BatchIndex":
        """Return a copy of the first ``count`` entries."""
        index = BatchIndex()
        for name in self.__slots__:
            setattr(index, name, getattr(self, name)[:count])
        return index

    def filled(self, row: int, entries: Sequence[IndexEntry]) -> "BatchIndex":
        """Return a copy with the entries of good batches that lie before row ``row``."""
        index, missing = BatchIndex(), BatchIndex()
        for entry in entries:
            missing.append(entry, verified=True)
        for name in self.__slots__:
            column = getattr(self, name)
            setattr(index, name, column[:row] + getattr(missing, name) + column[row:])
        return index

    def find(self, offset: Offset) -> int:
        """Return the row of the first batch that ends after ``offset``; `len` if there is none."""
        return bisect_right(self.nexts, offset)

    def end_below(self, offset: Offset) -> FilePosition:
        """Return the position after the last batch that lies wholly below ``offset``; 0 without one."""
        row = self.find(offset)
        # The schema message counts with the first batch, not before.
        return self[row - 1].end if row > 0 else FilePosition(0)

    def find_timestamp(self, timestamp: TimestampUs) -> int:
        """Return the row of the first batch that reaches ``timestamp``; `len` if there is none."""
        return bisect_left(self.timestamps, timestamp, hi=len(self.nexts))

    def find_txid(self, txid: int, first: int) -> int:
        """Return the first row from ``first`` on of a batch with a transaction id of at least ``txid``.

        `len` if there is none.
        """
        stop = len(self.nexts)
        # Of a copy: an array with a view of it cannot grow.
        reach = np.frombuffer(self.txids[first:stop], np.int64) >= max(txid, NO_TXID + 1)
        return first + int(reach.argmax()) if reach.any() else stop

    @property
    def last_txid(self) -> int | None:
        """The largest transaction id of all batches, None if none has one."""
        return _txid(int(np.frombuffer(self.txids[:], np.int64).max(initial=NO_TXID)))

    def are_verified(self, base: Offset, end: Offset) -> bool:
        """Return whether every batch of ``[base, end)``, which is not empty, is verified."""
        return self.verified.find(0, self.find(base), self.find(Offset(end - 1)) + 1) < 0

    def last_row_until(self, first: int, position: int, end: Offset) -> int:
        """Return the last row from ``first`` of the same epoch that ends by ``position`` and by ``end``.

        ``first`` itself if it ends by ``end``, however long it is; otherwise a row before it.
        """
        stop = min(bisect_right(self.nexts, end), bisect_right(self.epochs, self.epochs[first], first))
        fitting = bisect_right(self.positions, position, first, max(stop, first)) - 1
        if fitting > first and self.positions[fitting] + self.lengths[fitting] > position:
            fitting -= 1
        return min(max(fitting, first), stop - 1)

    def within(self, first: int, max_bytes: int, end: Offset) -> StoredBatches | None:
        """Return the batches from row ``first`` on of one epoch that fit ``max_bytes`` and end by ``end``.

        The first batch alone if it is longer; None if it does not end by ``end``.
        """
        start = self.positions[first]
        last = self.last_row_until(first, start + max_bytes, end)
        if last < first:
            return None
        return StoredBatches(Offset(self.nexts[last]), self.positions[last] + self.lengths[last] - start)

    def encode(self, rows: int) -> bytes:
        """Return the index file of the first ``rows`` entries."""
        assert 0 < rows <= len(self), f"{rows} of {len(self)} entries"
        table = np.empty((rows, _COLUMNS), "<i8")
        columns = (self.bases, self.nexts, self.positions, self.lengths, self.epochs, self.timestamps)
        for number, column in enumerate((*columns, self.txids)):
            table[:, number] = np.array(column[:rows], "<i8")
        entries = table.tobytes()
        last = self[rows - 1]
        head = _HEADER.pack(
            _MAGIC,
            _VERSION,
            rows,
            self.bases[0],
            last.next,
            last.end,
            last.leader_epoch,
            last.max_timestamp,
            table[:, _COLUMNS - 1].max(),
            crc32c(entries),
        )
        return head + _CRC.pack(crc32c(head)) + entries


def decode_summary(content: bytes) -> IndexSummary:
    """Return the header that ``content`` begins with.

    Raises:
        CorruptDataError: too short, of another kind or version, or its CRC is wrong.
    """
    if len(content) < HEADER_BYTES:
        raise CorruptDataError("an index file ends inside its header")
    # First, as another version has its checksum elsewhere.
    if _KIND.unpack_from(content) != (_MAGIC, _VERSION):
        raise CorruptDataError(f"not an index of version {_VERSION}")
    _, _, *fields, entries_crc = _HEADER.unpack_from(content)
    if _CRC.unpack_from(content, _HEADER.size)[0] != crc32c(content[: _HEADER.size]):
        raise CorruptDataError("an index header does not match its checksum")
    count, base, end, data_end, epoch, timestamp, txid = fields
    return IndexSummary(
        entries=count,
        base=Offset(base),
        next=Offset(end),
        data_end=FilePosition(data_end),
        last_epoch=LeaderEpoch(epoch),
        max_timestamp=TimestampUs(timestamp),
        last_txid=_txid(txid),
        entries_crc=entries_crc,
    )


def decode_index(content: bytes) -> tuple[IndexSummary, BatchIndex]:
    """Return header and entries of a whole index file.

    Raises:
        CorruptDataError: header or entries are wrong, they do not tile, or the header has another last txid.
    """
    summary = decode_summary(content)
    entries = content[HEADER_BYTES:]
    if len(entries) != summary.entries * ENTRY_BYTES or crc32c(entries) != summary.entries_crc:
        raise CorruptDataError("index entries do not match their checksum")
    table = np.frombuffer(entries, "<i8").reshape(summary.entries, _COLUMNS)
    _check_tiling(table, summary)
    index = BatchIndex()
    index.bases.frombytes(table[:, 0].tobytes())
    index.positions.frombytes(table[:, 2].tobytes())
    index.lengths.frombytes(table[:, 3].tobytes())
    index.epochs.frombytes(table[:, 4].tobytes())
    index.timestamps.frombytes(table[:, 5].tobytes())
    index.txids.frombytes(table[:, 6].tobytes())
    if index.last_txid != summary.last_txid:
        raise CorruptDataError("index entries have another largest transaction id than their header says")
    index.verified.extend(bytes(summary.entries))
    index.nexts.frombytes(table[:, 1].tobytes())
    return summary, index


def _txid(stored: int) -> int | None:
    return None if stored == NO_TXID else stored


def _check_tiling(table: "np.ndarray[tuple[int, int], np.dtype[np.int64]]", summary: IndexSummary) -> None:
    bases, nexts, positions, lengths = (table[:, number] for number in range(4))
    tiled = (
        len(table) > 0
        and bases[0] == summary.base
        and nexts[-1] == summary.next
        and positions[-1] + lengths[-1] == summary.data_end
        and bool((bases < nexts).all() and (lengths > 0).all() and (positions > 0).all())
        and bool((bases[1:] == nexts[:-1]).all() and (positions[1:] == positions[:-1] + lengths[:-1]).all())
    )
    if not tiled:
        raise CorruptDataError("index entries do not tile the segment")
