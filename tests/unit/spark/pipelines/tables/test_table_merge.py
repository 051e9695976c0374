"""Which record of a key is its last, and what becomes of a bucket."""

import random
from pathlib import Path

import pyarrow as pa

from jetstream.log.disk.os_disk import OsDisk
from jetstream.spark.pipelines.tables.table_merge import (
    TOMBSTONE,
    BucketMerge,
    last_of_each_key,
    merge_function,
    read_bucket,
)
from jetstream.spark.pipelines.tables.table_version import FILES_DIRECTORY
from tests.support.memory_disk import MemoryDisk
from tests.support.spark_tables import KeyedRecord, bucket_rows


def test_the_last_record_of_each_key_is_the_one_of_the_highest_offset() -> None:
    batch = [KeyedRecord(n, b"%d" % (n % 7), b"v%d" % n, timestamp=n // 3) for n in range(100)]
    random.Random(7).shuffle(batch)
    kept = last_of_each_key(bucket_rows(batch))
    assert set(kept["offset"].to_pylist()) == set(range(93, 100))
    assert kept.num_rows == 7
    assert TOMBSTONE not in kept.column_names


def test_a_tombstone_is_a_last_record_and_an_empty_value_is_none() -> None:
    batch = [
        KeyedRecord(0, b"gone", b"v"),
        KeyedRecord(1, b"gone", None),
        KeyedRecord(2, b"back", None),
        KeyedRecord(3, b"back", b""),
    ]
    assert last_of_each_key(bucket_rows(batch))["value"].to_pylist() == [b""]


def test_records_of_several_partitions_are_compared_by_their_time() -> None:
    batch = [KeyedRecord(900, b"k", b"old", 0, 10), KeyedRecord(3, b"k", b"new", 1, 11)]
    assert last_of_each_key(bucket_rows(batch))["value"].to_pylist() == [b"new"]


def test_a_bucket_that_nothing_is_left_in_has_no_file() -> None:
    disk = MemoryDisk()
    disk.mkdir(FILES_DIRECTORY)
    first = BucketMerge(1, {}).merged(disk, 0, bucket_rows([KeyedRecord(0, b"k", b"v")]))
    assert first.path is not None
    assert read_bucket(disk, first.path).num_rows == first.rows == 1
    assert BucketMerge(2, {0: first.path}).merged(disk, 0, bucket_rows([KeyedRecord(1, b"k", None)])) == (
        *(0, None),
        *(0, 0),
    )


def test_old_rows_take_the_types_of_the_new_ones(tmp_path: Path) -> None:
    """A session in another time zone names it in its types; the moments are the same."""
    disk = OsDisk(tmp_path)
    disk.mkdir(FILES_DIRECTORY)
    rows = bucket_rows([KeyedRecord(0, b"a", b"1")])
    merged = merge_function(tmp_path, BucketMerge(1, {}))(rows).to_pylist()
    place = rows.schema.get_field_index("timestamp")
    later = bucket_rows([KeyedRecord(1, b"b", b"2")]).set_column(
        place, "timestamp", pa.array([5], pa.timestamp("us", "Europe/Vienna"))
    )
    files = {merged[0]["bucket"]: merged[0]["path"]}
    again = merge_function(tmp_path, BucketMerge(2, files | {later["bucket"][0].as_py(): merged[0]["path"]}))
    assert again(later)["rows"].to_pylist() == [2]
