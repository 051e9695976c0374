"""A node whose socket has TLS, client certificates and a token: the library, the command and the restart."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import jetstream
from envelope.errors import InvalidConfig, TlsFailed, Unauthorized
from jetstream.cli.main import app
from jetstream.cli.output.exit_codes import ExitCode
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from tests.support.nats_identities import TlsFiles
from tests.support.nodes import nats_and_node, node_config, run

TOKEN = "swordfish-and-chips"
WRONG = "wrong-and-never-to-be-repeated"


def secured(tls_files: TlsFiles, port: int = 0, client_ca: Path | None = None) -> dict[str, object]:
    tls = {"certificate": tls_files.server_certificate, "key": tls_files.server_key, "client_ca": client_ca}
    return {"port": port, "token": TOKEN, "tls": tls}


def test_what_was_published_is_read_over_tls_by_who_has_the_token(
    tmp_path: Path, tls_files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with (
            nats_and_node(tmp_path, socket=secured(tls_files)) as (url, node),
            jetstream.connect(url, socket_token=TOKEN, socket_tls=tls_files.ca) as js,
        ):
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.eu", b"one")
            assert [record.value async for record in js.read("orders")] == [b"one"]
            address = f"127.0.0.1:{node.socket_port}"
            async with jetstream.connect(
                socket=address, socket_token=TOKEN, socket_tls=tls_files.ca
            ) as direct:
                assert (await direct.read_table("orders")).num_rows == 1
            # NATS knows nothing of it: what is managed and published needs no token of the socket.
            async with jetstream.connect(url) as outsider:
                await outsider.publish("orders.eu", b"two")
                with pytest.raises(TlsFailed):
                    await outsider.read_table("orders")
            async with jetstream.connect(url, socket_token=WRONG, socket_tls=str(tls_files.ca)) as outsider:
                with pytest.raises(Unauthorized) as caught:
                    await outsider.read_table("orders")
                assert WRONG not in f"{caught.value!r}{caught.value.detail}"

    with caplog.at_level(logging.DEBUG):
        run(test())
    assert TOKEN not in caplog.text
    assert WRONG not in caplog.text


def test_a_reader_goes_on_over_tls_when_its_node_is_started_again(
    tmp_path: Path, tls_files: TlsFiles
) -> None:
    async def test() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            config = node_config(tmp_path / "data", server.url, socket=secured(tls_files))
            async with (
                Node(config) as node,
                jetstream.connect(server.url, socket_token=TOKEN, socket_tls=tls_files.ca) as js,
            ):
                await js.streams.create("s", "s.>")
                await js.publish("s.a", b"before")
                port = node.socket_port
            again = node_config(tmp_path / "data", server.url, socket=secured(tls_files, port))
            async with jetstream.connect(server.url, socket_token=TOKEN, socket_tls=tls_files.ca) as js:
                seen: list[bytes | None] = []
                async with Node(again):
                    follower = js.read("s", follow=True)
                    seen.append((await anext(follower)).value)
                async with Node(again):
                    await js.publish("s.a", b"after")
                    seen.append((await anext(follower)).value)
                assert seen == [b"before", b"after"]
                await follower.aclose()

    run(test())


def against_a_node(
    directory: Path, tls_files: TlsFiles, client_ca: Path | None, scenario: Callable[[str], None]
) -> None:
    """Run a scenario in a thread without an event loop, against a node with one record in ``orders``."""

    async def test() -> None:
        async with (
            nats_and_node(directory, socket=secured(tls_files, client_ca=client_ca)) as (url, _),
            jetstream.connect(url) as js,
        ):
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.eu", b"one")
            await asyncio.to_thread(scenario, url)

    run(test())


def test_the_blocking_client_takes_the_same_options(tmp_path: Path, tls_files: TlsFiles) -> None:
    def scenario(url: str) -> None:
        context = ssl.create_default_context(cafile=str(tls_files.ca))
        context.load_cert_chain(tls_files.client_certificate, tls_files.client_key)
        with jetstream.connect_blocking(url, socket_token=TOKEN, socket_tls=context) as js:
            assert [record.value for record in js.read("orders")] == [b"one"]
        with (
            jetstream.connect_blocking(url, socket_token=TOKEN, socket_tls=tls_files.ca) as js,
            pytest.raises(TlsFailed),
        ):
            js.read("orders").to_table()

    against_a_node(tmp_path, tls_files, tls_files.ca, scenario)


def test_the_command_reads_with_options_and_with_variables(tmp_path: Path, tls_files: TlsFiles) -> None:
    def scenario(url: str) -> None:
        token = ("--socket-token", TOKEN)
        ca = ("--socket-tls-ca", str(tls_files.ca))
        own = (
            "--socket-tls-cert",
            str(tls_files.client_certificate),
            "--socket-tls-key",
            str(tls_files.client_key),
        )

        def read(*options: str, **environment: str) -> tuple[int, str]:
            result = CliRunner().invoke(
                app, ["read", "orders", *options], env={"JETSTREAM_NATS": url, **environment}
            )
            return result.exit_code, result.output

        assert read(*token, *ca, *own)[0] == ExitCode.OK
        code, output = read(
            JETSTREAM_SOCKET_TOKEN=TOKEN,
            JETSTREAM_SOCKET_TLS_CA=str(tls_files.ca),
            JETSTREAM_SOCKET_TLS_CERT=str(tls_files.client_certificate),
            JETSTREAM_SOCKET_TLS_KEY=str(tls_files.client_key),
        )
        assert (code, '"value":"one"' in output) == (ExitCode.OK, True)
        code, output = read("--socket-token", WRONG, *ca, *own)
        assert (code, WRONG in output) == (ExitCode.REFUSED, False)
        assert "token" in output
        for refused in ((*token, *ca), token, (*token, "--socket-tls", *own)):
            code, output = read(*refused)
            assert code == ExitCode.REFUSED, output
            assert TOKEN not in output
        assert read(*token, *ca, *own[:2])[0] == ExitCode.USAGE
        assert read(*token, "--socket-tls-ca", "/no/such/file")[0] == ExitCode.USAGE

    against_a_node(tmp_path, tls_files, tls_files.ca, scenario)


def test_a_node_without_its_certificate_does_not_start(tmp_path: Path, tls_files: TlsFiles) -> None:
    async def test() -> None:
        socket = {"port": 0, "tls": {"certificate": tmp_path / "absent.pem", "key": tls_files.server_key}}
        with pytest.raises(InvalidConfig, match=r"absent\.pem"):
            async with Node(node_config(tmp_path / "data", "nats://127.0.0.1:1", socket=socket)):
                pass
        assert not (tmp_path / "data").exists()

    run(test())
