"""Spark writes to a stream: batches, and queries that are started again from their checkpoint."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from jetstream.client.blocking.client import BlockingClient
from jetstream.spark.source import register
from tests.spark.conftest import Endpoints


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def options_for(endpoints: Endpoints, stream: str) -> dict[str, str]:
    return {"servers": endpoints.servers, "stream": stream, "subject": f"{stream}.new"}


def text(column: Column) -> Column:
    return column.cast("string")


def stored(js: BlockingClient, stream: str) -> list[Any]:
    return js.read(stream).to_table().column("value").to_pylist()


@pytest.mark.slow(
    "tests/spark/test_sink_direct.py::test_all_columns_are_stored_as_they_are",
    "tests/spark/test_sink_direct.py::test_a_batch_write_that_is_tried_again_adds_nothing",
    "tests/spark/test_sink.py::test_a_query_that_is_started_again_adds_nothing_and_goes_on",
)
def test_a_batch_is_written_with_all_its_columns(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient
) -> None:
    js.streams.create("written", "written.>")
    table = spark.range(0, 30_000, numPartitions=3).select(
        text(f.col("id")).alias("value"),
        f.when(f.col("id") % 2 == 0, f.encode(text(f.col("id") % 10), "utf-8")).alias("key"),
        f.concat(f.lit("written."), text(f.col("id") % 3)).alias("subject"),
        f.create_map(f.lit("source"), f.lit("spark")).alias("headers"),
    )
    table.write.format("jetstream").options(**options_for(endpoints, "written")).mode("append").save()
    rows: list[Any] = js.read("written").to_table().to_pylist()
    assert len(rows) == 30_000
    found = {int(row["value"]): (row["key"], row["subject"], row["headers"][0]) for row in rows}
    header = {"key": "source", "value": b"spark"}
    assert found == {
        number: (None if number % 2 else b"%d" % (number % 10), f"written.{number % 3}", header)
        for number in range(30_000)
    }


@pytest.mark.slow("tests/spark/test_sink_direct.py")
def test_columns_that_cannot_be_published_fail_the_write_before_it_begins(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient
) -> None:
    js.streams.create("unwritten", "unwritten.>")
    table = spark.range(5).withColumn("at", f.current_timestamp())
    write = table.write.format("jetstream").options(**options_for(endpoints, "unwritten")).mode("append")
    with pytest.raises(PySparkException, match="no column value: the table has id, at; the sink takes value"):
        write.save()
    assert stored(js, "unwritten") == []


@pytest.mark.slow(
    "tests/spark/test_sink_direct.py::test_a_write_that_replaces_is_refused",
    "tests/unit/spark/writing/test_sink_options.py::test_what_cannot_be_meant_is_refused",
)
def test_options_that_cannot_be_fail_the_write_before_it_begins(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient
) -> None:
    js.streams.create("unmeant", "unmeant.>")
    options = options_for(endpoints, "unmeant")
    values = spark.range(5).select(text(f.col("id")).alias("value"))
    with pytest.raises(PySparkException, match="did you mean subject"):
        values.write.format("jetstream").options(**options, subjet="s").mode("append").save()
    with pytest.raises(PySparkException, match=r"mode\('append'\)"):
        values.write.format("jetstream").options(**options).mode("overwrite").save()
    assert stored(js, "unmeant") == []


class Query:
    """Writes what comes into a directory of Parquet files to a stream, until all of it is written."""

    def __init__(self, spark: SparkSession, directory: Path, options: dict[str, str]) -> None:
        self._spark = spark
        self._input = directory / "input"
        self._checkpoint = directory / "checkpoint"
        self._options = options

    def add(self, first: int, count: int) -> None:
        """Put so many numbers into the directory."""
        numbers = self._spark.range(first, first + count, numPartitions=2)
        numbers.write.mode("append").parquet(str(self._input))

    def run(self, value: Column) -> None:
        """Run until all is written; ``value`` of each row, by its ``id``."""
        rows = self._spark.readStream.schema("id long").parquet(str(self._input))
        query = (
            rows.select(text(value).alias("value"))
            .writeStream.format("jetstream")
            .options(**self._options)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def forget_last_commit(self) -> None:
        """Leave the checkpoint as a driver does that dies when the last micro-batch is published."""
        commits = [path for path in (self._checkpoint / "commits").iterdir() if path.name.isdecimal()]
        last = max(commits, key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_a_query_that_is_started_again_adds_nothing_and_goes_on(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient, tmp_path: Path
) -> None:
    js.streams.create("queried", "queried.>")
    query = Query(spark, tmp_path, options_for(endpoints, "queried"))
    identity = f.col("id")
    query.add(0, 20_000)
    query.run(identity)
    assert sorted(map(int, stored(js, "queried"))) == list(range(20_000))
    query.forget_last_commit()
    query.add(20_000, 10)
    query.run(identity)  # the micro-batch that was cut off, and another one
    assert sorted(map(int, stored(js, "queried"))) == list(range(20_010))


def test_a_staged_query_whose_rows_change_has_each_micro_batch_once(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient, tmp_path: Path
) -> None:
    js.streams.create("restaged", "restaged.>")
    staging = {"staging": str(tmp_path / "staging")}
    query = Query(spark, tmp_path, options_for(endpoints, "restaged") | staging)
    query.add(0, 2_000)
    query.run(f.col("id"))
    query.forget_last_commit()
    query.run(f.col("id") + 1_000_000)  # the rows of another program come too late
    query.add(2_000, 10)
    query.run(f.col("id"))
    assert sorted(map(int, stored(js, "restaged"))) == list(range(2_010))
    assert [path.name[:5] for path in (tmp_path / "staging").rglob("*") if path.is_file()] == ["done-"]


@pytest.mark.slow(
    "tests/spark/test_source.py::test_a_stream_goes_on_from_its_checkpoint_and_tells_how_far_it_is",
    "tests/spark/test_sink.py::test_a_query_that_is_started_again_adds_nothing_and_goes_on",
)
def test_a_stream_is_read_and_written_in_one_query(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient, checkpoint: str
) -> None:
    for name in ("upstream", "downstream"):
        js.streams.create(name, f"{name}.>")
    for number in range(5):
        js.publish("upstream.new", b"%d" % number, key=b"k%d" % number, headers={"h": "1"})
    rows: DataFrame = (
        spark.readStream.format("jetstream")
        .options(servers=endpoints.servers, stream="upstream", includeHeaders="true")
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        rows.select("value", "key", "headers", "txid")
        .writeStream.format("jetstream")
        .options(**options_for(endpoints, "downstream"))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copied: list[Any] = js.read("downstream").to_table().to_pylist()
    assert [(row["value"], row["key"]) for row in copied] == [
        (b"%d" % number, b"k%d" % number) for number in range(5)
    ]
    assert copied[0]["headers"] == [{"key": "h", "value": b"1"}]
