"""Sealed segments, read from end to end: many batches at a time, checked, and decoded to be written anew.

Each batch is checked against its CRC and its index entry, so that damage is found and not given a new
checksum. Then small batches are decoded together, as an Arrow IPC stream: one by one they would cost several
times as much.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from envelope.errors import CorruptDataError
from envelope.limits import KIB, MIB
from envelope.types import Offset
from jetstream.log.format.batch import BatchHeader, records_of, verified_at, verify
from jetstream.log.format.message import PREFIX_BYTES, Frame, decoded_bytes, find_frame, is_compressed
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA, SCHEMA_MESSAGE
from jetstream.log.reader import LogReader
from jetstream.log.segments.index import BatchIndex
from jetstream.log.segments.segment import Segment, SegmentReplaced

_STORED_BYTES: Final = MIB
"""Bytes read at once; at least one batch."""
_BATCHES: Final = 256
"""Batches read at once: with more, small ones cost twice as much (caches), and block the loop for longer."""
_LARGE_BYTES: Final = 32 * KIB
"""Batches that are larger, in the mean, are decoded one by one."""
_DECODED_BYTES: Final = 16 * MIB
"""Decoded bytes at which a chunk ends, however few they are in the file."""

_OPTIONS: Final = pa.ipc.IpcReadOptions(use_threads=False)
_METADATA_LENGTH: Final = struct.Struct("<I")
_METADATA_LENGTH_AT: Final = 4


@dataclass(frozen=True, slots=True)
class BatchChunk:
    """Batches that follow each other.

    Attributes:
        headers: of each batch.
        frames: the bytes of each.
        records: of all of them.
        bounds: the rows of batch i are those from ``bounds[i]`` to ``bounds[i + 1]``.
    """

    headers: tuple[BatchHeader, ...]
    frames: tuple[memoryview, ...]
    records: pa.Table
    bounds: npt.NDArray[np.int64]

    @property
    def bytes(self) -> int:
        """Bytes of the batches in the file."""
        return sum(map(len, self.frames))

    @property
    def end(self) -> Offset:
        """Offset after the last batch."""
        return self.headers[-1].next


def chunks_of(log: LogReader, segment: Segment, start: Offset) -> Iterator[BatchChunk]:
    """Yield the batches of a sealed segment from the one that holds ``start`` on.

    Raises:
        CorruptDataError: a batch is damaged, and its offsets are refused from now on; or the segment does not
            end where the next one begins.
        StorageError, UnavailableError: the disk refused, or the segment is gone.
    """
    found = log.locate(max(segment.base, log.log_start_offset))
    if found.segment is not segment:
        raise SegmentReplaced(f"segment {segment.base} is another one now")
    if found.index.nexts[-1] != segment.next:
        raise CorruptDataError(f"segment {segment.base} ends at {found.index.nexts[-1]}, not {segment.next}")
    reader = _Reader(log, segment, found.index)
    row = found.index.find(start)
    with segment.leased() as file:
        while row < len(found.index):
            position, length = reader.extent(row)
            block = memoryview(file.read(position, length))
            at = 0
            while at < len(block):
                chunk = reader.chunk(row, block[at:])
                row += len(chunk.frames)
                at += chunk.bytes
                yield chunk


def check_segment(log: LogReader, segment: Segment, pace: Callable[[int], None]) -> None:
    """Read a sealed segment from the medium, and check every batch that is not refused already.

    Cached pages are read anew from the medium, and not left in the cache.

    Args:
        log: log of the segment.
        segment: sealed.
        pace: called with the bytes of each piece that was read; may wait, or raise to give up.

    Raises:
        CorruptDataError: a batch is damaged. All damaged ones of this segment are refused from now on.
        StorageError, UnavailableError: the disk refused, or the segment is gone.
    """
    reader = _Reader(log, segment, log.indexes.of(segment))
    with segment.leased() as file:
        file.drop_cache(0)
        rows = reader.rows_from(log.log_start_offset)
        while rows:
            position, length = reader.extent(rows.start)
            block = memoryview(file.read(position, length))
            rows = range(reader.check(rows.start, position, block, length), rows.stop)
            pace(length)
        file.drop_cache(0)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The common layout of batches with metadata of one length: nearly always, as one writer made it."""

    digits: int
    is_compressed: bool


class _Reader:
    def __init__(self, log: LogReader, segment: Segment, index: BatchIndex) -> None:
        self._log = log
        self._segment = segment
        self._index = index
        self._layouts: dict[int, _Layout] = {}

    def extent(self, row: int) -> tuple[int, int]:
        """Return position and length of the batches from ``row`` on that are read at once."""
        positions, lengths = self._index.positions, self._index.lengths
        start, end = positions[row], positions[row] + lengths[row]
        for following in range(row + 1, min(row + _BATCHES, len(positions))):
            if positions[following] + lengths[following] - start > _STORED_BYTES:
                break
            end = positions[following] + lengths[following]
        return start, end - start

    def rows_from(self, offset: Offset) -> range:
        """Return the rows of the batch that holds ``offset``, if any, and of those behind it."""
        return range(self._index.find(offset), len(self._index))

    def check(self, first: int, start: int, block: memoryview, length: int) -> int:
        """Check the batches in the ``length`` bytes from ``start`` on, of which ``block`` was read.

        Bytes that are refused already may lie between them. Return the row behind the last.
        """
        positions, lengths = self._index.positions, self._index.lengths
        row = first
        while row < len(positions) and (at := positions[row] - start) + lengths[row] <= length:
            try:
                self._checked(row, block[at : at + lengths[row]])
            except CorruptDataError:
                self._refuse(row)
                raise
            row += 1
        return row

    def chunk(self, first: int, block: memoryview) -> BatchChunk:
        """Return the batches of ``block``, which begins with row ``first``, or the first of them."""
        headers: list[BatchHeader] = []
        frames: list[memoryview] = []
        row, at, decoded = first, 0, 0
        while at < len(block) and decoded < _DECODED_BYTES:
            frame = block[at : at + self._index.lengths[row]]
            try:
                layout, header = self._checked(row, frame)
            except CorruptDataError:
                self._refuse(row)
                raise
            decoded += decoded_bytes(frame) if layout.is_compressed else len(frame)
            headers.append(header)
            frames.append(frame)
            row, at = row + 1, at + len(frame)
        # Decoding together takes a copy, which costs more than it saves if they are large.
        records = _decoded(block[:at]) if at < len(frames) * _LARGE_BYTES else None
        counts = [] if records is None else _counts(records)
        if records is None or not _fit(counts, headers):
            records = self._decoded_singly(first, headers, frames)
            counts = _counts(records)
        return BatchChunk(tuple(headers), tuple(frames), records, np.cumsum([0, *counts]))

    def _checked(self, row: int, frame: memoryview) -> tuple[_Layout, BatchHeader]:
        length = (
            _METADATA_LENGTH.unpack_from(frame, _METADATA_LENGTH_AT)[0] if len(frame) > PREFIX_BYTES else 0
        )
        layout = self._layouts.get(length)
        header = None
        if layout is not None:
            header = _verified_as(layout, frame)
        if header is None:
            header = verify(frame)
            layout = self._layouts[length] = _layout_of(frame, length)
        index = self._index
        wanted = (index.bases[row], index.nexts[row], index.epochs[row], index.timestamps[row])
        if (header.base, header.next, header.leader_epoch, header.max_timestamp) != wanted:
            raise CorruptDataError(f"batch {header.base} is not what the index says")
        assert layout is not None, "it was known, or has just been learnt"
        return layout, header

    def _decoded_singly(self, first: int, headers: list[BatchHeader], frames: list[memoryview]) -> pa.Table:
        """Decode batch by batch, and raise for the damaged one."""
        batches: list[pa.RecordBatch] = []
        for row, (header, frame) in enumerate(zip(headers, frames, strict=True), first):
            try:
                batches.append(records_of(header, frame))
            except CorruptDataError:
                self._refuse(row)
                raise
        return pa.Table.from_batches(batches, SCHEMA)

    def _refuse(self, row: int) -> None:
        """Read a damaged batch again, so that it is refused from now on.

        Raises:
            CorruptDataError: it is damaged.
            UnavailableError: nothing is damaged, the segment was cut or removed.
        """
        self._segment.check_present()
        index = self._index
        index.verified[row] = False
        self._log.read(max(Offset(index.bases[row]), self._log.log_start_offset), 1, self._log.log_end_offset)


def _decoded(block: memoryview) -> pa.Table | None:
    """Return the records of all batches, a chunk of each column per batch; None if a batch is wrong."""
    try:
        with pa.ipc.open_stream(b"".join((SCHEMA_MESSAGE, block, END_OF_STREAM)), options=_OPTIONS) as reader:
            table = reader.read_all()
        table.validate()
    except (pa.ArrowException, OSError):
        return None
    return table


def _fit(counts: list[int], headers: list[BatchHeader]) -> bool:
    return len(counts) == len(headers) and all(
        count <= header.next - header.base for count, header in zip(counts, headers, strict=True)
    )


def _counts(records: pa.Table) -> list[int]:
    return [len(part) for part in records.column(0).chunks]


def _verified_as(layout: _Layout, frame: memoryview) -> BatchHeader | None:
    """Return the header of a batch with that layout; None if it has another, or is damaged."""
    try:
        return verified_at(frame, Frame(0, len(frame), layout.digits))
    except CorruptDataError:
        return None


def _layout_of(frame: memoryview, length: int) -> _Layout:
    found = find_frame(frame)
    assert found is not None, "it was verified"
    metadata = bytes(frame[PREFIX_BYTES : PREFIX_BYTES + length])
    return _Layout(found.digits, is_compressed(metadata))
