"""The formats that records are read in, and one record as one line: JSON for machines, text for people.

JSON keeps every byte: a key, value or header value that is UTF-8 stands under its own name, any other
under the name with ``_base64`` behind it. A field that is null in the record is left out, except
``value``, whose null is a tombstone.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from jetstream.cli.output.console import printable

Row = Mapping[str, Any]


class RecordFormat(StrEnum):
    """The formats of ``jetstream read``."""

    JSONL = "jsonl"
    TEXT = "text"
    ARROW = "arrow"
    """Arrow IPC stream in the log's schema."""
    PARQUET = "parquet"


def lines_of(batch: pa.RecordBatch, record_format: RecordFormat, stream: str | None = None) -> Iterator[str]:
    """Return one line per record of an Arrow batch in the log's schema, in a format that has lines.

    ``stream``: named in each of them; None: it goes without saying.
    """
    line_of = _LINE_OF[record_format]
    return (line_of(row, stream) for row in batch.to_pylist())


def json_line(row: Row, stream: str | None = None) -> str:
    """Return the record as one JSON object."""
    fields: dict[str, object] = {
        **({} if stream is None else {"stream": stream}),
        "offset": row["offset"],
        "timestamp": timestamp_text(row["timestamp"]),
        "subject": row["subject"],
    }
    if row["key"] is not None:
        fields |= _bytes_field("key", row["key"])
    if row["headers"] is not None:
        fields["headers"] = [
            {"key": header["key"], **_bytes_field("value", header["value"])} for header in row["headers"]
        ]
    if row["txid"] is not None:
        fields["txid"] = row["txid"]
    fields |= _bytes_field("value", row["value"])
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def text_line(row: Row, stream: str | None = None) -> str:
    """Return the record in columns; what cannot be printed is escaped, a tombstone says so."""
    value = row["value"]
    shown = "(tombstone)" if value is None else printable(value.decode("utf-8", "backslashreplace"))
    key = "" if row["key"] is None else f" [{printable(row['key'].decode('utf-8', 'backslashreplace'))}]"
    place = f"{row['offset']:>8}" if stream is None else f"{stream}  {row['offset']:>8}"
    return f"{place}  {timestamp_text(row['timestamp'])}  {printable(row['subject'])}{key}  {shown}"


def timestamp_text(moment: datetime) -> str:
    """Return a UTC moment as RFC 3339 with microseconds, always 27 characters."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _bytes_field(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode()}


_LINE_OF: Final[dict[RecordFormat, Callable[[Row, str | None], str]]] = {
    RecordFormat.JSONL: json_line,
    RecordFormat.TEXT: text_line,
}
