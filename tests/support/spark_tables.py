"""Micro-batches for a table of the last record of each key, merged without Spark, and a dict beside them."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa

from envelope.types import TimestampUs
from jetstream.log.disk.port import Disk
from jetstream.spark.pipelines.tables.table_merge import BUCKET, TOMBSTONE, BucketMerge, read_bucket
from jetstream.spark.pipelines.tables.table_store import bring_in, read_version
from jetstream.spark.pipelines.tables.table_version import (
    FILES_DIRECTORY,
    Layout,
    MergedBucket,
    MergedMicroBatch,
    TableVersion,
)

LAYOUT: Final = Layout(buckets=4)
QUERY: Final = "4f1c6a9e-0000-4000-8000-000000000001"
GRACE_US: Final = 1000
_FIELDS: Final[list["pa.Field[Any]"]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("subject", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field(TOMBSTONE, pa.bool_()),
    pa.field(BUCKET, pa.int32()),
]
_SCHEMA: Final = pa.schema(_FIELDS)


class KeyedRecord(NamedTuple):
    """A record of a stream; ``value`` None is a tombstone."""

    offset: int
    key: bytes
    value: bytes | None
    partition: int = 0
    timestamp: int = 0


Batch = Sequence[KeyedRecord]


def bucket_rows(batch: Batch, bucket: int | None = None) -> pa.Table:
    """Return records as Spark hands them to the merge of a bucket; None: of all buckets."""
    rows = [
        {
            **record._asdict(),
            "subject": "prices",
            TOMBSTONE: record.value is None,
            BUCKET: zlib.crc32(record.key) % LAYOUT.buckets,
        }
        for record in batch
    ]
    return pa.Table.from_pylist([row for row in rows if bucket in (None, row[BUCKET])], _SCHEMA)


def merge_batch(disk: Disk, number: int, batch: Batch, *, query: str = QUERY, now: int = 0) -> TableVersion:
    """Bring a micro-batch into the table on ``disk``."""

    def merge(current: TableVersion) -> list[MergedBucket]:
        merging = BucketMerge.into(current)
        touched = sorted({zlib.crc32(record.key) % LAYOUT.buckets for record in batch})
        return [merging.merged(disk, bucket, bucket_rows(batch, bucket)) for bucket in touched]

    return bring_in(
        disk, LAYOUT, MergedMicroBatch(query, number), merge, now=lambda: TimestampUs(now), grace_us=GRACE_US
    )


def content_of(disk: Disk, version: TableVersion | None = None) -> dict[bytes, bytes]:
    """Return keys and values of a version, of the current one if None; each key lies once, in its bucket."""
    found: dict[bytes, bytes] = {}
    for file in (version or read_version(disk)).files:
        rows = read_bucket(disk, file.path).to_pylist()
        assert len(rows) == file.rows
        for row in rows:
            assert zlib.crc32(row["key"]) % LAYOUT.buckets == file.bucket
            assert row["key"] not in found
            found[row["key"]] = row["value"]
    return found


def files_on(disk: Disk) -> set[str]:
    """Return the names of all files that tasks have written and nobody has removed."""
    return set(disk.listdir(FILES_DIRECTORY))


@dataclass
class TableModel:
    """What a table must have."""

    content: dict[bytes, bytes] = field(default_factory=dict)

    def merge(self, batch: Batch) -> None:
        """Take in a micro-batch."""
        for record in sorted(batch, key=lambda each: (each.timestamp, each.partition, each.offset)):
            if record.value is None:
                self.content.pop(record.key, None)
            else:
                self.content[record.key] = record.value
