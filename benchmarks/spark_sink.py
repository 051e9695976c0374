"""Writing rows from Spark into a stream, acked and fsynced, beside the same rows into Parquet files."""

import itertools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import jetstream
from benchmarks.report import Bar, Report, Settings, new_report
from benchmarks.spark_jobs import Job, interleaved_jobs
from benchmarks.spark_scene import MASTER, PARTITIONS, SparkScene, StoredRows, spark_scene

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZE_BYTES: Final = 100
ROWS: Final = 4_000_000
ROWS_QUICK: Final = 400_000
POINT: Final = "100 B"

OURS: Final = "ours, sync always"
PARQUET: Final = "Spark's Parquet"
PER_SECOND_MIN: Final = 200_000.0
PER_SECOND_GOAL: Final = 400_000.0


def run(settings: Settings) -> Report:
    """Write the same rows to both."""
    count = ROWS_QUICK if settings.quick else ROWS
    stored = StoredRows("", count, count * SIZE_BYTES)
    with spark_scene(settings.directory / "spark") as scene:
        into_stream, target = _IntoStreams(scene, count), scene.directory / "written"
        jobs = [
            Job(OURS, POINT, stored, into_stream.write, into_stream.problem),
            Job(
                PARQUET,
                POINT,
                stored,
                lambda: _write_parquet(_rows(scene, count), target),
                lambda: _missing(scene.spark.read.parquet(str(target)).count(), count),
            ),
        ]
        rows = interleaved_jobs(jobs, scene.node_pid, settings)
        missing = into_stream.problem()
    if missing:
        rows[0] = rows[0].model_copy(update={"problems": [missing]})
    report = new_report(
        "spark_sink",
        settings,
        rows,
        rate_unit="rows/s",
        master=MASTER,
        partitions=PARTITIONS,
        rows_written=count,
    )
    return report.model_copy(update={"bars": _bars(report)})


def _rows(scene: SparkScene, count: int) -> "DataFrame":
    """Return rows that Spark makes faster than anybody takes them in: numbers, as text of that length."""
    numbers = scene.spark.range(0, count, 1, PARTITIONS)
    return numbers.selectExpr(f"cast(lpad(cast(id as string), {SIZE_BYTES}, '.') as binary) as value")


class _IntoStreams:
    """Writes each time into a new stream, and knows what all of them hold."""

    def __init__(self, scene: SparkScene, rows: int) -> None:
        self._scene = scene
        self._rows = rows
        self._names = (f"written-{number}" for number in itertools.count())
        self._written: list[str] = []

    def write(self) -> None:
        """Write all rows; returns when every one of them is acked."""
        name = next(self._names)
        with jetstream.connect_blocking(self._scene.address.url) as client:
            client.streams.create(name, name)
        self._written.append(name)
        writer = _rows(self._scene, self._rows).write.format("jetstream").mode("append")
        writer.options(servers=self._scene.address.url, subject=name, stream=name).save()

    def problem(self) -> str | None:
        """Say which stream does not hold every row once."""
        with jetstream.connect_blocking(self._scene.address.url) as client:
            held = [client.streams.info(name).high_watermark for name in self._written]
        return next(filter(None, (_missing(each, self._rows) for each in held)), None)


def _write_parquet(frame: "DataFrame", target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    frame.write.option("compression", "none").parquet(str(target))


def _missing(found: int, wanted: int) -> str | None:
    return None if found == wanted else f"{found} rows, not {wanted}"


def _bars(report: Report) -> list[Bar]:
    rate = report.row(OURS, POINT).rate
    return [
        Bar(requirement="rows/s acked and fsynced", value=rate, bar=PER_SECOND_MIN),
        Bar(requirement="the same, goal", value=rate, bar=PER_SECOND_GOAL, goal=True),
        Bar(requirement="ours / Spark's Parquet, not synced", value=rate / report.row(PARQUET, POINT).rate),
    ]
