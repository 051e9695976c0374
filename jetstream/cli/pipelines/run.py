"""A pipeline in the foreground: Spark is started, micro-batches are shown, signals stop it cleanly.

Spark is imported here, when a pipeline is about to run: the other commands do without it, and need not have
it.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TYPE_CHECKING, Final

import typer

from jetstream.cli.output.console import notice, print_json, print_line
from jetstream.cli.output.exit_codes import ExitCode
from jetstream.cli.pipelines.options import QueryOptions, SparkOptions
from jetstream.cli.serve.running import report, report_stopping
from jetstream.spark.pipelines.progress import BatchProgress
from jetstream.spark.requirement import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SPARKS_PYTHON_LOG: Final = "SQLQueryContextLogger"
"""Spark writes every error that it raises in Python here, too."""

_LOG_LEVELS: Final = ("off", "fatal", "error", "warn", "info", "debug", "trace")


@dataclass(slots=True)
class Total:
    """The sums of all micro-batches, which are shown one by one."""

    as_json: bool
    batches: int = 0
    rows: int = 0
    late: int = 0
    seconds: float = 0.0

    def record(self, progress: BatchProgress) -> None:
        """Count a micro-batch and show it."""
        self.batches += 1
        self.rows += progress.rows
        self.late += progress.late
        self.seconds += progress.seconds
        if self.as_json:
            print_json({"event": "batch", **asdict(progress)})
        else:
            notice(batch_text(progress))

    def report_done(self, event: str) -> None:
        """Print the event at the end, with all that was read."""
        if self.as_json:
            sums: dict[str, float] = {"batches": self.batches, "rows": self.rows, "late": self.late}
            sums["seconds"] = round(self.seconds, 3)
            print_json({"event": event, **sums})
        else:
            late = f", {self.late:,} of them late" if self.late else ""
            batches = f"{self.batches:,} micro-batch{'' if self.batches == 1 else 'es'}"
            print_line(f"{event}: {self.rows:,} rows in {batches}{late}")


def batch_text(progress: BatchProgress) -> str:
    """Return the line of a micro-batch."""
    told = [
        f"batch {progress.batch:,}: {progress.rows:,} rows in {progress.seconds:.1f} s",
        f"{progress.rows_per_second:,.0f} rows/s",
    ]
    if progress.lag is not None:
        told.append(f"lag {progress.lag:,}")
    if progress.late:
        told.append(f"{progress.late:,} late")
    return ", ".join(told)


def run_streaming(
    query: QueryOptions, start: "Callable[[SparkSession], StreamingQuery]", *, as_json: bool
) -> None:
    """Run a streaming pipeline until it has read what there was, or a signal stops it.

    Raises:
        UnavailableError: Spark or Java is missing, with what to install.
        JetstreamError: the query cannot be started, or has failed.
        typer.Exit: it was to read all there was, and was stopped before.
    """
    total = Total(as_json)
    with _session(query) as (session, stop):
        from jetstream.spark.pipelines.run import run_stream  # noqa: PLC0415 - see the module

        def started(session: "SparkSession") -> "StreamingQuery":
            running = start(session)
            report("started", as_json)
            return running

        is_done = run_stream(session, started, stop, total.record, lambda: report_stopping(as_json))
    total.report_done("done" if is_done else "stopped")
    if query.once and not is_done:
        raise typer.Exit(ExitCode.INTERRUPTED)


def run_batch(spark: SparkOptions, job: "Callable[[SparkSession], None]", *, as_json: bool) -> None:
    """Run a pipeline that has an end by itself; a signal cancels it.

    Raises:
        UnavailableError: Spark or Java is missing, with what to install.
        JetstreamError: it has failed.
        typer.Exit: it was stopped.
    """
    with _session(spark) as (session, stop):
        from jetstream.spark.pipelines.run import run_job  # noqa: PLC0415 - see the module

        report("started", as_json)
        is_done = run_job(session, job, stop)
    report("done" if is_done else "stopped", as_json)
    if not is_done:
        raise typer.Exit(ExitCode.INTERRUPTED)


@contextmanager
def _session(options: SparkOptions) -> "Iterator[tuple[SparkSession, threading.Event]]":
    """Start Spark for a block; yield the session, and what a signal sets."""
    settings = options.spark_settings()
    if options.spark_log.lower() not in _LOG_LEVELS:
        raise typer.BadParameter(f"--spark-log {options.spark_log}: there are {', '.join(_LOG_LEVELS)}")
    require_spark()
    from jetstream.spark.session import end_spark, spark_session  # noqa: PLC0415 - see the module

    session = spark_session(options.master, "jetstream", settings)
    try:
        session.sparkContext.setLogLevel(options.spark_log.upper())
        logging.getLogger(_SPARKS_PYTHON_LOG).disabled = options.spark_log.lower() == "off"
        with signals_set(threading.Event()) as stop:  # behind the session, which has set its own
            yield session, stop
    finally:
        end_spark(session)


@contextmanager
def signals_set(stop: threading.Event) -> Iterator[threading.Event]:
    """Set ``stop`` at the first signal; the second one is the system's own again and ends at once."""

    def first_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)

    before = {number: signal.signal(number, first_signal) for number in _SIGNALS}
    try:
        yield stop
    finally:
        if not stop.is_set():
            for number, handler in before.items():
                signal.signal(number, handler)
