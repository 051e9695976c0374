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
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from envelope.errors import InvalidSubject, RequestError
from envelope.headers import MESSAGE_HEADERS
from envelope.limits import MIB
from envelope.subjects import validated_subject
from jetstream.client.publish.batch_envelopes import (
    COLUMNS,
    ENVELOPE_BYTES_DEFAULT,
    batch_rows,
    pieces_of_rows,
    typed_rows,
)
from jetstream.client.publish.message_table import check_types
from jetstream.log.format.schema import HEADERS_TYPE

SUBJECT: Final = "subject"
SINK_COLUMNS: Final = ("value", "key", SUBJECT, "headers", "txid")

GROUPED_ROWS: Final = 32_768
"""Rows of which those with one subject come together; of one subject some envelopes full."""

GROUPED_BYTES: Final = 16 * MIB
"""The same, where rows are large."""

_MESSAGE_HEADERS: Final = pa.array(sorted(MESSAGE_HEADERS))


class RowGroup(NamedTuple):
    """Rows to be published together, in order; with the columns of records alone."""

    subject: str
    rows: pa.RecordBatch
    key: bytes | None = None
    """Of all of them, where keys are grouped; None: they have none."""


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
    """Return the rows with the log's types, and with the headers that a record may have."""
    records = typed_rows(batch)
    if "headers" in records.schema.names:
        place = records.schema.get_field_index("headers")
        records = records.set_column(place, "headers", _headers_of_records(records.column(place)))
    if SUBJECT in batch.schema.names:
        records = records.append_column(SUBJECT, batch.column(SUBJECT).cast(pa.utf8()))
    return records


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


def pieces_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows, with the log's types, in pieces to be published one behind the other.

    Where a piece ends follows from the rows alone: equal rows come in equal pieces.
    """
    records = map(as_records, batches)
    first = next(records, None)
    if first is None:
        return iter(())
    fill = ENVELOPE_BYTES_DEFAULT if {SUBJECT, "key"}.isdisjoint(first.schema.names) else GROUPED_BYTES
    return pieces_of_rows(chain((first,), records), fill, GROUPED_ROWS)


def groups_of(
    piece: pa.RecordBatch, subject: str | None, *, by_key: bool = False, first_row: int = 0
) -> Iterator[RowGroup]:
    """Yield the rows of a piece by subject; those of one subject, and all that have a txid, in their order.

    Args:
        piece: of `pieces_of`.
        subject: of rows that have none.
        by_key: by their keys, too.
        first_row: number of the first row in its task.

    Raises:
        RequestError: a row without a subject, or with one that nothing can be published on.
    """
    subjects = _subjects(piece, subject, first_row)
    numbers, names = _numbered(subjects)
    for name in names:
        try:
            validated_subject(name)
        except InvalidSubject as error:
            raise RequestError(f"a row cannot be published: {error.description}") from None
    yield from _groups(piece, numbers, names, by_key=by_key)


def _subjects(piece: pa.RecordBatch, default: str | None, first_row: int) -> "pa.Array[Any]":
    """Return the subject of each row; the first of them is number ``first_row`` of its task."""
    if SUBJECT not in piece.schema.names:
        return pa.repeat(pa.scalar(default, pa.utf8()), piece.num_rows)
    subjects: pa.Array[Any] = piece.column(SUBJECT)
    if default is not None:
        return subjects.fill_null(default)
    if subjects.null_count:
        row = first_row + int(np.flatnonzero(subjects.is_null().to_numpy(zero_copy_only=False))[0])
        raise RequestError(f"row {row} of its task has no subject, and there is no option subject", row=row)
    return subjects


def _groups(
    piece: pa.RecordBatch, numbers: "npt.NDArray[np.int64]", names: list[Any], *, by_key: bool
) -> Iterator[RowGroup]:
    keys: list[Any] = [None]
    if by_key and "key" in piece.schema.names:
        of_keys, keys = _numbered(piece.column("key"))
        numbers = numbers * len(keys) + of_keys
    rows = piece.select([name for name in piece.schema.names if name != SUBJECT])
    if "txid" not in rows.schema.names and (numbers != numbers[0]).any():
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows.take(order), numbers[order]
    starts: list[int] = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        of_subject, of_key = divmod(int(numbers[start]), len(keys))
        yield RowGroup(names[of_subject], rows.slice(start, end - start), keys[of_key])


def _numbered(values: "pa.Array[Any]") -> "tuple[npt.NDArray[np.int64], list[Any]]":
    """Return a number for each value, null included, and the values by their numbers."""
    encoded: Any = values.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()
