"""The client library without asyncio: ``publish``, ``publish_all``, ``publish_table``, ``read``, ``streams``.

Each call waits for its result. An event loop runs in a thread of its own and runs every call. Batches of
records and windows of messages cross between the threads, never single records, so that reading and
publishing cost little more than with the asynchronous client.
"""

import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar, Unpack

import pyarrow as pa

from envelope.errors import ConnectionLost, JetstreamError, RequestError
from envelope.limits import MIB
from envelope.types import LeaderEpoch, Offset
from jetstream.client.blocking.admin import (
    BlockingCursors,
    BlockingGroups,
    BlockingNamespaces,
    BlockingStreams,
)
from jetstream.client.blocking.consumer import BlockingConsumer, relayed_options
from jetstream.client.blocking.facade import Facade, awaited
from jetstream.client.blocking.loop_thread import CallRelay, LoopThread, ProgressRelay
from jetstream.client.blocking.session import BlockingSession
from jetstream.client.blocking.table import BlockingTable
from jetstream.client.connection import JetstreamClient, ReadOptions, connect
from jetstream.client.consume.options import ConsumeOptions
from jetstream.client.nodes.socket_access import ReadPass, SocketTls
from jetstream.client.publish.message_table import (
    ACKS_SCHEMA,
    PIECE_WINDOWS,
    ArrowTable,
    message_batches,
    pieces_of,
    publish_piece,
)
from jetstream.client.publish.messages import PublishAck, PublishOptions
from jetstream.client.publish.publisher import TIMEOUT_S_DEFAULT, WINDOW_DEFAULT, Message, checked_window
from jetstream.client.publish.session_messages import (
    RETRY_S_DEFAULT,
    SESSION_TIMEOUT_S_DEFAULT,
    SessionAck,
    SessionOptions,
)
from jetstream.client.publish.session_publisher import SessionPublisher
from jetstream.client.read.reader import BatchReader
from jetstream.client.read.records import RECORDS_AT_ONCE, Record, records_from
from jetstream.log.format.schema import NO_RECORDS, SCHEMA
from metadata.stream_config import API_PREFIX_DEFAULT

_PIECE_BYTES: Final = 64 * MIB
"""Payload that is taken in together, or one message: bounds the memory for messages not acked yet."""

T = TypeVar("T")


@dataclass(slots=True)
class _Delivery:
    """A batch on its way from the loop's thread to the caller; the last one is empty."""

    batch: pa.RecordBatch
    next_offset: Offset | None
    epoch: LeaderEpoch | None
    is_last: bool = False
    taken: int = 0
    """Rows that the caller has."""
    records: list[Record] = field(default_factory=list)
    """Those that were made together with the one handed out last."""

    @property
    def is_used_up(self) -> bool:
        """Whether the caller has all of it."""
        return self.taken == self.batch.num_rows

    @property
    def reached(self) -> Offset | None:
        """The offset after what the caller has; None if that is nothing."""
        if self.is_used_up:
            return self.next_offset
        offsets = self.batch.column(0)
        return Offset(offsets[self.taken - 1].as_py() + 1 if self.taken else offsets[0].as_py())

    def rest(self) -> pa.RecordBatch:
        """Return the rows that the caller does not have."""
        return self.batch.slice(self.taken)


class BlockingReader:
    """Iterates over a stream: over records, or with `batches` over Arrow batches; in one thread at a time.

    It goes on where it stopped, after any interruption and with either iterator: fetched records that were
    not handed out come first. An error that ended it is raised again.

    Invariant:
        C12: ``next_offset`` is the offset after the last record handed out.
    """

    def __init__(self, thread: LoopThread, batches: BatchReader, relay: ProgressRelay | None = None) -> None:
        self._thread = thread
        self._batches = batches
        self._relay = relay
        # Handed out from its head, which is always there; the loop's thread puts in at the end.
        self._deliveries = deque([_Delivery(NO_RECORDS, None, None)])
        self._failed: JetstreamError | None = None

    @property
    def next_offset(self) -> int | None:
        """The offset after the last record handed out, to store and start from; None before the start."""
        reached = self._deliveries[0].reached
        return self._batches.start_offset if reached is None else reached

    @property
    def incarnation(self) -> str | None:
        """Which life of the stream is read: store it beside the offset, and name it to go on."""
        return self._batches.incarnation

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches cut to the exact range; raises what `BatchReader.__anext__` raises.

        The first one is what is left of a batch whose first records were handed out singly.
        """
        while self._advance():
            delivery = self._deliveries[0]
            rest = delivery.rest()
            # C12: an interrupt comes with a call or a jump, and there is none between this and the yield.
            delivery.taken = delivery.batch.num_rows
            yield rest

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """Return the next record; raises what `BatchReader.__anext__` raises, and `StopIteration`."""
        delivery = self._deliveries[0]
        row = delivery.taken % RECORDS_AT_ONCE
        if not row or delivery.is_used_up:
            if not self._advance():
                raise StopIteration
            delivery = self._deliveries[0]
            row = delivery.taken % RECORDS_AT_ONCE
            assert delivery.epoch is not None, "C12: a batch has an epoch"
            stream = self._batches.stream
            delivery.records = records_from(delivery.batch, delivery.taken, delivery.epoch, stream)
        record = delivery.records[row]
        delivery.taken += 1  # C12: no call between this and the return, as above
        return record

    def to_table(self) -> pa.Table:
        """Read to the end and return all of it as one table; see `BatchReader.to_table`."""
        if self._batches.endless:
            raise RequestError("following a stream without an end never comes to a table")
        self._thread.run(self._fetch(to_the_end=True), self._relay)
        table = pa.Table.from_batches([delivery.rest() for delivery in self._deliveries], SCHEMA)
        end = deque([self._deliveries[-1]])
        self._deliveries = end  # C12: as above
        return table

    def to_batch_reader(self) -> pa.RecordBatchReader:
        """Return a pyarrow reader that fetches as it is read: what Arrow, DuckDB and Polars stream from."""
        return pa.RecordBatchReader.from_batches(SCHEMA, self.batches())

    def _advance(self) -> bool:
        """Fetch until the batch at the head is not used up; return False at the end."""
        while (head := self._deliveries[0]).is_used_up:
            if head.is_last:
                return False
            if len(self._deliveries) == 1:
                self._thread.run(self._fetch(to_the_end=False), self._relay)
            self._deliveries.popleft()
        return True

    async def _fetch(self, *, to_the_end: bool) -> None:
        """Append the next batch, or all that are left, to the deliveries; on the loop's thread.

        A batch and its end are appended together, even if the caller was interrupted.
        """
        if self._failed is not None:
            raise self._failed
        try:
            while len(self._deliveries) == 1 or (to_the_end and not self._deliveries[-1].is_last):
                batch = await anext(self._batches, None)
                at, epoch = self._batches.next_offset, self._batches.last_epoch
                self._deliveries.append(
                    _Delivery(NO_RECORDS if batch is None else batch, at, epoch, batch is None)
                )
        except JetstreamError as error:
            self._failed = error
            raise


class BlockingClient(Facade[JetstreamClient]):
    """An application's client of a cluster, without asyncio; made by `connect_blocking`.

    Any thread may use it, several at once.
    """

    def __init__(self, thread: LoopThread, client: JetstreamClient) -> None:
        super().__init__(thread, client)
        self._consumers: weakref.WeakSet[BlockingConsumer] = weakref.WeakSet()

    @property
    def streams(self) -> BlockingStreams:
        """The streams of the cluster."""
        return BlockingStreams(self._thread, self._target.streams)

    @property
    def namespaces(self) -> BlockingNamespaces:
        """The limits of namespaces."""
        return BlockingNamespaces(self._thread, self._target.namespaces)

    @property
    def cursors(self) -> BlockingCursors:
        """Where consumers read on."""
        return BlockingCursors(self._thread, self._target.cursors)

    @property
    def groups(self) -> BlockingGroups:
        """The consumer groups of the cluster."""
        return BlockingGroups(self._thread, self._target.groups)

    publish = awaited(JetstreamClient.publish)
    publish_batch = awaited(JetstreamClient.publish_batch)
    boundary = awaited(JetstreamClient.boundary)
    stream_names = awaited(JetstreamClient.stream_names)
    ranges = awaited(JetstreamClient.ranges)
    read_pass = awaited(JetstreamClient.read_pass)

    def publish_all(
        self,
        messages: Iterable[Message],
        *,
        streams: Sequence[str] | None = None,
        window: int = WINDOW_DEFAULT,
        progress: Callable[[int], None] | None = None,
    ) -> list[PublishAck]:
        """Publish many messages, up to ``window`` outstanding; return their acks in order.

        ``messages`` are taken in the caller's thread, 16 windows or 64 MiB of payload at a time; ``progress``
        is called there with the number of messages acked so far. ``streams``: see `Publisher.publish_all`.

        Raises:
            RequestError: a window that holds no message.
            JetstreamError: the first failure; messages before and after it may be stored.
        """
        acks: list[PublishAck] = []
        acked = 0
        for some in _pieces(messages, checked_window(window) * PIECE_WINDOWS):
            acks += self._thread.run(self._target.publish_all(some, streams=streams, window=window))
            acked += len(some)
            if progress is not None:
                progress(acked)
        return acks

    def publish_session(
        self,
        messages: Iterable[Message],
        name: str | None = None,
        *,
        stream: str | None = None,
        window: int = WINDOW_DEFAULT,
        timeout_s: float = SESSION_TIMEOUT_S_DEFAULT,
        retry_s: float = RETRY_S_DEFAULT,
    ) -> list[SessionAck]:
        """Publish many messages, each of which is stored once, in order; return their acks in order.

        ``messages`` are taken in the caller's thread, as by `publish_all`. Everything else: see
        `JetstreamClient.session`. An interrupt ends it at once, with what is on its way of unknown outcome.

        Raises:
            TypeError: a value is no bytes, or an option does not exist; messages before it may be stored.
            JetstreamError: the first failure; messages after it may be stored, if it was that of one message.
        """
        acks: list[SessionAck] = []
        session = self._target.session(
            name, stream=stream, window=window, timeout_s=timeout_s, retry_s=retry_s
        )
        publisher = self._thread.run(session.__aenter__())
        try:
            for some in _pieces(messages, checked_window(window) * PIECE_WINDOWS):
                acks += self._thread.run(_publish_in_session(publisher, some))
        finally:
            with suppress(JetstreamError):  # the client is closed: that all is acked, or why not, is known
                self._thread.run(_end_session(session))
        return acks

    @contextmanager
    def session(
        self, name: str | None = None, **options: Unpack[SessionOptions]
    ) -> Iterator[BlockingSession]:
        """Publish tables in one session, each of their envelopes stored once; see `JetstreamClient.session`.

        The end of the block waits until all is stored; a block that fails leaves what is on its way, of
        unknown outcome.

        Raises:
            JetstreamError: the first failure.
        """
        block = self._target.session(name, **options)
        publisher = self._thread.run(block.__aenter__())
        try:
            session = BlockingSession(self._thread, publisher)
            yield session
            session.flush()
        finally:
            with suppress(JetstreamError):  # as in `publish_session`
                self._thread.run(_end_session(block))

    def publish_table(
        self,
        table: ArrowTable,
        *,
        streams: Sequence[str] | None = None,
        window: int = WINDOW_DEFAULT,
        progress: Callable[[int], None] | None = None,
    ) -> pa.Table:
        """Publish the rows of a table in order and return their acks; see `JetstreamClient.publish_table`.

        A stream is read in the caller's thread; ``progress`` is called there.
        """
        acks: list[pa.RecordBatch] = []
        rows = 0
        for piece in pieces_of(message_batches(table), checked_window(window)):
            acks.append(self._thread.run(_publish_piece(self._target, piece, rows, streams, window)))
            rows += piece.num_rows
            if progress is not None:
                progress(rows)
        return pa.Table.from_batches(acks, ACKS_SCHEMA)

    def read(self, stream: str, **options: Unpack[ReadOptions]) -> BlockingReader:
        """Return a reader: iterate over it for records, or over its ``batches()``; see `ReadOptions`.

        ``progress`` is called in the thread that reads.
        """
        listener = options.get("progress")
        if listener is None:
            return BlockingReader(self._thread, self._target.read_batches(stream, **options))
        relay = ProgressRelay(listener)
        options["progress"] = relay.put
        return BlockingReader(self._thread, self._target.read_batches(stream, **options), relay)

    def consume(
        self, streams: str | Sequence[str], *, group: str, **options: Unpack[ConsumeOptions]
    ) -> BlockingConsumer:
        """Return a member of a consumer group; see `JetstreamClient.consume`.

        Callbacks are called in the thread that asks for records, while it waits for one, or closes.
        """
        relay = CallRelay()
        consumer = self._target.consume(streams, group=group, **relayed_options(relay, options))
        blocking = BlockingConsumer(self._thread, consumer, relay)
        self._consumers.add(blocking)
        return blocking

    def close_consumers(self) -> None:
        """Close the consumers that are not; see `BlockingConsumer.close`."""
        for consumer in tuple(self._consumers):
            consumer.close()

    @contextmanager
    def table(self, stream: str, **options: Unpack[ReadOptions]) -> Iterator[BlockingTable]:
        """Keep the stream as a table while the block lasts; see `JetstreamClient.table`."""
        block = self._target.table(stream, **options)
        table = self._thread.run(block.__aenter__())
        try:
            yield BlockingTable(self._thread, table)
        finally:
            self._thread.run(_leave(block))


@contextmanager
def connect_blocking(
    *servers: str,
    socket: str | Sequence[str] | ReadPass | None = None,
    socket_token: str | None = None,
    socket_tls: SocketTls | None = None,
    short_circuit_reads: bool = True,
    api_prefix: str = API_PREFIX_DEFAULT,
    request_timeout: float = TIMEOUT_S_DEFAULT,
    **nats_options: object,
) -> Iterator[BlockingClient]:
    """Connect as `jetstream.connect` does, for code without an event loop; closes everything at the end.

    Calls of other threads that are under way then end with an error, and later ones with `RequestError`.

    Raises:
        ConnectionLost: no NATS server can be reached.
        InvalidConfig: ``socket_tls`` names a file that has no authorities.
        RequestError: neither servers nor a socket, or an address that is none; or servers and a pass.
    """
    thread = LoopThread()
    farewell: Coroutine[Any, Any, None] | None = None
    try:
        connection = connect(
            *servers,
            socket=socket,
            socket_token=socket_token,
            socket_tls=socket_tls,
            short_circuit_reads=short_circuit_reads,
            api_prefix=api_prefix,
            request_timeout=request_timeout,
            **nats_options,
        )
        client = BlockingClient(thread, thread.run(connection.__aenter__()))
        farewell = _leave(connection)
        try:
            yield client
        finally:
            client.close_consumers()
    finally:
        thread.close(farewell)


async def _leave(connection: AbstractAsyncContextManager[object]) -> None:
    await connection.__aexit__(None, None, None)


async def _end_session(session: AbstractAsyncContextManager[SessionPublisher]) -> None:
    """Leave a session as a block does that fails, without a wait for what is on its way."""
    left = ConnectionLost("the session was left before the ack came")
    await session.__aexit__(type(left), left, None)


async def _publish_in_session(publisher: SessionPublisher, messages: list[Message]) -> list[SessionAck]:
    futures = []
    for message in messages:
        options = message[2] if len(message) == 3 else PublishOptions()
        futures.append(await publisher.publish(message[0], message[1], **options))
    return [await future for future in futures]


def _pieces(messages: Iterable[Message], messages_max: int) -> Iterator[list[Message]]:
    """Yield the messages in order, as many at a time as fit."""
    piece: list[Message] = []
    size = 0
    for message in messages:
        piece.append(message)
        size += len(message[1] or b"")
        if len(piece) >= messages_max or size >= _PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


async def _publish_piece(
    client: JetstreamClient, piece: pa.Table, first_row: int, streams: Sequence[str] | None, window: int
) -> pa.RecordBatch:
    async with client.publisher(window) as publisher:
        return await publish_piece(publisher, piece, first_row, None, streams)
