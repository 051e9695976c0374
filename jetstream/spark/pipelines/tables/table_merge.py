"""The merge of one bucket, where Spark runs it: its rows and those of a micro-batch, a column at a time.

The last record of a key is the one with the highest offset; records of several partitions are compared by
their time of append first, which never decreases within a partition.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.disk.port import Disk
from jetstream.log.disk.state_file import read_whole
from jetstream.spark.pipelines.tables.table_store import new_name
from jetstream.spark.pipelines.tables.table_version import FILES_DIRECTORY, MergedBucket, TableVersion

BUCKET: Final = "bucket"
TOMBSTONE: Final = "tombstone"
"""Columns that rows of a micro-batch have beside those of the table."""

RESULT_SCHEMA: Final = "bucket int, path string, rows bigint, bytes bigint"
"""`MergedBucket`, as Spark's DDL."""

_FIELDS: Final[list["pa.Field[Any]"]] = [
    pa.field("bucket", pa.int32()),
    pa.field("path", pa.string()),
    pa.field("rows", pa.int64()),
    pa.field("bytes", pa.int64()),
]
_RESULT: Final = pa.schema(_FIELDS)
_ORDER: Final = ("timestamp", "partition", "offset")


@dataclass(frozen=True, slots=True)
class BucketMerge:
    """The merge of a micro-batch into the buckets of one version; pickled to where Spark runs it.

    Attributes:
        version: that is to have what comes of it.
        files: of the version before, by bucket.
    """

    version: int
    files: Mapping[int, str]

    @classmethod
    def into(cls, current: TableVersion) -> "BucketMerge":
        """Return the merge that makes the version behind ``current``."""
        return cls(current.version + 1, current.file_of)

    def merged(self, disk: Disk, bucket: int, rows: pa.Table) -> MergedBucket:
        """Merge rows of a micro-batch into their bucket; returns when the new file's content is durable.

        Its name is not yet: the process that makes the version syncs the directory.
        """
        before = self.files.get(bucket)
        new = rows.drop_columns([BUCKET])
        old = None if before is None else read_bucket(disk, before)
        kept = last_of_each_key(new if old is None else pa.concat_tables([_as_new(old, new.schema), new]))
        if not kept.num_rows:
            return MergedBucket(bucket, None, 0, 0)
        name = new_name(self.version, bucket)
        return MergedBucket(bucket, name, kept.num_rows, _write_bucket(disk, name, kept))


def merge_function(root: Path, merge: BucketMerge) -> Callable[[pa.Table], pa.Table]:
    """Return the merge for ``applyInArrow``: of the rows of one bucket, by the column `BUCKET`."""

    def merge_rows(rows: pa.Table) -> pa.Table:
        bucket = rows[BUCKET][0].as_py()
        return pa.Table.from_pylist([merge.merged(OsDisk(root), bucket, rows)._asdict()], _RESULT)

    return merge_rows


def last_of_each_key(rows: pa.Table) -> pa.Table:
    """Return the last row of each key that is no tombstone, without the column `TOMBSTONE`."""
    ordered = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in _ORDER]))
    places = pa.table({"key": ordered["key"], "place": np.arange(ordered.num_rows)})
    last = places.group_by("key").aggregate([("place", "max")])["place_max"]
    kept = ordered.take(last)
    return kept.filter(pc.invert(kept[TOMBSTONE])).drop_columns([TOMBSTONE])


def read_bucket(disk: Disk, name: str) -> pa.Table:
    """Return the rows of a bucket's file."""
    content = read_whole(disk, f"{FILES_DIRECTORY}/{name}")
    return parquet.ParquetFile(pa.BufferReader(content)).read()


def _as_new(old: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of the table as rows of a micro-batch, whose types are those of the session."""
    tombstones = pa.array(np.zeros(old.num_rows, np.bool_))
    return old.append_column(TOMBSTONE, tombstones).select(schema.names).cast(schema)


def _write_bucket(disk: Disk, name: str, rows: pa.Table) -> int:
    """Write a new file and return its size in bytes."""
    sink = pa.BufferOutputStream()
    parquet.write_table(rows, sink, compression="zstd")
    content = sink.getvalue()
    file = disk.create(f"{FILES_DIRECTORY}/{name}")
    try:
        file.write((memoryview(content),), 0)
        file.sync()
    finally:
        file.close()
    return content.size
