"""The socket over TLS: everything that holds without it, and who is let in."""

import asyncio
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from envelope.errors import CorruptDataError
from envelope.limits import KIB, MIB, REQUESTS_IN_FLIGHT_MAX
from envelope.types import Offset
from jetstream.client.nodes.socket_access import SocketAccess
from jetstream.client.read.fetch_pipeline import Wanted
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import BatchReader
from jetstream.protocol.frames import encode_head
from jetstream.protocol.liveness import Patience
from tests.support.clocks import ForwardClock
from tests.support.nats_identities import TlsFiles
from tests.support.page_cache import empty_page_cache
from tests.support.sockets import RawPeer, World, asked, run, serving, until
from tests.support.tls_sockets import TlsPeer, context, settings, tls_peer

MILLISECOND = 1_000_000
HELLO = encode_head(b'{"op":"hello","id":0,"protocol":1}')


def reader(world: World, access: SocketAccess, wanted: ReadRange | None = None) -> BatchReader:
    return world.batches(wanted or ReadRange("s"), world.links(access=access), max_bytes=300_000)


async def values(batches: BatchReader) -> list[bytes | None]:
    return [value for batch in [part async for part in batches] for value in batch["value"].to_pylist()]


# --- reading ------------------------------------------------------------------------------------------


def test_a_range_is_read_exactly_over_tls(tmp_path: Path, tls_files: TlsFiles, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            stream = world.stream("s")
            stored = [[os.urandom(700) for _ in range(100)] for _ in range(50)]
            stream.add(*stored)
            flat = [value for batch in stored for value in batch]
            access = SocketAccess(tls=context(tls_files))
            assert await values(reader(world, access)) == flat
            edges = ReadRange("s", start=1_234, end=4_321)
            assert await values(reader(world, access, edges)) == flat[1_234:4_321]
            assert await values(reader(world, access, ReadRange("s", wanted=Wanted(key="k1")))) == flat[1::3]

    run(test(), loop)


def test_what_is_not_in_the_page_cache_is_read_on_a_thread_over_tls_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls_files: TlsFiles, loop: str
) -> None:
    empty_page_cache(monkeypatch)

    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            stream = world.stream("s")
            stream.add(*([os.urandom(1000)] * 1000 for _ in range(4)))
            assert len(await values(reader(world, SocketAccess(tls=context(tls_files))))) == 4000
            assert world.server.counters.ranges_warmed > 0

    run(test(), loop)


def test_a_batch_larger_than_any_chunk_arrives_whole_over_tls(
    tmp_path: Path, tls_files: TlsFiles, loop: str
) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            stored = [os.urandom(3 * MIB), b"", os.urandom(64 * KIB), os.urandom(5 * MIB)]
            world.stream("s").add(stored[:3], stored[3:])
            assert await values(reader(world, SocketAccess(tls=context(tls_files)))) == stored

    run(test(), loop)


def test_a_following_reader_is_woken_over_tls(tmp_path: Path, tls_files: TlsFiles, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            stream = world.stream("s")
            links = world.links(access=SocketAccess(tls=context(tls_files)))
            follower = world.records(ReadRange("s", follow=True), links)
            for number in range(10):
                async with asked(follower) as waiting:
                    await until(lambda: world.server.parked == 1)
                    stream.add([b"%d" % number])
                    assert (await waiting()).value == b"%d" % number

    run(test(), loop)


def test_damage_is_found_by_the_client_over_tls(tmp_path: Path, tls_files: TlsFiles) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            stream = world.stream("s")
            stream.add([b"x" * 1000] * 3)
            path = tmp_path / "data" / stream.log.reader.locate(Offset(0)).segment.path
            with path.open("r+b") as file:
                file.seek(-500, os.SEEK_END)
                file.write(b"y")
            with pytest.raises(CorruptDataError):
                await values(reader(world, SocketAccess(tls=context(tls_files))))

    run(test())


def test_a_file_cut_underneath_closes_the_connection_over_tls(tmp_path: Path, tls_files: TlsFiles) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            stream = world.stream("s")
            stream.add([os.urandom(7 * MIB)], [os.urandom(7 * MIB)])
            peer = await tls_peer(world, tls_files, receive_buffer=4096)
            await peer.request(op="fetch", id=1, stream="s", offset=0, max_bytes=64 * MIB)
            await until(lambda: world.server.counters.bytes_sent > 100_000)
            os.truncate(tmp_path / "data" / stream.log.reader.locate(Offset(0)).segment.path, 8 * MIB)
            assert await peer.ended()
            await until(lambda: world.server.connections == 0)
            peer.close()

    run(test())


def test_a_reader_over_tls_survives_a_server_that_restarts(
    tmp_path: Path, tls_files: TlsFiles, loop: str
) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            stream = world.stream("s")
            stream.add([b"a"])
            links = world.links(access=SocketAccess(tls=context(tls_files)))
            follower = world.records(ReadRange("s", follow=True), links)
            assert (await anext(follower)).offset == 0
            async with asked(follower) as waiting:
                await until(lambda: world.server.parked == 1)
                await world.server.stop()
                assert world.server.connections == world.server.parked == 0
                await world.server.start("127.0.0.1", world.port)
                stream.add([b"b"])
                assert (await waiting()).value == b"b"

    run(test(), loop)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def test_a_reader_over_tls_that_stops_reading_holds_little_memory(
    tmp_path: Path, tls_files: TlsFiles, loop: str
) -> None:
    async def test() -> None:
        clock = ForwardClock()
        async with serving(tmp_path / "data", settings(tls_files), clock=clock) as world:
            stream = world.stream("s")
            stream.add(*([os.urandom(1000)] * 1000 for _ in range(40)))
            world.narrow()
            stalled = [await tls_peer(world, tls_files, receive_buffer=4096) for _ in range(10)]
            connections = [connection._line for connection in world.server._port._connections]
            before = resident_bytes()
            for peer in stalled:
                for number in range(1, REQUESTS_IN_FLIGHT_MAX):
                    await peer.request(
                        op="fetch", id=number, stream="s", offset=0, max_bytes=64 * MIB, max_wait_ms=1000
                    )
            await until(lambda: all(line.unsent for line in connections))
            assert max(line.unsent for line in connections) < 70 * KIB
            assert len(await values(reader(world, SocketAccess(tls=context(tls_files))))) == 40_000
            assert max(line.unsent for line in connections) < 70 * KIB
            assert resident_bytes() - before < 150 * MIB  # most of it is what the one reader has read
            await world.cut_off(clock, 10)
            assert world.server.connections == 1
            assert world.server.counters.connections_overdue == 10
            for peer in stalled:
                peer.close()

    run(test(), loop)


def test_a_reader_over_tls_that_went_to_sleep_gets_all_of_it_later(
    tmp_path: Path, tls_files: TlsFiles
) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            stream = world.stream("s")
            stream.add(*([os.urandom(1000)] * 1000 for _ in range(20)))
            expected = stream.log.reader.read(Offset(0), 64 * MIB, stream.high_watermark)
            world.narrow()
            peer = await tls_peer(world, tls_files, receive_buffer=64 * KIB)
            for number in (1, 2):
                await peer.request(op="fetch", id=number, stream="s", offset=0, max_bytes=64 * MIB)
            (line,) = [connection._line for connection in world.server._port._connections]
            await until(lambda: line.unsent > 0)
            peer.widen()
            for number in (1, 2):
                header, body = await peer.response()
                assert (header["id"], body) == (number, expected)
            assert line.unsent == 0
            peer.close()

    run(test())


def test_the_end_of_an_answer_that_found_the_socket_full_follows_when_there_is_room(
    tmp_path: Path, tls_files: TlsFiles, loop: str
) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            stream = world.stream("s")
            stream.add([os.urandom(20_000)])
            expected = stream.log.reader.read(Offset(0), MIB, stream.high_watermark)
            world.narrow()
            peer = await tls_peer(world, tls_files, receive_buffer=4096)
            (connection,) = world.server._port._connections
            asked_for = 0
            while not connection._line.unsent:
                asked_for += 1
                await peer.request(op="fetch", id=asked_for, stream="s", offset=0)
                await until(lambda: world.server.counters.requests == asked_for + 1)  # noqa: B023 - awaited here
                assert not connection._output.items
            peer.widen()
            for number in range(1, asked_for + 1):
                header, body = await peer.response()
                assert (header["id"], body) == (number, expected)
            peer.close()

    run(test(), loop)


def test_the_reader_on_the_protocol_page_reads_over_tls_with_its_two_lines(
    tmp_path: Path, tls_files: TlsFiles
) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    (whole,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (lines,) = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    plain = "connection = socket.create_connection((host, port))\n"
    assert plain in whole
    source = "import ssl\n" + whole.replace(plain, lines.replace("ca.pem", str(tls_files.ca)))

    async def test() -> str:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            world.stream("s").add([b"a", b"b"])
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                source,
                "127.0.0.1",
                str(world.port),
                "s",
                stdout=asyncio.subprocess.PIPE,
            )
            printed, _ = await process.communicate()
            assert process.returncode == 0
            return printed.decode()

    assert run(test()) == "0 s.0 b'a'\n1 s.1 b'b'\n"


# --- handshakes ---------------------------------------------------------------------------------------


def test_a_handshake_that_drips_is_understood(tmp_path: Path, tls_files: TlsFiles, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            peer = TlsPeer(world.port, context(tls_files))
            await peer.shake_hands(piece=1)
            assert (await peer.ask(op="hello", id=0, protocol=1))["protocol"] == 1
            peer.close()

    run(test(), loop)


def test_a_certificate_with_a_chain_that_fills_the_socket_is_shown_whole(
    tmp_path: Path, tls_files: TlsFiles, loop: str
) -> None:
    async def test() -> None:
        chain = tmp_path / "chain.pem"
        chain.write_bytes(tls_files.server_certificate.read_bytes() + tls_files.ca.read_bytes() * 120)
        long = replace(tls_files, server_certificate=chain)
        async with serving(tmp_path / "data", settings(long)) as world:
            world.narrow(4 * KIB)
            peer = TlsPeer(world.port, context(tls_files), receive_buffer=4096)
            await RawPeer.send(peer, peer.client_hello())
            await until(
                lambda: any(connection._line.unsent for connection in world.server._port._connections)
            )
            await peer.shake_hands()
            assert (await peer.ask(op="hello", id=0, protocol=1))["protocol"] == 1
            peer.close()

    run(test(), loop)


def test_requests_that_come_in_one_piece_are_all_answered(tmp_path: Path, tls_files: TlsFiles) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            peer = TlsPeer(world.port, context(tls_files))
            await peer.shake_hands()
            requests = (encode_head(b'{"op":"metadata","id":%d}' % number) for number in range(1, 200))
            await peer.send(HELLO + b"".join(requests))
            assert [(await peer.response())[0]["id"] for _ in range(200)] == list(range(200))
            peer.close()

    run(test())


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_a_handshake_that_stops_is_bounded_and_holds_up_nobody(
    tmp_path: Path, tls_files: TlsFiles, begun: bytes
) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            world.stream("s").add([b"a"])
            peer = RawPeer(world.port)
            await peer.send(begun)
            assert await values(reader(world, SocketAccess(tls=context(tls_files)))) == [b"a"]
            peer.close()
        patience = Patience(hello_ns=20 * MILLISECOND)
        async with serving(tmp_path / "more", settings(tls_files, patience=patience)) as world:
            peer = RawPeer(world.port)
            await peer.send(begun)
            assert await peer.ended()
            assert world.server.counters.connections_overdue == 1
            peer.close()

    run(test())


def test_a_handshake_without_a_hello_after_it_is_bounded(tmp_path: Path, tls_files: TlsFiles) -> None:
    async def test() -> None:
        patience = Patience(hello_ns=300 * MILLISECOND)
        async with serving(tmp_path / "data", settings(tls_files, patience=patience)) as world:
            peer = TlsPeer(world.port, context(tls_files))
            await peer.shake_hands()
            assert await peer.receive(1) == b""
            assert world.server.counters.connections_overdue == 1
            peer.close()

    run(test())


def test_a_server_that_closes_says_so_over_tls(tmp_path: Path, tls_files: TlsFiles) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            peer = await tls_peer(world, tls_files)
            await world.server.stop()
            assert await peer.receive(1) == b""
            assert not peer.was_cut
            peer.close()

    run(test())
