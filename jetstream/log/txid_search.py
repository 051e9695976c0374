"""Where in a log a transaction id begins, found by halving: txids never decrease (invariant S2)."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from envelope.limits import KIB
from envelope.types import Offset
from jetstream.log.batch import decode, iter_frames, last_txid
from jetstream.log.readable_log import ReadableLog
from jetstream.log.schema import NO_RECORDS

_READ_BYTES: Final = 256 * KIB


def offset_for_txid(log: ReadableLog, txid: int) -> Offset:
    """Return the first kept offset whose transaction id is at least ``txid``; the log end if none is.

    Reads a logarithmic number of places, on from each to the next record with a transaction id: in the worst
    case, a stream in which hardly any record has one, all of the log.

    Raises:
        CorruptDataError: a batch on the way is damaged.
    """
    end = log.log_end_offset
    low, high, found = log.log_start_offset, end, end
    while low < high:
        probe = _probe(log, Offset((low + high) // 2), high)
        if probe.last_txid is None:
            high = probe.begin
        elif probe.last_txid < txid:
            low = probe.next
        else:
            high, found = probe.begin, _first_at_least(probe.records, txid)
    return max(found, log.log_start_offset)


@dataclass(frozen=True, slots=True)
class _Probe:
    """The first batch with a transaction id on the way from ``begin``, or the end of the way."""

    begin: Offset
    next: Offset
    records: pa.RecordBatch
    last_txid: int | None


def _probe(log: ReadableLog, middle: Offset, end: Offset) -> _Probe:
    """Look from the batch that holds ``middle`` on, up to ``end``."""
    begin: Offset | None = None
    start = log.log_start_offset  # retention goes on meanwhile
    offset = max(middle, start)
    while offset < end:
        # ``end`` may lie inside a batch by now, as compaction joins their ranges.
        for frame in iter_frames(log.read(offset, _READ_BYTES, log.log_end_offset)):
            if offset >= end:
                break
            header, records = decode(frame)
            begin = header.base if begin is None else begin
            if header.base < start:
                records = records.filter(pc.greater_equal(records["offset"], pa.scalar(start)))
            found = last_txid(records)
            if found is not None:
                return _Probe(begin, header.next, records, found)
            offset = header.next
    return _Probe(middle if begin is None else begin, end, NO_RECORDS, None)


def _first_at_least(records: pa.RecordBatch, txid: int) -> Offset:
    wanted = records.filter(
        pc.greater_equal(records["txid"], pa.scalar(txid))
    )  # where there is none, null: left out
    return Offset(wanted["offset"][0].as_py())
