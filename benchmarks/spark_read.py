"""Reading a stream into Spark: Arrow batches beside Spark's own Parquet scan, and beside tuples.

Parquet has the same rows in the same columns, uncompressed, as files of the same file system.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.report import Bar, Report, Row, Settings, new_report
from benchmarks.spark_jobs import Job, interleaved_jobs, missing_rows, to_nowhere
from benchmarks.spark_scene import (
    MASTER,
    PARTITIONS,
    SparkScene,
    StoredRows,
    filled,
    filled_singly,
    spark_scene,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZES: Final = {"1 KiB": 1024, "100 B": 100}
ROWS: Final = {"1 KiB": 1_000_000, "100 B": 5_000_000}
ROWS_QUICK: Final = {"1 KiB": 100_000, "100 B": 500_000}
SINGLES: Final = 300_000
SINGLES_QUICK: Final = 20_000
TWO_SIZES: Final = (50, 150)
SMALL: Final = "100 B"

OURS: Final = "ours"
PARQUET: Final = "Spark's Parquet"
TUPLES: Final = "ours, as tuples"
LARGE: Final = "large batches"
SINGLE: Final = "batches of one record"
TWO_KINDS: Final = "batches of one record, 50 and 150 B"

OF_PARQUET_MIN: Final = 0.4
OF_PARQUET_GOAL: Final = 0.6
OF_TUPLES_MIN: Final = 8.0
WRITING_OF_PARQUET_MIN: Final = 0.6
SINGLES_OF_LARGE_MIN: Final = 0.5


def run(settings: Settings) -> Report:
    """Read to nowhere and into Parquet, and read a stream whose batches have one record each."""
    rows: list[Row] = []
    counts = ROWS_QUICK if settings.quick else ROWS
    with spark_scene(settings.directory / "spark") as scene:
        for load, size in SIZES.items():
            stored = filled(scene, f"values-{size}", counts[load], size)
            rows += interleaved_jobs(_jobs(scene, load, stored), scene.node_pid, settings)
        rows += _small_batches(scene, settings)
    report = new_report(
        "spark_read",
        settings,
        rows,
        rate_unit="rows/s",
        master=MASTER,
        partitions=PARTITIONS,
        **_named(counts),
    )
    return report.model_copy(update={"bars": _bars(report)})


def _named(counts: dict[str, int]) -> dict[str, int]:
    return {f"rows_{load}": count for load, count in counts.items()}


def _jobs(scene: SparkScene, load: str, stored: StoredRows) -> list[Job]:
    files = scene.directory / f"{stored.stream}.parquet"
    scene.read(stored.stream).write.option("compression", "none").parquet(str(files))

    def ours() -> "DataFrame":
        return scene.read(stored.stream)

    def parquet() -> "DataFrame":
        return scene.spark.read.parquet(str(files))

    def tuples() -> "DataFrame":
        return scene.read(stored.stream, "jetstream_tuples")

    def reading(system: str, frame: "Callable[[], DataFrame]") -> Job:
        return Job(
            system,
            load,
            stored,
            lambda: to_nowhere(frame()),
            lambda: missing_rows(frame(), stored),
        )

    def writing(system: str, frame: "Callable[[], DataFrame]") -> Job:
        target = scene.directory / f"{stored.stream}.written"
        return Job(
            system,
            _to_parquet(load),
            stored,
            lambda: _write(frame(), target),
            lambda: missing_rows(scene.spark.read.parquet(str(target)), stored),
        )

    jobs = [reading(OURS, ours), reading(PARQUET, parquet)]
    if load == SMALL:
        jobs.append(reading(TUPLES, tuples))
    return [*jobs, writing(OURS, ours), writing(PARQUET, parquet)]


def _write(frame: "DataFrame", target: Path) -> float:
    """Write Parquet as Spark does by default; return the seconds that took."""
    shutil.rmtree(target, ignore_errors=True)
    begun = time.monotonic()
    frame.write.parquet(str(target))
    return time.monotonic() - begun


def _small_batches(scene: SparkScene, settings: Settings) -> list[Row]:
    size = SIZES[SMALL]
    count = SINGLES_QUICK if settings.quick else SINGLES
    singles = filled_singly(scene, "singles", count, [size])
    two_kinds = filled_singly(scene, "singles-of-two-sizes", count, TWO_SIZES)
    large = filled(scene, "large", singles.rows, size)

    def job(point: str, stored: StoredRows) -> Job:
        return Job(
            OURS,
            point,
            stored,
            lambda: to_nowhere(scene.read(stored.stream)),
            lambda: missing_rows(scene.read(stored.stream), stored),
        )

    jobs = [job(SINGLE, singles), job(TWO_KINDS, two_kinds), job(LARGE, large)]
    return interleaved_jobs(jobs, scene.node_pid, settings)


def _to_parquet(load: str) -> str:
    return f"{load}, to Parquet"


def _bars(report: Report) -> list[Bar]:
    bars: list[Bar] = []
    for load in SIZES:
        of_parquet = report.row(OURS, load).rate / report.row(PARQUET, load).rate
        writing = _to_parquet(load)
        bars += [
            Bar(requirement=f"{load}: ours / Spark's Parquet scan", value=of_parquet, bar=OF_PARQUET_MIN),
            Bar(requirement=f"{load}: the same, goal", value=of_parquet, bar=OF_PARQUET_GOAL, goal=True),
            Bar(
                requirement=f"{load}: ours to Parquet / Parquet to Parquet",
                value=report.row(OURS, writing).rate / report.row(PARQUET, writing).rate,
                bar=WRITING_OF_PARQUET_MIN,
            ),
        ]
    return [
        *bars,
        Bar(
            requirement=f"{SMALL}: ours / the same as tuples",
            value=report.row(OURS, SMALL).rate / report.row(TUPLES, SMALL).rate,
            bar=OF_TUPLES_MIN,
        ),
        Bar(
            requirement="batches of one record / large batches",
            value=report.row(OURS, SINGLE).rate / report.row(OURS, LARGE).rate,
            bar=SINGLES_OF_LARGE_MIN,
        ),
    ]
