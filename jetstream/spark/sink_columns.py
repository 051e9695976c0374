"""The rows that Spark hands to the sink: their columns, and their groups by subject; pure.

    column   type                                   null
    value    binary or text                         a tombstone
    key      binary or text                         none
    subject  text                                   that of the option ``subject``
    headers  array<struct<key: text, value>>,       none
             or map<text, value>
    txid     integer                                none

``value`` must be there. Headers that ask for something are a message's, and left out: the key of a record
that was read from a stream is in its column, and its message id was another message's.

Nothing is done row by row: groups are made in Arrow, so many rows at a time that they do not depend on the
batches in which Spark hands them over. A micro-batch that is run again comes in others, and must give the
same envelopes.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from envelope.errors import RequestError
from envelope.headers import MESSAGE_HEADERS
from jetstream.client.batch_envelopes import COLUMNS, batch_rows
from jetstream.client.message_table import check_types
from jetstream.log.schema import HEADERS_TYPE

SUBJECT: Final = "subject"
SINK_COLUMNS: Final = ("value", "key", SUBJECT, "headers", "txid")

GROUPED_ROWS: Final = 32_768
"""Rows of which those with one subject come together; of one subject some envelopes full."""


_MESSAGE_HEADERS: Final = pa.array(sorted(MESSAGE_HEADERS))


class SubjectRows(NamedTuple):
    """Rows to be published on one subject, in order; without that column."""

    subject: str
    rows: pa.Table


def check_columns(schema: pa.Schema, *, has_subject: bool) -> None:
    """Refuse what cannot be published, before anything is.

    Args:
        schema: of all rows.
        has_subject: the option ``subject`` says where rows go that have none.

    Raises:
        RequestError: a column is missing, has the wrong type, or is one too many.
    """
    names = schema.names
    there = f"the table has {', '.join(names) or 'none'}; the sink takes {', '.join(SINK_COLUMNS)}"
    if "value" not in names:
        raise RequestError(f"there is no column value: {there}")
    if unknown := [name for name in names if name not in SINK_COLUMNS]:
        raise RequestError(f"there is no place for the column {', '.join(unknown)}: {there}")
    if len(names) != len(set(names)):
        raise RequestError(f"a column stands more than once: {there}")
    if SUBJECT not in names and not has_subject:
        raise RequestError(f"where to publish is not said: no option subject, and no such column: {there}")
    check_types(schema, names)
    no_rows = schema.empty_table()
    batch_rows(no_rows.select([name for name in names if name in COLUMNS]))


def as_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with the headers that a record may have, and these of the log's type."""
    if "headers" not in batch.schema.names:
        return batch
    place = batch.schema.get_field_index("headers")
    return batch.set_column(place, "headers", _headers_of_records(batch.column(place).cast(HEADERS_TYPE)))


def _headers_of_records(headers: "pa.Array[Any]") -> "pa.Array[Any]":
    fields: pa.Array[Any] = pc.list_flatten(headers)
    is_kept = pc.invert(pc.is_in(pc.struct_field(fields, "key"), _MESSAGE_HEADERS))
    if pc.all(is_kept).as_py() is not False:
        return headers
    rows = pc.filter(pc.list_parent_indices(headers), is_kept).to_numpy()
    ends = np.cumsum(np.bincount(rows, minlength=len(headers)))
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    kept: pa.Array[Any] = pc.filter(fields, is_kept)
    lists: pa.Array[Any] = pa.ListArray.from_arrays(offsets, kept, type=HEADERS_TYPE, mask=headers.is_null())
    return lists


def grouped(batches: Iterable[pa.RecordBatch], subject: str | None) -> Iterator[SubjectRows]:
    """Yield the rows by subject; those of one subject, and all that have a txid, in their order.

    Args:
        batches: with the column ``subject``.
        subject: of rows that have none.

    Raises:
        RequestError: a row without a subject; those more than `GROUPED_ROWS` before it were yielded.
    """
    row = 0
    for chunk in _chunks(batches, GROUPED_ROWS):
        yield from _groups(chunk, subject, row)
        row += chunk.num_rows


def _chunks(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Yield all rows in order, ``rows`` at a time, the last ones fewer."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        while count >= rows:
            table = pa.Table.from_batches(waiting)
            yield table.slice(0, rows)
            waiting, count = table.slice(rows).to_batches(), count - rows
    if count:
        yield pa.Table.from_batches(waiting)


def _groups(chunk: pa.Table, default: str | None, first_row: int) -> Iterator[SubjectRows]:
    subjects: pa.Array[Any] = chunk.column(SUBJECT).cast(pa.utf8()).combine_chunks()
    if default is not None:
        subjects = subjects.fill_null(default)
    elif subjects.null_count:
        row = first_row + int(np.flatnonzero(subjects.is_null().to_numpy(zero_copy_only=False))[0])
        raise RequestError(f"row {row} of its task has no subject, and there is no option subject", row=row)
    encoded = subjects.dictionary_encode()
    names: list[Any] = encoded.dictionary.to_pylist()
    rows = chunk.drop_columns([SUBJECT])
    if len(names) == 1:
        yield SubjectRows(names[0], rows)
        return
    numbers = encoded.indices.to_numpy()
    if "txid" not in rows.column_names:
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows.take(order), numbers[order]
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        yield SubjectRows(names[numbers[start]], rows.slice(start, end - start))
