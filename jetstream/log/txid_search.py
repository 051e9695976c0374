"""Where in a log a transaction id begins: by what the indexes know of each batch, then in one batch.

Each segment has its largest transaction id in memory, and each entry of its index that of its batch. So one
index is looked at and one batch is read, however few records have a transaction id.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from envelope.errors import OffsetOutOfRange, UnavailableError
from envelope.types import Offset
from jetstream.log.batch import decode
from jetstream.log.batch_index import NO_TXID, IndexEntry
from jetstream.log.readable_log import ReadableLog
from jetstream.log.segment import PlanAgain

_ANY = NO_TXID + 1
"""No stored transaction id counts as less."""


def offset_for_txid(log: ReadableLog, txid: int) -> Offset:
    """Return the first kept offset whose transaction id is at least ``txid``; the log end if none is.

    Raises:
        As `first_with_txid`.
    """
    end = log.log_end_offset
    found = first_with_txid(log, txid, log.log_start_offset, end)
    return end if found is None else found


def first_with_txid(log: ReadableLog, txid: int, start: Offset, end: Offset) -> Offset | None:
    """Return the first kept offset of ``[start, end)`` whose transaction id is at least ``txid``, if any.

    Any thread that may wait for the disk can ask, whatever is appended, removed or rewritten meanwhile.

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
    """The wanted record; nothing but what lies before ``clear_from`` can hold an earlier one."""

    offset: Offset
    clear_from: Offset


def _found(log: ReadableLog, txid: int, start: Offset, end: Offset) -> _Found | None:
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
        offset = header.next  # such records are below the start, or have been removed meanwhile
    return None


def _first_reaching(log: ReadableLog, txid: int, offset: Offset, end: Offset) -> IndexEntry | None:
    """Return the first batch of ``[offset, end)`` that has a transaction id of at least ``txid``."""
    wanted = max(txid, _ANY)
    for segment in log.all_segments:
        if segment.base >= end:
            break
        if segment.next <= offset or segment.last_txid is None or segment.last_txid < wanted:
            continue
        index = log.indexes.of(segment)
        row = index.find_txid(wanted, index.find(offset))
        if row < len(index):
            return index[row] if index.bases[row] < end else None
    return None


def _refuse_damage(log: ReadableLog, start: Offset, end: Offset) -> None:
    """Raise if damage in ``[start, end)`` may have held the wanted record.

    It cannot if a smaller transaction id lies between: they never decrease (S2).
    """
    damaged = [(low, high) for low, high in log.corrupt_ranges if max(low, start) < min(high, end)]
    if damaged and _first_reaching(log, _ANY, damaged[-1][1], end) is None:
        log.locate(max(damaged[-1][0], start))
