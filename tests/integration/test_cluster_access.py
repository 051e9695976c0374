"""Options of Spark's source and sink let a client in, wherever they were pickled to."""

import asyncio
import pickle
from collections.abc import Mapping
from pathlib import Path

from jetstream.client.blocking.client import BlockingClient
from jetstream.node.node import Node
from jetstream.node.settings.node_config import load_config
from jetstream.spark.options.access import ClusterAccess
from tests.conftest import StartNatsServer
from tests.support.nats_identities import (
    Nkey,
    NkeyKind,
    TlsFiles,
    make_credentials,
    nkey_config,
    password_config,
)
from tests.support.nodes import nats_and_node, run

SECRET = "swordfish-and-chips"


def access(options: Mapping[str, str]) -> ClusterAccess:
    """As an executor has it."""
    found, _ = ClusterAccess.from_options(options)
    there = pickle.loads(pickle.dumps(found))
    assert isinstance(there, ClusterAccess)
    return there


def publish_and_read(js: BlockingClient) -> None:
    js.streams.create("orders", "orders.>")
    js.publish("orders.eu", b"one")
    assert [record.value for record in js.read("orders")] == [b"one"]


def with_a_client(options: Mapping[str, str]) -> None:
    with access(options).open() as js:
        publish_and_read(js)


async def on_a_node(data: Path, settings: Mapping[str, object], options: Mapping[str, str]) -> None:
    config = load_config(flags={"data": data, "nats": settings, "socket": {"port": 0}})
    async with Node(config):
        await asyncio.to_thread(with_a_client, options)


def test_a_user_with_a_password_is_let_in(tmp_path: Path, start_nats_server: StartNatsServer) -> None:
    server = start_nats_server(password_config("ann", SECRET))
    settings = {"urls": [server.url], "user": "ann", "password": SECRET}
    options = {"servers": server.url, "nats.user": "ann", "nats.password": SECRET}
    run(on_a_node(tmp_path / "data", settings, options))


def test_an_nkey_is_let_in(tmp_path: Path, start_nats_server: StartNatsServer) -> None:
    user = Nkey(NkeyKind.USER)
    server = start_nats_server(nkey_config(user))
    settings = {"urls": [server.url], "nkey_seed": user.seed}
    run(on_a_node(tmp_path / "data", settings, {"servers": server.url, "nats.nkeySeed": user.seed}))


def test_credentials_are_a_file_or_what_is_in_it(tmp_path: Path, start_nats_server: StartNatsServer) -> None:
    credentials = make_credentials(tmp_path / "creds")
    server = start_nats_server(credentials.server_config)
    settings = {"urls": [server.url], "credentials": credentials.user_file}
    for number, given in enumerate((str(credentials.user_file), credentials.user_file.read_text())):
        options = {"servers": server.url, "nats.credentials": given}
        run(on_a_node(tmp_path / f"data-{number}", settings, options))


def test_nats_is_reached_over_tls(
    tmp_path: Path, start_nats_server: StartNatsServer, tls_files: TlsFiles
) -> None:
    server = start_nats_server(tls_files.server_config(verify_clients=False))
    url = server.url.replace("nats://", "tls://")
    settings = {"urls": [url], "tls": {"ca": tls_files.ca}}
    run(on_a_node(tmp_path / "data", settings, {"servers": url, "nats.tls.ca": str(tls_files.ca)}))


def test_a_node_is_read_over_tls_with_its_token_and_without_nats(tmp_path: Path, tls_files: TlsFiles) -> None:
    tls = {"certificate": tls_files.server_certificate, "key": tls_files.server_key}
    socket = {"port": 0, "token": SECRET, "tls": tls}

    def read(options: Mapping[str, str]) -> None:
        with access(options).open() as js:
            assert [record.value for record in js.read("orders")] == [b"one"]

    async def test() -> None:
        async with nats_and_node(tmp_path, socket=socket) as (url, node):
            secured = {"token": SECRET, "tls.ca": str(tls_files.ca)}
            async with access({"servers": url} | secured).connect() as js:
                await js.streams.create("orders", "orders.>")
                await js.publish("orders.eu", b"one")
                assert (await js.read_table("orders")).num_rows == 1
            await asyncio.to_thread(read, {"sockets": f"127.0.0.1:{node.socket_port}"} | secured)

    run(test())


def test_a_cluster_with_a_prefix_of_its_own_is_found(tmp_path: Path) -> None:
    async def test() -> None:
        async with nats_and_node(tmp_path, api_prefix="shop.api") as (url, _):
            await asyncio.to_thread(with_a_client, {"servers": url, "apiPrefix": "shop.api"})

    run(test())
