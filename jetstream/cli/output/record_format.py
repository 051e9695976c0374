"""The formats that records are read in, and one record as a line of text for people."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from jetstream.cli.output.console import printable

Row = Mapping[str, Any]


class RecordFormat(StrEnum):
    """The formats of ``jetstream read``."""

    JSONL = "jsonl"
    TEXT = "text"
    ARROW = "arrow"
    """Arrow IPC stream in the log's schema."""
    PARQUET = "parquet"


def text_line(row: Row, stream: str | None = None) -> str:
    """Return the record in columns; what cannot be printed is escaped, a tombstone says so.

    ``stream``: named in front; None: it goes without saying.
    """
    value = row["value"]
    shown = "(tombstone)" if value is None else printable(value.decode("utf-8", "backslashreplace"))
    key = "" if row["key"] is None else f" [{printable(row['key'].decode('utf-8', 'backslashreplace'))}]"
    place = f"{row['offset']:>8}" if stream is None else f"{stream}  {row['offset']:>8}"
    return f"{place}  {_timestamp_text(row['timestamp'])}  {printable(row['subject'])}{key}  {shown}"


def _timestamp_text(moment: datetime) -> str:
    """Return a UTC moment as RFC 3339 with microseconds, always 27 characters."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
