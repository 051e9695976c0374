"""The sink: Spark's rows become batch envelopes in sessions, so that a task that is run again adds nothing.

Each task has a session of its own, which its place in the query names: ``spark/<queryId>/<partitionId>``,
and ``batchId << 24 | n`` are the numbers of its envelopes. Spark runs a micro-batch again, after a crash,
under the same query and batch; where it then hands over the same rows in the same tasks, the stream has them
already and says so. The queries for which it does not are what `jetstream.spark.staging` is for.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from envelope.errors import RequestError
from envelope.spark_errors import InvalidOption
from jetstream.spark.sink_columns import SUBJECT, check_columns, grouped
from jetstream.spark.sink_options import SinkOptions
from jetstream.spark.sink_target import SinkSessions, find_target

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class Place(NamedTuple):
    """Of a task of a query that runs on."""

    query: str
    batch: int
    partition: int


@dataclass(frozen=True, slots=True)
class Published(WriterCommitMessage):
    """What a task has published: all of it is stored."""

    records: int


class JetstreamBatchWriter(DataSourceArrowWriter):
    """Writes a batch: made in the driver, used in the executors."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        """Check what the driver can check; nothing is asked of the cluster.

        Raises:
            RequestError: columns that cannot be published.
            InvalidOption: the write is to replace what is stored.
        """
        _check(options, schema, overwrite=overwrite)
        self._options = options
        self._session = options.session_name or f"spark/{uuid.uuid4()}"

    def write(  # type: ignore[override]  # Spark's own Arrow writers have it so, against their base
        self, iterator: Iterator[pa.RecordBatch]
    ) -> Published:
        """Publish the rows of one task; return when all are stored.

        Raises:
            JetstreamError: not all are stored.
        """
        name = f"{self._session}/{_task().partitionId()}"
        return Published(publish_rows(self._options, iterator, name, batch=0))


class JetstreamStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query; made anew for each, in the driver, and used in the executors."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        """See `JetstreamBatchWriter`; ``overwrite`` is what Spark says of the output mode ``complete``."""
        _check(options, schema, overwrite=overwrite)
        self._options = options

    def write(  # type: ignore[override]  # Spark's own Arrow writers have it so, against their base
        self, iterator: Iterator[pa.RecordBatch]
    ) -> Published:
        """Publish the rows of one task; return when all are stored.

        Raises:
            JetstreamError: not all are stored.
        """
        query, batch, partition = place_of_task()
        name = f"spark/{query}/{partition}"
        return Published(publish_rows(self._options, iterator, name, batch))


def place_of_task() -> Place:
    """Return which task this is, by what Spark says in the executor.

    Raises:
        RequestError: it is none of a query that runs on.
    """
    task = _task()
    query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        raise RequestError("Spark does not say which micro-batch of which query this task is of")
    return Place(query, int(batch), task.partitionId())


def publish_rows(options: SinkOptions, batches: Iterator[pa.RecordBatch], session: str, batch: int) -> int:
    """Publish rows in the session of that name, as a micro-batch of that number; return how many, all stored.

    Raises:
        JetstreamError: not all are stored.
    """
    first = next(batches, None)
    if first is None:
        return 0
    rows = pa.RecordBatchReader.from_batches(first.schema, chain((first,), batches))
    with options.access.open() as client:
        target = find_target(client, options)
        with SinkSessions(client, target, options, session, batch) as sessions:
            if SUBJECT in first.schema.names:
                return sum(sessions.publish(*each) for each in grouped(rows, options.subject))
            assert options.subject is not None, "checked in the driver"
            return sessions.publish(options.subject, rows)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RequestError("the sink writes in Spark's tasks")
    return task


def _check(options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption("mode: a stream is appended to: mode('append'), outputMode('append' or 'update')")
    check_columns(to_arrow_schema(schema), has_subject=options.subject is not None)
