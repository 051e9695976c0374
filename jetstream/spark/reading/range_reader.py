"""Reading one range of one stream exactly, in the process that Spark gives it to.

Theory of operation: the client's reader does the hard part (every replica in turn, each batch verified and
fitting the one before it, always going on at the exact offset). It runs in a thread of its own, which
decodes the next batches while Spark consumes these. Small ones are put together before Spark gets them. A
range was committed when it was planned, so all of it must come: records that do not come in time are an
error, and so is a record that is missing.
"""

import asyncio
import logging
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from envelope.errors import (
    CorruptDataError,
    DeadlinePassed,
    DivergedHistory,
    JetstreamError,
    OffsetOutOfRange,
    StreamRecreated,
    UnknownStream,
)
from envelope.spark_errors import DataLoss
from jetstream.client.blocking.loop_thread import LoopThread
from jetstream.client.connection import JetstreamClient, ReadOptions
from jetstream.client.nodes.socket_access import ReadPass
from jetstream.client.read.reader import BatchReader
from jetstream.spark.options.access import ClusterAccess
from jetstream.spark.options.source_options import SourceOptions
from jetstream.spark.reading.columns import Shape, log_columns
from jetstream.spark.reading.planning import IncarnationRange, ReadPiece
from jetstream.spark.reading.tiling import RangeCheck

_log = logging.getLogger(__name__)

_GONE: Final = (OffsetOutOfRange, StreamRecreated, DivergedHistory, UnknownStream)

_BACKOFF_SECONDS: Final = 0.5
"""Between two attempts to connect."""

_BATCH_ROWS: Final = 8_192
"""Smaller batches are put together: to Spark each costs as much as some thousand records.

More than a fetch has of the smallest batches: what comes with one is decoded at once, and nothing is left."""

_Connection = AbstractAsyncContextManager[JetstreamClient]


@dataclass(frozen=True, slots=True)
class LogPiece:
    """The part of a log that a task of Spark reads."""

    piece: ReadPiece
    stream: str
    """As Spark is told: of a partitioned stream the whole."""
    partition: int
    dense: bool
    """Every offset of the stream has a record: it is known not to be compacted."""
    read_pass: ReadPass | None = None
    """From the driver, for a task that has no NATS."""


def read_range(
    piece: LogPiece, options: SourceOptions, schema: pa.Schema
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the records of a range in the columns of ``schema``, in order, each once.

    Closing it earlier closes its connection to the cluster.

    Raises:
        DataLoss: records of the range are gone, and ``failOnDataLoss`` is set.
        DeadlinePassed: nothing came for `SourceOptions.patience_s`.
        CorruptDataError: the records that came are not the whole range.
        Unauthorized: NATS gives no ticket for them any more.
        InvalidTicket: the driver's ticket has ended, and the task has no NATS.
        JetstreamError: anything else that the client cannot mend.
    """
    shape = Shape(schema, piece.stream, piece.partition)
    access = options.access if piece.read_pass is None else options.access.passed(piece.read_pass)
    with _connected(access, options.fetch_timeout_s) as (thread, client):
        batches = _Batches(client, piece, options, schema)
        coming = thread.begin(batches.next())
        while (batch := coming.result()) is not None:
            coming = thread.begin(batches.next())
            yield shape.shaped(batch)


@contextmanager
def _connected(access: ClusterAccess, patience_s: float) -> Iterator[tuple[LoopThread, JetstreamClient]]:
    thread = LoopThread()
    farewell = None
    try:
        connection, client = thread.run(_entered(access, patience_s))
        farewell = _leave(connection)
        yield thread, client
    finally:
        thread.close(farewell)


async def _entered(access: ClusterAccess, patience_s: float) -> tuple[_Connection, JetstreamClient]:
    """Connect; an unreachable cluster is tried again, as the driver could reach it a moment ago."""
    gives_up_at = time.monotonic() + patience_s
    while True:
        try:
            connection = access.connect()
            return connection, await connection.__aenter__()
        except JetstreamError as error:
            if not error.retriable or time.monotonic() >= gives_up_at:
                raise
        await asyncio.sleep(_BACKOFF_SECONDS)


class _Batches:
    """The batches of a range, checked."""

    def __init__(
        self, client: JetstreamClient, piece: LogPiece, options: SourceOptions, schema: pa.Schema
    ) -> None:
        self._client = client
        self._piece = piece.piece
        self._read_options = _read_options(piece.piece.range, options, schema)
        self._patience_s = options.patience_s
        self._is_dense = piece.dense and options.subject is None and options.key is None
        found = piece.piece.range
        self._check = RangeCheck(found.stream, found.start, found.end)
        self._reader = self._reader_from(found.start)
        self._gone: JetstreamError | None = None
        """The error that means that the next records are gone."""

    async def next(self) -> pa.RecordBatch | None:
        """Return the next batch; None at the end, when it is known that it was all."""
        while True:
            batch = await self._next_batch()
            if batch is not None:
                self._check.take(batch.column(0).to_numpy())
                return batch
            if self._gone is None:
                self._check.finish(self._place)
                self._count_missing()
                return None
            self._go_on_behind(self._gone)
            if self._check.place == self._piece.range.end:
                return None

    @property
    def _place(self) -> int:
        """The offset that comes next."""
        reached = self._reader.next_offset
        return self._check.place if reached is None else reached

    async def _next_batch(self) -> pa.RecordBatch | None:
        """Return the next batch; None at the end, and where what comes next is gone."""
        while True:
            place = self._place
            try:
                async with asyncio.timeout(self._patience_s):
                    return await anext(self._reader, None)
            except TimeoutError:
                if self._place == place:
                    raise self._nothing_came(place) from None
            except _GONE as error:
                self._gone = error
                return None

    def _count_missing(self) -> None:
        missing, found = self._check.missing, self._piece.range
        if not missing or not self._is_dense:
            return
        text = (
            f"{found.stream!r} [{found.start}, {found.end}): {missing} records are missing, of a stream that "
            "is not compacted"
        )
        if not self._piece.may_miss:
            raise CorruptDataError(f"{text}; if it was once, read with failOnDataLoss=false", missing=missing)
        _log.warning("%s", text)

    def _nothing_came(self, place: int) -> DeadlinePassed:
        found = self._piece.range
        return DeadlinePassed(
            f"{found.stream!r} [{found.start}, {found.end}): nothing came from offset {place} on in "
            f"{self._patience_s:g} s; what is committed ends at {self._reader.high_watermark}",
            offset=place,
        )

    def _go_on_behind(self, error: JetstreamError) -> None:
        """Leave out lost records, if ``failOnDataLoss`` is false; raise if not."""
        self._gone = None
        found, place = self._piece.range, self._place
        kept = error.detail.get("log_start_offset")
        is_behind = isinstance(error, OffsetOutOfRange) and isinstance(kept, int) and kept > place
        on = min(kept, found.end) if is_behind and isinstance(kept, int) else found.end
        text = f"{found.stream!r}: what was committed in [{place}, {on}) is gone, and was not read: {error}"
        if not self._piece.may_miss:
            raise DataLoss(text, stream=found.stream, start=place, end=on) from error
        _log.warning("%s", text)
        self._check.skip(on)
        self._reader = self._reader_from(on)

    def _reader_from(self, place: int) -> BatchReader:
        wanted: ReadOptions = {**self._read_options, "start": place}
        return self._client.read_batches(self._piece.range.stream, **wanted)


def _read_options(log: IncarnationRange, options: SourceOptions, schema: pa.Schema) -> ReadOptions:
    read: ReadOptions = {
        "end": log.end,
        "follow": True,
        "incarnation": log.incarnation,
        "batch_rows": _BATCH_ROWS,
        "read_from": options.read_preference,
        "retry_s": options.patience_s,
    }
    if options.subject is not None:
        read["subject"] = options.subject
    if options.key is not None:
        read["key"] = options.key
    if options.columns is not None or "value" not in schema.names:
        read["columns"] = log_columns(schema.names)
    return read


async def _leave(connection: _Connection) -> None:
    await connection.__aexit__(None, None, None)
