"""Selection of records by subject and key, and of columns, for a fetch; a column at a time, in Arrow.

The selected records of a range are one batch that covers the whole range, so that a reader checks checksum
and ranges as it does without a selection, and goes on behind records that did not match.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from envelope.limits import FETCH_BYTES_DEFAULT, FETCH_BYTES_MAX
from envelope.subjects import matches
from envelope.types import Buffer, LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import BatchHeader, encode_selected
from jetstream.log.format.plain_batch_encoder import no_headers
from jetstream.log.format.schema import SCHEMA
from jetstream.log.format.small_batch_reader import merged_batches
from jetstream.protocol.requests import Column

SEEN_BYTES_MAX: Final = FETCH_BYTES_MAX
"""Bytes decoded for one fetch, selected or not; beyond it the fetch ends with the batch."""

_ROWS_AT_ONCE: Final = 1_024
"""Records of the smallest batches that are read together."""

_NO_TIME: Final = TimestampUs(0)

_OPTIONAL: tuple[Column, ...] = ("key", "headers", "txid", "value")


@dataclass(frozen=True, slots=True)
class Selected:
    """The selected records of a range.

    Attributes:
        body: one finished batch that covers ``[start, next)``; empty if nothing matched.
        next: end of the range, which a limit may have cut.
        records: number of selected records.
        max_timestamp: of all records below ``next``, left out or not.
    """

    body: bytes | memoryview
    next: Offset
    records: int
    max_timestamp: TimestampUs


Encoder = Callable[[pa.RecordBatch, Offset, Offset, LeaderEpoch], bytes | memoryview]
"""Makes a body of selected records, of a range ``[start, end)`` and its leader epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The records and columns that a reader wants.

    Attributes:
        subject: only subjects that match this NATS pattern.
        key: only records with this key.
        columns: those kept of the columns that may be left out; None is all.
        end: first offset that is left out at the end; None: the range's.
        records_max: limit of the records.
        bytes_max: limit of their decoded bytes; at least one batch.
        encode: makes the body of the records, which are of ``[start, end)`` in that order of arguments.
    """

    subject: str | None = None
    key: bytes | None = None
    columns: frozenset[Column] | None = None
    end: Offset | None = None
    records_max: int | None = None
    bytes_max: int = FETCH_BYTES_DEFAULT
    encode: Encoder = encode_selected

    def select(
        self,
        body: Buffer,
        start: Offset,
        offset: Offset,
        end: Offset,
        epoch: LeaderEpoch,
        *,
        pace: Callable[[int], None] = lambda size: None,
    ) -> Selected:
        """Return the selected records from ``offset`` on of whole batches of ``[start, end)`` in ``epoch``.

        ``pace`` is called after each piece, with its bytes.

        Raises:
            CorruptDataError: a batch is damaged.
        """
        kept = _Kept(self.bytes_max, self.records_max, end)
        places = self._places
        for header, records in merged_batches(body, _ROWS_AT_ONCE, self.bytes_max):
            size = records.get_total_buffer_size()
            wanted = self._matching(_within(records, offset, self.end)).select(places)
            if not kept.add(wanted, header, size):
                break
            pace(size)
        if self.end is not None:
            kept.next = min(kept.next, self.end)
        if not kept.batches:
            return Selected(b"", kept.next, 0, kept.max_timestamp)
        [merged] = pa.Table.from_batches(kept.batches).combine_chunks().to_batches()
        merged = _with_nulls(merged)
        body = self.encode(merged, start, kept.next, epoch)
        return Selected(body, kept.next, merged.num_rows, kept.max_timestamp)

    def _matching(self, records: pa.RecordBatch) -> pa.RecordBatch:
        if self.subject is not None:
            subjects = records.column(2)
            wanted = [
                subject for subject in pc.unique(subjects).to_pylist() if matches(self.subject, subject)
            ]
            records = records.filter(pc.is_in(subjects, value_set=pa.array(wanted, pa.utf8())))
        if self.key is not None:
            is_key = pc.equal(records.column(3), pa.scalar(self.key, pa.binary()))
            records = records.filter(is_key)  # the comparison of a missing key is null, which filters it out
        return records

    @property
    def _places(self) -> list[int]:
        """The columns that are kept, by their places in the schema."""
        return [
            place
            for place, name in enumerate(SCHEMA.names)
            if self.columns is None or name not in _OPTIONAL or name in self.columns
        ]


@dataclass(slots=True)
class _Kept:
    """The selected records of the batches so far, and the end of those batches.

    Compressed batches are bounded as they are decoded: a few megabytes on disk may be gigabytes.
    """

    bytes_max: int
    records_max: int | None
    next: Offset
    batches: list[pa.RecordBatch] = field(default_factory=list)
    max_timestamp: TimestampUs = _NO_TIME
    _records: int = 0
    _bytes: int = 0
    _seen_bytes: int = 0

    def add(self, selected: pa.RecordBatch, header: BatchHeader, seen_bytes: int) -> bool:
        """Add the selected records of the next batch; return whether another batch may follow."""
        self._bytes += selected.get_total_buffer_size()
        self._seen_bytes += seen_bytes
        if self.batches and self._bytes > self.bytes_max:
            self.next = header.base
            return False
        if self.records_max is not None and self._records + selected.num_rows >= self.records_max:
            selected = selected.slice(0, self.records_max - self._records)
            self.batches.append(selected)
            self.next = Offset(selected.column(0)[-1].as_py() + 1)
            self.max_timestamp = TimestampUs(selected.column(1)[-1].value)
            return False
        self.max_timestamp = header.max_timestamp
        if selected.num_rows:
            self.batches.append(selected)
            self._records += selected.num_rows
        if self._seen_bytes >= SEEN_BYTES_MAX:
            self.next = header.next
            return False
        return True


def _with_nulls(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return records with all columns of the schema; those that are not there are null."""
    if records.num_columns == len(SCHEMA):
        return records
    columns: dict[str, pa.Array[Any]] = dict(zip(records.schema.names, records.columns, strict=True))
    columns.setdefault("headers", no_headers(records.num_rows))
    for column in SCHEMA:
        columns.setdefault(column.name, pa.nulls(records.num_rows, column.type))
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _within(records: pa.RecordBatch, offset: Offset, end: Offset | None) -> pa.RecordBatch:
    if records.num_rows == 0:
        return records
    offsets = records.column(0).to_numpy()
    first = int(offsets.searchsorted(offset))
    last = records.num_rows if end is None else int(offsets.searchsorted(end))
    return records.slice(first, max(0, last - first))
