"""The readers of the Spark source as Spark calls them, without Spark, against a real node."""

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition

import jetstream
from jetstream.client.blocking.client import BlockingClient
from jetstream.spark.reading.batch_reader import SparkBatchReader
from jetstream.spark.reading.readers import batch_reader, read_schema, stream_reader
from jetstream.spark.reading.stream_reader import Json, StreamReader
from tests.support.nodes import nats_and_node, run

Scenario = Callable[[BlockingClient, dict[str, str]], None]
Row = dict[str, Any]


def against_a_node(directory: Path, scenario: Scenario, **settings: object) -> None:
    """Run a scenario with a client and the options of the source, in a thread without an event loop."""

    def connected(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            scenario(js, {"servers": url, "stream": "orders"})

    async def test() -> None:
        async with nats_and_node(directory, None, **settings) as (url, _):
            await asyncio.to_thread(connected, url)

    run(test())


def numbers(js: BlockingClient, values: range) -> None:
    js.publish_all([("orders.x", b"%d" % number) for number in values])


def batch_rows(options: dict[str, str], reader: SparkBatchReader | None = None) -> list[Row]:
    """All rows of a batch read, by way of what is pickled between Spark's processes."""
    planner = reader or batch_reader(options, read_schema(options))
    partitions = planner.partitions()
    return rows_of(pickle.loads(pickle.dumps(planner)), partitions)


def rows_of(reader: SparkBatchReader | StreamReader, partitions: list[InputPartition]) -> list[Row]:
    return [
        row
        for partition in partitions
        for batch in reader.read(pickle.loads(pickle.dumps(partition)))
        for row in batch.to_pylist()
    ]


def values_of(rows: list[Row]) -> list[int]:
    return [int(row["value"].split()[0]) for row in rows]


class Query:
    """What Spark does with a stream reader, one micro-batch after the other; begun anew, it goes on."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.reader = stream_reader(options, read_schema(options))
        self.at: Json | None = None
        self.batches: list[tuple[Json, Json]] = []

    def batch(self) -> list[Row] | None:
        """The rows of the next batch; None if there is nothing for one."""
        start = self.reader.initialOffset() if self.at is None else self.at
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        if end == start:
            return None
        self.batches.append((start, end))
        rows = self.rows(len(self.batches) - 1)
        self.reader.commit(end)
        self.at = end
        return rows

    def rows(self, number: int) -> list[Row]:
        """The rows of a batch, as often as they are wanted."""
        start, end = self.batches[number]
        partitions = self.reader.partitions(start, end)
        return rows_of(pickle.loads(pickle.dumps(self.reader)), partitions)

    def restart(self, **options: str) -> None:
        self.reader.stop()
        self.options = {**self.options, **options}
        self.reader = stream_reader(self.options, read_schema(self.options))

    def close(self) -> None:
        self.reader.stop()
