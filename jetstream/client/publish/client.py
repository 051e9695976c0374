"""The publishing methods of a client: messages, batches, tables, sessions."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack, overload

import pyarrow as pa
from nats.aio.client import Client as NatsClient

from envelope.errors import RequestError
from jetstream.client.nodes.background import sending
from jetstream.client.nodes.request_api import NatsRequests
from jetstream.client.publish.ack_inbox import AckFuture, AckInbox, AckOfEach, OneAck
from jetstream.client.publish.batch_envelopes import BATCH_WINDOW_DEFAULT, batch_rows, checked_ack, envelopes
from jetstream.client.publish.batch_publisher import (
    BATCH_BYTES_DEFAULT,
    LINGER_S_DEFAULT,
    BatchPublisher,
    Transmit,
)
from jetstream.client.publish.message_table import (
    ACKS_SCHEMA,
    ArrowTable,
    message_batches,
    pieces_of,
    publish_piece,
)
from jetstream.client.publish.messages import (
    PublishAck,
    PublishOptions,
    encode_options,
    header_block,
    refuse_unknown,
)
from jetstream.client.publish.publisher import TIMEOUT_S_DEFAULT, WINDOW_DEFAULT, Message, Publisher, send
from jetstream.client.publish.session_messages import PublisherSessionSettings, SessionOptions
from jetstream.client.publish.session_publisher import SessionPublisher
from jetstream.client.publish.traced import TracedPublisher, TracedSessionPublisher, carrying
from jetstream.client.tracing import TRACING


class BatchOptions(TypedDict, total=False):
    """The options of a table that is published in batch envelopes."""

    message_id: str | None
    """Its envelopes get the ids ``message_id/0``, ``/1``, …: publish an equal table again, with the same
    options and through servers of the same ``max_payload``, and nothing is stored twice, within the stream's
    dedupe window."""
    compress: bool
    """Put each into a zstd frame: less for the network, more for both ends."""
    key: bytes | str | None
    """Of all records, where the stream is partitioned by key: its partition takes the whole table. Their own
    column says the same, or null. Other streams refuse it."""
    stream: str | None
    """The stream whose acks are awaited, if several bind the subject."""
    ack: Literal["leader", "all"] | None
    """The replicas that must hold the records before they are acked; None is the stream's own policy."""
    timeout: float
    """Seconds to wait for each ack; 5 if it is not given."""
    window: int
    """Envelopes that are sent and not yet acked; 16 if it is not given."""


@dataclass(frozen=True, slots=True)
class ThroughNats:
    """The parts of a client that use its NATS connection."""

    nats: NatsClient
    requests: NatsRequests
    inbox: AckInbox


def _required(through_nats: ThroughNats | None) -> ThroughNats:
    if through_nats is None:
        raise RequestError("connected by socket alone: reading needs no NATS, everything else does")
    return through_nats


class PublishingClient:
    """The part of a client that publishes; see `JetstreamClient`."""

    def __init__(self, through_nats: ThroughNats | None) -> None:
        self._through_nats = through_nats

    @property
    def nats(self) -> NatsClient:
        """The NATS connection underneath, for everything NATS can do by itself."""
        return _required(self._through_nats).nats

    @property
    def requests(self) -> NatsRequests:
        """The request API."""
        return _required(self._through_nats).requests

    @overload
    async def publish(
        self, subject: str, value: bytes | None, *, streams: None = None, **options: Unpack[PublishOptions]
    ) -> PublishAck: ...

    @overload
    async def publish(
        self, subject: str, value: bytes | None, *, streams: Sequence[str], **options: Unpack[PublishOptions]
    ) -> list[PublishAck]: ...

    async def publish(
        self,
        subject: str,
        value: bytes | None,
        *,
        streams: Sequence[str] | None = None,
        **options: Unpack[PublishOptions],
    ) -> PublishAck | list[PublishAck]:
        """Publish one message and wait until it is stored as its stream promises.

        Args:
            subject: where; every stream that binds it stores a copy.
            value: the payload; None stores a tombstone.
            streams: wait for the acks of all these, in this order; otherwise the first ack is enough.
            options: see `PublishOptions`.

        Raises:
            DeadlinePassed: no ack in time, outcome unknown. Try again with the same ``message_id``.
            NoResponders: no stream is bound to the subject; nothing is stored.
            OffsetForgotten: a repeat in a session: it is stored, so long ago that nobody knows where.
            SequencePassed: a message of a session, too late: not stored now; nobody knows if it was before.
            JetstreamError: refused by the stream, or not sent; nothing is stored there.
        """
        tracer = TRACING.tracer
        if tracer is None:
            return await self._publish(subject, value, streams, options)
        with tracer.publishing(subject) as span:
            acks = await self._publish(subject, value, streams, carrying(span, value, options))
            span.acked(acks)
            return acks

    async def _publish(
        self, subject: str, value: bytes | None, streams: Sequence[str] | None, options: PublishOptions
    ) -> PublishAck | list[PublishAck]:
        inbox = _required(self._through_nats).inbox
        loop = asyncio.get_running_loop()
        timeout = options.get("timeout", TIMEOUT_S_DEFAULT)
        expectation = OneAck(loop, timeout) if streams is None else AckOfEach(streams, loop, timeout)
        expectation.subjects.append(subject)
        reply = inbox.address(expectation)
        inbox.expect(expectation)
        try:
            await send(self.nats, subject, value, reply + b"0", options)
            return await expectation.future
        finally:
            inbox.withdraw(expectation)

    def publisher(self, window: int = WINDOW_DEFAULT, timeout: float = TIMEOUT_S_DEFAULT) -> Publisher:
        """Return a publisher with up to ``window`` messages outstanding, for an ``async with`` block.

        ``timeout``: seconds for each ack. The end of the block waits for all acks.
        """
        tracer = TRACING.tracer
        inbox = _required(self._through_nats).inbox
        if tracer is None:
            return Publisher(self.nats, inbox, window, timeout)
        return TracedPublisher(tracer, self.nats, inbox, window, timeout)

    @asynccontextmanager
    async def session(
        self, name: str | None = None, **options: Unpack[SessionOptions]
    ) -> AsyncIterator[SessionPublisher]:
        """Publish messages each of which is stored once, in order, for an ``async with`` block.

        It numbers them, and sends again what is not acked, also to the next leader. The end of the block
        waits for all acks.

        Args:
            name: of the session; by default a unique one. Publishing the same messages again under the same
                name stores none of them twice.
            options: see `SessionOptions`.

        Raises:
            TypeError: an option does not exist.
            RequestError: a window that holds nothing.
        """
        settings = PublisherSessionSettings.of(name, options)
        inbox, tracer = _required(self._through_nats).inbox, TRACING.tracer
        publisher = (
            SessionPublisher(self.nats, inbox, settings)
            if tracer is None
            else TracedSessionPublisher(tracer, self.nats, inbox, settings)
        )
        async with sending(publisher):
            yield publisher

    async def publish_all(
        self,
        messages: Iterable[Message],
        *,
        streams: Sequence[str] | None = None,
        window: int = WINDOW_DEFAULT,
        progress: Callable[[int], None] | None = None,
    ) -> list[PublishAck]:
        """Publish many messages with up to ``window`` outstanding; see `Publisher.publish_all`."""
        async with self.publisher(window) as publisher:
            return await publisher.publish_all(messages, progress, streams)

    async def publish_table(
        self,
        table: ArrowTable,
        *,
        streams: Sequence[str] | None = None,
        window: int = WINDOW_DEFAULT,
        progress: Callable[[int], None] | None = None,
    ) -> pa.Table:
        """Publish the rows of a table in order, with up to ``window`` outstanding; return their acks.

        Args:
            table: a pyarrow Table, RecordBatch or RecordBatchReader, a polars or pandas DataFrame, or
                anything else that is an Arrow stream, with the columns of
                `jetstream.client.publish.message_table`.
                A stream is read as it is published, in another thread.
            streams: wait for the acks of all these; otherwise the first stream that acks is enough.
            window: messages that are sent and not yet acked.
            progress: called with the number of rows acked so far whenever a window full has come.

        Returns:
            A row an ack: ``stream``, ``offset``, ``epoch``, ``duplicate``; in the order of the table, and
            with ``streams`` for each row in their order.

        Raises:
            TypeError: ``table`` is no table. Nothing is published.
            RequestError: a column is missing, has the wrong type or is one too many: nothing is published.
                Or a row can be no message; its number is said, and rows before it may be stored.
            JetstreamError: the first failure; rows before and after it may be stored.
        """
        pieces = pieces_of(message_batches(table), window)
        acks: list[pa.RecordBatch] = []
        rows = 0
        async with self.publisher(window) as publisher:
            # In another thread: what the rows come from may have to wait for them.
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                acks.append(await publish_piece(publisher, piece, rows, progress, streams))
                rows += piece.num_rows
        return pa.Table.from_batches(acks, ACKS_SCHEMA)

    async def publish_batch(
        self, subject: str, table: ArrowTable, **options: Unpack[BatchOptions]
    ) -> list[PublishAck]:
        """Publish the rows of a table in order, in batch envelopes: one NATS message and one ack for many.

        Nothing is done row by row, here or in the node; each envelope is stored whole or not at all.

        Args:
            subject: of all records.
            table: anything that is an Arrow stream, with the columns of
            `jetstream.client.publish.batch_envelopes`:
                ``value``, and ``key``, ``headers`` and ``txid`` if wanted. Read in another thread.
            options: see `BatchOptions`.

        Returns:
            The acks of the envelopes, in order; ``first_offset``, ``offset`` and ``count`` say what is where.

        Raises:
            TypeError: ``table`` is no table, or an option does not exist.
            RequestError: a column is missing, has the wrong type or is one too many: nothing is published. Or
                an envelope's id is that of other records, ``detail["count"]`` of them, which are what is
                stored.
            JetstreamError: the first failure; envelopes before and after it may be stored.
        """
        refuse_unknown(options, BatchOptions.__optional_keys__)
        asked = PublishOptions(key=options.get("key"), stream=options.get("stream"), ack=options.get("ack"))
        filled = envelopes(
            batch_rows(table),
            subject,
            self.nats.max_payload - len(header_block(encode_options(b"", asked)[1])),
            compress=options.get("compress", False),
            message_id=options.get("message_id"),
        )
        sent: deque[tuple[AckFuture, int]] = deque()
        acks: list[PublishAck] = []
        window, timeout = (
            options.get("window", BATCH_WINDOW_DEFAULT),
            options.get("timeout", TIMEOUT_S_DEFAULT),
        )
        async with self.publisher(window, timeout) as publisher:
            # In another thread: what the rows come from may have to wait for them.
            while (each := await asyncio.to_thread(next, filled, None)) is not None:
                sent.append((await publisher.publish(subject, each.payload, **asked), each.records))
                while sent and sent[0][0].done():  # so that no more is sent after a failure than has to be
                    future, records = sent.popleft()
                    acks.append(checked_ack(await future, records))
            return acks + [checked_ack(await future, records) for future, records in sent]

    @asynccontextmanager
    async def batch_publisher(
        self,
        subject: str,
        *,
        transmit: Transmit = "linger",
        linger_s: float = LINGER_S_DEFAULT,
        batch_bytes: int = BATCH_BYTES_DEFAULT,
        window: int = BATCH_WINDOW_DEFAULT,
    ) -> AsyncIterator[BatchPublisher]:
        """Publish records one by one that go out in batch envelopes, for an ``async with`` block.

        The end of the block sends what waits, and waits for all acks.

        Args:
            subject: of all records.
            transmit: when an envelope is sent: ``"immediate"`` as soon as the event loop has turned,
                ``"linger"`` when it is full or ``linger_s`` after its first record, ``"bytes"`` when it is
                full or at `BatchPublisher.flush`: until then its records have no acks.
            linger_s: seconds.
            batch_bytes: what an envelope is filled with, as far as NATS carries it.
            window: envelopes that are sent and not yet acked.
        """
        async with self.publisher(window) as publisher:
            batches = BatchPublisher(publisher, subject, transmit, linger_s, batch_bytes)
            async with sending(batches):
                yield batches
