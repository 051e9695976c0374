"""`connect`, and what it gives: streams, publish, read."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal, TypedDict, Unpack, get_args, overload

import pyarrow as pa
from nats.aio.client import Client as NatsClient

from envelope.errors import RequestError
from jetstream.client.ack_inbox import AckFuture, AckInbox, AckOfEach, OneAck
from jetstream.client.background import sending
from jetstream.client.batch_envelopes import batch_rows, checked_ack, envelopes
from jetstream.client.batch_publisher import (
    BATCH_BYTES_DEFAULT,
    LINGER_S_DEFAULT,
    BatchPublisher,
    Transmit,
)
from jetstream.client.cursors import Cursors, place_of
from jetstream.client.fetch_pipeline import FetchSettings, Wanted
from jetstream.client.groups import Groups
from jetstream.client.message_table import (
    ACKS_SCHEMA,
    ArrowTable,
    message_batches,
    pieces_of,
    publish_piece,
)
from jetstream.client.nats_connection import connect_nats
from jetstream.client.node_links import AddressBook, FixedAddresses, NodeLinks, parse_address
from jetstream.client.publisher import TIMEOUT_S_DEFAULT, WINDOW_DEFAULT, Message, Publisher, send
from jetstream.client.publishing import (
    PublishAck,
    PublishOptions,
    encode_options,
    header_block_bytes,
    refuse_unknown,
)
from jetstream.client.read_progress import ReadProgressTold
from jetstream.client.read_range import End, ReadRange, Start
from jetstream.client.reader import BatchReader, ReadSettings, RecordReader
from jetstream.client.replica_choice import ReadFrom
from jetstream.client.session_publisher import (
    RETRY_S_DEFAULT,
    SESSION_TIMEOUT_S_DEFAULT,
    SessionPublisher,
    SessionSettings,
)
from jetstream.client.socket_access import SocketTls, socket_access
from jetstream.client.stream_table import StreamTable, following
from jetstream.client.streams import NatsRequests, Streams
from jetstream.protocol.requests import Column
from metadata.api.responses import CursorInfo
from metadata.stream_config import API_PREFIX_DEFAULT


class ReadOptions(TypedDict, total=False):
    """Where a reader begins and ends, and how it fetches."""

    start: Start | CursorInfo
    """``"earliest"`` (the default), ``"latest"``, an offset, an aware datetime, or what `Cursors.get` has
    returned: where the consumer has stopped, in that life of the stream, or at first the earliest record."""
    end: End
    """Exclusive: ``"latest"`` is the high watermark now; an offset or an aware datetime; None has no end."""
    follow: bool
    """Wait for what is not there yet. If False (the default), stop at the high watermark of the beginning."""
    incarnation: str | None
    """Refuse if the stream is not this life of its name; see `RecordReader.incarnation`."""
    subject: str
    """Only records whose subject matches this NATS pattern; chosen by the node."""
    key: str
    """Only records with this key; chosen by the node."""
    columns: Sequence[Column]
    """Of ``key``, ``headers``, ``txid`` and ``value`` only these; the node sends null for the others."""
    max_bytes: int
    """Of one fetch."""
    prefetch_bytes: int
    """Fetched ahead of the application."""
    retry_s: float
    """How long retriable errors are met with another attempt."""
    read_from: ReadFrom
    """``"auto"`` (the default) catches up at any replica in sync and then reads from the leader; ``"leader"``
    asks nobody else; ``"any"`` stays at any replica, and can do without a leader: what is new comes a moment
    later, and "latest" may leave out the last records."""
    progress: ReadProgressTold | None
    """Called with a `ReadProgress` when the range is known, whenever a fetch is used up, and at the end."""


class BatchOptions(TypedDict, total=False):
    """What a table that is published in batch envelopes can ask for."""

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
    """Who must hold the records before they are acked; None is the stream's own policy."""
    timeout: float
    """Seconds to wait for each ack; 5 if it is not given."""
    window: int
    """Envelopes that are sent and not yet acked; 16 if it is not given."""


BATCH_WINDOW_DEFAULT: Final = 16

_RANGE_OPTIONS: Final = frozenset(("start", "end", "follow", "incarnation"))


@dataclass(frozen=True, slots=True)
class ThroughNats:
    """What needs a NATS connection."""

    nats: NatsClient
    requests: NatsRequests
    inbox: AckInbox


def _required(through_nats: ThroughNats | None) -> ThroughNats:
    if through_nats is None:
        raise RequestError("connected by socket alone: reading needs no NATS, everything else does")
    return through_nats


class JetstreamClient:
    """One application's way to the streams; made by `connect`."""

    def __init__(self, links: NodeLinks, through_nats: ThroughNats | None) -> None:
        self._links = links
        self._through_nats = through_nats

    @property
    def nats(self) -> NatsClient:
        """The NATS connection underneath, for everything NATS can do by itself."""
        return _required(self._through_nats).nats

    @property
    def requests(self) -> NatsRequests:
        """The request API."""
        return _required(self._through_nats).requests

    @property
    def streams(self) -> Streams:
        """The streams of the cluster."""
        return Streams(self.requests)

    @property
    def cursors(self) -> Cursors:
        """Where consumers read on."""
        return Cursors(self.requests, self.publish)

    @property
    def groups(self) -> Groups:
        """The consumer groups of the cluster."""
        return Groups(self.requests, self._links)

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
        inbox = _required(self._through_nats).inbox
        loop = asyncio.get_running_loop()
        expectation = OneAck(loop) if streams is None else AckOfEach(streams, loop)
        reply = inbox.expect(expectation, options.get("timeout", TIMEOUT_S_DEFAULT))
        try:
            await send(self.nats, subject, value, reply, options)
            return await expectation.future
        finally:
            inbox.withdraw(expectation)

    def publisher(self, window: int = WINDOW_DEFAULT, timeout: float = TIMEOUT_S_DEFAULT) -> Publisher:
        """Return a publisher with up to ``window`` messages outstanding, for an ``async with`` block.

        ``timeout``: seconds for each ack. The end of the block waits for all acks.
        """
        return Publisher(self.nats, _required(self._through_nats).inbox, window, timeout)

    @asynccontextmanager
    async def session(
        self,
        name: str | None = None,
        *,
        stream: str | None = None,
        window: int = WINDOW_DEFAULT,
        timeout_s: float = SESSION_TIMEOUT_S_DEFAULT,
        retry_s: float = RETRY_S_DEFAULT,
    ) -> AsyncIterator[SessionPublisher]:
        """Publish messages each of which is stored once, in order, for an ``async with`` block.

        It numbers them, and sends again what is not acked, also to the next leader. The end of the block
        waits for all acks.

        Args:
            name: of the session; by default one that nobody else has. Who runs again with the same messages
                under the same name stores none of them twice.
            stream: that answers, if several bind the subjects.
            window: messages that are not acked.
            timeout_s: for an ack, before all unacked is sent again; up to 16 times that while acks are slow.
            retry_s: seconds without any progress, before the session is given up.
        """
        given = {} if name is None else {"name": name}
        settings = SessionSettings(
            **given, stream=stream, window=window, timeout_s=timeout_s, retry_s=retry_s
        )
        publisher = SessionPublisher(self.nats, _required(self._through_nats).inbox, settings)
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
                anything else that is an Arrow stream, with the columns of `jetstream.client.message_table`.
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
            table: anything that is an Arrow stream, with the columns of `jetstream.client.batch_envelopes`:
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
            self.nats.max_payload - header_block_bytes(encode_options(b"", asked)[1]),
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

    async def read_table(self, stream: str, **options: Unpack[ReadOptions]) -> pa.Table:
        """Read a range into memory as one Arrow table; see `BatchReader.to_table`."""
        return await self.read_batches(stream, **options).to_table()

    def read(self, stream: str, **options: Unpack[ReadOptions]) -> RecordReader:
        """Return a reader of single records; see `ReadOptions`. Use it with ``async for``."""
        return RecordReader(self.read_batches(stream, **options))

    def read_batches(self, stream: str, **options: Unpack[ReadOptions]) -> BatchReader:
        """Return a reader of Arrow batches, cut to the exact range; see `ReadOptions`.

        Raises:
            TypeError: an option that does not exist.
            RequestError: one that cannot be.
        """
        refuse_unknown(options, ReadOptions.__optional_keys__)
        columns = options.get("columns")
        start, incarnation = place_of(options.get("start", "earliest"), options.get("incarnation"))
        wanted = ReadRange(
            stream,
            start=start,
            end=options.get("end"),
            follow=options.get("follow", False),
            incarnation=incarnation,
            wanted=Wanted(
                options.get("subject"), options.get("key"), tuple(columns) if columns is not None else None
            ),
        )
        defaults = FetchSettings()
        fetch = FetchSettings(
            max_bytes=options.get("max_bytes", defaults.max_bytes),
            prefetch_bytes=options.get("prefetch_bytes", defaults.prefetch_bytes),
        )
        read_from = options.get("read_from", "auto")
        if read_from not in get_args(ReadFrom):
            raise RequestError(f"read_from: {read_from!r}: there are {', '.join(get_args(ReadFrom))}")
        retry_s = options.get("retry_s", ReadSettings().retry_s)
        settings = ReadSettings(fetch, retry_s, options.get("progress"), read_from)
        return BatchReader(self._links, wanted, settings)

    def table(self, stream: str, **options: Unpack[ReadOptions]) -> AbstractAsyncContextManager[StreamTable]:
        """Return the stream as a table for an ``async with`` block: the last record of each key.

        It is kept up to date, and all of it is in memory. The block begins when it has all that is committed.

        Args:
            stream: its keys are those of the records; records without one are left out.
            options: all of `ReadOptions` but ``start``, ``end``, ``follow`` and ``incarnation``.

        Raises:
            TypeError: an option that does not exist here.
            JetstreamError: the stream cannot be read.
        """
        refuse_unknown(options, ReadOptions.__optional_keys__ - _RANGE_OPTIONS)

        def open_reader(start: Start, *, follow: bool, incarnation: str | None) -> BatchReader:
            wanted = options.copy()
            wanted["start"], wanted["follow"], wanted["incarnation"] = start, follow, incarnation
            return self.read_batches(stream, **wanted)

        return following(StreamTable(open_reader))

    async def close(self) -> None:
        """Close all connections; what is outstanding fails."""
        self._links.close()
        if self._through_nats is not None:
            self._through_nats.inbox.abandon()
            await self._through_nats.nats.close()


@asynccontextmanager
async def connect(
    *servers: str,
    socket: str | Sequence[str] | None = None,
    socket_token: str | None = None,
    socket_tls: SocketTls | None = None,
    api_prefix: str = API_PREFIX_DEFAULT,
    request_timeout: float = TIMEOUT_S_DEFAULT,
    **nats_options: object,
) -> AsyncIterator[JetstreamClient]:
    """Connect to a cluster; closes everything when the block ends.

    Args:
        servers: NATS URLs, tried in turn. The nodes are found through NATS.
        socket: ``"host:port"`` of a node, or several: whom to ask for the others, instead of NATS. Without
            ``servers`` the client can only read.
        socket_token: the token that the nodes want of readers, if they do (``socket.token`` of a node).
        socket_tls: read over TLS, trusting an `ssl.SSLContext` (which may have a client certificate too), the
            authorities of a PEM file, or with True the system's. None reads without TLS.
        api_prefix: the cluster's subject prefix of the request API.
        request_timeout: seconds for a request, and for reaching NATS or a node.
        nats_options: passed on to `nats.connect`: credentials, ``token`` and ``tls`` of NATS, callbacks…
            A lost connection is sought without an end, or ``max_reconnect_attempts`` times.

    Raises:
        ConnectionLost: no NATS server can be reached.
        InvalidConfig: ``socket_tls`` names a file that has no authorities, or an nkey is none.
        RequestError: neither servers nor a socket, or an address that is none.
    """
    if not servers and socket is None:
        raise RequestError('connect("nats://host:4222") or connect(socket="host:port")')
    access = socket_access(socket_token, socket_tls)
    texts = [socket] if isinstance(socket, str) else socket
    book: AddressBook | None = (
        None if texts is None else FixedAddresses([parse_address(text) for text in texts])
    )
    through_nats: ThroughNats | None = None
    if servers:
        nats_client = await connect_nats(servers, nats_options, request_timeout)
        requests = NatsRequests(nats_client, api_prefix, request_timeout)
        through_nats = ThroughNats(nats_client, requests, AckInbox(nats_client))
        book = book or requests
    assert book is not None, "there are servers or a socket"
    client = JetstreamClient(NodeLinks(book, request_timeout, access), through_nats)
    try:
        if through_nats is not None:
            await through_nats.inbox.open()
        yield client
    finally:
        await client.close()
