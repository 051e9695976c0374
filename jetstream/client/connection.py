"""`connect`, and the client that it returns: streams, publish, read."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypedDict, Unpack, get_args

import pyarrow as pa

from envelope.errors import RequestError
from envelope.types import Offset
from jetstream.client.admin.cursors import Cursors, place_of
from jetstream.client.admin.group_lag import CommittedRange
from jetstream.client.admin.groups import Groups
from jetstream.client.admin.namespaces import Namespaces
from jetstream.client.admin.stream_ranges import PATIENCE_S_DEFAULT, ranges_of
from jetstream.client.admin.streams import Streams
from jetstream.client.consume.consumer import Consumer
from jetstream.client.consume.consumer_tasks import ConsumerTasks
from jetstream.client.consume.coordinator_link import GroupLinks
from jetstream.client.consume.options import ConsumeOptions, consume_settings
from jetstream.client.nodes.background import Background, background
from jetstream.client.nodes.nats_connection import close_nats, connect_nats
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.replica_choice import Locality, ReadFrom, ReadPreference
from jetstream.client.nodes.request_api import NatsRequests
from jetstream.client.nodes.socket_access import (
    AddressBook,
    FixedAddresses,
    ReadPass,
    SocketTls,
    parse_address,
    socket_access,
)
from jetstream.client.nodes.tickets import ReadRight, TicketWallet
from jetstream.client.publish.ack_inbox import AckInbox
from jetstream.client.publish.client import PublishingClient, ThroughNats
from jetstream.client.publish.messages import refuse_unknown
from jetstream.client.publish.publisher import TIMEOUT_S_DEFAULT
from jetstream.client.read.boundaries import RETRY_S_DEFAULT, ByteRange, find_boundary
from jetstream.client.read.fetch_pipeline import FetchSettings, ReaderPlace, Wanted
from jetstream.client.read.places import End, Start
from jetstream.client.read.read_progress import ReadProgressTold
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import BatchReader, ReadSettings, RecordReader
from jetstream.client.read.stored_batches import StoredPart, read_stored
from jetstream.client.read.stream_table import StreamTable, following
from jetstream.protocol.requests import Column
from metadata.api.responses import CursorInfo
from metadata.stream_config import API_PREFIX_DEFAULT


class ReadOptions(TypedDict, total=False):
    """Where a reader begins and ends, and how it fetches."""

    start: Start | CursorInfo
    """``"earliest"`` (the default), ``"latest"``, an offset (below 0: so many before the high watermark, but
    not before the log start), an aware datetime, a timedelta (below 0: so long ago), a `Txid`, or what
    `Cursors.get` has returned: where the consumer has stopped, in that life of the stream, or at first the
    earliest record."""
    end: End
    """Exclusive: ``"latest"`` is the high watermark now; an offset, an aware datetime or a timedelta, as for
    ``start``; None has no end."""
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
    batch_rows: int
    """Batches of fewer records are put together, as far as they come with one fetch; 0, the default: none."""
    retry_s: float
    """How long retriable errors are met with another attempt."""
    read_from: ReadFrom
    """``"auto"`` (the default) catches up at any replica in sync and then reads from the leader; ``"leader"``
    asks nobody else; ``"any"`` stays at any replica, and can do without a leader: what is new comes a moment
    later, and "latest" may leave out the last records."""
    node: str | None
    """The node that the reader is next to: it is asked rather than others, where several would do."""
    rack: str | None
    """The rack that the reader stands in; its nodes come next."""
    progress: ReadProgressTold | None
    """Called with a `ReadProgress` when the range is known, whenever a fetch is used up, and at the end."""


_RANGE_OPTIONS: Final = frozenset(("start", "end", "follow", "incarnation"))


class JetstreamClient(PublishingClient):
    """An application's client of a cluster; made by `connect`."""

    def __init__(
        self, links: NodeLinks, group_links: GroupLinks, through_nats: ThroughNats | None, tasks: Background
    ) -> None:
        self._links = links
        self._group_links = group_links
        super().__init__(through_nats)
        self._tasks = tasks
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()

    @property
    def streams(self) -> Streams:
        """The streams of the cluster."""
        return Streams(self.requests)

    @property
    def namespaces(self) -> Namespaces:
        """The limits of namespaces."""
        return Namespaces(self.requests)

    @property
    def cursors(self) -> Cursors:
        """Where consumers read on."""
        return Cursors(self.requests, self.publish)

    @property
    def groups(self) -> Groups:
        """The consumer groups of the cluster."""
        return Groups(self.requests, self._links)

    async def stream_names(self, of: str | None = None, *, subject: str | None = None) -> list[str]:
        """Return the names of all streams in their order, partitions one by one; this needs no NATS.

        Args:
            of: only this stream, or its partitions; for who may read that and no more.
            subject: for who may read only what is on it.

        Raises:
            Unauthorized: nodes want a ticket, and NATS does not let us ask for one.
            JetstreamError: no node can be asked.
        """
        return await self._links.stream_names(None if of is None else ReadRight(of, subject))

    async def read_pass(self, stream: str, subject: str | None = None) -> ReadPass:
        """Return what a client without NATS needs to read streams: the ``socket`` that it connects to.

        The ticket is good for half of its lifetime at least, and the grace of the nodes.

        Args:
            stream: an ordinary or a partitioned one, or a partition; ``shop/*``: all directly in ``shop/``.
            subject: only what is on it is to be read.

        Raises:
            Unauthorized: NATS does not let us ask for a ticket; it says which right is missing.
            JetstreamError: no node can be asked.
        """
        return await self._links.read_pass(ReadRight(stream, subject))

    async def ranges(
        self,
        streams: Sequence[str],
        since: Start = "earliest",
        *,
        subject: str | None = None,
        patience_s: float = PATIENCE_S_DEFAULT,
    ) -> dict[str, CommittedRange]:
        """Return the committed range of each of these streams now, as its leader reports it.

        Args:
            streams: of a partitioned one the partitions, ``orders/2``; missing ones are left out.
            since: where the ranges are to begin: as the ``start`` of a reader.
            subject: for who may read only what is on it; the ranges are those of the streams.
            patience_s: how long a stream without a leader is asked for.

        Raises:
            JetstreamError: a stream has no leader, or no node can be asked.
        """
        return await ranges_of(self._links, streams, since, patience_s, subject)

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
        preference = ReadPreference(read_from, Locality(options.get("node"), options.get("rack")))
        settings = ReadSettings(
            fetch, retry_s, options.get("progress"), preference, batch_rows=options.get("batch_rows", 0)
        )
        return BatchReader(self._links, wanted, settings)

    async def boundary(
        self,
        stream: str,
        offset: int,
        max_bytes: int,
        incarnation: str | None = None,
        *,
        subject: str | None = None,
        retry_s: float = RETRY_S_DEFAULT,
    ) -> tuple[int, int]:
        """Return up to which offset a stream's batches from ``offset`` on take at most ``max_bytes``.

        Where a range that is to be read in parts is best divided: a reader of ``[offset, answer)`` is sent no
        batch twice. Another replica may have other batches; the offset is as good there.

        Args:
            stream: an ordinary one, or a partition.
            offset: where to begin; the batch that holds it counts whole.
            max_bytes: 1 to 2^63-1, as the batches are stored. The first batch counts however long it is.
            incarnation: refuse if the stream is not this life of its name.
            subject: for who may read only what is on it; the bytes are those of the stream.
            retry_s: how long retriable errors are met with another attempt.

        Returns:
            The offset after the last of these batches, at most the high watermark, and their bytes;
            ``offset`` itself and 0 if nothing is committed there yet.

        Raises:
            RequestError: a number that cannot be.
            OffsetOutOfRange: ``offset`` is not between the log start and the log end.
            StreamRecreated: the stream has another incarnation.
            CorruptDataError: the batch at ``offset`` is damaged, at every replica.
            Unsupported: the node is of a version that cannot tell.
            JetstreamError: anything else; those that are ``retriable`` only after ``retry_s``.
        """
        wanted = ByteRange(stream, offset, max_bytes, incarnation, subject).validated()
        return await find_boundary(self._links, wanted, retry_s)

    def stored_batches(
        self, stream: str, place: ReaderPlace, end: Offset, *, retry_s: float = RETRY_S_DEFAULT
    ) -> AsyncGenerator[StoredPart, None]:
        """Yield the batches of ``[place, end)`` as they are stored, undecoded; see `read_stored`."""
        return read_stored(self._links, stream, place, end, retry_s)

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

    def consume(
        self, streams: str | Sequence[str], *, group: str, **options: Unpack[ConsumeOptions]
    ) -> Consumer:
        """Return a member of a consumer group; use it with ``async for``, in an ``async with`` block.

        The members of a group share the partitions of the streams that they want, and the group stores how
        far it is in each. The end of the block commits, and hands the partitions over.

        Args:
            streams: one or several; of a partitioned stream the name of the whole. They need not exist yet.
            group: whose member; it is there when its first member is.
            options: see `ConsumeOptions`.

        Raises:
            TypeError: an option that does not exist.
            RequestError: one that cannot be, or a name that is none (`InvalidName`).
        """
        refuse_unknown(options, ConsumeOptions.__optional_keys__)
        settings = consume_settings(streams, group, options)
        consumer = Consumer(
            lambda: ConsumerTasks(self._links, self._group_links, settings), settings, self._tasks
        )
        self._consumers.add(consumer)
        return consumer

    async def close(self) -> None:
        """Close all consumers, then all connections; what is outstanding fails."""
        await asyncio.gather(*(consumer.close() for consumer in tuple(self._consumers)))
        self._group_links.close()
        self._links.close()
        if self._through_nats is not None:
            self._through_nats.inbox.abandon()
            await close_nats(self._through_nats.nats)


@asynccontextmanager
async def connect(
    *servers: str,
    socket: str | Sequence[str] | ReadPass | None = None,
    socket_token: str | None = None,
    socket_tls: SocketTls | None = None,
    short_circuit_reads: bool = True,
    api_prefix: str = API_PREFIX_DEFAULT,
    request_timeout: float = TIMEOUT_S_DEFAULT,
    **nats_options: object,
) -> AsyncIterator[JetstreamClient]:
    """Connect to a cluster; closes everything when the block ends.

    Args:
        servers: NATS URLs, tried in turn. The nodes are found through NATS.
        socket: ``"host:port"`` of a node, or several: whom to ask for the others, instead of NATS. Without
            ``servers`` the client can only read. Or what `JetstreamClient.read_pass` has returned, perhaps in
            another process: nodes and a ticket. It is not renewed: readers end with it, by `InvalidTicket`.
        socket_token: the token that the nodes want of readers, if they do (``socket.token`` of a node).
        socket_tls: read over TLS, trusting an `ssl.SSLContext` (which may have a client certificate too), the
            authorities of a PEM file, or with True the system's. None reads without TLS.
        short_circuit_reads: read the files of a node on this machine where they lie, as far as this process
            may open them. Off, or where it may not, all records come over the socket.
        api_prefix: the cluster's subject prefix of the request API.
        request_timeout: seconds for a request, and for reaching NATS or a node.
        nats_options: passed on to `nats.connect`: credentials, ``token`` and ``tls`` of NATS, callbacks…
            A lost connection is sought without an end, or ``max_reconnect_attempts`` times.

    Raises:
        ConnectionLost: no NATS server can be reached.
        Unauthorized: NATS does not let this user in.
        InvalidConfig: ``socket_tls`` names a file that has no authorities, or an nkey is none.
        RequestError: neither servers nor a socket, or an address that is none; or servers and a pass.
    """
    ticket = None
    if isinstance(socket, ReadPass):
        if servers:
            raise RequestError("a read pass is for a client without NATS: with NATS it gets its own tickets")
        ticket = socket.ticket
        socket = socket.sockets
    if not servers and socket is None:
        raise RequestError('connect("nats://host:4222") or connect(socket="host:port")')
    access = socket_access(socket_token, socket_tls, ticket, short_circuit=short_circuit_reads)
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
    async with background() as tasks:
        wallet = None if through_nats is None else TicketWallet(through_nats.requests, tasks)
        links, to_coordinators = (NodeLinks(book, request_timeout, access, wallet) for _ in range(2))
        group_links = GroupLinks(to_coordinators, request_timeout, tasks)
        client = JetstreamClient(links, group_links, through_nats, tasks)
        try:
            if through_nats is not None:
                await through_nats.inbox.open()
            yield client
        finally:
            await client.close()
