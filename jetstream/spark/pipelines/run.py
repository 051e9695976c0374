"""A pipeline while it runs: the progress of its micro-batches, its stop, and the reason of its end.

Spark calls a listener on a thread of its own; its events go through a queue to the thread that waits
here, which is the main one, so that signals are handled at any time.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from envelope.errors import JetstreamError
from jetstream.spark.pipelines.progress import BatchProgress, progress_of
from jetstream.spark.pipelines.translation import SPARK_ERRORS, translated

_POLL_SECONDS: Final = 0.2
"""How soon a request to stop is seen."""

_TOLD_SECONDS_MAX: Final = 10.0
"""How long to wait for what Spark has still to tell of a query that has ended."""

Start = Callable[[SparkSession], StreamingQuery]
Job = Callable[[SparkSession], None]
Told = Callable[[BatchProgress], None]


def run_stream(
    spark: SparkSession,
    start: Start,
    stop: threading.Event,
    listener: Told,
    stopping: Callable[[], None] = lambda: None,
) -> bool:
    """Run a streaming query until it ends or ``stop`` is set.

    A micro-batch that is running then is given up: the query begins with it when it is started again.

    Args:
        spark: the session.
        start: starts the query.
        stop: may be set at any time.
        listener: called with each micro-batch that is done.
        stopping: called when ``stop`` is seen.

    Returns:
        Whether it ended by itself.

    Raises:
        JetstreamError: it cannot be started, or has failed.
    """
    with _listening(spark) as news:
        with translated():
            query = start(spark)
        _notify(query, news, listener, stop)
        if stop.is_set():
            stopping()
            _abandon(query)
            _notify(query, news, listener, threading.Event())
            return False
    with translated():
        query.awaitTermination()
    return True


def run_job(spark: SparkSession, job: Job, stop: threading.Event) -> bool:
    """Run a job that has an end until it ends or ``stop`` is set, which cancels it.

    It runs on the caller's thread: for writes Spark finds the data sources of a session only on threads
    whose session that is.

    Returns:
        Whether it ended by itself.

    Raises:
        JetstreamError: it has failed.
    """
    ended = threading.Event()
    with ThreadPoolExecutor(1, "stopping") as threads:
        threads.submit(_cancel_at_stop, spark, stop, ended)
        try:
            with translated():
                job(spark)
        except JetstreamError:
            if not stop.is_set():
                raise
            return False
        finally:
            ended.set()
    return True


def _cancel_at_stop(spark: SparkSession, stop: threading.Event, ended: threading.Event) -> None:
    while not ended.wait(_POLL_SECONDS):
        if stop.is_set():
            spark.sparkContext.cancelAllJobs()


class _News(StreamingQueryListener):
    """Queues Spark's events of all queries of the session; None is a query's end."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[tuple[str, BatchProgress | None]] = queue.SimpleQueue()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Say nothing: whoever started it knows."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Hand on how far it is."""
        self.queue.put((str(event.progress.runId), progress_of(event.progress)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Say nothing: nothing has happened."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Queue the end."""
        self.queue.put((str(event.runId), None))


@contextlib.contextmanager
def _listening(spark: SparkSession) -> Iterator[_News]:
    news = _News()
    spark.streams.addListener(news)
    try:
        yield news
    finally:
        spark.streams.removeListener(news)


def _notify(query: StreamingQuery, news: _News, listener: Told, stop: threading.Event) -> None:
    """Call the listener with the progress of ``query`` until it has ended and all is out, or ``stop``."""
    patience = _TOLD_SECONDS_MAX
    while not stop.is_set() and patience > 0:
        try:
            run_id, progress = news.queue.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            patience = _TOLD_SECONDS_MAX if query.isActive else patience - _POLL_SECONDS
            continue
        if run_id != query.runId:
            continue
        if progress is None:
            return
        listener(progress)


def _abandon(query: StreamingQuery) -> None:
    """Stop a query, whatever error its micro-batch raises."""
    with contextlib.suppress(*SPARK_ERRORS):
        query.stop()
