"""A NATS server that complains of a client: the client library outlives it, and comes back."""

import asyncio
import os
import signal
import time
from pathlib import Path
from shutil import copyfile
from typing import Any

import nats.errors
import pytest

import jetstream
from envelope.errors import JetstreamError
from jetstream.client.connection import JetstreamClient
from jetstream.node.node import Node
from tests.conftest import StartNatsServer
from tests.support.nats_identities import make_credentials
from tests.support.nats_server import NatsServer
from tests.support.nodes import WAIT_SECONDS, node_config, run
from tests.support.pauses import pause
from tests.support.sockets import until


def users(password: str) -> str:
    return f'''authorization {{ users: [
        {{ user: node, password: node }},
        {{ user: shop, password: "{password}" }}
    ] }}'''


def reload(server: NatsServer, config: str, times: int) -> None:
    server.configure(config)
    os.kill(server.pid, signal.SIGHUP)
    server.wait_for_log("Reloaded server configuration", count=times)


def as_user(server: NatsServer, user: str) -> str:
    return server.url.replace("://", f"://{user}@")


async def published(js: JetstreamClient) -> None:
    """Publish one message, once the client is back."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                await js.publish("orders.new", b"x", timeout=1)
            except (JetstreamError, nats.errors.Error):
                await pause()
            else:
                return


def test_a_client_whose_credentials_were_refused_for_a_while_comes_back(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users("right"))
    complaints: list[str] = []

    async def note(error: Exception) -> None:
        complaints.append(str(error))

    async def scenario() -> None:
        async with (
            Node(node_config(tmp_path / "data", as_user(server, "node:node"))),
            jetstream.connect(as_user(server, "shop:right"), error_cb=note, reconnect_time_wait=0.05) as js,
        ):
            await js.streams.create("orders", "orders.>")
            reload(server, users("other"), 1)
            await until(lambda: sum("authorization" in text.lower() for text in complaints) > 2)
            reload(server, users("right"), 2)
            await published(js)

    run(scenario())


def test_a_client_whose_credentials_expire_comes_back_with_the_renewed_file(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    credentials = make_credentials(tmp_path)
    server = start_nats_server(credentials.server_config)
    node_file, file = tmp_path / "node.creds", credentials.user_file
    copyfile(file, node_file)
    credentials.issue(expires_at=int(time.time()) + 3)
    complaints: list[str] = []

    async def note(error: Exception) -> None:
        complaints.append(str(error))

    async def scenario() -> None:
        config = node_config(
            tmp_path / "data", server.url, nats={"urls": [server.url], "credentials": node_file}
        )
        options: dict[str, Any] = {"user_credentials": str(file), "reconnect_time_wait": 0.05}
        async with Node(config), jetstream.connect(server.url, error_cb=note, **options) as js:
            await js.streams.create("orders", "orders.>")
            await until(lambda: sum("authorization" in text.lower() for text in complaints) > 2)
            assert "authentication expired" in complaints[0]
            credentials.issue()
            await published(js)

    run(scenario())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (b"PUB x 2000000\r\n", "maximum payload violation"),
        (b"NONSENSE\r\n", "unknown protocol operation"),
        (b"".join(b"SUB more.%d %d\r\n" % (sid, sid) for sid in range(1000, 1100)), "maximum subscriptions"),
    ],
)
def test_a_client_that_the_server_complains_of_goes_on(
    tmp_path: Path, start_nats_server: StartNatsServer, words: bytes, complaint: str
) -> None:
    nats_server = start_nats_server("max_subscriptions: 100")
    complaints: list[str] = []

    async def note(error: Exception) -> None:
        complaints.append(str(error))

    async def scenario() -> None:
        async with (
            Node(node_config(tmp_path / "data", nats_server.url)),
            jetstream.connect(nats_server.url, error_cb=note, reconnect_time_wait=0.05) as js,
        ):
            await js.streams.create("orders", "orders.>")
            assert js._through_nats is not None
            await js._through_nats.nats._send_command(words)
            await js._through_nats.nats._flush_pending()
            await until(lambda: any(complaint in text for text in complaints))
            await published(js)

    run(scenario())
