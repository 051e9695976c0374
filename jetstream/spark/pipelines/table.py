"""Pipeline *table*: a stream whose records have keys becomes a table of the last record of each key.

Each micro-batch is merged into the buckets of its keys (see
`jetstream.spark.pipelines.tables.table_version`).
A tombstone removes its key; records without a key are left out.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envelope.types import TimestampUs
from jetstream.log.disk.os_disk import OsDisk
from jetstream.spark.pipelines import json_values
from jetstream.spark.pipelines.settings import QuerySettings
from jetstream.spark.pipelines.tables.table_merge import (
    BUCKET,
    RESULT_SCHEMA,
    TOMBSTONE,
    BucketMerge,
    merge_function,
)
from jetstream.spark.pipelines.tables.table_store import bring_in, read_version, stored_version
from jetstream.spark.pipelines.tables.table_version import (
    FILES_DIRECTORY,
    Layout,
    MergedBucket,
    MergedMicroBatch,
    TableVersion,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_QUERY_ID: Final = "sql.streaming.queryId"
"""Local property of the thread that runs a micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """The table to make, and its directory.

    Attributes:
        directory: of the table; every executor must see it under this path.
        layout: its buckets, and the schema of values that are JSON.
        grace: how long replaced files stay, for their readers.
    """

    directory: Path
    layout: Layout
    grace: timedelta
    query: QuerySettings


def start(records: "DataFrame", settings: TableSettings) -> "StreamingQuery":
    """Start the pipeline.

    Args:
        records: a streaming frame with the columns of our source.
        settings: of the table.

    Raises:
        InvalidConfig: the table has other buckets, or another schema.
        CorruptDataError: its version cannot be read.
    """
    version = stored_version(OsDisk(settings.directory))
    if version is not None:
        version.check_layout(settings.layout)
    keyed = records.where("key IS NOT NULL").selectExpr(*_columns(settings.layout))
    return settings.query.started(keyed.writeStream.foreachBatch(_merging(settings)))


def current_files(directory: Path) -> list[Path]:
    """Return the Parquet files of the table as it is now; they stay at least for its grace.

    Raises:
        RequestError: there is no table.
        CorruptDataError: its version cannot be read.
    """
    version = read_version(OsDisk(directory))
    return [directory / FILES_DIRECTORY / file.path for file in version.files]


def _columns(layout: Layout) -> tuple[str, ...]:
    value = "value" if layout.schema is None else f"{json_values.parsed(layout.schema)} AS value"
    return (
        "key",
        value,
        "subject",
        "partition",
        "offset",
        "timestamp",
        f"value IS NULL AS {TOMBSTONE}",
        f"CAST(pmod(crc32(key), {layout.buckets}) AS INT) AS {BUCKET}",
    )


def _merging(settings: TableSettings) -> "Callable[[DataFrame, int], None]":
    from jetstream.spark.pipelines.translation import translated  # noqa: PLC0415 - with it comes Spark

    disk = OsDisk(settings.directory)
    grace_us = settings.grace // timedelta(microseconds=1)

    def merge_batch(rows: "DataFrame", batch: int) -> None:
        def merge(current: TableVersion) -> list[MergedBucket]:
            merge_rows = merge_function(settings.directory, BucketMerge.into(current))
            with translated():
                merged = rows.groupBy(BUCKET).applyInArrow(merge_rows, RESULT_SCHEMA).collect()
            return [MergedBucket(*row) for row in merged]

        query = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        assert query is not None, "a micro-batch has a query"
        bring_in(disk, settings.layout, MergedMicroBatch(query, batch), merge, now=_now, grace_us=grace_us)

    return merge_batch


def _now() -> TimestampUs:
    return TimestampUs(time.time_ns() // 1000)
