"""Columns of accepted messages become one Arrow record batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from envelope.headers import MESSAGE_ID, PublishHeaders
from envelope.types import Offset, TimestampUs
from jetstream.log.format.plain_batch_encoder import PlainRecords, Run, no_headers
from jetstream.log.format.schema import SCHEMA

_TIMESTAMP: Final = SCHEMA.field("timestamp").type
_MESSAGE_ID: Final = pa.scalar(MESSAGE_ID, pa.utf8())


@dataclass(slots=True)
class RecordFields:
    """The additions of headers to some records, by row; everything else is null."""

    headers: dict[int, list[tuple[str, bytes]]] = field(default_factory=dict)
    message_ids: Sequence[bytes] = ()
    """The one header of every record; then there are no other headers."""
    keys: dict[int, bytes] = field(default_factory=dict)
    txids: dict[int, int] = field(default_factory=dict)
    tombstones: set[int] = field(default_factory=set)

    @property
    def none(self) -> bool:
        """Whether every record is plain: subject and value."""
        return not (self.headers or self.message_ids or self.keys or self.txids or self.tombstones)

    def add(self, row: int, headers: list[tuple[str, bytes]] | None, publish: PublishHeaders) -> None:
        """Note what the message that becomes ``row`` brought."""
        if headers is not None:
            self.headers[row] = headers
        if publish.key is not None:
            self.keys[row] = publish.key
        if publish.txid is not None:
            self.txids[row] = publish.txid
        if publish.tombstone:
            self.tombstones.add(row)


def build_records(
    base: Offset,
    timestamp: TimestampUs,
    subjects: Sequence[bytes],
    payloads: Sequence[bytes],
    fields: RecordFields,
) -> Run:
    """Return the records at ``base`` and after; ``subjects`` are known to be UTF-8."""
    if fields.none:
        return PlainRecords(base, timestamp, subjects, payloads)
    count = len(subjects)
    rows = range(count)
    values: Sequence[bytes | None] = payloads
    if fields.tombstones:
        values = [None if row in fields.tombstones else value for row, value in enumerate(payloads)]
    keys, txids = fields.keys, fields.txids
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(base, base + count, dtype=np.int64)),
            pa.repeat(pa.scalar(timestamp, _TIMESTAMP), count),
            # Same layout and validated before: a view is free where a conversion looks at every subject.
            pa.array(subjects, pa.binary()).view(pa.utf8()),
            pa.array([keys.get(row) for row in rows], pa.binary()) if keys else pa.nulls(count, pa.binary()),
            _headers(count, fields),
            pa.array([txids.get(row) for row in rows], pa.int64()) if txids else pa.nulls(count, pa.int64()),
            pa.array(values, pa.binary()),
        ],
        schema=SCHEMA,
    )


def _headers(count: int, fields: RecordFields) -> "pa.Array[Any]":
    if fields.message_ids:
        names = pa.repeat(_MESSAGE_ID, count)
        starts = pa.array(np.arange(count + 1, dtype=np.int32), pa.int32())
        return _lists(starts, names, pa.array(fields.message_ids, pa.binary()))
    return _mixed_headers(count, fields.headers) if fields.headers else no_headers(count)


def _mixed_headers(count: int, headers: Mapping[int, list[tuple[str, bytes]]]) -> "pa.ListArray[Any]":
    names: list[str] = []
    values: list[bytes] = []
    starts: list[int | None] = []
    for row in range(count):
        of_row = headers.get(row)
        if of_row is None:
            starts.append(None)
            continue
        starts.append(len(names))
        for name, value in of_row:
            names.append(name)
            values.append(value)
    starts.append(len(names))
    return _lists(pa.array(starts, pa.int32()), pa.array(names, pa.utf8()), pa.array(values, pa.binary()))


def _lists(starts: "pa.Int32Array", names: "pa.Array[Any]", values: "pa.Array[Any]") -> "pa.ListArray[Any]":
    entries = pa.StructArray.from_arrays([names, values], names=["key", "value"])
    return pa.ListArray.from_arrays(starts, entries)
