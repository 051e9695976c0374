"""The connections between voters: who is let in, what arrives, and what is told of those that break."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import SecretStr

from envelope.errors import UnsupportedFeatureLevel
from envelope.types import LogIndex, NodeId, Term
from metadata.features import LATEST_LEVEL
from metadata.node.peers import dialling as peers
from metadata.node.peers.accepting import StreamServer
from metadata.node.peers.dialling import Address, PeerIdentity
from metadata.node.peers.listening import PeerServer
from metadata.node.peers.voter_links import PeerNetwork
from metadata.raft.messages.voter_messages import Heartbeat, SnapshotRequest
from metadata.raft.messages.wire import Sent, encode
from metadata.raft.state import Snapshot
from tests.support.metadata_members import WAIT_SECONDS, listening
from tests.support.sockets import run, until

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
GREETING: dict[str, Any] = {
    "protocol": 1,
    "cluster": "test",
    "source": "a",
    "target": "b",
    "token": "s",
    "purpose": "metadata",
    "feature_level": LATEST_LEVEL,
}


class Ears:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[Sent] = []
        self.broken: list[tuple[NodeId, bool]] = []
        self._told = asyncio.Event()

    def received(self, message: Sent) -> None:
        self.heard.append(message)
        self._told.set()

    def disconnected(self, peer: NodeId, *, refused: bool) -> None:
        self.broken.append((peer, refused))
        self._told.set()

    async def until(self, heard: int = 0, broken: int = 0) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.heard) < heard or len(self.broken) < broken:
                self._told.clear()
                await self._told.wait()


class End:
    """One voter's network."""

    def __init__(self, node_id: NodeId, token: str | None = "s") -> None:
        self.identity = PeerIdentity("test", node_id, SecretStr(token) if token is not None else None)
        self.ears = Ears()
        self.socket = listening(Address("127.0.0.1", 0))
        self.address = Address(*self.socket.getsockname())
        self.server = PeerServer(self.identity)
        self.network = PeerNetwork(self.identity, self.server)
        self.task: asyncio.Task[None] | None = None

    def start(self, peers: dict[NodeId, Address]) -> None:
        self.socket.listen()  # a test may dial before the task has begun
        self.network.follow(peers)
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.server.listening(self.socket):
            await self.network.run(self.ears)

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        self.socket.close()


@contextlib.asynccontextmanager
async def two(token_of_b: str = "s") -> AsyncIterator[tuple[End, End]]:
    a, b = End(A), End(B, token_of_b)
    a.start({B: b.address})
    b.start({A: a.address})
    try:
        yield a, b
    finally:
        await a.stop()
        await b.stop()


def beat(number: int) -> Heartbeat:
    return Heartbeat(A, B, Term(1), LogIndex(0), number)


async def said(a: End, b: End, first: int) -> None:
    """Have ``a`` say something until ``b`` has heard it: what leaves before there is a connection is lost."""
    number = first
    async with asyncio.timeout(WAIT_SECONDS):
        while not any(isinstance(message, Heartbeat) and message.round >= first for message in b.ears.heard):
            a.network.send(beat(number))
            number += 1
            await asyncio.sleep(0)


def test_a_peer_that_starts_is_dialled_when_it_dials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_REDIAL_SECONDS_MIN", 100 * WAIT_SECONDS)
    monkeypatch.setattr(peers, "_REDIAL_SECONDS_MAX", 100 * WAIT_SECONDS)

    async def test() -> None:
        a, b = End(A), End(B)
        a.start({B: b.address})
        try:
            await until(lambda: B in a.server.callers._waited_for)
            b.start({A: a.address})
            await said(a, b, 1)
        finally:
            await a.stop()
            await b.stop()

    run(test())


def test_a_peer_that_lets_us_in_and_hangs_up_is_not_dialled_sooner_when_it_dials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two that do so to each other would dial in a circle."""
    monkeypatch.setattr(peers, "_REDIAL_SECONDS_MIN", 100 * WAIT_SECONDS)

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"{}\n")
        with contextlib.suppress(OSError):
            await writer.drain()

    async def test() -> None:
        a, b = End(A), End(B)
        b.socket.listen()
        server = StreamServer(hang_up, limit=1 << 16)
        server.start(b.socket)
        a.start({B: b.address})
        try:
            await a.ears.until(broken=1)
            assert a.ears.broken == [(B, False)]
            assert B not in a.server.callers._waited_for
        finally:
            await a.stop()
            await server.stop()

    run(test())


def test_messages_arrive_in_order_and_each_once() -> None:
    async def test() -> None:
        async with two() as (a, b):
            await said(a, b, 1)
            before = a.network.dropped
            sent = [beat(number) for number in range(100_000, 100_500)]
            for message in sent:
                a.network.send(message)
            large = SnapshotRequest(A, B, Term(1), Snapshot(LogIndex(1), Term(1), bytes(10_000_000)))
            a.network.send(large)
            async with asyncio.timeout(WAIT_SECONDS):
                while large not in b.ears.heard:
                    await b.ears.until(heard=len(b.ears.heard) + 1)
            assert b.ears.heard[-501:] == [*sent, large]
            assert a.network.dropped == before

    run(test())


def test_the_end_of_a_peer_is_told_at_once_and_that_nothing_listens_there_any_more() -> None:
    async def test() -> None:
        async with two() as (a, b):
            await said(a, b, 1)
            await b.stop()
            await a.ears.until(broken=2)
            assert a.ears.broken == [(B, False), (B, True)]
            b.socket = listening(b.address)
            b.start({A: a.address})
            await said(a, b, 1_000_000)

    run(test())


def test_a_peer_that_does_not_read_costs_little_memory() -> None:
    async def test() -> None:
        a = End(A)
        deaf = listening(Address("127.0.0.1", 0))
        deaf.listen()
        deaf.setblocking(False)
        loop = asyncio.get_running_loop()
        a.start({B: Address(*deaf.getsockname())})
        try:
            connection, _ = await loop.sock_accept(deaf)
            assert json.loads(await loop.sock_recv(connection, 4096)) == GREETING
            await loop.sock_sendall(connection, b"{}\n")
            large = SnapshotRequest(A, B, Term(1), Snapshot(LogIndex(1), Term(1), bytes(1 << 20)))
            await until(lambda: B in a.network._outlets)
            before = a.network.dropped
            for _ in range(100):
                a.network.send(large)
            assert a.network.dropped - before > 80
            connection.close()
        finally:
            await a.stop()
            deaf.close()

    run(test())


async def greeted(end: End, line: bytes) -> bytes:
    """Return what a connection that begins so gets back."""
    reader, writer = await asyncio.open_connection(end.address.host, end.address.port)
    async with asyncio.timeout(WAIT_SECONDS):
        writer.write(line)
        try:
            return await reader.readline()
        except OSError:
            return b""
        finally:
            writer.transport.abort()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"token": "wrong"}, "the token is not right"),
        ({"token": None}, "the token is not right"),
        ({"token": "wrong", "cluster": "other"}, "the token is not right"),
        ({"protocol": 2}, "protocol 2 is not 1"),
        ({"cluster": "other"}, "this is cluster test, not other"),
        ({"target": "c"}, "this is b, not c"),
    ],
)
def test_who_is_not_a_voter_of_this_cluster_is_told_why_and_not_heard(
    change: dict[str, Any], problem: str
) -> None:
    async def test() -> None:
        b = End(B)
        b.start({A: Address("127.0.0.1", 1)})
        try:
            line = json.dumps(GREETING | change).encode() + b"\n" + encode(beat(1))
            assert json.loads(await greeted(b, line)) == {"error": problem}
            assert b.ears.heard == []
        finally:
            await b.stop()

    run(test())


def test_a_node_that_can_less_than_the_cluster_is_turned_away_and_stops() -> None:
    """A node from before there were levels is told so, too, and comes again in vain."""

    async def test() -> None:
        a, b = End(A), End(B)
        b.start({A: a.address})
        b.server.cluster_level = lambda: LATEST_LEVEL + 1
        a.start({B: b.address})
        try:
            assert a.task is not None
            with pytest.RaisesGroup(
                pytest.RaisesExc(
                    UnsupportedFeatureLevel, match=f"b: this node can feature level {LATEST_LEVEL}"
                )
            ):
                await asyncio.wait_for(a.task, WAIT_SECONDS)
            of_before = {key: value for key, value in GREETING.items() if key != "feature_level"}
            answer = json.loads(await greeted(b, json.dumps(of_before).encode() + b"\n" + encode(beat(1))))
            assert "can feature level 0, and the cluster is at" in answer["error"]
            assert b.ears.heard == []
        finally:
            await b.stop()
            a.socket.close()

    run(test())


def test_a_purpose_is_served_while_somebody_serves_it_and_told_to_come_again_otherwise() -> None:
    async def test() -> None:
        b = End(B)
        b.start({A: Address("127.0.0.1", 1)})
        came: list[NodeId] = []

        async def talk(source: NodeId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.append(source)

        try:
            line = json.dumps(GREETING | {"purpose": "other"}).encode() + b"\n"
            later = {"error": "other is not served here now", "later": True}
            assert json.loads(await greeted(b, line)) == later
            with b.server.serve("other", talk, lambda source: None):
                assert json.loads(await greeted(b, line)) == {}
                assert json.loads(await greeted(b, line.replace(b'"s"', b'"wrong"'))) != {}
            assert json.loads(await greeted(b, line)) == later
            assert came == [A]
            assert b.ears.heard == []
        finally:
            await b.stop()

    run(test())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"source": "b"}, "b is no other voter of this cluster, as far as is known here"),
        ({"source": "c"}, "c is no other voter of this cluster, as far as is known here"),
        ({"target": "b@another disk"}, "this is b, not b@another disk"),
    ],
)
def test_who_may_become_a_member_is_asked_to_come_later(change: dict[str, Any], problem: str) -> None:
    async def test() -> None:
        b = End(B)
        b.start({A: Address("127.0.0.1", 1)})
        try:
            line = json.dumps(GREETING | change).encode() + b"\n" + encode(beat(1))
            assert json.loads(await greeted(b, line)) == {"error": problem, "later": True}
            assert b.ears.heard == []
        finally:
            await b.stop()

    run(test())


def test_a_greeting_without_a_purpose_is_one_for_messages() -> None:
    async def test() -> None:
        b = End(B)
        b.start({A: Address("127.0.0.1", 1)})
        try:
            line = {key: value for key, value in GREETING.items() if key != "purpose"}
            assert await greeted(b, json.dumps(line).encode() + b"\n" + encode(beat(1))) == b"{}\n"
            await b.ears.until(heard=1)
            assert b.ears.heard == [beat(1)]
        finally:
            await b.stop()

    run(test())


@pytest.mark.parametrize(
    "line", [b"\n", b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"protocol":"1"}\n', b"x" * 100_000, b"\xff\n"]
)
def test_what_is_no_greeting_is_closed_and_others_are_heard(line: bytes) -> None:
    async def test() -> None:
        async with two() as (a, b):
            assert await greeted(b, line) == b""
            await said(a, b, 1)

    run(test())


@pytest.mark.parametrize(
    "answer", [b"", b"x" * 100_000, b"HTTP/1.1 400 Bad Request\r\n\r\n", b"[]\n", b"\xff\n"]
)
def test_whatever_answers_a_dial_is_dialled_again_until_it_is_the_voter(answer: bytes) -> None:
    async def test() -> None:
        a, b = End(A), End(B)
        dialled = asyncio.Event()

        async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(answer)
            dialled.set()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

        b.socket.listen()
        server = StreamServer(stranger, limit=1 << 16)
        server.start(b.socket)
        a.start({B: b.address})
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await dialled.wait()
            await server.stop()
            b.socket = listening(b.address)
            b.start({A: a.address})
            await said(a, b, 1)
        finally:
            await a.stop()
            await b.stop()

    run(test())


def test_a_damaged_message_closes_its_connection_and_no_other() -> None:
    async def test() -> None:
        async with two() as (a, b):
            await said(a, b, 1)
            damaged = bytearray(encode(beat(7)))
            damaged[-1] ^= 1
            with socket.create_connection((b.address.host, b.address.port)) as raw:
                raw.setblocking(False)
                loop = asyncio.get_running_loop()
                line = json.dumps(GREETING).encode() + b"\n"
                await loop.sock_sendall(raw, line + encode(beat(2_000_000)) + bytes(damaged))
                async with asyncio.timeout(WAIT_SECONDS):
                    with contextlib.suppress(ConnectionResetError):
                        while await loop.sock_recv(raw, 4096):
                            pass
            assert beat(2_000_000) in b.ears.heard
            assert beat(7) not in b.ears.heard[1:]
            await said(a, b, 3_000_000)

    run(test())


def test_a_token_that_is_not_right_keeps_voters_apart(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with two(token_of_b="other") as (a, b):
            await until(lambda: "refuses us: the token is not right" in caplog.text)
            a.network.send(beat(1))
            assert b.ears.heard == []
            assert a.network.dropped == 1

    run(test())


def test_what_is_sent_on_a_connection_that_was_cut_a_moment_ago_is_dropped() -> None:
    async def scenario() -> None:
        async with two() as (a, b):
            await said(a, b, 0)
            before = a.network.dropped
            a.network._outlets._writers[B].transport.abort()
            a.network.send(beat(1))  # nobody has heard yet that the connection is gone
            assert a.network.dropped == before + 1

    run(scenario())
