"""What benchmarks of Spark do around Spark; none of it needs Java."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.process_stats import descendants
from benchmarks.report import Settings
from benchmarks.spark_jobs import Job, interleaved_jobs
from benchmarks.spark_latency import Sink, _medians
from benchmarks.spark_scene import TIMES_VARIABLE, StoredRows, values_table

pytest.importorskip("pyspark")

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from benchmarks.spark_sources import TimedReader, TupleReader

STORED = StoredRows("s", 100, 1000)


def settings(directory: Path, runs: int = 3) -> Settings:
    return Settings(directory, seconds=1.0, warmup_seconds=0.0, runs=runs, quick=True)


# --- jobs --------------------------------------------------------------------------------------------------


def test_jobs_are_run_in_turn_once_more_than_they_are_measured(tmp_path: Path) -> None:
    done: list[str] = []

    def job(name: str, seconds: float | None, problem: str | None) -> Job:
        def work() -> float | None:
            done.append(name)
            return seconds

        return Job(name, "load", STORED, work, lambda: problem)

    jobs = [job("a", 0.5, None), job("b", None, "7 rows are missing")]
    first, second = interleaved_jobs(jobs, os.getpid(), settings(tmp_path))
    assert done == ["a", "b"] * 4
    assert (first.rate, first.rate_min, first.rate_max) == (200.0, 200.0, 200.0)
    assert first.details["values MiB/s"] == pytest.approx(200 * 10 / 2**20)
    assert not first.problems
    assert second.problems == ["7 rows are missing"]
    assert second.rate > 0
    assert len(second.runs) == 3


def test_values_are_random_and_of_their_size() -> None:
    values = values_table(50, 100, np.random.default_rng(0)).column("value")
    assert values.type == pa.binary()
    assert {len(value.as_py()) for value in values} == {100}
    assert len(set(values.to_pylist())) == 50


# --- latency -----------------------------------------------------------------------------------------------


def test_rows_that_were_there_before_are_not_timed() -> None:
    sink = Sink("there", [(1.0, 9.0), (2.0, 2.5), (3.0, 3.25)])
    assert sink.milliseconds(2.0) == [500.0, 250.0]


# --- sources -----------------------------------------------------------------------------------------------


class FixedReader(DataSourceReader, DataSourceStreamReader):
    """Has two batches, in one part."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # noqa: N802 - as above
        return {"at": 3}

    def partitions(self, *_: object) -> list[InputPartition]:
        return [InputPartition("all")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert partition.value == "all"
        for numbers in ([1, 2], [3]):
            yield pa.record_batch({"number": numbers, "text": [f"n{number}" for number in numbers]})


def test_a_tuple_reader_yields_every_row() -> None:
    reader = TupleReader(FixedReader())
    (partition,) = reader.partitions()
    assert list(reader.read(partition)) == [(1, "n1"), (2, "n2"), (3, "n3")]


def test_a_timed_reader_does_what_the_other_does_and_notes_each_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = tmp_path / "times"
    monkeypatch.setenv(TIMES_VARIABLE, str(times))
    reader: TimedReader = pickle.loads(pickle.dumps(TimedReader(FixedReader())))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert reader.latestOffset(end, ReadAllAvailable()) == end, "and is not noted"
    (partition,) = reader.partitions(start, end)
    assert [batch.num_rows for batch in reader.read(partition)] == [2, 1]
    assert [line.split()[0] for line in times.read_text().splitlines()] == [
        "latestOffset",
        "partitions",
        "read",
    ]
    assert set(_medians(times)) == {"latestOffset", "partitions", "read"}


# --- memory ------------------------------------------------------------------------------------------------


def test_processes_of_processes_are_found() -> None:
    source = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "input()\n"
        "child.communicate()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        found = descendants(os.getpid())
        assert (found[parent.pid], found[grandchild]) == (os.getpid(), parent.pid)
        parent.communicate(b"\n")
    assert not {parent.pid, grandchild} & set(descendants(os.getpid()))
