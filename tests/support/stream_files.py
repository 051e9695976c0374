"""Records as Parquet files that a query reads one after the other, a file a micro-batch."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = (
    "key BINARY, value BINARY, stream STRING, partition INT, offset BIGINT, "
    "timestamp TIMESTAMP, subject STRING"
)
"""Of our source, as far as pipelines need them."""

_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_FIELDS: Final[list["pa.Field[Any]"]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("stream", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field("subject", pa.string()),
]


class StreamFiles:
    """A directory of such files; offsets are dense, records of one file are appended at one moment."""

    def __init__(self, directory: Path) -> None:
        """Make the directory."""
        directory.mkdir()
        self._directory = directory
        self._next_offset = 0
        self._count = 0

    def append(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> None:
        """Add a file of keys and values."""
        rows = [
            {
                "key": key,
                "value": value,
                "stream": "prices",
                "partition": 0,
                "offset": self._next_offset + place,
                "timestamp": _BEGIN + timedelta(seconds=self._count),
                "subject": "prices.all",
            }
            for place, (key, value) in enumerate(records)
        ]
        hidden = self._directory / f".{self._count:05}"
        parquet.write_table(pa.Table.from_pylist(rows, pa.schema(_FIELDS)), hidden)
        moment = int(_BEGIN.timestamp()) + self._count
        os.utime(hidden, (moment, moment))  # a query reads the oldest file first
        hidden.rename(self._directory / f"{self._count:05}.parquet")
        self._next_offset += len(records)
        self._count += 1

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return them as a streaming frame."""
        reader = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._directory))
