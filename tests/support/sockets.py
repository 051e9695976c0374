"""The real socket server over real logs in a directory, without NATS; and raw peers that misbehave."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import uvloop

from envelope.errors import JetstreamError, StreamOffline, Unsupported
from envelope.limits import KIB, MIB
from envelope.types import (
    NO_OFFSET,
    Compression,
    Incarnation,
    LeaderEpoch,
    NodeId,
    Offset,
    StreamName,
    TimestampUs,
)
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.socket_access import FixedAddresses, SocketAccess
from jetstream.client.read.fetch_pipeline import FetchSettings
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import BatchReader, ReadSettings, RecordReader
from jetstream.client.read.records import Record, to_timestamp
from jetstream.fetch.catch_up_scheduler import CatchUpScheduler
from jetstream.fetch.planner import StreamView
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.format.batch import encode
from jetstream.log.format.schema import SCHEMA
from jetstream.log.log import Log, LogConfig
from jetstream.log.reader import FileRange, LogReader
from jetstream.node.readers.ports import TierAccess
from jetstream.node.readers.reader_connection import Pending, ReaderConnection
from jetstream.node.readers.responses import ServerIdentity
from jetstream.node.readers.server import SocketServer, SocketSettings
from jetstream.node.runtime.catch_up_queue import CatchUpQueue
from jetstream.node.runtime.clock import Clock, SystemClock
from jetstream.protocol.frames import PREFIX, encode_head
from jetstream.protocol.group_requests import FindCoordinator, GroupRequest
from jetstream.protocol.responses import NodeMetadata
from jetstream.tier.tiered_log import SegmentAway
from metadata.catalog.catalog import Catalog
from metadata.catalog.tables import InSyncReplica, Stream
from metadata.stream_config import StreamConfig
from tests.support.clocks import ForwardClock, StandingClock
from tests.support.pauses import pause

T = TypeVar("T")

WAIT_SECONDS = 60.0
EPOCH = LeaderEpoch(1)
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(coroutine: Coroutine[Any, Any, T], loop: str = "uvloop") -> T:
    """Run a test's coroutine to its end, which must come."""

    async def bounded() -> T:
        async with asyncio.timeout(4 * WAIT_SECONDS):
            return await coroutine

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(bounded())


_TURNS: Final = 100


async def until(condition: Callable[[], bool]) -> None:
    """Give the loop turns until ``condition`` holds; with pauses, once it has not for many turns."""
    async with asyncio.timeout(WAIT_SECONDS):
        for _ in range(_TURNS):
            if condition():
                return
            await asyncio.sleep(0)
        while not condition():
            await pause()


@asynccontextmanager
async def asked(reader: RecordReader) -> AsyncIterator[Callable[[], Awaitable[Record]]]:
    """Have ``reader`` wait for its next record meanwhile; the block calls what it gets for the outcome."""

    async def next_or_error() -> Record | JetstreamError:
        try:
            return await anext(reader)
        except JetstreamError as error:
            return error

    async with asyncio.TaskGroup() as group:
        task = group.create_task(next_or_error())

        async def outcome() -> Record:
            found = await task
            if isinstance(found, JetstreamError):
                raise found
            return found

        yield outcome


def records_batch(
    base: int, values: Sequence[bytes | None], timestamp: int = 1_000_000, *, headers: bool = True
) -> pa.RecordBatch:
    """Records of the log's schema: one microsecond apart, subject ``s.<offset>``, perhaps a header ``n``."""
    count = len(values)
    offsets = range(base, base + count)
    columns: list[list[Any]] = [
        list(offsets),
        [timestamp + number for number in range(count)],
        [f"s.{offset}" for offset in offsets],
        [b"k%d" % (offset % 3) for offset in offsets],
        [[{"key": "n", "value": b"%d" % offset}] if headers else None for offset in offsets],
        list(offsets),
        list(values),
    ]
    arrays = [pa.array(column, SCHEMA.field(number).type) for number, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class LiveStream:
    """A stream that is appended to by the test and served by the real server."""

    def __init__(self, name: str, disk: OsDisk, config: LogConfig | None = None) -> None:
        self.name = StreamName(name)
        self.incarnation = "first"
        self.leader_epoch = EPOCH
        self.leads = True
        self.has_committed_own_epoch = True
        self.has_headers = True
        self.log = Log.open(disk, name, config or LogConfig(), TimestampUs(0))
        self.reign(EPOCH)
        self.high_watermark = self.log.writer.synced_end
        self.watchers: set[Callable[[Offset], None]] = set()

    @property
    def readable(self) -> LogReader:
        """Its log holds everything."""
        return self.log.reader

    def view(self) -> StreamView[FileRange]:
        """See `ReadableStream.view`."""
        return StreamView(
            Incarnation(self.incarnation), self.high_watermark, self.readable, self.leader_epoch, self.leads
        )

    @property
    def tiered(self) -> TierAccess:
        """Of a stream without a tier, whose txids nobody has set."""
        return self

    def search_start(self, txid: int, log: LogReader) -> Offset:
        return NO_OFFSET

    def bring_in(self, away: SegmentAway) -> "asyncio.Task[None]":
        raise AssertionError("it has no tier")

    def is_moving(self, away: SegmentAway) -> bool:
        raise AssertionError("it has no tier")

    def subscribe(self, callback: Callable[[Offset], None]) -> Callable[[], None]:
        self.watchers.add(callback)
        return lambda: self.watchers.discard(callback)

    def confirm_leadership(self) -> asyncio.Future[None]:
        """See `ReadableStream.confirm_leadership`: nobody else can lead it."""
        confirmed = asyncio.get_running_loop().create_future()
        confirmed.set_result(None)
        return confirmed

    def reign(self, epoch: int) -> None:
        """Begin a leader epoch, unless it is the present one."""
        self.leader_epoch = LeaderEpoch(epoch)
        if self.log.reader.last_epoch < epoch:
            self.log.writer.begin_epoch(self.leader_epoch, TimestampUs(0))

    def append(self, values: Sequence[bytes | None], moment: datetime | None = None) -> None:
        """Append one batch, not yet committed; offset N at second N + 1 if at no other moment."""
        base = self.log.log_end_offset
        timestamp = 1_000_000 * (base + 1) if moment is None else to_timestamp(moment)
        records = records_batch(base, values, timestamp, headers=self.has_headers)
        batch = encode(records, base, self.leader_epoch, Compression.NONE)
        self.log.writer.append_group((batch,), TimestampUs(timestamp))

    def commit(self) -> None:
        """Sync and move the high watermark."""
        self.log.writer.sync()
        self.high_watermark = self.log.writer.synced_end
        for watcher in tuple(self.watchers):
            watcher(self.high_watermark)

    def add(self, *batches: Sequence[bytes | None]) -> None:
        """Append batches and commit them."""
        for values in batches:
            self.append(values)
        self.commit()


def damage(path: Path, position: int) -> None:
    """Flip a bit of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0x10]))


def row_of(name: str, incarnation: str, leader: str | None, epoch: int, *holders: str) -> Stream:
    """The catalogue's row of a stream that these nodes have, all in sync."""
    return Stream(
        config=StreamConfig(name=name, subject=name),
        incarnation=Incarnation(incarnation),
        created=TimestampUs(0),
        replicas=tuple(NodeId(node) for node in holders),
        leader=None if leader is None else NodeId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=tuple(InSyncReplica(NodeId(node), f"directory of {node}") for node in holders),
        isr_version=1,
    )


class NoGroups:
    """Of a server that coordinates no consumer groups."""

    def answer(self, pending: Pending, request: FindCoordinator | GroupRequest) -> None:
        del pending, request
        raise Unsupported("this server coordinates no consumer groups")

    def forget(self, connection: ReaderConnection) -> None:
        del connection


@dataclass
class LiveDirectory:
    """The streams of one test."""

    catch_up_queue: CatchUpQueue
    streams: dict[str, LiveStream] = field(default_factory=dict)
    node: str = "n1"
    rows: dict[str, Stream] = field(default_factory=dict)
    """The catalogue's row of a stream, where it is not "only here"."""
    known: list[NodeMetadata] | None = None
    """The nodes; by default this one, at an address where nobody is."""

    catalog: Catalog = field(default_factory=Catalog)
    """For rights; it knows none of the streams."""
    offline: dict[str, int] = field(default_factory=dict)
    """How many more times a stream is said to be offline."""

    def stream(self, name: str) -> LiveStream | None:
        if self.offline.get(name):
            self.offline[name] -= 1
            raise StreamOffline(f"{name} is being recovered")
        return self.streams.get(name)

    def row(self, name: str) -> Stream | None:
        if name in self.rows:
            return self.rows[name]
        stream = self.streams.get(name)
        if stream is None:
            return None
        return row_of(name, stream.incarnation, self.node, stream.leader_epoch, self.node)

    def names(self) -> Sequence[str]:
        return sorted(self.streams)

    def nodes(self) -> Sequence[NodeMetadata]:
        return self.known or [NodeMetadata(id=self.node, host="127.0.0.1", port=1)]


class World:
    """A server with its streams, and readers of it."""

    def __init__(self, root: Path, server: SocketServer, directory: LiveDirectory) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.server = server
        self.directory = directory
        self.disk = OsDisk(root)
        self.port = 0
        self._links: list[NodeLinks] = []

    def stream(self, name: str, config: LogConfig | None = None) -> LiveStream:
        """Create (or open again) a stream and serve it."""
        self.directory.streams[name] = LiveStream(name, self.disk, config)
        return self.directory.streams[name]

    def links(self, port: int | None = None, access: SocketAccess | None = None) -> NodeLinks:
        """A client's connection to the server, or to what stands before it on ``port``."""
        book = FixedAddresses([("127.0.0.1", port or self.port)])
        self._links.append(NodeLinks(book, WAIT_SECONDS, access))
        return self._links[-1]

    def batches(
        self,
        wanted: ReadRange,
        links: NodeLinks | None = None,
        max_bytes: int = MIB,
        prefetch_bytes: int = 8 * MIB,
    ) -> BatchReader:
        """A reader on a connection of its own, unless it is given one."""
        fetch = FetchSettings(max_bytes, prefetch_bytes, max_wait_ms=30_000)
        return BatchReader(links or self.links(), wanted, ReadSettings(fetch))

    def records(
        self,
        wanted: ReadRange,
        links: NodeLinks | None = None,
        max_bytes: int = MIB,
        prefetch_bytes: int = 8 * MIB,
    ) -> RecordReader:
        """The same, of single records."""
        return RecordReader(self.batches(wanted, links, max_bytes, prefetch_bytes))

    async def peer(self) -> "RawPeer":
        """A peer that has said hello."""
        peer = RawPeer(self.port)
        await peer.ask(op="hello", id=0, protocol=1)
        return peer

    def narrow(self, kept: int = 32 * KIB) -> None:
        """Have the kernel take little on connections from now on, so that what is sent waits with us."""
        (acceptor,) = self.server._port._acceptors
        acceptor._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, kept)

    async def cut_off(self, clock: ForwardClock, count: int) -> None:
        """Put the clock forward until so many peers that take nothing are cut off.

        The kernel may have room for a last crumb of what they are sent: then they have two more minutes.
        """
        async with asyncio.timeout(WAIT_SECONDS):
            while self.server.counters.connections_overdue < count:
                clock.put_forward(121)
                for connection in tuple(self.server._port._connections):
                    connection.check()  # as the server does every second
                await pause()

    def close(self) -> None:
        for links in self._links:
            links.close()
        for stream in self.directory.streams.values():
            stream.log.close(clean=False)
        self.disk.close()


@asynccontextmanager
async def serving(
    root: Path,
    settings: SocketSettings | None = None,
    node: str = "n1",
    machine: str | None = None,
    turns: CatchUpScheduler | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[World]:
    """The server on a free port, with two threads for the disk; stopped, it has given every lease back.

    It tells of files if ``machine`` is where it says that it is.
    """
    clock = clock or SystemClock()
    queue = CatchUpQueue(turns or CatchUpScheduler(), clock, asyncio.get_running_loop())
    directory = LiveDirectory(queue, node=node)
    with ThreadPoolExecutor(2) as executor:
        identity = ServerIdentity(node, "0", machine)
        server = SocketServer(
            directory=directory,
            identity=identity,
            executor=executor,
            clock=clock,
            groups=NoGroups(),
            settings=settings,
        )
        world = World(root, server, directory)
        _, world.port = await server.start("127.0.0.1", 0)
        try:
            yield world
        finally:
            await server.stop()
            segments = [
                segment for found in directory.streams.values() for segment in found.log.reader.segments
            ]
            world.close()
    await asyncio.sleep(0)  # what the threads have done is told to the loop
    assert [segment.base for segment in segments if segment._leases] == [], "N2, N5: leases are left"


@asynccontextmanager
async def standing(directory: Path) -> AsyncIterator[World]:
    """A server whose clock stands still, with a stream of one record."""
    async with serving(directory, clock=StandingClock()) as world:
        world.stream("s").add([b"a"])
        yield world


class RawPeer:
    """A blocking-free socket that sends whatever it is told."""

    def __init__(self, port: int, receive_buffer: int | None = None, host: str = "127.0.0.1") -> None:
        """``host``: where the socket comes from; all of 127.0.0.0/8 is this machine."""
        self.socket = socket.socket()
        self.socket.bind((host, 0))
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        self.socket.setblocking(False)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def request(self, **fields: object) -> None:
        await self.send(encode_head(json.dumps(fields).encode()))

    async def receive(self, length: int) -> bytes:
        """Return exactly ``length`` bytes, or fewer at the end of the connection."""
        data = bytearray()
        async with asyncio.timeout(WAIT_SECONDS):
            while len(data) < length:
                part = await asyncio.get_running_loop().sock_recv(self.socket, min(length - len(data), MIB))
                if not part:
                    break
                data += part
        return bytes(data)

    def widen(self) -> None:
        """Take what comes as fast as it comes from now on."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * MIB)

    async def raw_response(self) -> tuple[bytes, bytes]:
        """Return the next frame: its head and its body."""
        prefix = await self.receive(PREFIX.size)
        header_length, body_length = PREFIX.unpack(prefix)
        return prefix + await self.receive(header_length), await self.receive(body_length)

    async def response(self) -> tuple[dict[str, Any], bytes]:
        """Return header and body of the next frame."""
        head, body = await self.raw_response()
        header: dict[str, Any] = json.loads(head[PREFIX.size :])
        return header, body

    async def ask(self, **fields: object) -> dict[str, Any]:
        await self.request(**fields)
        return (await self.response())[0]

    async def ended(self) -> bool:
        """Read away what is left; return True once the server has closed."""
        try:
            while await self.receive(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()
