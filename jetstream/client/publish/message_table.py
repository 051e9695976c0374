"""Messages as an Arrow table, and their acks as one.

A table is anything that gives its rows as an Arrow stream (``__arrow_c_stream__``, the Arrow
PyCapsule interface): a pyarrow Table, RecordBatch or RecordBatchReader, a polars or pandas DataFrame, a
DuckDB relation. A row is a message:

    column      type                                      null
    subject     text                                      refused
    value       binary, or text (published as UTF-8)      a tombstone
    key         binary or text                            none
    headers     list<struct<key: text, value: binary or   none
                text>>, or map<text, binary or text>
    txid        integer                                   none
    message_id  text                                      none

``subject`` and ``value`` must be there, and no others may be: a misspelt column must not be taken for none.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow import types

from envelope.errors import InvalidHeader, RequestError
from jetstream.client.publish.messages import PublishAck, PublishOptions
from jetstream.client.publish.publisher import Message, Publisher

PIECE_WINDOWS: Final = 16
"""Messages that are taken in together, in windows: bounds how many are Python objects at once."""

_ACK_FIELDS: "list[pa.Field[Any]]" = [
    pa.field("stream", pa.utf8(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("epoch", pa.int64(), nullable=False),
    pa.field("duplicate", pa.bool_(), nullable=False),
]

ACKS_SCHEMA: Final = pa.schema(_ACK_FIELDS)
"""What publishing a table returns: the fields of `PublishAck`, a row an ack."""

_PANDAS_INDEX: Final = re.compile(r"__index_level_\d+__")
"""How pandas calls an index without a name, which is no column of the frame."""


class ArrowTable(Protocol):
    """An object that gives its rows as an Arrow stream."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a PyCapsule of an ArrowArrayStream."""


def message_batches(table: ArrowTable) -> pa.RecordBatchReader:
    """Return the table's batches, once it is sure that they can be published; no row is looked at yet.

    Raises:
        TypeError: ``table`` is no table.
        RequestError: a column is missing, has the wrong type, or is one too many.
    """
    batches = arrow_stream(table)
    _check_columns(batches.schema)
    return batches


def arrow_stream(table: ArrowTable) -> pa.RecordBatchReader:
    """Return the table's batches, whatever their columns.

    Raises:
        TypeError: ``table`` is no table.
        RequestError: something in it has no Arrow form.
    """
    if isinstance(table, pa.RecordBatchReader):
        return table
    if not hasattr(table, "__arrow_c_stream__"):
        raise TypeError(f"{type(table).__name__} is no table: it has no __arrow_c_stream__")
    try:
        return pa.RecordBatchReader.from_stream(table)
    except pa.ArrowException as error:
        raise RequestError(f"the table has no Arrow form: {error}") from None


def data_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the columns, but for the index that pandas adds."""
    return [name for name in schema.names if not _PANDAS_INDEX.fullmatch(name)]


def pieces_of(batches: Iterable[pa.RecordBatch], window: int) -> Iterator[pa.Table]:
    """Yield the rows in order: about `PIECE_WINDOWS` windows of messages a piece, however long batches are.

    Between two pieces all acks are awaited, so pieces of single rows would be slow.
    """
    rows_max = max(1, window) * PIECE_WINDOWS
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        for start in range(0, batch.num_rows, rows_max):
            gathered.append(batch.slice(start, rows_max))
            rows += gathered[-1].num_rows
            if rows >= rows_max:
                yield pa.Table.from_batches(gathered)
                gathered, rows = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


async def publish_piece(
    publisher: Publisher,
    piece: pa.Table,
    first_row: int,
    progress: Callable[[int], None] | None,
    streams: Sequence[str] | None,
) -> pa.RecordBatch:
    """Publish the rows of one piece and return their acks, when all are there.

    Args:
        publisher: inside its block.
        piece: with the columns that `message_batches` has checked.
        first_row: how many rows of the table are before it.
        progress: called with the number of rows of the table acked so far.
        streams: as `Publisher.publish_all` takes them.

    Raises:
        RequestError: a row that can be no message, with its number; those before it may be stored.
        JetstreamError: as `Publisher.publish_all`.
    """
    told = None if progress is None else lambda acked: progress(first_row + acked)
    return _ack_batch(await publisher.publish_all(_messages(piece, first_row), told, streams))


def _check_columns(schema: pa.Schema) -> None:
    names = data_columns(schema)
    there_are = f"there are {', '.join(_COLUMNS)}"
    if missing := [name for name in ("subject", "value") if name not in names]:
        raise RequestError(f"the table has no column {' and no column '.join(missing)}; {there_are}")
    if unknown := [name for name in names if name not in _COLUMNS]:
        raise RequestError(f"messages have no column {', '.join(unknown)}; {there_are}")
    if len(names) != len(set(names)):
        raise RequestError(f"a column stands more than once: {', '.join(names)}")
    check_types(schema, names)


def check_types(schema: pa.Schema, names: Iterable[str]) -> None:
    """Raise `RequestError` if one of these columns of messages has a type that it cannot have."""
    for name in names:
        text, fits = _COLUMNS[name]
        given = schema.field(name).type
        if not fits(given) and not (name != "subject" and types.is_null(given)):
            raise RequestError(f"the column {name} is {given}, and must be {text}")


def _is_text(type_: pa.DataType) -> bool:
    if types.is_dictionary(type_):
        type_ = type_.value_type
    return types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_)


def _is_text_or_binary(type_: pa.DataType) -> bool:
    return (
        _is_text(type_)
        or types.is_binary(type_)
        or types.is_large_binary(type_)
        or types.is_binary_view(type_)
        or types.is_fixed_size_binary(type_)
    )


def _is_headers(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.MapType):
        return _is_text(type_.key_type) and _is_text_or_binary(type_.item_type)
    if not isinstance(type_, pa.ListType | pa.LargeListType):
        return False
    pair = type_.value_type
    return (
        isinstance(pair, pa.StructType)
        and [field.name for field in pair] == ["key", "value"]
        and _is_text(pair.field("key").type)
        and _is_text_or_binary(pair.field("value").type)
    )


_COLUMNS: Final[dict[str, tuple[str, Callable[[pa.DataType], bool]]]] = {
    "subject": ("text", _is_text),
    "value": ("binary or text", _is_text_or_binary),
    "key": ("binary or text", _is_text_or_binary),
    "headers": (
        "list<struct<key: text, value: binary or text>> or map<text, binary or text>",
        _is_headers,
    ),
    "txid": ("integer", types.is_integer),
    "message_id": ("text", _is_text),
}


def _messages(piece: pa.Table, first_row: int) -> Iterator[Message]:
    """Yield the rows as messages: a column at a time in C++, a tuple a row in Python."""
    subjects = piece.column("subject").to_pylist()
    values = [
        value.encode() if isinstance(value, str) else value for value in piece.column("value").to_pylist()
    ]
    names = [name for name in _COLUMNS if name in piece.column_names and name not in ("subject", "value")]
    options = zip(*(piece.column(name).to_pylist() for name in names), strict=True)
    for row, (subject, value) in enumerate(zip(subjects, values, strict=True), first_row):
        if subject is None:
            raise RequestError(f"row {row} has no subject", row=row)
        if names:
            yield subject, value, _options(names, next(options), row)
        else:
            yield subject, value


def _options(names: Sequence[str], values: Sequence[Any], row: int) -> PublishOptions:
    options = PublishOptions()
    for name, value in zip(names, values, strict=True):
        if value is None:
            continue
        if name == "headers":
            options["headers"] = _headers(value, row)
        else:
            options[name] = value  # type: ignore[literal-required]  # one of `_COLUMNS`, of its type
    return options


def _headers(pairs: Sequence[Any], row: int) -> dict[str, str]:
    """Return the headers of one row, which come as dicts out of a list of structs, as tuples out of a map."""
    headers: dict[str, str] = {}
    for pair in pairs:
        name, value = (pair["key"], pair["value"]) if isinstance(pair, dict) else pair
        if name is None or value is None:
            raise InvalidHeader(f"row {row}: a header without a name or without a value", row=row)
        if name in headers:
            raise InvalidHeader(f"row {row}: the header {name!r} is repeated, this client sends one", row=row)
        try:
            headers[name] = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            raise InvalidHeader(f"row {row}: the header {name!r} is not UTF-8", row=row) from None
    return headers


def _ack_batch(acks: Sequence[PublishAck]) -> pa.RecordBatch:
    columns: list[pa.Array[Any]] = [
        pa.array([ack.stream for ack in acks], pa.utf8()),
        pa.array([ack.offset for ack in acks], pa.int64()),
        pa.array([ack.epoch for ack in acks], pa.int64()),
        pa.array([ack.duplicate for ack in acks], pa.bool_()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ACKS_SCHEMA)
