"""The source in Spark itself."""

import asyncio
from collections.abc import Iterator

import nats
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from envelope.envelopes import encode_batch
from jetstream.client.blocking.client import BlockingClient
from tests.spark.conftest import Endpoints
from tests.support.nodes import WAIT_SECONDS

NUMBERS = 1_000
SWITCH = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Spark hands filters over to sources."""
    spark.conf.set(SWITCH, "true")
    yield
    spark.conf.unset(SWITCH)


def batch(spark: SparkSession, endpoints: Endpoints, stream: str, **options: str) -> DataFrame:
    reader = spark.read.format("jetstream").option("servers", endpoints.servers).option("stream", stream)
    return reader.options(**options).load()


def numbers(js: BlockingClient, stream: str, values: range) -> None:
    js.publish_all([(f"{stream}.{n % 2}", b"%d" % n, {"key": f"k{n % 10}"}) for n in values])


def test_a_batch_read_has_the_rows_that_were_published(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient
) -> None:
    js.streams.create("rows", "rows.>")
    js.publish("rows.eu", b"one", key="k", headers={"n": "v"}, txid=7)
    js.publish("rows.eu", b"")
    js.publish("rows.eu", None, key="k")
    js.publish("rows.eu", bytes(1 << 20))
    rows = batch(spark, endpoints, "rows", includeHeaders="true").collect()
    published = list(js.read("rows"))
    assert [row.value for row in rows] == [record.value for record in published]
    assert [row.key for row in rows] == [b"k", None, b"k", None]
    assert [(row.stream, row.partition, row.offset, row.txid) for row in rows] == [
        ("rows", 0, 0, 7), ("rows", 0, 1, None), ("rows", 0, 2, None), ("rows", 0, 3, None),
    ]  # fmt: skip
    assert [
        row.timestamp.astimezone(record.time.tzinfo) for row, record in zip(rows, published, strict=True)
    ] == [record.time for record in published]
    assert ("n", b"v") in [tuple(header) for header in rows[0].headers]
    assert batch(spark, endpoints, "rows", columns="offset,subject").columns == ["offset", "subject"]
    subset = spark.read.schema("value binary, offset bigint").format("jetstream")
    few = subset.option("servers", endpoints.servers).option("stream", "rows").load()
    assert few.where("offset < 2").collect() == [(b"one", 0), (b"", 1)]


async def publish_singly(servers: str, subject: str, count: int) -> None:
    """Publish numbers, each in an envelope of its own and so stored in one; a thousand times one of each."""
    envelopes = []
    for number in range(NUMBERS):
        table, sink = pa.table({"value": [b"%d" % number]}), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        envelopes.append(encode_batch(sink.getvalue().to_pybytes(), 1))
    connection = await nats.connect(servers)
    try:
        for _ in range(0, count, NUMBERS):
            for envelope in envelopes[:-1]:
                await connection.publish(subject, envelope)
            ack = await connection.request(subject, envelopes[-1], timeout=WAIT_SECONDS)
            assert b"error" not in ack.data
    finally:
        await connection.close()


@pytest.mark.parametrize(
    "count",
    [
        2_000,
        pytest.param(20_000, marks=pytest.mark.slow("tests/spark/test_source.py")),
        pytest.param(1_000_000, marks=pytest.mark.deep),
    ],
)
def test_each_of_a_million_tiny_batches_is_read_once(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient, count: int
) -> None:
    js.streams.create("tiny", "tiny.>", rewrite_after=0)
    asyncio.run(publish_singly(endpoints.servers, "tiny.x", count))
    rows = batch(spark, endpoints, "tiny", minPartitions="2")
    wrong = f"count_if(cast(cast(value as string) as bigint) != offset % {NUMBERS})"
    [found] = rows.selectExpr("count(1)", "count(distinct offset)", "max(offset)", wrong).collect()
    js.streams.delete("tiny")
    assert tuple(found) == (count, count, count - 1, 0)


@pytest.mark.slow(
    "tests/spark/test_source_direct.py::test_filters_that_are_taken_over_leave_out_exactly_what_they_say",
    "tests/unit/spark/reading/test_filters.py",
)
def test_filters_are_taken_over_where_spark_hands_them_over(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient, pushdown: None
) -> None:
    js.streams.create("filtered", "filtered.>")
    numbers(js, "filtered", range(200))
    wanted = "offset >= 50 and offset < 150 and key = 'k3' and subject like 'filtered.1%' and value != '63'"
    read = batch(spark, endpoints, "filtered").where(wanted)
    found = [int(row.value) for row in read.collect()]
    assert found == [n for n in range(50, 150) if n % 10 == 3 and n != 63]
    plan = read._jdf.queryExecution().executedPlan().toString()
    assert "offset" not in plan.partition("Filter (")[2].partition("\n")[0]
    assert batch(spark, endpoints, "filtered").count() == 200
    spark.conf.set(SWITCH, "false")
    assert batch(spark, endpoints, "filtered").where(wanted).count() == len(found)


def test_a_stream_goes_on_from_its_checkpoint_and_tells_how_far_it_is(
    spark: SparkSession,
    endpoints: Endpoints,
    js: BlockingClient,
    checkpoint: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    js.streams.create("followed", "followed.>", partitions=2, partition_by="key")
    numbers(js, "followed", range(100))
    target = str(tmp_path_factory.mktemp("followed"))

    def run(**options: str) -> StreamingQuery:
        reader = spark.readStream.format("jetstream").option("servers", endpoints.servers)
        frame = reader.option("stream", "followed").options(startingOffsets="earliest", **options).load()
        writer = frame.writeStream.format("parquet").option("path", target)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def values() -> list[int]:
        return sorted(int(row.value) for row in spark.read.parquet(target).select("value").collect())

    progress = run(maxOffsetsPerTrigger="40").recentProgress
    assert [each.numInputRows for each in progress if each.numInputRows] == [40, 40, 20]
    assert progress[0].sources[0].latestOffset == progress[-1].sources[0].latestOffset
    assert values() == list(range(100))
    assert sum(each.numInputRows for each in run().recentProgress) == 0
    numbers(js, "followed", range(100, 130))
    assert sum(each.numInputRows for each in run().recentProgress) == 30
    assert values() == list(range(130))


def test_what_cannot_be_is_said_before_anything_is_read(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient
) -> None:
    js.streams.create("misspelt", "misspelt.>")
    with pytest.raises(AnalysisException, match="did you mean startingOffsets"):
        batch(spark, endpoints, "misspelt", startingOfsets="earliest")


@pytest.mark.slow(
    "tests/spark/test_source.py::test_what_cannot_be_is_said_before_anything_is_read",
    "tests/spark/test_source_direct.py::test_streams_and_columns_that_there_are_not_are_refused",
    "tests/unit/spark/options/test_options.py::test_kafkas_names_are_translated",
    "tests/unit/spark/reading/test_columns.py",
)
def test_all_that_cannot_be_is_said_before_anything_is_read(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient
) -> None:
    js.streams.create("refused", "refused.>")
    with pytest.raises(AnalysisException, match="subscribe: here it is called streams"):
        batch(spark, endpoints, "refused", subscribe="refused")
    with pytest.raises(PySparkException, match="there is no stream 'nothing'"):
        batch(spark, endpoints, "nothing").count()
    wrong = spark.read.schema("value string").format("jetstream").option("servers", endpoints.servers)
    with pytest.raises(PySparkException, match="column 'value' is binary, not string"):
        wrong.option("stream", "refused").load().count()
