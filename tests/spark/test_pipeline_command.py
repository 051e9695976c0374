"""``jetstream pipeline`` as a process: it tells what it does, is stopped, and goes on where it was."""

import json
import re
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from jetstream.client.blocking.client import BlockingClient
from jetstream.log.disk.os_disk import OsDisk
from jetstream.spark.pipelines import table
from jetstream.spark.pipelines.run import run_stream
from jetstream.spark.pipelines.settings import QuerySettings, stream_of
from jetstream.spark.pipelines.table import TableSettings, current_files
from jetstream.spark.pipelines.tables.table_store import read_version
from jetstream.spark.pipelines.tables.table_version import Layout
from tests.spark.conftest import Endpoints
from tests.support.commands import REPOSITORY, CommandProcess
from tests.support.spark_sessions import session_settings

EXAMPLE = REPOSITORY / "examples" / "pipelines" / "table.toml"
SCHEMA = "price DOUBLE, currency STRING"


def publish(js: BlockingClient, prices: range) -> None:
    """Publish prices of ten articles; each tenth record is a tombstone."""
    rows = [
        {
            "key": b"article %d" % (n % 7),
            "value": None if n % 10 == 9 else json.dumps({"price": n, "currency": "EUR"}).encode(),
        }
        for n in prices
    ]
    fields = [pa.field("key", pa.binary()), pa.field("value", pa.binary())]
    js.publish_batch("prices.all", pa.Table.from_pylist(rows, pa.schema(fields)))


def expected(count: int) -> dict[bytes, float]:
    last = {n % 7: n for n in range(count)}
    return {b"article %d" % article: float(n) for article, n in last.items() if n % 10 != 9}


def prices_in(directory: Path) -> dict[bytes, float]:
    rows = [row for path in current_files(directory) for row in parquet.read_table(path).to_pylist()]
    assert all(row["value"]["currency"] == "EUR" for row in rows)
    return {row["key"]: row["value"]["price"] for row in rows}


def events(process: CommandProcess) -> Iterator[dict[str, Any]]:
    while True:
        line = process.line()
        assert line, process.finished()
        yield json.loads(line)


CUT_OFF_BY_JAVA = re.compile(
    r'Traceback .*\n(?:  File ".*/pyspark/daemon\.py", .*\n(?:    .*\n)*)+BrokenPipeError: .*\n'
)
"""How Spark's daemon tells that Java, which ends, has left a worker in the middle of a task."""


def rows_until(told: Iterator[dict[str, Any]], rows: int) -> None:
    """Wait until micro-batches have read so many rows."""
    while rows > 0:
        event = next(told)
        assert event["event"] == "batch"
        rows -= event["rows"]
    assert rows == 0


@pytest.mark.slow(
    "tests/unit/cli/pipelines/test_pipeline_signals.py",
    "tests/spark/test_pipeline_runs.py",
)
def test_a_pipeline_is_stopped_by_a_signal_and_goes_on_with_its_checkpoint(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient, tmp_path: Path
) -> None:
    directory, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    js.streams.create("prices", "prices.>")
    publish(js, range(1000))
    places = ["--nats", endpoints.servers, "--table", str(directory), "--checkpoint", str(checkpoint)]
    conf = [f"--conf={name}={value}" for name, value in session_settings(tmp_path).items()]
    running = CommandProcess(
        *("pipeline", "table", "--config", str(EXAMPLE), *places, "--master", "local[2]", "--every", "0"),
        *(*conf, "--json"),
    )
    with running as process:
        told = events(process)
        assert next(told) == {"event": "started"}
        rows_until(told, 1000)
        assert prices_in(directory) == expected(1000)
        publish(js, range(1000, 1200))
        rows_until(told, 200)
        code, output, error = process.signalled(signal.SIGTERM)
    assert code == 0, error
    *_, stopping, stopped = [json.loads(line) for line in output.splitlines()]
    assert stopping == {"event": "stopping"}
    assert (stopped["event"], stopped["rows"], stopped["late"]) == ("stopped", 1200, 0)
    assert "Traceback" not in CUT_OFF_BY_JAVA.sub("", error)

    publish(js, range(1200, 1305))
    version = read_version(OsDisk(directory)).version
    settings = TableSettings(
        directory=directory,
        layout=Layout(16, SCHEMA),
        grace=timedelta(hours=1),
        query=QuerySettings(checkpoint=str(checkpoint), once=True),
    )
    options = {"servers": endpoints.servers, "stream": "prices", "startingOffsets": "earliest"}
    batches: list[int] = []
    assert run_stream(
        spark,
        lambda session: table.start(stream_of(session, options), settings),
        threading.Event(),
        lambda progress: batches.append(progress.rows),
    )
    assert batches == [105]
    assert read_version(OsDisk(directory)).version == version + 1
    assert prices_in(directory) == expected(1305)
