"""NATS that is away, or breaks off, while a node starts; servers that hang; users in URLs."""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from nats.aio.client import Client

import jetstream
from envelope.errors import UnavailableError
from jetstream.client.nodes.nats_connection import connect_nats
from jetstream.node.nats.link import NatsLink
from jetstream.node.nats.watch import LinkWatch
from jetstream.node.node import Node
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.node.settings.node_config import NatsConfig
from tests.conftest import StartNatsServer
from tests.support.nats_identities import TlsFiles
from tests.support.nats_server import NatsServer
from tests.support.nodes import WAIT_SECONDS, node_config, run
from tests.support.sockets import until

INFO = b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576}\r\n'
INFO_TLS = b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"tls_required":true}\r\n'


def link_to(*urls: str, **settings: object) -> NatsLink:
    config = NatsConfig.model_validate({"urls": urls, "reconnect_wait": 0.01, **settings})
    return NatsLink(config, LinkWatch("ingest", SystemClock()), Crash())


async def stored_and_acked(url: str) -> None:
    async with jetstream.connect(url) as js:
        await js.streams.create("orders", "orders.>")
        assert (await js.publish("orders.new", b"x")).offset == 0


def test_a_node_waits_for_nats_says_so_and_starts_when_it_is_there(
    tmp_path: Path, nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async def nats_comes() -> None:
            await until(lambda: "waiting for NATS" in caplog.text)
            nats_server.start()

        nats_server.stop()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(nats_comes())
            async with Node(node_config(tmp_path / "data", nats_server.url)):
                await stored_and_acked(nats_server.url)

    caplog.set_level(logging.WARNING)
    run(scenario())


@pytest.mark.parametrize("said", [b"", INFO_TLS, INFO_TLS[:20], b"-ERR 'x'\r\n"])
def test_a_server_that_breaks_off_while_it_is_connected_to_ends_the_wait_and_nothing_else(
    said: bytes,
) -> None:
    """Of uvloop's and nats-py's own errors about it none escapes."""

    async def scenario() -> None:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            link = link_to(f"tls://127.0.0.1:{port}", start_timeout=0.3, tls={})
            with pytest.raises(UnavailableError, match="cannot connect to NATS"):
                await link.open()

    run(scenario())


def test_what_no_wait_can_mend_is_said_at_once(
    tls_files: TlsFiles, tls_strangers: TlsFiles, start_nats_server: StartNatsServer
) -> None:
    async def refused(link: NatsLink, reason: str) -> None:
        with pytest.raises(UnavailableError, match=reason):
            await link.open()

    async def scenario() -> None:
        stranger = start_nats_server(tls_strangers.server_config())
        secured = start_nats_server('authorization { token: "right" }')
        tls, seconds = {"ca": str(tls_files.ca)}, 0.5
        await refused(link_to(stranger.url, tls=tls, connect_timeout=seconds), "certificate verify failed")
        await refused(link_to(secured.url, token="wrong", connect_timeout=seconds), "Authorization")

    run(scenario())


def test_a_server_that_hangs_costs_one_connect_timeout(nats_server: NatsServer) -> None:
    async def scenario() -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as silent:  # takes connections, says nothing
            urls = [f"nats://127.0.0.1:{silent.getsockname()[1]}"] * 3
            link = link_to(*urls, nats_server.url, connect_timeout=0.2)
            await link.open()
            await link.close()
            assert link.watch.counters.errors <= len(urls), "each is tried once at most"

    run(scenario())


def test_a_client_that_is_given_up_while_it_connects_leaves_no_connection_open() -> None:
    async def scenario() -> None:
        connected, ended = asyncio.Event(), asyncio.Event()

        async def answer_no_ping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(INFO)
            assert (await reader.readline()).startswith(b"CONNECT")
            connected.set()
            await reader.read()
            writer.close()
            ended.set()

        async with await asyncio.start_server(answer_no_ping, "127.0.0.1", 0) as server:
            servers = [f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"]
            async with asyncio.TaskGroup() as tasks:
                connecting = tasks.create_task(connect_nats(servers, {}, WAIT_SECONDS))
                await connected.wait()
                connecting.cancel()
            await ended.wait()

    run(scenario())


@pytest.mark.parametrize(
    "connect", [lambda url: link_to(url).open(), lambda url: connect_nats([url], {}, WAIT_SECONDS)]
)
def test_a_cancellation_that_nats_py_loses_ends_its_attempts(
    connect: Callable[[str], Coroutine[None, None, object]],
    nats_server: NatsServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = asyncio.Event()

    async def lose_it(_: Client) -> None:
        """Do what `asyncio.wait_for` does if the result, here an error, comes in the same turn."""
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        raise ConnectionResetError

    async def scenario() -> None:
        async with asyncio.TaskGroup() as tasks:
            connecting = tasks.create_task(connect(nats_server.url))
            await begun.wait()
            connecting.cancel()
        assert connecting.cancelled()

    monkeypatch.setattr(Client, "_process_connect_init", lose_it)
    run(scenario())


def test_a_server_that_only_another_one_knows_is_tried_once(nats_server: NatsServer) -> None:
    async def scenario() -> None:
        link = link_to(nats_server.url)
        await link.open()
        client = link._client
        with closing(socket.create_server(("127.0.0.1", 0))) as gone:
            port = gone.getsockname()[1]
        await client._process_info({"connect_urls": [f"127.0.0.1:{port}"]})
        assert len(client._server_pool) == 2
        nats_server.kill()
        await until(lambda: [server.uri.port for server in client._server_pool] == [nats_server.port])
        nats_server.start()
        await until(lambda: link.connected)
        await link.close()

    run(scenario())


def test_a_password_in_a_url_is_decoded(tmp_path: Path, start_nats_server: StartNatsServer) -> None:
    user, password = "who@here", "a%40:/b"
    server = start_nats_server(f'authorization {{ user: "{user}", password: "{password}" }}')
    url = server.url.replace("://", f"://{quote(user, safe='')}:{quote(password, safe='')}@")

    async def scenario() -> None:
        async with Node(node_config(tmp_path / "data", url)):
            await stored_and_acked(url)

    run(scenario())
