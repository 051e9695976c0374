"""Every way nats-py can authenticate is a setting, and no secret is ever shown."""

import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

import jetstream
from envelope.errors import Unauthorized, UnavailableError
from jetstream.node.node import Node
from jetstream.node.settings.node_config import load_config
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
from tests.support.nodes import request, run

SECRET = "s3cret-value"


async def store_one(data: Path, settings: Mapping[str, object], client: Client) -> None:
    config = load_config(flags={"data": data, "nats": settings, "socket": {"port": 0}})
    async with Node(config):
        await request(client, "stream.create", name="orders", subject="orders.>")
        ack = await client.jetstream().publish("orders.new", b"x")
        assert ack.seq == 1


def test_a_node_connects_by_user_and_password(tmp_path: Path, start_nats_server: StartNatsServer) -> None:
    server = start_nats_server(password_config("ann", SECRET))

    async def scenario() -> None:
        async with await nats.connect(server.url, user="ann", password=SECRET) as client:
            await store_one(
                tmp_path / "data", {"urls": [server.url], "user": "ann", "password": SECRET}, client
            )

    run(scenario())


def test_a_node_connects_by_token(tmp_path: Path, start_nats_server: StartNatsServer) -> None:
    server = start_nats_server(token_config(SECRET))

    async def scenario() -> None:
        async with await nats.connect(server.url, token=SECRET) as client:
            await store_one(tmp_path / "data", {"urls": [server.url], "token": SECRET}, client)

    run(scenario())


@pytest.mark.parametrize("from_file", [True, False])
def test_a_node_connects_by_nkey(tmp_path: Path, start_nats_server: StartNatsServer, from_file: bool) -> None:
    user = Nkey(NkeyKind.USER)
    server = start_nats_server(nkey_config(user))
    seed_file = tmp_path / "user.nk"
    seed_file.write_text(user.seed)
    setting = {"nkey_seed_file": seed_file} if from_file else {"nkey_seed": user.seed}

    async def scenario() -> None:
        async with await nats.connect(server.url, nkeys_seed_str=user.seed) as client:
            await store_one(tmp_path / "data", {"urls": [server.url], **setting}, client)

    run(scenario())


def test_a_node_connects_by_credentials_file(tmp_path: Path, start_nats_server: StartNatsServer) -> None:
    credentials = make_credentials(tmp_path / "creds")
    server = start_nats_server(credentials.server_config)

    async def scenario() -> None:
        async with await nats.connect(server.url, user_credentials=str(credentials.user_file)) as client:
            await store_one(
                tmp_path / "data", {"urls": [server.url], "credentials": credentials.user_file}, client
            )

    run(scenario())


def test_a_node_connects_by_tls_with_a_client_certificate(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    files = make_tls_files(tmp_path / "tls")
    server = start_nats_server(files.server_config(verify_clients=True))
    tls = {"ca": files.ca, "certificate": files.client_certificate, "key": files.client_key}
    url = server.url.replace("nats://", "tls://")

    async def scenario() -> None:
        context = ssl.create_default_context(cafile=str(files.ca))
        context.load_cert_chain(str(files.client_certificate), str(files.client_key))
        async with await nats.connect(url, tls=context) as client:
            await store_one(tmp_path / "data", {"urls": [url], "tls": tls}, client)

    run(scenario())


def test_the_second_url_is_used_when_the_first_is_dead(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server()

    async def scenario() -> None:
        async with await nats.connect(server.url) as client:
            await store_one(tmp_path / "data", {"urls": ["nats://127.0.0.1:1", server.url]}, client)

    run(scenario())


def test_a_wrong_password_is_said_without_showing_it(
    tmp_path: Path, start_nats_server: StartNatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_nats_server(password_config("ann", "another"))
    settings = {"urls": [server.url], "user": "ann", "password": SECRET, "connect_timeout": 0.5}
    config = load_config(flags={"data": tmp_path / "data", "nats": settings, "socket": {"port": 0}})
    assert SECRET not in repr(config)

    async def scenario() -> None:
        with pytest.raises(UnavailableError, match=r"(?i)authorization") as caught:
            async with Node(config):
                pass
        assert SECRET not in str(caught.value)

    with caplog.at_level(logging.DEBUG, logger="jetstream"):
        run(scenario())
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "identity",
    [{}, {"user": "ann", "password": SECRET}, {"token": SECRET}],
    ids=["none", "password", "token"],
)
def test_a_client_that_is_not_let_in_is_told_so_and_tries_no_longer(
    start_nats_server: StartNatsServer, identity: dict[str, Any]
) -> None:
    """Another server that is down is passed over; there was time for another attempt until the test ends."""
    server = start_nats_server(password_config("ann", "another"))

    async def scenario() -> None:
        with pytest.raises(Unauthorized, match="Authorization Violation") as caught:
            async with jetstream.connect("nats://127.0.0.1:1", server.url, request_timeout=600, **identity):
                pass
        assert SECRET not in str(caught.value)

    run(scenario())


def test_a_stream_on_a_subject_that_nats_denies_is_refused_and_says_so(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(
        'authorization { users: [ { user: "ann", password: "pw", '
        'permissions: { subscribe: { deny: "secret.>" } } } ] }'
    )

    async def scenario() -> None:
        settings = {"urls": [server.url], "user": "ann", "password": "pw"}
        config = load_config(flags={"data": tmp_path / "data", "nats": settings, "socket": {"port": 0}})
        async with Node(config), await nats.connect(server.url, user="ann", password="pw") as client:
            answer = await request(client, "stream.create", name="denied", subject="secret.>")
            assert answer["error"]["err_code"] == "unauthorized"
            info = await request(client, "stream.info", name="denied")
            assert info["state"] == "offline"
            assert "secret.>" in info["reason"]
            await request(client, "stream.update", name="denied", subject="open.>")
            ack = await client.jetstream().publish("open.one", b"x")
            assert (ack.stream, ack.seq) == ("denied", 1)
            info = await request(client, "stream.info", name="denied")
            assert info["state"] == "online"

    run(scenario())
