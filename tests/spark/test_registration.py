"""How Spark comes to know the format ``jetstream``."""

import pytest
from pyspark.sql import SparkSession

from jetstream.client.blocking.client import BlockingClient
from jetstream.spark import register
from tests.spark.conftest import Endpoints


def values_read(spark: SparkSession, endpoints: Endpoints, stream: str) -> list[bytes]:
    records = (
        spark.read.format("jetstream").option("servers", endpoints.servers).option("stream", stream).load()
    )
    return [bytes(row.value) for row in records.select("value").collect()]


def test_spark_finds_the_format_by_itself(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient
) -> None:
    """In a session that nobody can have told of it."""
    js.streams.create("found", "found")
    js.publish("found", b"by itself")
    assert values_read(spark.newSession(), endpoints, "found") == [b"by itself"]


@pytest.mark.slow("tests/spark/test_registration.py")
def test_it_can_be_registered_too(spark: SparkSession, endpoints: Endpoints, js: BlockingClient) -> None:
    js.streams.create("told", "told")
    js.publish("told", b"by us")
    session = spark.newSession()
    register(session)
    register(session)
    assert values_read(session, endpoints, "told") == [b"by us"]
