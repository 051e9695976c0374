"""The results of a reader: single records, or Arrow batches cut to the exact range."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise, repeat
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from envelope.types import LeaderEpoch, Offset, TimestampUs

RECORDS_AT_ONCE: Final = 128
"""Rows that become objects together: few enough to stay in the processor's cache until they are used."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Record(NamedTuple):
    """A stored message."""

    offset: Offset
    timestamp: TimestampUs
    """When the leader appended it: microseconds since the Unix epoch, UTC."""
    subject: str
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    """NATS headers in their order, repeated names included."""
    txid: int | None
    value: bytes | None
    """None is a tombstone; b"" is a value."""
    epoch: LeaderEpoch
    stream: str
    """Where it is stored; of a partitioned stream the partition, ``orders/2``."""

    @property
    def time(self) -> datetime:
        """``timestamp`` as an aware datetime."""
        return _EPOCH + timedelta(microseconds=self.timestamp)


def to_timestamp(moment: datetime) -> TimestampUs:
    """Return microseconds since the Unix epoch, exactly; ``moment`` must be aware.

    Raises:
        ValueError: ``moment`` has no time zone, so it names no moment.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone: which moment is meant?")
    return TimestampUs((moment - _EPOCH) // timedelta(microseconds=1))


def trimmed(batch: pa.RecordBatch, start: Offset, end: Offset | None) -> pa.RecordBatch:
    """Return the records of ``batch`` with offsets in ``[start, end)``, without copying."""
    offsets = batch.column(0).to_numpy()
    first = int(offsets.searchsorted(start))
    last = batch.num_rows if end is None else int(offsets.searchsorted(end))
    if (first, last) == (0, batch.num_rows):
        return batch
    return batch.slice(first, max(0, last - first))


def before(batch: pa.RecordBatch, timestamp: TimestampUs) -> pa.RecordBatch:
    """Return the leading records of ``batch`` with timestamps below ``timestamp``, without copying."""
    timestamps = batch.column(1).cast(pa.int64()).to_numpy()
    return batch.slice(0, int(timestamps.searchsorted(timestamp)))


def records_of(batch: pa.RecordBatch, epoch: LeaderEpoch, stream: str) -> Iterator[Record]:
    """Yield the rows of ``batch``, which is of ``stream``."""
    starts = range(0, batch.num_rows, RECORDS_AT_ONCE)
    return chain.from_iterable(records_from(batch, start, epoch, stream) for start in starts)


def records_from(batch: pa.RecordBatch, start: int, epoch: LeaderEpoch, stream: str) -> list[Record]:
    """Return the next `RECORDS_AT_ONCE` rows of ``batch``: a column at a time in C++, a tuple a row here."""
    batch = batch.slice(start, RECORDS_AT_ONCE)
    columns: list[list[Any]] = [
        batch.column(0).to_numpy().tolist(),
        batch.column(1).to_numpy().view(np.int64).tolist(),
        batch.column(2).to_pylist(),
        batch.column(3).to_pylist(),
        _headers(batch.column(4)),
        batch.column(5).to_pylist(),
        batch.column(6).to_pylist(),
        [epoch] * batch.num_rows,
        [stream] * batch.num_rows,
    ]
    # What `Record._make` does, at half of the cost.
    return list(map(tuple.__new__, repeat(Record), zip(*columns, strict=True)))


def _headers(column: "pa.Array[Any]") -> list[tuple[tuple[str, bytes | None], ...]]:
    """Return one tuple of pairs a row; names and values are converted once for the whole column."""
    if column.null_count == len(column):
        return [()] * len(column)
    assert isinstance(column, pa.ListArray), "decoded batches have the log's schema"
    values = column.values
    assert isinstance(values, pa.StructArray), "decoded batches have the log's schema"
    edges: list[int] = column.offsets.to_numpy().tolist()
    first = edges[0]
    values = values.slice(first, edges[-1] - first)
    pairs = list(zip(*(part.to_pylist() for part in values.flatten()), strict=True))
    headers = [tuple(pairs[start - first : end - first]) for start, end in pairwise(edges)]
    if column.null_count:
        # A null may cover values that are nobody's.
        headers = [
            given if valid else ()
            for given, valid in zip(headers, column.is_valid().to_pylist(), strict=True)
        ]
    return headers
