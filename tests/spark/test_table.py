"""Pipeline *table*: what the table has after each micro-batch, whoever runs it and however often."""

import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from envelope.errors import Fenced, InvalidConfig
from jetstream.log.disk.os_disk import OsDisk
from jetstream.spark.pipelines import table
from jetstream.spark.pipelines.progress import BatchProgress
from jetstream.spark.pipelines.run import run_stream
from jetstream.spark.pipelines.settings import QuerySettings
from jetstream.spark.pipelines.table import TableSettings, current_files
from jetstream.spark.pipelines.tables.table_store import read_version
from jetstream.spark.pipelines.tables.table_version import Layout
from tests.support.stream_files import StreamFiles


def settings_of(directory: Path, checkpoint: str, schema: str | None = None) -> TableSettings:
    return TableSettings(
        directory=directory / "table",
        layout=Layout(4, schema),
        grace=timedelta(hours=1),
        query=QuerySettings(checkpoint=checkpoint, once=True),
    )


def run(spark: SparkSession, files: StreamFiles, settings: TableSettings) -> list[BatchProgress]:
    """Run the pipeline to the end of the files and return what it told."""
    told: list[BatchProgress] = []
    settings.directory.mkdir(exist_ok=True)
    done = run_stream(
        spark, lambda session: table.start(files.stream(session), settings), threading.Event(), told.append
    )
    assert done
    return told


def content(settings: TableSettings) -> dict[bytes, Any]:
    rows = pa.concat_tables(parquet.read_table(path) for path in current_files(settings.directory))
    found = {row["key"]: row["value"] for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


def test_a_table_has_the_last_record_of_each_key_and_goes_on_where_it_was(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    files, settings = StreamFiles(tmp_path / "stream"), settings_of(tmp_path, checkpoint)
    files.append([(b"key %d" % (n % 50), b"value %d" % n) for n in range(200)])
    files.append([(b"key 3", None), (None, b"nobody's"), (b"new", b""), (b"key 4", b"last")])
    told = run(spark, files, settings)
    expected = {b"key %d" % n: b"value %d" % (150 + n) for n in range(50)} | {b"key 4": b"last", b"new": b""}
    del expected[b"key 3"]
    assert content(settings) == expected
    assert [(progress.batch, progress.rows) for progress in told] == [(0, 200), (1, 4)]

    files.append([(b"key 3", b"back")])
    before = read_version(OsDisk(settings.directory))
    run(spark, files, settings)
    after = read_version(OsDisk(settings.directory))
    assert content(settings) == expected | {b"key 3": b"back"}
    assert after.version == before.version + 1
    assert len(set(before.file_of.values()) - set(after.file_of.values())) <= 1, (
        "the other buckets are as before"
    )


@pytest.mark.slow(
    "tests/unit/spark/pipelines/tables/test_table_store.py::test_any_batches_with_any_repeats_make_the_table_of_a_dict",
    "tests/spark/test_table.py::test_a_table_has_the_last_record_of_each_key_and_goes_on_where_it_was",
)
def test_a_batch_that_spark_repeats_is_in_the_table_once(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    """Without its last commit the query begins with the last batch again, as after a crash."""
    files, settings = StreamFiles(tmp_path / "stream"), settings_of(tmp_path, checkpoint)
    files.append([(b"a", b"1"), (b"b", b"1")])
    files.append([(b"a", None)])
    run(spark, files, settings)
    version = read_version(OsDisk(settings.directory))
    for name in ("1", ".1.crc"):
        (Path(checkpoint) / "commits" / name).unlink()
    told = run(spark, files, settings)
    assert [progress.batch for progress in told] == [1]
    assert read_version(OsDisk(settings.directory)) == version
    assert content(settings) == {b"b": b"1"}


@pytest.mark.slow(
    "tests/spark/test_aggregate.py::test_a_window_may_slide",
    "tests/spark/test_table.py::test_a_table_has_the_last_record_of_each_key_and_goes_on_where_it_was",
    "tests/unit/spark/pipelines/tables/test_table_merge.py",
)
def test_values_that_are_json_become_structs_and_others_end_the_query(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    files = StreamFiles(tmp_path / "stream")
    settings = settings_of(tmp_path, checkpoint, "price DOUBLE, at TIMESTAMP, tags ARRAY<STRING>")
    value = {"price": 1.5, "at": "2026-01-02T03:04:05Z", "tags": ["x"], "more": 1}
    files.append([(b"a", json.dumps(value).encode()), (b"b", b'{"price": 2}'), (b"c", b"{}"), (b"c", None)])
    run(spark, files, settings)
    found = content(settings)
    assert found[b"a"]["price"] == 1.5
    assert found[b"a"]["at"].isoformat() == "2026-01-02T03:04:05+00:00"
    assert found[b"b"] == {"price": 2.0, "at": None, "tags": None}
    assert set(found) == {b"a", b"b"}
    files.append([(b"d", b'{"price": "dear"}')])
    with pytest.raises(Exception, match="MALFORMED_RECORD") as failed:
        run(spark, files, settings)
    assert "\n" not in str(failed.value)
    assert content(settings) == found


@pytest.mark.slow(
    "tests/unit/spark/pipelines/tables/test_table_version.py::"
    "test_a_query_with_another_checkpoint_is_refused_whatever_its_number",
    "tests/unit/spark/pipelines/tables/test_table_version.py::test_a_table_keeps_its_layout",
)
def test_another_checkpoint_and_another_schema_are_refused_in_one_line(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    files, settings = StreamFiles(tmp_path / "stream"), settings_of(tmp_path, checkpoint)
    files.append([(b"a", b"1")])
    run(spark, files, settings)
    with pytest.raises(Fenced, match="checkpoint") as refused:
        run(spark, files, settings_of(tmp_path, checkpoint + "-other"))
    assert "\n" not in refused.value.description
    with pytest.raises(InvalidConfig, match="buckets"):
        run(spark, files, settings_of(tmp_path, checkpoint, "price DOUBLE"))
