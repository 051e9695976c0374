"""How a pipeline runs in Spark's session: what ends it, and what it is told."""

import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from envelope.errors import RequestError, StorageError
from jetstream.spark.pipelines.failures import QueryFailed
from jetstream.spark.pipelines.progress import BatchProgress
from jetstream.spark.pipelines.run import run_job, run_stream
from jetstream.spark.pipelines.settings import QuerySettings
from jetstream.spark.pipelines.translation import translated

ENDLESS = 10**15
"""Rows that nobody waits for."""


def count_endlessly(spark: SparkSession) -> None:
    """Keep all cores busy until the job is cancelled, in tasks that see it.

    Not every task of Spark's does: one that gathers the right side of a cross join goes on, and has its core,
    for as long as there are rows.
    """
    spark.range(ENDLESS).selectExpr("sum(id * 2)").collect()


def numbers(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()


def test_a_query_that_is_to_stop_gives_its_micro_batch_up(spark: SparkSession, checkpoint: str) -> None:
    stop, stopping, told = threading.Event(), threading.Event(), list[BatchProgress]()

    def process(rows: DataFrame, batch: int) -> None:
        rows.collect()
        if batch == 2:
            stop.set()
            with translated():
                count_endlessly(rows.sparkSession)

    def start(session: SparkSession) -> StreamingQuery:
        writer = numbers(session).writeStream.foreachBatch(process)
        return QuerySettings(checkpoint=checkpoint, every_s=0).started(writer)

    assert not run_stream(spark, start, stop, told.append, stopping.set)
    assert stopping.is_set()
    assert not spark.streams.active
    assert [(progress.batch, progress.rows) for progress in told] == [(0, 10), (1, 10)]
    committed = {path.name for path in (Path(checkpoint) / "commits").glob("[0-9]*")}
    assert committed == {"0", "1"}


def test_an_error_of_ours_that_ends_a_query_is_that_error(spark: SparkSession, checkpoint: str) -> None:
    def process(_rows: DataFrame, _batch: int) -> None:
        raise StorageError("the disk is away")

    def start(session: SparkSession) -> StreamingQuery:
        return QuerySettings(checkpoint=checkpoint).started(
            numbers(session).writeStream.foreachBatch(process)
        )

    with pytest.raises(StorageError) as failed:
        run_stream(spark, start, threading.Event(), lambda _: None)
    assert failed.value.description == "the disk is away"


def test_a_job_ends_by_itself_or_with_its_error(spark: SparkSession) -> None:
    counted: list[int] = []
    assert run_job(spark, lambda session: counted.append(session.range(5).count()), threading.Event())
    assert counted == [5]

    def misspell(session: SparkSession) -> None:
        session.range(5).selectExpr("ident")

    def divide(session: SparkSession) -> None:
        session.range(5).selectExpr("1 / id").collect()

    with pytest.raises(RequestError, match="UNRESOLVED_COLUMN"):
        run_job(spark, misspell, threading.Event())
    with pytest.raises(QueryFailed, match="DIVIDE_BY_ZERO"):
        run_job(spark, divide, threading.Event())


def test_a_job_has_its_session_where_spark_looks_for_what_is_registered(spark: SparkSession) -> None:
    active: list[SparkSession | None] = []
    assert run_job(spark, lambda _: active.append(SparkSession.getActiveSession()), threading.Event())
    assert active != [None]


def test_a_job_that_is_to_stop_is_cancelled(spark: SparkSession) -> None:
    stop = threading.Event()

    def count(session: SparkSession) -> None:
        stop.set()
        count_endlessly(session)

    assert not run_job(spark, count, stop)
