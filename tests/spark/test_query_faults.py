"""Faults under a running query: the leader of what it reads is killed, its checkpoint is given to another."""

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import jetstream
from jetstream.client.blocking.client import BlockingClient
from tests.spark.conftest import Endpoints
from tests.support.local_clusters import start
from tests.support.pauses import pause_thread

RECORDS = 60_000
REST = b"." * 1_000
"""Makes the records more than what readers, writers and Spark between them hold at a time."""


def prepared(js: BlockingClient, name: str, replicas: int = 1) -> None:
    """Make a stream ``name`` with numbers in it, and another for copies of them."""
    for stream in (name, f"{name}-copies"):
        js.streams.create(stream, stream, replicas=replicas)
    js.publish_batch(name, pa.table({"value": [b"%06d" % number + REST for number in range(RECORDS)]}))


def copying(spark: SparkSession, servers: str, name: str, checkpoint: str) -> StreamingQuery:
    """Start a query that copies what is in the stream, in one micro-batch."""
    records = (
        spark.readStream.format("jetstream")
        .option("servers", servers)
        .option("stream", name)
        .option("startingOffsets", "earliest")
        .load()
    )
    return (
        records.select("value")
        .writeStream.format("jetstream")
        .option("servers", servers)
        .option("stream", f"{name}-copies")
        .option("subject", f"{name}-copies")
        .option("windowBytes", "64k")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def until_some_are_copied(js: BlockingClient, name: str, query: StreamingQuery) -> None:
    """Wait until records arrive, and see that not all have."""
    while js.streams.info(f"{name}-copies").high_watermark == 0:
        assert query.isActive, query.exception()
        pause_thread()
    assert js.streams.info(f"{name}-copies").high_watermark < RECORDS // 2


def copied(js: BlockingClient, name: str) -> list[int]:
    """Return the numbers that have arrived, in their order."""
    values = js.read(f"{name}-copies").to_table()["value"].to_pylist()
    return [int(value[:6]) for value in values if value is not None]


@pytest.mark.slow(
    "tests/spark/test_source_cluster.py",
    "tests/property/test_spark_planning.py",
)
def test_a_leader_that_is_killed_during_a_micro_batch_loses_and_repeats_nothing(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    cluster = start(tmp_path / "cluster")
    with cluster.process, jetstream.connect_blocking(cluster.nats) as js:
        prepared(js, "numbers", replicas=3)
        query = copying(spark, cluster.nats, "numbers", checkpoint)
        until_some_are_copied(js, "numbers", query)
        leader = js.streams.info("numbers").leader
        assert leader is not None
        os.kill(cluster.nodes[leader]["pid"], signal.SIGKILL)
        query.awaitTermination()
        assert copied(js, "numbers") == list(range(RECORDS))


@pytest.mark.slow(
    "tests/property/test_spark_planning.py",
    "tests/spark/test_sink.py",
)
def test_a_checkpoint_that_another_query_takes_over_loses_and_repeats_nothing(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient, checkpoint: str
) -> None:
    """Spark stops the first one in the midst of a micro-batch, and the second repeats that."""
    prepared(js, "taken")
    first = copying(spark, endpoints.servers, "taken", checkpoint)
    until_some_are_copied(js, "taken", first)
    second = copying(spark.newSession(), endpoints.servers, "taken", checkpoint)
    second.awaitTermination()
    assert (first.isActive, second.id) == (False, first.id)
    assert copied(js, "taken") == list(range(RECORDS))
