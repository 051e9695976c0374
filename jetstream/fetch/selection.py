"""What a fetch leaves out: records by subject and key, and columns; a column at a time, in Arrow.

What is selected of a range is one batch that covers the whole range, so that a reader checks checksum and
ranges as it does without a selection, and goes on behind what did not match.
"""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from envelope.errors import RequestError
from envelope.subjects import matches, validated_pattern
from envelope.types import LeaderEpoch, Offset
from jetstream.log.batch import Buffer, decode, encode_selected, iter_frames
from jetstream.log.schema import SCHEMA
from jetstream.protocol.requests import Column, Fetch

_OPTIONAL: tuple[Column, ...] = ("key", "headers", "txid", "value")


@dataclass(frozen=True, slots=True)
class Selected:
    """What is left of a range.

    Attributes:
        body: one finished batch that covers ``[start, next)``; empty if nothing matched.
        next: where the range ends: before its end if ``records_max`` cut it.
        records: how many are left.
    """

    body: bytes | memoryview
    next: Offset
    records: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records and columns a reader wants.

    Attributes:
        subject: only subjects that match this NATS pattern.
        key: only records with this key.
        columns: of the columns a reader may do without only these; None is all.
        records_max: at most so many records.
    """

    subject: str | None = None
    key: bytes | None = None
    columns: frozenset[Column] | None = None
    records_max: int | None = None

    def select(
        self, body: Buffer, start: Offset, offset: Offset, end: Offset, epoch: LeaderEpoch
    ) -> Selected:
        """Return what is wanted, from ``offset`` on, of whole batches covering ``[start, end)`` in ``epoch``.

        Raises:
            CorruptDataError: a batch is damaged.
        """
        chosen: list[pa.RecordBatch] = []
        count = 0
        for frame in iter_frames(body):
            records = self._matching(_from(decode(frame)[1], offset))
            if self.records_max is not None and count + records.num_rows >= self.records_max:
                records = records.slice(0, self.records_max - count)
                end = Offset(records.column(0)[records.num_rows - 1].as_py() + 1)
                chosen.append(records)
                break
            if records.num_rows:
                chosen.append(records)
                count += records.num_rows
        if not chosen:
            return Selected(b"", end, 0)
        table = pa.Table.from_batches(chosen).combine_chunks()
        [merged] = table.to_batches()
        return Selected(encode_selected(self._projected(merged), start, end, epoch), end, merged.num_rows)

    def _matching(self, records: pa.RecordBatch) -> pa.RecordBatch:
        if self.subject is not None:
            subjects = records.column(2)
            wanted = [
                subject for subject in pc.unique(subjects).to_pylist() if matches(self.subject, subject)
            ]
            records = records.filter(pc.is_in(subjects, value_set=pa.array(wanted, pa.utf8())))
        if self.key is not None:
            is_key = pc.equal(records.column(3), pa.scalar(self.key, pa.binary()))
            records = records.filter(is_key)  # a record without a key has no answer, which is no
        return records

    def _projected(self, records: pa.RecordBatch) -> pa.RecordBatch:
        if self.columns is None:
            return records
        columns: list[pa.Array[Any]] = [
            pa.nulls(records.num_rows, field.type)
            if field.name in _OPTIONAL and field.name not in self.columns
            else records.column(place)
            for place, field in enumerate(SCHEMA)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _from(records: pa.RecordBatch, offset: Offset) -> pa.RecordBatch:
    return records.slice(int(records.column(0).to_numpy().searchsorted(offset)))


def selection_of(request: Fetch) -> Selection | None:
    """Return what ``request`` selects, None if it wants everything.

    Raises:
        RequestError: ``subject`` is not a NATS pattern.
    """
    if request.subject is None and request.key is None and request.columns is None:
        return None
    try:
        subject = None if request.subject is None else validated_pattern(request.subject)
    except RequestError as error:
        raise RequestError(f"subject: {error.description}") from None
    return Selection(
        subject,
        None if request.key is None else request.key.encode(),
        None if request.columns is None else frozenset(request.columns),
        request.max_records,
    )
