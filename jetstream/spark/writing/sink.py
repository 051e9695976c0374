"""The sink: Spark's rows become batch envelopes in sessions, so that a task that is run again adds nothing.

Each task has a session of its own, which its place in the query names: ``spark/<queryId>/<partitionId>``,
and ``batchId << 24 | n`` are the numbers of its envelopes. Spark runs a micro-batch again, after a crash,
under the same query and batch; where it then hands over the same rows in the same tasks, the stream has them
already and says so. The queries for which it does not are what `jetstream.spark.writing.staging` is for.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from envelope.errors import RequestError
from envelope.spark_errors import InvalidOption
from jetstream.spark.options.sink_options import SinkOptions
from jetstream.spark.task_process import SettlesWhereItArrives, settle_process
from jetstream.spark.writing.sink_columns import check_columns, pieces_of
from jetstream.spark.writing.sink_target import SinkSessions, check_remembered, opened_target
from jetstream.spark.writing.staged_files import StagedFile
from jetstream.spark.writing.staging import MicroBatch, open_staging
from jetstream.spark.writing.task_input import all_rows

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class TaskPlace(NamedTuple):
    """Of a task of a query that runs on."""

    query: str
    batch: int
    partition: int


@dataclass(frozen=True, slots=True)
class TaskPublished(WriterCommitMessage):
    """The commit message of a task that has published: all its rows are stored."""

    records: int


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """The commit message of a task that has staged: its files are durable, and not published."""

    query: str
    file: StagedFile | None
    """None: it has no rows."""


class JetstreamBatchWriter(SettlesWhereItArrives, DataSourceArrowWriter):
    """Writes a batch: made in the driver, used in the executors."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        """Check what the driver can check; nothing is asked of the cluster.

        Raises:
            RequestError: columns that cannot be published.
            InvalidOption: the write is to replace what is stored.
        """
        settle_process()
        _check(options, schema, overwrite=overwrite)
        self._options = options
        self._session = options.session_name or f"spark/{uuid.uuid4()}"

    def write(  # type: ignore[override]  # Spark's own Arrow writers have it so, against their base
        self, iterator: Iterator[pa.RecordBatch]
    ) -> TaskPublished:
        """Publish the rows of one task; return when all are stored.

        Raises:
            JetstreamError: not all are stored.
        """
        name = f"{self._session}/{_task().partitionId()}"
        return TaskPublished(publish_rows(self._options, all_rows(iterator), name, batch=0))


class JetstreamStreamWriter(SettlesWhereItArrives, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query; made anew for each, in the driver, and used in the executors."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        """See `JetstreamBatchWriter`; ``overwrite`` is what Spark says of the output mode ``complete``."""
        settle_process()
        _check(options, schema, overwrite=overwrite)
        if options.staging is not None:
            open_staging(options.staging)
        self._options = options

    def write(  # type: ignore[override]  # Spark's own Arrow writers have it so, against their base
        self, iterator: Iterator[pa.RecordBatch]
    ) -> TaskPublished | Staged:
        """Publish the rows of one task, or stage them; return when all are stored, or durable there.

        Raises:
            JetstreamError: not all are.
        """
        query, batch, partition = place_of_task()
        if self._options.staging is not None:
            staged = open_staging(self._options.staging).stage(query, batch, partition, iterator)
            return Staged(query, staged)
        name = f"spark/{query}/{partition}"
        return TaskPublished(publish_rows(self._options, all_rows(iterator), name, batch))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Publish what the tasks have staged; return when all of it is stored. Without staging it is already.

        Raises:
            SessionExpired: an earlier run has begun to publish it, so long ago that the stream does not know
                how far it came.
            JetstreamError: not all is stored.
        """
        staged = [each for each in messages if isinstance(each, Staged)]
        if self._options.staging is None or not staged:
            return

        def publish(micro_batch: MicroBatch, rows: Iterator[pa.RecordBatch]) -> None:
            begun_at = micro_batch.manifest.written_at if micro_batch.is_resumed else None
            publish_rows(self._options, rows, f"spark/{staged[0].query}", batch_id, begun_at)

        files = [each.file for each in staged if each.file is not None]
        open_staging(self._options.staging).publish_once(staged[0].query, batch_id, files, publish)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Remove what the tasks have staged, if one of them has failed.

        If none has, then publishing it has: it may be half done, and is to be completed.
        """
        if self._options.staging is None or None not in messages:
            return
        staged = [each for each in messages if isinstance(each, Staged)]
        files = [each.file for each in staged if each.file is not None]
        open_staging(self._options.staging).discard(files)


def place_of_task() -> TaskPlace:
    """Return which task this is, by what Spark says in the executor.

    Raises:
        RequestError: it is none of a query that runs on.
    """
    task = _task()
    query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        raise RequestError("Spark does not say which micro-batch of which query this task is of")
    return TaskPlace(query, int(batch), task.partitionId())


def publish_rows(
    options: SinkOptions,
    batches: Iterator[pa.RecordBatch],
    session: str,
    batch: int,
    begun_at: datetime | None = None,
) -> int:
    """Publish rows, and return how many; all are stored then.

    Args:
        options: where to.
        batches: the rows.
        session: name of the session.
        batch: number of the micro-batch.
        begun_at: when an earlier run may have begun to publish the same rows.

    Raises:
        SessionExpired: whether the earlier run has published some is forgotten.
        JetstreamError: not all are stored.
    """
    pieces = pieces_of(batches)
    piece, rows = next(pieces, None), 0
    if piece is None:
        return rows
    with opened_target(options) as (client, target):
        if begun_at is not None:
            check_remembered(client, target, begun_at)
        with SinkSessions(client, target, options, session, batch) as sessions:
            while piece is not None:
                sessions.publish(piece, first_row=rows)
                rows += piece.num_rows
                piece = next(pieces, None)
    return rows


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RequestError("the sink writes in Spark's tasks")
    return task


def _check(options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption("mode: a stream is appended to: mode('append'), outputMode('append' or 'update')")
    check_columns(to_arrow_schema(schema, timezone="UTC"), has_subject=options.subject is not None)
