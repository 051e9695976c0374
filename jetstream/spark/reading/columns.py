"""The columns that Spark gets of a log: their names, their types, and batches brought into that shape.

Pure. Nothing is copied that the log has already: a batch becomes another view of its own buffers. The columns
that the log does not have are the same in every row, and are made once.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

import pyarrow as pa

from envelope.errors import RequestError
from jetstream.log.format.schema import SCHEMA
from jetstream.protocol.requests import Column

TIMESTAMP_TYPE: Final = 1
"""In every row: the time at which the log took the record, as Kafka calls its LogAppendTime."""

HEADERS: Final = "headers"

_FIELDS: "list[pa.Field[Any]]" = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("stream", pa.utf8()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
    pa.field("subject", pa.utf8()),
    pa.field("txid", pa.int64()),
    pa.field(HEADERS, SCHEMA.field(HEADERS).type),
]

SOURCE_SCHEMA: Final = pa.schema(_FIELDS)
"""All columns in their order: Kafka's names and types, and what Kafka does not have; `HEADERS` on request."""

_ABSENT: Final = frozenset(("key", "value", "txid", HEADERS))
"""Columns that are null in some rows."""

_OPTIONAL: Final[tuple[Column, ...]] = ("key", "headers", "txid", "value")
"""What a node leaves out if it is not wanted."""

_CONSTANT_ROWS: Final = 16_384


def output_schema(names: Sequence[str]) -> pa.Schema:
    """Return these columns, in this order, all of them nullable."""
    return pa.schema([SOURCE_SCHEMA.field(name) for name in names])


def check_schema(schema: pa.Schema) -> None:
    """Check the application's columns: some of the source's, as they are.

    Raises:
        RequestError: a column that does not exist, one that comes twice, one of another type, or one that is
            declared not null and may be null.
    """
    names: list[str] = []
    for field in schema:
        _check_name(field.name, names)
        names.append(field.name)
        known = SOURCE_SCHEMA.field(field.name)
        if field.type != known.type:
            raise RequestError(f"column {field.name!r} is {known.type}, not {field.type}")
        if not field.nullable and field.name in _ABSENT:
            raise RequestError(f"column {field.name!r} is null in some rows: it cannot be NOT NULL")


def _check_name(name: str, earlier: Collection[str]) -> None:
    if name not in SOURCE_SCHEMA.names:
        raise RequestError(f"there is no column {name!r}: there are {', '.join(SOURCE_SCHEMA.names)}")
    if name in earlier:
        raise RequestError(f"column {name!r} is wanted twice")


def log_columns(names: Collection[str]) -> tuple[Column, ...]:
    """Return the columns to ask a node for, to get these columns."""
    return tuple(name for name in _OPTIONAL if name in names)


class Shape:
    """Brings batches of one log into the columns that Spark wants."""

    def __init__(self, schema: pa.Schema, stream: str, partition: int) -> None:
        """Take the columns from a `check_schema`-ed ``schema``, and the name and number of what is read."""
        constants: dict[str, str | int] = {
            "stream": stream,
            "partition": partition,
            "timestampType": TIMESTAMP_TYPE,
        }
        self._schema = schema
        self._columns: list[int | _Constant] = [
            _Constant(constants[field.name], field.type)
            if field.name in constants
            else SCHEMA.names.index(field.name)
            for field in schema
        ]

    def shaped(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records in that shape."""
        rows = records.num_rows
        arrays = [
            records.column(column) if isinstance(column, int) else column.of(rows) for column in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Constant:
    """A column with the same value in each row: one array, long enough for every batch so far."""

    def __init__(self, value: str | int, of_type: pa.DataType) -> None:
        self._value = value
        self._type = of_type
        self._rows = self._repeated(_CONSTANT_ROWS)

    def of(self, rows: int) -> "pa.Array[Any]":
        """Return that many rows."""
        if rows > len(self._rows):
            self._rows = self._repeated(2 * rows)
        return self._rows.slice(0, rows)

    def _repeated(self, rows: int) -> "pa.Array[Any]":
        return pa.array([self._value] * rows, self._type)
