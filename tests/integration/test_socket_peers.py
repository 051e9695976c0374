"""Connections that break and peers that misbehave: nobody else is harmed, no record comes twice or not."""

import asyncio
import os
import random
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from envelope.limits import CONNECTIONS_MAX, KIB, MIB, REQUESTS_IN_FLIGHT_MAX
from envelope.types import Offset
from jetstream.client.nodes.socket_access import SocketAccess
from jetstream.client.nodes.socket_link import SocketLink
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import RecordReader
from jetstream.log.log import LogConfig
from jetstream.node.readers.server import SocketSettings
from jetstream.protocol.liveness import Patience
from jetstream.protocol.requests import Fetch
from metadata.node.peers.accepting import StreamServer, listeners
from tests.support.clocks import ForwardClock
from tests.support.sockets import WAIT_SECONDS, RawPeer, World, asked, run, serving, until

MILLISECOND = 1_000_000


async def offsets(reader: RecordReader) -> list[int]:
    return [record.offset async for record in reader]


def moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


# --- connections that break ---------------------------------------------------------------------------


class Cutter:
    """Stands between client and server and cuts the connection after some bytes towards the client."""

    def __init__(self, target: int, cuts: list[int]) -> None:
        self._target = target
        self._cuts = cuts
        self.connections = 0

    async def start(self) -> int:
        self._server = StreamServer(self._serve, limit=1 << 16)
        (listener,) = await listeners("127.0.0.1", 0)
        self._server.start(listener)
        port: int = listener.getsockname()[1]
        return port

    async def stop(self) -> None:
        await self._server.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        allowed = self._cuts.pop(0) if self._cuts else 1 << 40
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, up_writer, 1 << 40))
                group.create_task(self._pump(up_reader, writer, allowed))
        except* (ConnectionError, EOFError):
            pass
        finally:
            writer.transport.abort()
            up_writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, allowed: int) -> None:
        while allowed:
            data = await source.read(min(1 << 16, allowed))
            if not data:
                raise EOFError
            allowed -= len(data)
            target.write(data)
            await target.drain()
        raise EOFError


def test_a_connection_cut_anywhere_resumes_at_the_exact_offset(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.add(*([b"%d" % number * 500] * 7 for number in range(60)))
            chance = random.Random(7)
            cuts = [chance.randrange(1, 120_000) for _ in range(25)]
            cutter = Cutter(world.port, cuts)
            links = world.links(await cutter.start())
            reader = world.records(ReadRange("s"), links, max_bytes=20_000, prefetch_bytes=60_000)
            assert await offsets(reader) == list(range(420))
            assert cutter.connections > 3
            links.close()
            await cutter.stop()

    run(test(), loop)


def test_a_body_larger_than_what_the_kernel_takes_arrives(tmp_path: Path, loop: str) -> None:
    """A receiver that is woken for a body as a whole must not wait for more than fits."""

    async def test() -> None:
        async with serving(tmp_path) as world:
            world.stream("s").add(*([bytes(MIB)] for _ in range(8)))
            link = await SocketLink.open("127.0.0.1", world.port, WAIT_SECONDS, SocketAccess())
            assert link._wake_up is not None
            connected = link._wake_up._socket
            assert connected is not None, "the tests run on a kernel that can"
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * KIB)
            answer = await link.ask(Fetch(id=link.next_id(), stream="s", offset=0, max_bytes=8 * MIB))
            assert len(answer.body) > 7 * MIB
            link.close()

    run(test(), loop)


def test_a_following_reader_survives_a_server_that_restarts(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "first") as world:
            stream = world.stream("s")
            stream.add([b"a"])
            reader = world.records(ReadRange("s", follow=True))
            assert (await anext(reader)).offset == 0
            async with asked(reader) as waiting:
                await until(lambda: world.server.parked == 1)
                await world.server.stop()
                assert world.server.connections == world.server.parked == 0
                await world.server.start("127.0.0.1", world.port)
                await until(lambda: world.server.parked == 1)
                stream.add([b"b"])
                assert (await waiting()).value == b"b"

    run(test())


def test_a_segment_deleted_while_its_body_is_in_flight_still_arrives_whole(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s", LogConfig(segment_bytes=24 * MIB))
            stream.add(*([os.urandom(MIB)] * 4 for _ in range(5)))
            stream.add(*([os.urandom(MIB)] * 4 for _ in range(3)))
            assert len(stream.log.reader.segments) == 2
            expected = stream.log.reader.read(stream.log.log_start_offset, 64 * MIB, stream.high_watermark)
            peer = RawPeer(world.port, receive_buffer=64 * KIB)
            await peer.ask(op="hello", id=0, protocol=1)
            await peer.request(op="fetch", id=1, stream="s", offset=0, max_bytes=64 * MIB)
            await until(lambda: world.server.counters.bytes_sent > 100_000)
            path = tmp_path / "data" / stream.log.reader.locate(stream.log.log_start_offset).segment.path
            stream.log.truncate_before(stream.high_watermark, stream.high_watermark)
            assert not path.exists()
            peer.widen()
            _, body = await peer.response()
            assert body == expected
            peer.close()
            await until(lambda: world.server.connections == 0)
            assert not any(str(path) in target for target in open_files())

    run(test(), loop)


def open_files() -> list[str]:
    """What this process's descriptors point to."""
    targets = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            targets.append(os.readlink(entry))
        except FileNotFoundError:
            continue
    return targets


def test_a_file_cut_underneath_closes_the_connection(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.add([os.urandom(7 * MIB)], [os.urandom(7 * MIB)])
            peer = RawPeer(world.port, receive_buffer=4096)
            await peer.ask(op="hello", id=0, protocol=1)
            await peer.request(op="fetch", id=1, stream="s", offset=0, max_bytes=64 * MIB)
            await until(lambda: world.server.counters.bytes_sent > 100_000)
            os.truncate(tmp_path / "data" / stream.log.reader.locate(Offset(0)).segment.path, 8 * MIB)
            assert await peer.ended()
            await until(lambda: world.server.connections == 0)
            peer.close()

    run(test())


# --- peers that misbehave ------------------------------------------------------------------------------


def test_bytes_that_drip_are_understood(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            world.stream("s").add([b"a"])
            peer = RawPeer(world.port)
            for byte in b'\x22\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00{"op":"hello","id":0,"protocol":1}':
                await peer.send(bytes([byte]))
                await asyncio.sleep(0)
            assert (await peer.response())[0]["protocol"] == 1
            peer.close()

    run(test(), loop)


async def read_quietly(world: World, rounds: int) -> None:
    for _ in range(rounds):
        assert await offsets(world.records(ReadRange("s"))) == list(range(40))


def test_garbage_harms_nobody_else(tmp_path: Path, loop: str) -> None:
    """300 connections of garbage, some after a good hello, while another reader goes on."""

    async def garbage(world: World, chance: random.Random) -> None:
        for number in range(60):
            peer = await world.peer() if number % 2 else RawPeer(world.port)
            data = chance.randbytes(chance.randrange(1, 300))
            if number % 3 == 0:
                header = chance.randbytes(chance.randrange(1, 60))
                data = len(header).to_bytes(4, "little") + bytes(8) + header
            await peer.send(data)
            if number % 5 == 0:
                peer.socket.shutdown(1)
                assert await peer.ended()
            peer.close()

    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            world.stream("s").add(*([b"v"] * 10 for _ in range(4)))
            async with asyncio.TaskGroup() as group:
                group.create_task(read_quietly(world, 30))
                for seed in range(5):
                    group.create_task(garbage(world, random.Random(seed)))
            assert world.server.counters.protocol_errors > 50
            await read_quietly(world, 1)

    run(test(), loop)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 12,
        b"\xff" * 12,
        (70_000).to_bytes(4, "little") + bytes(8),
        (2).to_bytes(4, "little") + (1).to_bytes(8, "little") + b"{}",
        (5).to_bytes(4, "little") + bytes(8) + b"nope!",
        (33).to_bytes(4, "little") + bytes(8) + b'{"op":"fetch","id":1,"offset":00}',
    ],
)
def test_a_peer_that_breaks_the_protocol_is_told_and_closed(tmp_path: Path, data: bytes) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            for peer in (RawPeer(world.port), await world.peer()):
                await peer.send(data)
                header, _ = await peer.response()
                assert header["id"] is None
                assert header["error"]["err_code"] == "protocol_error"
                assert await peer.receive(1) == b""
                peer.close()
            await until(lambda: world.server.connections == 0)

    run(test())


@pytest.mark.parametrize(
    ("patience", "data"),
    [
        (Patience(hello_ns=20 * MILLISECOND), None),
        (Patience(idle_ns=20 * MILLISECOND), b""),
        (Patience(frame_ns=20 * MILLISECOND), b"\x22\x00\x00"),
    ],
)
def test_a_peer_that_takes_too_long_is_closed(tmp_path: Path, patience: Patience, data: bytes | None) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", SocketSettings(patience=patience)) as world:
            peer = RawPeer(world.port) if data is None else await world.peer()
            await peer.send(data or b"")
            assert await peer.ended()
            assert world.server.counters.connections_overdue == 1
            peer.close()

    run(test())


def test_a_waiting_reader_is_not_idle(tmp_path: Path) -> None:
    async def test() -> None:
        patience = Patience(idle_ns=20 * MILLISECOND)
        async with serving(tmp_path / "data", SocketSettings(patience=patience)) as world:
            world.stream("s")
            idle, waiting = await world.peer(), await world.peer()
            await waiting.request(op="fetch", id=1, stream="s", offset=0, max_wait_ms=30_000)
            assert await idle.ended()
            assert (world.server.connections, world.server.parked) == (1, 1)
            idle.close()
            waiting.close()

    run(test())


def test_a_reader_that_stops_reading_holds_only_itself(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        clock = ForwardClock()
        async with serving(tmp_path / "data", clock=clock) as world:
            stream = world.stream("s")
            stream.add(*([os.urandom(1000)] * 1000 for _ in range(40)))
            stalled = [RawPeer(world.port, receive_buffer=4096) for _ in range(10)]
            before = resident_bytes()
            for peer in stalled:
                await peer.ask(op="hello", id=0, protocol=1)
                for number in range(1, REQUESTS_IN_FLIGHT_MAX):
                    await peer.request(
                        op="fetch", id=number, stream="s", offset=0, max_bytes=64 * MIB, max_wait_ms=1000
                    )
            assert len([batch async for batch in world.batches(ReadRange("s"))]) == 40
            assert resident_bytes() - before < 150 * MIB  # the one reader's own prefetch included
            # They are closed when their patience is over, and give their segment back.
            await world.cut_off(clock, 10)
            assert world.server.connections == 1
            assert world.server.counters.connections_overdue == 10
            for peer in stalled:
                peer.close()

    run(test(), loop)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def test_a_peer_that_floods_without_reading_is_bounded(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            world.stream("s").add([b"a"])
            world.narrow()
            peer = RawPeer(world.port, receive_buffer=4096)
            await peer.ask(op="hello", id=0, protocol=1)
            before = resident_bytes()

            async def flood() -> None:
                number = 0
                while True:
                    number += 1
                    await peer.request(op="metadata", id=number)

            async with asyncio.TaskGroup() as group:
                task = group.create_task(flood())
                sent = -1
                # The flood is over when the server stops reading it: no byte more goes out, turn after turn.
                while sent != world.server.counters.requests:
                    sent = world.server.counters.requests
                    for _ in range(200):
                        await asyncio.sleep(0)
                assert resident_bytes() - before < 50 * MIB
                assert await offsets(world.records(ReadRange("s"))) == [0]
                task.cancel()
                peer.close()

    run(test())


def test_more_connections_than_allowed_are_turned_away_politely(tmp_path: Path) -> None:
    async def test() -> None:
        assert SocketSettings().connections_max == CONNECTIONS_MAX
        async with serving(tmp_path / "data", SocketSettings(connections_max=2)) as world:
            first, second = await world.peer(), await world.peer()
            third = RawPeer(world.port)
            header, _ = await third.response()
            assert (header["id"], header["error"]["err_code"]) == (None, "overloaded")
            assert header["error"]["retriable"]
            first.close()
            await until(lambda: world.server.connections == 1)
            fourth = await world.peer()
            for peer in (second, third, fourth):
                peer.close()

    run(test())


def test_stopping_answers_who_waits_and_closes_everybody(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            peers = [await world.peer() for _ in range(5)]
            for peer in peers:
                await peer.request(op="fetch", id=1, stream="s", offset=0, max_wait_ms=60_000)
            await until(lambda: world.server.parked == 5)
            await world.server.stop()
            for peer in peers:
                assert (await peer.response())[0]["records"] == 0
                assert await peer.receive(1) == b""
                peer.close()
            assert not stream.watchers
            with pytest.raises(ConnectionRefusedError):
                RawPeer(world.port)

    run(test(), loop)
