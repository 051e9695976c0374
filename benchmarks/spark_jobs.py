"""Jobs of Spark measured: how many rows a second each takes in, all of them interleaved in one session.

Each is run once before, so that Java has compiled what it runs, and what it reads or writes is looked at: a
job counts only if every row is there.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from benchmarks.measurement import tell
from benchmarks.process_stats import ProcessSample, machine_busy_seconds
from benchmarks.report import MIB, Row, Settings
from benchmarks.spark_scene import StoredRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Job:
    """Something that Spark does with rows; ``system`` and ``point`` name it in tables."""

    system: str
    point: str
    stored: StoredRows
    work: Callable[[], float | None]
    """Does it; returns how many seconds of that count, None: all."""
    problem: Callable[[], str | None]
    """Says, after the first time, what is wrong with the rows."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """One time."""

    rate: float
    """Rows a second."""
    seconds: float
    whole_seconds: float
    """With what does not count."""
    node_cpu_seconds: float
    machine_cpu_seconds: float


def interleaved_jobs(jobs: Sequence[Job], node_pid: int, settings: Settings) -> list[Row]:
    """Run every job once unmeasured, then ``settings.runs`` times; fold them into rows."""
    problems: list[str | None] = []
    for job in jobs:
        job.work()
        problems.append(job.problem())
    runs: list[list[JobRun]] = [[] for _ in jobs]
    for number in range(settings.runs):
        for job, done in zip(jobs, runs, strict=True):
            done.append(_run(job, node_pid))
            text = f"{job.system:34} {job.point:24} {done[-1].rate:>12,.0f}/s"
            tell(f"{number + 1}/{settings.runs}  {text}  {done[-1].seconds:.2f} s")
    return [_row(*each) for each in zip(jobs, runs, problems, strict=True)]


def _run(job: Job, node_pid: int) -> JobRun:
    node, busy, begun = ProcessSample.of(node_pid), machine_busy_seconds(), time.monotonic()
    counted = job.work()
    whole = time.monotonic() - begun
    seconds = whole if counted is None else counted
    return JobRun(
        rate=job.stored.rows / seconds,
        seconds=seconds,
        whole_seconds=whole,
        node_cpu_seconds=ProcessSample.of(node_pid).cpu_seconds - node.cpu_seconds,
        machine_cpu_seconds=machine_busy_seconds() - busy,
    )


def _row(job: Job, runs: Sequence[JobRun], problem: str | None) -> Row:
    rates = [run.rate for run in runs]
    rate = statistics.median(rates)
    return Row(
        system=job.system,
        point=job.point,
        rate=rate,
        rate_min=min(rates),
        rate_max=max(rates),
        details={
            "values MiB/s": rate * job.stored.value_bytes / job.stored.rows / MIB,
            "seconds": statistics.median(run.seconds for run in runs),
            "of a whole run": statistics.median(run.whole_seconds for run in runs),
            "node CPU ns/row": statistics.median(1e9 * run.node_cpu_seconds for run in runs)
            / job.stored.rows,
            "machine CPU cores": statistics.median(
                run.machine_cpu_seconds / run.whole_seconds for run in runs
            ),
        },
        problems=[problem] if problem else [],
        runs=[asdict(run) for run in runs],
    )


def to_nowhere(frame: "DataFrame") -> None:
    """Have Spark take in every column of every row, and drop it."""
    frame.write.format("noop").mode("overwrite").save()


def missing_rows(frame: "DataFrame", stored: StoredRows) -> str | None:
    """Say what of a stream is not in ``frame``; None if every row is there once."""
    found = frame.selectExpr("count(1)", "sum(offset)", "sum(length(value))").collect()[0]
    rows = stored.rows
    wanted = (rows, rows * (rows - 1) // 2, stored.value_bytes)
    return None if tuple(found) == wanted else f"rows, offsets, bytes: {tuple(found)}, not {wanted}"
