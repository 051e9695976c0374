"""The sealed rewrite: small batches of a sealed segment become few, and compressed.

A record in a batch of its own takes about a kilobyte, nearly all of it metadata. Batches of one epoch that
follow each other become one of up to `MERGED_BYTES`, with the flags of the first and the ranges of all.
Records, offsets, order, timestamps and epochs stay as they are, and the ranges tile as before. A batch
without a neighbour to merge with keeps its bytes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from envelope.limits import BATCH_BYTES_MAX, MIB
from envelope.types import Compression
from jetstream.log.disk.port import Disk
from jetstream.log.format.batch import BatchHeader
from jetstream.log.format.schema import NO_RECORDS
from jetstream.log.reader import LogReader
from jetstream.log.rewriting.replacement import ReplacementBatch, RewrittenSegment, write_beside
from jetstream.log.rewriting.rewrite_plan import has_paid, may_pay
from jetstream.log.rewriting.segment_chunks import BatchChunk, chunks_of
from jetstream.log.segments.segment import Segment

MERGED_BYTES: Final = MIB
"""Bytes of records in one batch, before compression: those of a fetch, and enough for the codec."""

_FIXED_BYTES: Final = 48
"""Bytes of a record: three numbers, four ends of variable parts, and their validity."""

assert 2 * MERGED_BYTES < BATCH_BYTES_MAX, "a merged batch is within the limit whatever the codec does"

Pace = Callable[[int], None]
"""As that of `jetstream.log.rewriting.compaction`."""


def rewritten(
    log: LogReader, disk: Disk, segment: Segment, pace: Pace, merged_bytes: int = MERGED_BYTES
) -> RewrittenSegment | None:
    """Write a sealed segment with its batches merged, durably, beside it; None if that does not pay.

    Args:
        log: log of the segment.
        disk: disk of the log.
        segment: sealed.
        pace: called with the bytes of each chunk.
        merged_bytes: limit of the records in one batch; more only if it was one before.

    Raises:
        CorruptDataError: a batch is damaged; its offsets are refused from now on.
        DiskFull: there is no space for it.
        StorageError, FsyncFailed, UnavailableError: the disk refused, or the segment is gone.
    """
    if not may_pay(log.locate(max(segment.base, log.log_start_offset)).index):
        return None
    new = write_beside(disk, segment, _merged(log, segment, pace, merged_bytes), Compression.ZSTD)
    result = RewrittenSegment(segment, new, records=0)
    if has_paid(segment.size, new.size):
        return result
    result.discard(disk)
    return None


def _merged(
    log: LogReader, segment: Segment, pace: Pace, merged_bytes: int
) -> Iterator[list[ReplacementBatch]]:
    held: _Run | None = None
    for chunk in chunks_of(log, segment, segment.base):
        *done, held = _runs(chunk, held, merged_bytes)
        yield [run.piece() for run in done]
        pace(chunk.bytes)
    if held is not None:
        yield [held.piece()]


@dataclass(frozen=True, slots=True)
class _Run:
    """Batches that become one.

    Attributes:
        header: header of the merged batch.
        records: records of all.
        bytes: bytes of the records.
        original: the batch itself, if it is only one.
    """

    header: BatchHeader
    records: tuple[pa.Table, ...]
    bytes: int
    original: memoryview | None

    def joined(self, run: "_Run") -> "_Run":
        """Return this run and the following ``run`` as one."""
        last = run if run.bytes or not self.bytes else self
        header = replace(self.header, next=run.header.next, max_timestamp=last.header.max_timestamp)
        return _Run(header, (*self.records, *run.records), self.bytes + run.bytes, None)

    def piece(self) -> ReplacementBatch:
        if self.original is not None:
            return ReplacementBatch(self.header, None, self.original, self.header)
        batches = pa.concat_tables(self.records).combine_chunks().to_batches()
        return ReplacementBatch(self.header, batches[0] if batches else NO_RECORDS)


def _runs(chunk: BatchChunk, held: _Run | None, merged_bytes: int) -> Iterator[_Run]:
    """Yield the batches of ``held`` and then of ``chunk``, each run as large as it may be; at least one."""
    records = chunk.records.combine_chunks()
    before = _bytes_before(records)[chunk.bounds]
    epochs = np.array([header.leader_epoch for header in chunk.headers])
    at = 0
    while at < len(epochs):
        room = merged_bytes
        if held is not None:
            room = room - held.bytes if held.header.leader_epoch == epochs[at] else -1
        same_epoch = int(np.searchsorted(epochs, epochs[at], "right"))
        end = min(int(np.searchsorted(before, before[at] + room, "right")) - 1, same_epoch)
        if held is not None and end <= at:
            yield held
            held = None
            continue
        end = max(end, at + 1)
        run = _run(chunk, records, at, end, int(before[end] - before[at]))
        held = run if held is None else held.joined(run)
        at = end
    assert held is not None, "a chunk has batches"
    yield held


def _run(chunk: BatchChunk, records: pa.Table, first: int, end: int, size: int) -> _Run:
    """Return the batches from ``first`` to before ``end`` of a chunk, its records in one piece."""
    headers, rows = chunk.headers, chunk.bounds
    header = headers[first]
    if end - first > 1:
        # As in any batch, the largest timestamp is that of the last record, if there is one.
        filled = np.flatnonzero(np.diff(rows[first : end + 1]))
        last = headers[first + int(filled[-1])] if len(filled) else headers[end - 1]
        header = replace(header, next=headers[end - 1].next, max_timestamp=last.max_timestamp)
    part = records.slice(int(rows[first]), int(rows[end] - rows[first]))
    return _Run(header, (part,), size, chunk.frames[first] if end - first == 1 else None)


def _bytes_before(records: pa.Table) -> npt.NDArray[np.int64]:
    """Return the number of bytes before each row, and before the end; each column is in one piece."""
    sizes = np.full(records.num_rows, _FIXED_BYTES, np.int64)
    for name in ("subject", "key", "value"):
        sizes += _lengths(records[name])
    headers = records["headers"]
    if headers.null_count < len(headers):
        entries = pc.list_flatten(headers)
        before = _before(_lengths(pc.struct_field(entries, 0)) + _lengths(pc.struct_field(entries, 1)))
        counts = np.asarray(pc.fill_null(pc.list_value_length(headers), 0), np.int64)
        sizes += np.diff(before[_before(counts)])
    return _before(sizes)


def _lengths(column: "pa.ChunkedArray[Any]") -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(pc.binary_length(column), 0), np.int64)


def _before(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)])
