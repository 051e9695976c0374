"""Servers that stop while peers are coming in: no connection is left behind, however far it has come."""

import asyncio
import contextlib
import gc
import socket

import pytest

from metadata.node.peers import accepting as stream_server
from metadata.node.peers.accepting import StreamServer, listeners
from tests.support.descriptors import no_more_files
from tests.support.nats_identities import TlsFiles
from tests.support.sockets import run, until
from tests.support.tls_sockets import settings

TURNS = range(8)
"""Of the loop, between a peer's coming and the end: more than any step of coming in takes."""
LIMIT = 1 << 16


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()


async def started(server: StreamServer) -> tuple[str, int]:
    (listener,) = await listeners("127.0.0.1", 0)
    server.start(listener)
    host, port = listener.getsockname()
    return host, port


def is_cut_off(peer: socket.socket) -> bool:
    peer.settimeout(10)
    try:
        return peer.recv(1) == b""
    except ConnectionError:
        return True


def test_who_comes_in_while_the_server_stops_is_cut_off(loop: str) -> None:
    async def test(turns: int) -> None:
        server = StreamServer(echo, limit=LIMIT)
        address = await started(server)
        with socket.create_connection(address) as first, socket.create_connection(address) as second:
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.stop()
            assert len(server) == 0
            assert is_cut_off(first)
            assert is_cut_off(second)

    for turns in TURNS:
        run(test(turns), loop)
    gc.collect()  # a socket that nobody closed is an error here


def test_who_never_shakes_hands_is_cut_off_in_the_end(loop: str, tls_files: TlsFiles) -> None:
    async def test() -> None:
        server = StreamServer(echo, limit=LIMIT, tls=settings(tls_files).tls)
        with socket.create_connection(await started(server)) as silent:
            await until(lambda: len(server) == 1)
            await server.stop()
            assert is_cut_off(silent)

    run(test(), loop)
    gc.collect()


def test_one_that_fails_is_told_of_and_hinders_no_other(loop: str) -> None:
    async def fail_or_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readline() == b"fail\n":
            raise ValueError("as it was told to")
        writer.write(b"well\n")
        await writer.drain()

    async def test() -> None:
        told: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        server = StreamServer(fail_or_echo, limit=LIMIT)
        address = await started(server)
        answers = []
        for word in (b"fail\n", b"try\n"):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(word)
            answers.append(await reader.read())
            writer.close()
        await server.stop()
        assert answers == [b"", b"well\n"]
        assert list(map(str, told)) == ["as it was told to"]

    run(test(), loop)


def test_a_host_of_two_addresses_is_listened_on_at_both(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        addresses = [("127.0.0.1", 0), ("192.0.2.1", 0), ("127.0.0.2", 0)]
        of_host = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

        async def resolved(*_: object, **__: object) -> list[object]:
            return list(of_host)

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        found = await listeners("two", 0)
        assert [listener.getsockname()[0] for listener in found] == ["127.0.0.1", "127.0.0.2"]
        del of_host[0], of_host[1]
        with pytest.raises(OSError, match="annot assign"):
            await listeners("none", 0)
        for listener in found:
            listener.close()

    run(test(), "asyncio")


def test_who_comes_while_no_file_can_be_opened_is_let_in_later(
    loop: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stream_server, "_NO_DESCRIPTORS_PAUSE_S", 0.01)

    async def test() -> None:
        server = StreamServer(echo, limit=LIMIT)
        address = await started(server)
        with socket.socket() as peer:
            with no_more_files():
                peer.connect(address)
                await until(lambda: "accepting paused" in caplog.text)
            await until(lambda: len(server) == 1)
            await server.stop()

    run(test(), loop)
