"""Pipeline *aggregate*: real flights in hours, held against what Arrow says of the whole table."""

import json
import threading
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from envelope.errors import RequestError
from jetstream.cli.demo.flights import load_flights, messages_of
from jetstream.client.blocking.client import BlockingClient
from jetstream.spark.pipelines import aggregate
from jetstream.spark.pipelines.aggregate import AggregateSettings, ParquetSink, StreamSink, key_text
from jetstream.spark.pipelines.progress import BatchProgress
from jetstream.spark.pipelines.run import run_stream
from jetstream.spark.pipelines.settings import QuerySettings
from tests.spark.conftest import Endpoints
from tests.support.commands import REPOSITORY
from tests.support.stream_files import StreamFiles

EXAMPLE = tomllib.loads((REPOSITORY / "examples" / "pipelines" / "aggregate.toml").read_text())
ROWS = 6000
BATCH = 3000
WATERMARK = timedelta(days=1)


def settings_of(checkpoint: str, **changes: Any) -> AggregateSettings:  # noqa: ANN401 - of any setting
    """Return what the example asks, changed."""
    asked: dict[str, Any] = {
        name: EXAMPLE[name] for name in ("schema", "time", "window", "watermark", "aggregates")
    }
    asked["group_by"] = (EXAMPLE["group-by"],)
    asked["query"] = QuerySettings(checkpoint=checkpoint, once=True)
    return AggregateSettings(**asked | changes)


def run(
    spark: SparkSession, files: StreamFiles, settings: AggregateSettings, directory: Path
) -> list[BatchProgress]:
    told: list[BatchProgress] = []
    sink = ParquetSink(str(directory))
    assert run_stream(
        spark,
        lambda session: aggregate.start(files.stream(session), settings, sink),
        threading.Event(),
        told.append,
    )
    return told


def found_in(directory: Path) -> dict[tuple[str, datetime], tuple[int, float | None]]:
    paths = sorted(directory.glob("*.parquet"))
    tables = [parquet.read_table(path, coerce_int96_timestamp_unit="us") for path in paths]
    rows = [row for table in tables for row in table.to_pylist()]
    found = {
        (row["origin"], row["window_start"].replace(tzinfo=UTC)): (row["departures"], row["mean_delay"])
        for row in rows
    }
    assert len(found) == len(rows), "a window has come out twice"
    assert all(row["window_end"] - row["window_start"] == timedelta(hours=1) for row in rows)
    return found


@pytest.mark.slow("tests/spark/test_aggregate.py::test_a_window_may_slide")
def test_hours_of_real_flights_are_those_that_arrow_counts(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    flights, files = load_flights(ROWS), StreamFiles(tmp_path / "stream")
    values = [(None, message.value) for message in messages_of(flights)]
    for start in range(0, ROWS, BATCH):
        files.append(values[start : start + BATCH])
        run(spark, files, settings_of(checkpoint), tmp_path / "out")

    hours = pc.strptime(flights["time_hour"], "%Y-%m-%dT%H:%M:%SZ", "us")
    table = flights.set_column(flights.column_names.index("time_hour"), "time_hour", hours)
    grouped = table.group_by(["origin", "time_hour"]).aggregate([([], "count_all"), ("dep_delay", "mean")])
    expected = {
        (row["origin"], row["time_hour"].replace(tzinfo=UTC)): (row["count_all"], row["dep_delay_mean"])
        for row in grouped.to_pylist()
    }
    last = max(hour for _, hour in expected)
    closed = {key: told for key, told in expected.items() if key[1] + timedelta(hours=1) <= last - WATERMARK}
    found = found_in(tmp_path / "out")
    assert len(closed) > 300
    assert found.keys() == closed.keys()
    for key, (departures, mean_delay) in closed.items():
        assert found[key][0] == departures
        assert found[key][1] == pytest.approx(mean_delay, rel=1e-12)


def value(origin: str, hour: int, delay: float | None = 0) -> tuple[None, bytes]:
    moment = datetime(2026, 1, 1, hour, 30, tzinfo=UTC).isoformat()
    return None, json.dumps({"origin": origin, "time_hour": moment, "dep_delay": delay}).encode()


@pytest.mark.slow("tests/spark/test_aggregate.py::test_a_window_may_slide")
def test_a_record_behind_the_watermark_is_in_no_window_and_is_counted(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    files, settings = StreamFiles(tmp_path / "stream"), settings_of(checkpoint, watermark="2 hours")
    files.append([value("JFK", 1), value("JFK", 5), (None, None)])
    files.append([value("JFK", 9)])
    files.append([value("JFK", 1), value("JFK", 4, None)])
    told = run(spark, files, settings, tmp_path / "out")
    assert sum(progress.late for progress in told) == 1
    hours = {start.hour: told for (_, start), told in found_in(tmp_path / "out").items()}
    assert hours == {1: (1, 0.0), 4: (1, None), 5: (1, 0.0)}


def test_no_two_groups_have_one_key(spark: SparkSession) -> None:
    pairs = ["'a/b', 'c'", "'a', 'b/c'", "'a%2Fb', 'c'", "NULL, 'c'", "'', 'c'", "'%', 'c'", "'a', NULL"]
    rows = ", ".join(f"({pair}, TIMESTAMP '2013-01-01 10:00:00')" for pair in pairs)
    frame = spark.sql(f"SELECT * FROM VALUES {rows} AS t(a, b, window_start)")
    keys = [row[0] for row in frame.selectExpr(key_text(("a", "b"))).collect()]
    assert len(set(keys)) == len(pairs)
    assert keys[0] == "a%2Fb/c/2013-01-01T10:00:00Z"


@pytest.mark.parametrize(
    "changes",
    [
        {"time": "no_such_field"},
        {"aggregates": "count(* AS n"},
        {"aggregates": "sum(nothing) AS n"},
        {"window": "1 hoUrs or so"},
        {"schema": "origin WORD"},
        {"group_by": ("nowhere",)},
        {"aggregates": "count(*) AS origin"},
    ],
    ids=str,
)
def test_a_question_that_cannot_be_asked_is_refused_in_one_line(
    spark: SparkSession, checkpoint: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    files = StreamFiles(tmp_path / "stream")
    files.append([value("JFK", 1)])
    with pytest.raises(RequestError) as refused:
        run(spark, files, settings_of(checkpoint, **changes), tmp_path / "out")
    assert "\n" not in refused.value.description


def test_a_window_may_slide(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "stream"
    files = StreamFiles(directory)
    files.append([value("JFK", 1), value("JFK", 2)])
    settings = settings_of("", window="2 hours", slide="1 hour", group_by=(), aggregates="count(*) AS n")
    records = spark.read.parquet(str(directory))
    rows = aggregate.windows_of(records, settings).collect()
    assert sorted((row.window_start.hour, row.n) for row in rows) == [(0, 1), (1, 2), (2, 1)]


@pytest.mark.slow(
    "tests/spark/test_aggregate.py::test_a_window_may_slide",
    "tests/spark/test_sink.py",
)
def test_windows_are_records_of_a_stream_once_also_when_their_batch_is_repeated(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient, checkpoint: str, tmp_path: Path
) -> None:
    js.streams.create("hours", "hours.>")
    files, settings = StreamFiles(tmp_path / "stream"), settings_of(checkpoint, watermark="0 seconds")
    access = {"servers": endpoints.servers, "subject": "hours.all", "staging": str(tmp_path / "staging")}
    files.append([value(origin, 1, delay) for origin in ("JFK", "EWR") for delay in (1, 2)])
    files.append([value("LGA", 9)])

    def publish() -> None:
        assert run_stream(
            spark,
            lambda session: aggregate.start(files.stream(session), settings, StreamSink(access)),
            threading.Event(),
            lambda _: None,
        )

    publish()
    last = max(int(path.name) for path in (Path(checkpoint) / "commits").glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (Path(checkpoint) / "commits" / name).unlink()
    publish()
    records = list(js.read("hours"))
    assert [record.subject for record in records] == ["hours.all"] * 2
    told = {record.key: json.loads(record.value or b"") for record in records}
    assert sorted(told, key=str) == [b"EWR/2026-01-01T01:00:00Z", b"JFK/2026-01-01T01:00:00Z"]
    assert told[b"JFK/2026-01-01T01:00:00Z"] == {
        "window_start": "2026-01-01T01:00:00.000Z",
        "window_end": "2026-01-01T02:00:00.000Z",
        "origin": "JFK",
        "departures": 2,
        "mean_delay": 1.5,
    }
