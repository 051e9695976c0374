"""Peers of the HTTP port that ask and never read."""

import asyncio
import contextlib
import select
import socket
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from envelope.limits import MIB
from jetstream.node.http import server as http_server
from jetstream.node.http.page import Page
from jetstream.node.http.server import Pages
from jetstream.protocol.liveness import Patience
from tests.support.http_servers import serving_pages
from tests.support.sockets import run, until

PEERS: Final = 20
PAGE: Final = Page(HTTPStatus.OK, "text/plain", bytes(16 * MIB))
"""More than the kernel takes in for a peer that does not read."""


async def large() -> Page:
    return PAGE


PAGES: Final = Pages(every={"/page": large})


def open_sockets() -> int:
    descriptors = Path("/proc/self/fd")
    names = []
    for descriptor in descriptors.iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that the listing itself had open
            names.append(str(descriptor.readlink()))
    return sum(name.startswith("socket:") for name in names)


def peers_that_never_read(stack: ExitStack, address: tuple[str, int]) -> list[socket.socket]:
    """Connect peers that ask for the page."""
    peers = [stack.enter_context(socket.create_connection(address)) for _ in range(PEERS)]
    for peer in peers:
        peer.sendall(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
    return peers


def is_answered(peer: socket.socket) -> bool:
    return bool(select.select([peer], [], [], 0)[0])


def test_peers_that_never_read_are_cut_off_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving_pages(PAGES) as (server, address):
            before = open_sockets()
            with ExitStack() as stack:
                peers = peers_that_never_read(stack, address)
                await until(lambda: all(map(is_answered, peers)))
                await until(lambda: open_sockets() == before + PEERS)
            assert server.counters.connections_overdue == PEERS

    monkeypatch.setattr(http_server, "PATIENCE", Patience(stalled_ns=500_000_000))
    run(scenario())


def test_peers_that_never_read_count_until_they_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving_pages(PAGES) as (server, address):
            with ExitStack() as stack:
                peers = peers_that_never_read(stack, address)
                await until(lambda: all(map(is_answered, peers)))
                reader, writer = await asyncio.open_connection(*address)
                assert (await reader.read()).startswith(b"HTTP/1.1 503 "), "one too many"
                writer.close()
                assert server.door.refused == 1

    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", PEERS)
    run(scenario())


def test_a_peer_that_never_ends_its_request_is_cut_off_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving_pages(PAGES) as (server, address):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /page HTTP/1.1\r\nHost: ")
            assert await reader.read() == b""
            writer.close()
            assert server.counters.connections_overdue == 1

    monkeypatch.setattr(http_server, "PATIENCE", Patience(hello_ns=200_000_000))
    run(scenario())


def test_peers_that_ask_nothing_give_place_to_who_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving_pages(PAGES) as (server, address):
            with ExitStack() as stack:
                silent = [stack.enter_context(socket.create_connection(address)) for _ in range(100)]
                (peer,) = peers_that_never_read(stack, address)[:1]
                await until(lambda: is_answered(peer))
                assert server.door.displaced > 0
                assert is_answered(silent[0]), "it is cut off"

    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 64)

    run(scenario())


def test_stopping_breaks_off_peers_that_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving_pages(PAGES) as (server, address):
            listening = open_sockets()
            with ExitStack() as stack:
                peers = peers_that_never_read(stack, address)
                await until(lambda: all(map(is_answered, peers)))
                await server.stop()
                await until(lambda: open_sockets() == listening - 1 + PEERS)

    monkeypatch.setattr(http_server, "DRAIN_S", 0.2)
    run(scenario())
