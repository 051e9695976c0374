"""Nodes with replication sessions and nothing else, over real connections; and raw ends that misbehave."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Final

from pydantic import SecretStr

from envelope.types import Incarnation, LeaderEpoch, NodeEpoch, NodeId, Offset, StreamName
from jetstream.log.reader import FileRange
from jetstream.node.peers.fetch_sessions import PeerSessionSettings
from jetstream.node.peers.sessions import ReplicaSessions
from jetstream.replica.wire import (
    Answer,
    BatchesMessage,
    FetchMessage,
    FetchRefusal,
    RefusedMessage,
    RepairAnswer,
    RepairMessage,
    WireMessage,
    WireReader,
)
from metadata.node.peers.accepting import StreamServer
from metadata.node.peers.dialling import Address, PeerIdentity
from metadata.node.peers.listening import PeerServer
from tests.support.metadata_members import WAIT_SECONDS, listening

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
LOOPBACK: Final = "127.0.0.1"
NAME, LIFE = StreamName("orders"), Incarnation("first")
MS: Final = 1_000_000
PATIENT: Final = PeerSessionSettings(leader_timeout_ns=60_000 * MS, ping_interval_ns=30_000 * MS)
"""Nobody is silent in a test, or asked whether it is there."""
HASTY: Final = PeerSessionSettings(leader_timeout_ns=300 * MS, ping_interval_ns=50 * MS)

NOWHERE: Final = Address(LOOPBACK, 1)

Fetched = Callable[[NodeId, StreamName, Incarnation, FetchMessage], None]


def fetch_from(log_end: int) -> FetchMessage:
    """A fetch that differs from others by its log end."""
    return FetchMessage(
        node_epoch=NodeEpoch(3),
        leader_epoch=LeaderEpoch(7),
        last_epoch=LeaderEpoch(6),
        log_end=Offset(log_end),
        synced_end=Offset(log_end),
        high_watermark=Offset(0),
        asks=True,
    )


def batches(base: int, count: int = 1) -> BatchesMessage:
    """An answer that differs from others by its base."""
    end = Offset(base + count)
    return BatchesMessage(
        LeaderEpoch(7),
        LeaderEpoch(6),
        Offset(base),
        end,
        high_watermark=Offset(5),
        log_start_offset=Offset(0),
        purged_end=Offset(0),
        epochs=((LeaderEpoch(7), Offset(base)),) if count else (),
    )


def with_body(answer: BatchesMessage, body: bytes | FileRange) -> BatchesMessage:
    """The answer as it is sent before ``body``."""
    return replace(answer, body_bytes=body.length if isinstance(body, FileRange) else len(body))


def refusal() -> RefusedMessage:
    """The smallest answer."""
    return RefusedMessage(LeaderEpoch(7), FetchRefusal.DEPOSED)


def fed(reader: WireReader, data: bytes) -> list[tuple[int, WireMessage]]:
    """Return the messages that are complete with ``data``, each after its handle."""
    complete: list[tuple[int, WireMessage]] = []
    reader.feed(data, lambda handle, message: complete.append((handle, message)))
    return complete


async def _served(server: PeerServer, at: socket.socket) -> None:
    async with server.listening(at):
        await asyncio.Event().wait()


class Story:
    """A `SessionHost` that keeps what it is told, and answers fetches as the test likes."""

    def __init__(self) -> None:
        self.told: list[tuple[str, NodeId]] = []
        """What became of peers, in order."""
        self.fetches: list[tuple[NodeId, StreamName, Incarnation, FetchMessage]] = []
        self.answers: list[tuple[NodeId, StreamName, Incarnation, Answer]] = []
        self.questions: list[tuple[NodeId, StreamName, Incarnation, RepairMessage]] = []
        self.repairs: list[tuple[NodeId, StreamName, Incarnation, RepairAnswer]] = []
        self.on_fetch: Fetched | None = None
        self.on_connected: Callable[[NodeId], None] | None = None
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; looked at whenever something is told."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_fetched(self, count: int) -> None:
        """Wait for that many fetches in all."""
        await self.until(lambda: len(self.fetches) == count)

    async def until_answered(self, count: int) -> None:
        """Wait for that many answers in all."""
        await self.until(lambda: len(self.answers) == count)

    async def until_told(self, *events: str, of: NodeId) -> None:
        """Wait until exactly these were told of a peer since `forget`."""
        await self.until(lambda: self.of(of) == list(events))

    def of(self, peer: NodeId) -> list[str]:
        """What was told of a peer."""
        return [event for event, whom in self.told if whom == peer]

    def forget(self) -> None:
        """Begin anew."""
        self.told.clear()
        self.fetches.clear()
        self.answers.clear()

    # --- SessionHost ------------------------------------------------------------------------------

    def fetched(
        self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: FetchMessage
    ) -> None:
        self.fetches.append((peer, name, incarnation, message))
        if self.on_fetch is not None:
            self.on_fetch(peer, name, incarnation, message)
        self._changed.set()

    def answered(self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: Answer) -> None:
        self.answers.append((peer, name, incarnation, message))
        self._changed.set()

    def repair_asked(
        self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: RepairMessage
    ) -> None:
        self.questions.append((peer, name, incarnation, message))
        self._changed.set()

    def repair_answered(
        self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: RepairAnswer
    ) -> None:
        self.repairs.append((peer, name, incarnation, message))
        self._changed.set()

    def connected(self, peer: NodeId) -> None:
        if self.on_connected is not None:
            self.on_connected(peer)
        self._tell("connected", peer)

    def disconnected(self, peer: NodeId) -> None:
        self._tell("disconnected", peer)

    def died(self, peer: NodeId) -> None:
        self._tell("died", peer)

    def silent(self, peer: NodeId) -> None:
        self._tell("silent", peer)

    def heard(self, peer: NodeId) -> None:
        self._tell("heard", peer)

    def _tell(self, event: str, peer: NodeId) -> None:
        self.told.append((event, peer))
        self._changed.set()


class SessionNode:
    """A node of which only the peer port and the sessions are real; its address stays when it is stopped."""

    def __init__(
        self,
        node_id: NodeId,
        settings: PeerSessionSettings = PATIENT,
        token: str = "s",
        executor: Executor | None = None,
        tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    ) -> None:
        """``tls`` is for being dialled and for dialling."""
        self.identity = PeerIdentity("test", node_id, SecretStr(token), *(tls or (None, None)))
        self.story = Story()
        self.socket = listening(Address(LOOPBACK, 0))
        self.address = Address(*self.socket.getsockname())
        self._settings = settings
        self._executor = executor
        self._running: list[asyncio.Task[None]] = []
        self._sessions: ReplicaSessions | None = None

    @property
    def sessions(self) -> ReplicaSessions:
        assert self._sessions is not None, "it runs"
        return self._sessions

    @property
    def task(self) -> asyncio.Task[None]:
        """What runs its sessions."""
        return self._running[1]

    def start(self, peers: dict[NodeId, Address]) -> None:
        self.socket.listen()  # a peer may dial before the task has begun
        server = PeerServer(self.identity)
        self._sessions = ReplicaSessions(self.identity, peers, self.story, self._settings, self._executor)
        self._running = [
            asyncio.create_task(_served(server, self.socket)),
            asyncio.create_task(self._sessions.run(server)),
        ]

    def listen_again(self) -> None:
        """Take the address again after `stop`."""
        self.socket = listening(self.address)

    async def stop(self) -> None:
        """End as a process does: nothing listens, and every connection is closed."""
        for task in reversed(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        self._running = []
        self.socket.close()


@contextlib.asynccontextmanager
async def connected(*nodes: SessionNode) -> AsyncIterator[None]:
    """Nodes that can all ask each other, stopped at the end."""
    addresses = {node.identity.node_id: node.address for node in nodes}
    try:
        for node in nodes:
            node.start({peer: at for peer, at in addresses.items() if peer != node.identity.node_id})
        for node in nodes:
            for peer in addresses.keys() - {node.identity.node_id}:
                await node.story.until_told("connected", of=peer)
            node.story.forget()
        yield
    finally:
        for node in nodes:
            await node.stop()


def answering(node: SessionNode, body_of: Callable[[FetchMessage], bytes | FileRange]) -> Fetched:
    """What answers a fetch with batches that begin where it ends."""

    def answer(peer: NodeId, name: StreamName, incarnation: Incarnation, fetch: FetchMessage) -> None:
        body = body_of(fetch)
        node.sessions.answer(peer, name, incarnation, with_body(batches(fetch.log_end), body), body)

    return answer


class RawEnd:
    """One end of a session, spoken by hand.

    Attributes:
        handles: of the messages that `receive` has returned, in order.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.handles: list[int] = []
        self._reader = reader
        self._messages = WireReader()
        self._ready: list[tuple[int, WireMessage]] = []

    @classmethod
    async def dial(cls, node: SessionNode, source: NodeId = A, *, early: bytes = b"") -> "RawEnd":
        """Greet ``node`` as one that follows its streams, with ``early`` before it has answered."""
        end = cls(*await asyncio.open_connection(node.address.host, node.address.port))
        greeting = {"protocol": 1, "cluster": "test", "source": source, "target": node.identity.node_id}
        line = json.dumps(greeting | {"token": "s", "purpose": "replication"}).encode() + b"\n"
        end.writer.write(line + early)
        async with asyncio.timeout(WAIT_SECONDS):
            assert await end._reader.readline() == b"{}\n"
        return end

    async def receive(self) -> WireMessage | None:
        """Return the next message, None at the connection's end."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not self._ready:
                data = b""
                with contextlib.suppress(ConnectionError):
                    data = await self._reader.read(1 << 16)
                if not data:
                    self.close()
                    return None
                self._ready += fed(self._messages, data)
        handle, message = self._ready.pop(0)
        self.handles.append(handle)
        return message

    def close(self) -> None:
        """Cut the connection."""
        self.writer.transport.abort()


class RawLeader:
    """Lets followers in and leaves the rest to the test."""

    def __init__(self) -> None:
        self.ends: asyncio.Queue[RawEnd] = asyncio.Queue()

    @contextlib.asynccontextmanager
    async def listening(self, at: socket.socket) -> AsyncIterator[None]:
        """Stand where the socket ``at`` is bound."""
        at.listen()
        server = StreamServer(self._greeted, limit=1 << 16)
        server.start(at)
        try:
            yield
        finally:
            await server.stop()

    async def _greeted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if not line:
            return  # it came while this ended
        purpose = json.loads(line)["purpose"]
        end = RawEnd(reader, writer)
        if purpose == "replication":
            writer.write(b"{}\n")
            self.ends.put_nowait(end)
        with contextlib.suppress(OSError):
            await writer.wait_closed()  # the connection is the test's
