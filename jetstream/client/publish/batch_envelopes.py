"""Tables become batch envelopes, each within what NATS carries; a column at a time, never a row.

One row is one record. All go to one subject, so there is no column for it:

    column   type                                       null
    value    binary, or text (published as UTF-8)       a tombstone
    key      binary or text                             none
    headers  list<struct<key: text, value: binary>>,    none
             or map<text, binary>
    txid     integer, never decreasing                  none
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from envelope.envelopes import encode_batch
from envelope.errors import RecordTooLarge, RequestError, Unsupported
from envelope.limits import BATCH_BYTES_MAX, ENVELOPE_RECORDS_MAX, KIB
from jetstream.client.publish.message_table import ArrowTable, arrow_stream, data_columns
from jetstream.client.publish.messages import BatchAck, PublishAck
from jetstream.log.format.schema import SCHEMA

ENVELOPE_BYTES_DEFAULT: Final = 512 * KIB
"""Arrow bytes that one envelope is filled with: what it costs besides its records counts no more."""

BATCH_WINDOW_DEFAULT: Final = 16
"""Envelopes that are on their way and not acked."""

COLUMNS: Final = ("key", "headers", "txid", "value")
"""What a batch may have, in the log's order and of its types."""

_RECORD_OVERHEAD_BYTES: Final = 64
"""What the node counts for each record besides its bytes and its subject."""


_ARROW_BYTES_MAX: Final = BATCH_BYTES_MAX // 2 - 64 * KIB
"""What an envelope holds of Arrow; subjects and the rest of a log batch fill the other half at most."""


_OFFSET_BYTES: Final = 5
"""What Arrow spends on a row of a column besides its bytes: an offset, and a bit that may have company."""

_TXID_BYTES: Final = 9

_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""Of Arrow's IPC format: a message without a length."""

_Sizes = npt.NDArray[np.int64]


class Filled(NamedTuple):
    """An envelope and its number of records."""

    payload: bytes
    records: int


def batch_rows(table: ArrowTable) -> Iterator[pa.RecordBatch]:
    """Return the table's rows as batches with the log's types; no row is looked at yet.

    Raises:
        TypeError: ``table`` is no table.
        RequestError: a column is missing, has the wrong type, or is one too many.
    """
    batches = arrow_stream(table)
    names = data_columns(batches.schema)
    if "value" not in names:
        raise RequestError(f"the table has no column value; there are {', '.join(COLUMNS)}")
    if unknown := [name for name in names if name not in COLUMNS]:
        raise RequestError(f"a batch has no column {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
    if len(names) != len(set(names)):
        raise RequestError(f"a column stands more than once: {', '.join(names)}")
    no_rows = [pa.nulls(0, field.type) for field in batches.schema]
    typed_rows(pa.RecordBatch.from_arrays(no_rows, names=batches.schema.names))
    return (typed_rows(batch) for batch in batches if batch.num_rows)


def typed_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of a record, with the log's types and in the log's order.

    Raises:
        RequestError: one has a type that is no such.
    """
    names: list[str] = [name for name in COLUMNS if name in batch.schema.names]
    columns: list[pa.Array[Any]] = []
    for name in names:
        wanted, column = SCHEMA.field(name).type, batch.column(name)
        try:
            columns.append(column if column.type == wanted else column.cast(wanted))
        except pa.ArrowException as error:
            raise RequestError(f"the column {name} is {column.type}, and must be {wanted}: {error}") from None
    return pa.RecordBatch.from_arrays(columns, names=names)


def envelopes(
    batches: Iterable[pa.RecordBatch],
    subject: str,
    payload_max: int,
    *,
    compress: bool,
    message_id: str | None,
) -> Iterator[Filled]:
    """Yield the rows in order, in envelopes that NATS and the node take.

    Args:
        batches: of `batch_rows`.
        subject: they are published on.
        payload_max: what NATS carries.
        compress: zstd.
        message_id: ``a`` gives the envelopes the ids ``a/0``, ``a/1``, …. Equal rows are cut alike, however
            they come in batches, as long as the other arguments are the same.

    Raises:
        RecordTooLarge: a single record that no envelope can carry.
    """
    number = 0
    for piece in pieces_of_rows(
        batches, _fill_of(payload_max, compress), records_in_log(subject, ENVELOPE_RECORDS_MAX)
    ):
        waiting = [piece]
        while waiting:
            some = waiting.pop()
            name = None if message_id is None else f"{message_id}/{number}".encode()
            arrow = arrow_pieces(some)
            opened = sum(map(len, arrow))
            payload = encode_batch(arrow, some.num_rows, compress=compress, message_id=name)
            if len(payload) <= payload_max and opened <= _ARROW_BYTES_MAX:
                yield Filled(payload, some.num_rows)
                number += 1
            elif some.num_rows > 1:
                half = some.num_rows // 2
                waiting += [some.slice(half), some.slice(0, half)]
            else:
                raise RecordTooLarge(
                    f"an envelope of one record takes {len(payload)} bytes, and {opened} opened; "
                    f"NATS carries {payload_max}, a node takes {_ARROW_BYTES_MAX}"
                )


def _fill_of(payload_max: int, compress: bool) -> int:
    """Return how many bytes of rows, as `_row_bytes` counts them, go into an envelope."""
    return ENVELOPE_BYTES_DEFAULT if compress else min(ENVELOPE_BYTES_DEFAULT, payload_max * 7 // 8)


def pieces_of_rows(
    batches: Iterable[pa.RecordBatch], fill: int, records_max: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in order, so many at a time that one more would be over a limit; one row at least.

    The limits are ``fill`` bytes, about, and ``records_max``. The cuts follow from the rows
    alone, never from the batches they come in: each envelope of an equal table that is published again must
    have the id that it had.
    """
    waiting: list[pa.RecordBatch] = []
    sizes: list[_Sizes] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        sizes.append(_row_bytes(batch))
        rows, size = rows + batch.num_rows, size + int(sizes[-1].sum())
        if rows <= records_max and size <= fill:
            continue
        table, each = pa.Table.from_batches(waiting), np.concatenate(sizes)
        start, ends = 0, np.cumsum(each)
        while (end := _end_of_piece(ends, start, fill, records_max)) < rows:
            yield _one(table.slice(start, end - start))
            start = end
        waiting, sizes = table.slice(start).to_batches(), [each[start:]]
        rows, size = rows - start, int(sizes[0].sum())
    if rows:
        yield _one(pa.Table.from_batches(waiting))


def _end_of_piece(ends: _Sizes, start: int, fill: int, records_max: int) -> int:
    """Return where the rows end that begin at ``start``; ``ends`` are the sizes of all, added up."""
    before = int(ends[start - 1]) if start else 0
    end = int(np.searchsorted(ends, before + fill, side="right"))
    return max(start + 1, min(end, start + records_max))


def _row_bytes(batch: pa.RecordBatch) -> _Sizes:
    """Return how many bytes each row takes in Arrow, about."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name == "txid":
            sizes += _TXID_BYTES
        elif name == "headers":
            sizes += _OFFSET_BYTES + _header_bytes(column)
        else:
            sizes += _OFFSET_BYTES + _lengths(column)
    return sizes


def _header_bytes(lists: "pa.Array[Any]") -> _Sizes:
    """Return how many bytes of names and values the headers of each row have."""
    fields = pc.list_flatten(lists)  # without those of null lists
    each = (
        2 * _OFFSET_BYTES
        + _lengths(pc.struct_field(fields, "key"))
        + _lengths(pc.struct_field(fields, "value"))
    )
    ends = np.cumsum(pc.fill_null(pc.list_value_length(lists), 0).to_numpy())
    added_up = np.concatenate(([0], np.cumsum(each)))[ends]
    each_row: _Sizes = np.diff(added_up, prepend=0)
    return each_row


def _lengths(texts: "pa.Array[Any]") -> _Sizes:
    lengths: pa.Array[Any] = pc.call_function("binary_length", [texts])
    return lengths.fill_null(0).to_numpy().astype(np.int64)


def _one(rows: pa.Table) -> pa.RecordBatch:
    """Return the rows as one batch, whose bytes follow from the rows alone.

    Copied for that, also if they lie in one chunk: in the bits of a slice are those of its neighbours.
    """
    columns: list[pa.Array[Any]] = []
    for column in rows.columns:
        chunks: list[pa.Array[Any]] = column.chunks
        columns.append(pa.concat_arrays([*chunks, chunks[0].slice(0, 0)]))
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def records_in_log(subject: str, records_max: int) -> int:
    """Return how many records of an envelope, ``records_max`` at most, the node's log batch has room for."""
    return min(records_max, BATCH_BYTES_MAX // 2 // (len(subject.encode()) + _RECORD_OVERHEAD_BYTES))


def arrow_pieces(rows: pa.RecordBatch) -> tuple[bytes | memoryview, ...]:
    """Return an Arrow IPC stream of one batch, as an envelope holds it, in pieces that are copied once."""
    return memoryview(rows.schema.serialize()), memoryview(rows.serialize()), _END_OF_STREAM


def checked_ack(ack: PublishAck, records: int) -> PublishAck:
    """Return the ack of an envelope with so many ``records``.

    Raises:
        Unsupported: the server does not know envelopes, and has stored the envelope itself as a record.
        RequestError: other records were published under the envelope's id, and are stored.
    """
    if not isinstance(ack, BatchAck) and not ack.duplicate:
        raise Unsupported(f"stream {ack.stream} stored an envelope of {records} records as one message")
    if ack.count != records:
        raise RequestError(
            f"stream {ack.stream} has {ack.count} records, from offset {ack.first_offset} to {ack.offset}, "
            f"under the id of an envelope of {records}: these are not stored",
            first_offset=ack.first_offset,
            offset=ack.offset,
            count=ack.count,
        )
    return ack
