"""Search in a log: by transaction id, through the indexes and one batch, and by stored bytes.

Each segment has its largest transaction id in memory, and each entry of its index that of its batch. So one
index and one batch are read, however few records have a transaction id.

`batches_within` finds the end of so many stored bytes from the indexes alone. A sealed segment that fits
whole counts by its length. So at most two indexes are read, and no batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from envelope.errors import CorruptDataError, OffsetOutOfRange, UnavailableError
from envelope.types import NO_OFFSET, Offset
from jetstream.log.format.batch import decode
from jetstream.log.reader import LogReader, segment_at
from jetstream.log.segments.index import NO_TXID, IndexEntry, StoredBatches
from jetstream.log.segments.scan import FIRST_BATCH
from jetstream.log.segments.segment import PlanAgain


def joined(
    offset: Offset, max_bytes: int, end: Offset, piece: Callable[[StoredBatches], StoredBatches]
) -> StoredBatches:
    """Return the batches from ``offset`` on that take ``max_bytes`` at most, put together from pieces.

    Args:
        offset: where they begin.
        max_bytes: limit of the stored bytes, but for the first batch, which counts however long it is.
        end: no piece begins there or above.
        piece: returns the batches behind those it gets that fit the rest of ``max_bytes``; 0 bytes end it.
    """
    taken = StoredBatches(offset, 0)
    while taken.next < end:
        more = piece(taken)
        if more.bytes == 0 or (taken.bytes > 0 and taken.bytes + more.bytes > max_bytes):
            break
        taken = StoredBatches(more.next, taken.bytes + more.bytes)
    return taken


def batches_within(log: LogReader, offset: Offset, max_bytes: int, end: Offset) -> StoredBatches:
    """Return the batches from the one that holds ``offset`` on that take ``max_bytes`` at most.

    At least one, however long, but none that reaches beyond ``end`` or lies behind a corrupt range. For any
    thread that may wait for the disk, while records are appended, removed or rewritten.

    Args:
        log: the log.
        offset: below ``end``.
        max_bytes: as they are stored.
        end: at most the log's end.

    Raises:
        OffsetOutOfRange: ``offset`` is below the log start.
        CorruptDataError: ``offset`` lies in a corrupt range.
        StorageError: the disk refused.
        UnavailableError: the log is closed.
    """
    while True:
        start = log.log_start_offset
        try:
            return joined(offset, max_bytes, end, lambda taken: _piece(log, taken, max_bytes, end))
        except UnavailableError as error:
            if not isinstance(error, PlanAgain) and log.log_start_offset == start:
                raise


def _piece(log: LogReader, taken: StoredBatches, max_bytes: int, end: Offset) -> StoredBatches:
    """Return the batches of one segment, or of one epoch in it, that follow ``taken``."""
    offset, left = taken.next, max_bytes - taken.bytes
    whole = _whole(log, offset, end)
    if whole is not None and whole.bytes <= left:
        return whole
    nothing = StoredBatches(offset, 0)
    try:
        found = log.locate(offset)
    except CorruptDataError:
        if taken.bytes == 0:
            raise
        return nothing
    stop = min([end, *(start for start, _ in log.corrupt_ranges if start > offset)])
    return found.index.within(found.row, left, stop) or nothing


def _whole(log: LogReader, offset: Offset, end: Offset) -> StoredBatches | None:
    """Return the sealed, intact segment that begins at ``offset`` and ends by ``end``, if there is one."""
    segment = segment_at(log.segments, offset)
    # Of the active segment the length is published before the end that belongs to it.
    is_kept = log.log_start_offset <= offset == segment.base
    is_hurt = any(low < segment.next and high > segment.base for low, high in log.corrupt_ranges)
    if not is_kept or not segment.sealed or segment.next > end or is_hurt:
        return None
    return StoredBatches(segment.next, segment.data_end - FIRST_BATCH)


_ANY = NO_TXID + 1
"""The least transaction id that an index holds."""


def offset_for_txid(log: LogReader, txid: int, start: Offset = NO_OFFSET) -> Offset:
    """Return the first kept offset from ``start`` on whose txid is at least ``txid``; else the log end.

    Raises:
        As `first_with_txid`.
    """
    end = log.log_end_offset
    found = first_with_txid(log, txid, start, end)
    return end if found is None else found


def first_with_txid(log: LogReader, txid: int, start: Offset, end: Offset) -> Offset | None:
    """Return the first kept offset of ``[start, end)`` whose transaction id is at least ``txid``, if any.

    For any thread that may wait for the disk, while records are appended, removed or rewritten.

    Raises:
        CorruptDataError: the batch that would hold it is damaged.
        StorageError: the disk refused.
        UnavailableError: the log is closed.
    """
    while True:
        first, stop = max(start, log.log_start_offset), min(end, log.log_end_offset)
        try:
            found = _found(log, txid, first, stop)
            _refuse_damage(log, first, stop if found is None else found.clear_from)
        except (UnavailableError, OffsetOutOfRange) as error:
            is_cut = log.log_start_offset > first or log.log_end_offset < stop
            if not is_cut and not isinstance(error, PlanAgain):
                raise
        else:
            return None if found is None or found.offset >= stop else found.offset


@dataclass(frozen=True, slots=True)
class _Found:
    """The offset found; only offsets before ``clear_from`` can hold an earlier one."""

    offset: Offset
    clear_from: Offset


def _found(log: LogReader, txid: int, start: Offset, end: Offset) -> _Found | None:
    offset = start
    while (entry := _first_reaching(log, txid, offset, end)) is not None:
        # Whole, whatever its end: it may have been merged with others meanwhile.
        header, records = decode(log.read(max(entry.base, offset), 1, log.log_end_offset))
        own = records.filter(
            pc.and_(pc.greater_equal(records["offset"], pa.scalar(start)), pc.is_valid(records["txid"]))
        )
        wanted = own.filter(pc.greater_equal(own["txid"], pa.scalar(txid, pa.int64())))
        if wanted.num_rows:
            found = Offset(wanted["offset"][0].as_py())
            has_less = own["offset"][0].as_py() < found
            return _Found(found, start if has_less else header.base)
        offset = header.next  # its records are below the start, or were removed meanwhile
    return None


def _first_reaching(log: LogReader, txid: int, offset: Offset, end: Offset) -> IndexEntry | None:
    """Return the first batch of ``[offset, end)`` that has a transaction id of at least ``txid``."""
    wanted = max(txid, _ANY)
    for segment in log.segments:
        if segment.base >= end:
            break
        if segment.next <= offset or segment.last_txid is None or segment.last_txid < wanted:
            continue
        index = log.indexes.of(segment)
        row = index.find_txid(wanted, index.find(offset))
        if row < len(index):
            return index[row] if index.bases[row] < end else None
    return None


def _refuse_damage(log: LogReader, start: Offset, end: Offset) -> None:
    """Raise if damage in ``[start, end)`` may have held the wanted record.

    It cannot if a smaller transaction id lies between: they never decrease (S2).
    """
    damaged = [(low, high) for low, high in log.corrupt_ranges if max(low, start) < min(high, end)]
    if damaged and _first_reaching(log, _ANY, damaged[-1][1], end) is None:
        log.locate(max(damaged[-1][0], start))
