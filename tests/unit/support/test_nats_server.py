"""The test server itself: it keeps its port, and every way to authenticate is a real one."""

import asyncio
import socket
import ssl
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from tests.conftest import StartNatsServer
from tests.support.nats_identities import (
    Nkey,
    NkeyKind,
    make_credentials,
    make_tls_files,
    nkey_config,
    password_config,
    token_config,
)
from tests.support.nats_server import NatsServer


async def _round_trip(client: Client) -> bytes:
    subscription = await client.subscribe("greeting")
    await client.publish("greeting", b"hello")
    message = await subscription.next_msg(timeout=10)
    await client.close()
    return message.data


def _is_refused(server: NatsServer) -> bool:
    """Greet without credentials, on a bare socket: nats-py leaves one open behind a refusal."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        reader = connection.makefile("rb")
        with reader:
            if not reader.readline().startswith(b"INFO"):
                return True
            connection.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
            return reader.readline() != b"PONG\r\n"


def test_a_restarted_server_has_the_same_port_and_another_process(nats_server: NatsServer) -> None:
    port, pid = nats_server.port, nats_server.pid
    nats_server.restart()
    assert nats_server.port == port
    assert nats_server.pid != pid
    nats_server.restart(kill=True)
    assert nats_server.port == port

    async def talk() -> bytes:
        return await _round_trip(await nats.connect(nats_server.url))

    assert not _is_refused(nats_server)
    assert asyncio.run(talk()) == b"hello"


def test_a_paused_server_can_be_stopped(nats_server: NatsServer) -> None:
    nats_server.pause()
    nats_server.stop()
    assert not nats_server.running


def test_a_server_that_cannot_start_says_why(start_nats_server: StartNatsServer) -> None:
    with pytest.raises(AssertionError, match="no_such_setting"):
        start_nats_server('no_such_setting { a: "b" }')


def test_a_password_is_asked_for(start_nats_server: StartNatsServer) -> None:
    server = start_nats_server(password_config("alice", 'se"cret'))

    async def talk() -> bytes:
        return await _round_trip(await nats.connect(server.url, user="alice", password='se"cret'))

    assert _is_refused(server)
    assert asyncio.run(talk()) == b"hello"


def test_a_token_is_asked_for(start_nats_server: StartNatsServer) -> None:
    server = start_nats_server(token_config("s3cret"))

    async def talk() -> bytes:
        return await _round_trip(await nats.connect(server.url, token="s3cret"))

    assert _is_refused(server)
    assert asyncio.run(talk()) == b"hello"


def test_an_nkey_is_asked_for(start_nats_server: StartNatsServer) -> None:
    user = Nkey(NkeyKind.USER)
    server = start_nats_server(nkey_config(user))

    async def talk() -> bytes:
        return await _round_trip(await nats.connect(server.url, nkeys_seed_str=user.seed))

    assert _is_refused(server)
    assert asyncio.run(talk()) == b"hello"


def test_a_credentials_file_is_asked_for(start_nats_server: StartNatsServer, tmp_path: Path) -> None:
    credentials = make_credentials(tmp_path / "credentials")
    server = start_nats_server(credentials.server_config)

    async def talk() -> bytes:
        client = await nats.connect(server.url, user_credentials=str(credentials.user_file))
        return await _round_trip(client)

    assert _is_refused(server)
    assert asyncio.run(talk()) == b"hello"


@pytest.mark.parametrize("verify_clients", [False, True])
def test_tls_is_spoken_with_a_certificate_for_localhost(
    start_nats_server: StartNatsServer, tmp_path: Path, verify_clients: bool
) -> None:
    files = make_tls_files(tmp_path / "tls")
    server = start_nats_server(files.server_config(verify_clients=verify_clients))
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.client_certificate, files.client_key)

    async def talk() -> bytes:
        url = server.url.replace("nats://", "tls://")
        return await _round_trip(await nats.connect(url, tls=context))

    assert _is_refused(server)
    assert asyncio.run(talk()) == b"hello"
