"""The HTTP port with a token and TLS: who sees what, and who is cut off."""

import asyncio
import json
import logging
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import pytest
from pydantic import SecretStr

import jetstream
from envelope.errors import StorageError
from envelope.limits import MIB
from jetstream.cli.output.exit_codes import ExitCode
from jetstream.node.http import server as http_server
from jetstream.node.http.access import HttpSettings, http_settings
from jetstream.node.http.connection import HEADER_BYTES_MAX
from jetstream.node.http.page import Page
from jetstream.node.http.server import Pages
from jetstream.node.node import Node
from jetstream.node.settings.node_config import HttpConfig, ServerTlsConfig
from jetstream.protocol.liveness import Patience
from tests.support.commands import REPOSITORY, up
from tests.support.commands import jetstream as command
from tests.support.http_servers import serving_pages
from tests.support.local_clusters import start
from tests.support.nats_identities import TlsFiles
from tests.support.nodes import nats_and_node, run
from tests.support.scraping import exchange, get
from tests.support.sockets import until
from tests.support.tls_sockets import context

TOKEN = "swordfish-and-chips"
WRONG = "wrong-and-never-to-be-repeated"
SHOWN = f"Authorization: Bearer {TOKEN}"


async def small() -> Page:
    return Page(HTTPStatus.OK, "text/plain", b"here\n")


def tls_of(files: TlsFiles, client_ca: Path | None = None) -> ServerTlsConfig:
    return ServerTlsConfig(certificate=files.server_certificate, key=files.server_key, client_ca=client_ca)


@asynccontextmanager
async def guarded_server(settings: HttpSettings) -> AsyncIterator[tuple[str, int]]:
    """A server of one page for everybody and one more for those with the token."""
    pages = Pages(every={"/livez": small, "/page": small}, public={"/livez": small})
    async with serving_pages(pages, settings) as (_, address):
        yield address


async def answer(address: tuple[str, int], request: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Send a request that asks for no other; return everything that comes back."""
    reader, writer = await asyncio.open_connection(*address, ssl=tls)
    try:
        writer.write(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()


async def with_a_broken_stream(url: str, node: Node) -> None:
    async with jetstream.connect(url) as js:
        await js.streams.create("salaries", "salaries")
    stream = node.stream("salaries")
    assert stream is not None
    stream.log.writer.fail(StorageError("input/output error"))


def test_without_the_token_there_are_probes_and_no_names_of_streams(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path, http={"port": 0, "token": TOKEN}) as (url, node):
            assert await get(node, "/livez") == (HTTPStatus.OK, b"alive\n")
            status, body = await get(node, "/healthz")
            assert (status, json.loads(body)) == (
                HTTPStatus.OK,
                {"ready": True, "problems": [], "problems_total": 0},
            )
            await with_a_broken_stream(url, node)
            for headers in ((), (f"Authorization: Bearer {WRONG}",)):
                status, body = await get(node, "/healthz", *headers)
                assert status == HTTPStatus.SERVICE_UNAVAILABLE, "a probe is answered all the same"
                assert json.loads(body) == {"ready": False, "problems": [], "problems_total": 1}
                for path in ("/metrics", "/nothing", "/console/nothing"):
                    status, body = await get(node, path, *headers)
                    assert status == HTTPStatus.UNAUTHORIZED
                    assert b"salaries" not in body
            _, body = await get(node, "/healthz", SHOWN)
            assert json.loads(body)["problems"] == ["stream salaries: storage_error: input/output error"]
            status, body = await get(node, "/metrics", SHOWN)
            assert status == HTTPStatus.OK
            assert b'jetstream_stream_online{stream="salaries"} 0.0' in body
            assert (await get(node, "/nothing", SHOWN))[0] == HTTPStatus.NOT_FOUND

    with caplog.at_level(logging.DEBUG):
        run(scenario())
    assert "http request refused peer=" in caplog.text
    assert TOKEN not in caplog.text
    assert WRONG not in caplog.text


@pytest.mark.parametrize(
    ("headers", "challenge"),
    [
        ((), b'www-authenticate: Bearer realm="jetstream"\r\n'),
        ((f"Authorization: Bearer {WRONG}",), b'Bearer realm="jetstream", error="invalid_token"\r\n'),
        ((f"Authorization: Basic {TOKEN}",), b'error="invalid_token"'),
        ((SHOWN, SHOWN), b'error="invalid_token"'),
    ],
)
def test_a_refusal_says_what_it_wants(headers: tuple[str, ...], challenge: bytes) -> None:
    async def scenario() -> None:
        async with guarded_server(HttpSettings(SecretStr(TOKEN))) as address:
            lines = "\r\n".join(("GET /page HTTP/1.1", "Host: x", *headers, "", ""))
            told = await answer(address, lines.encode())
            assert told.startswith(b"HTTP/1.1 401 ")
            assert challenge in told
            lines = f"GET /page HTTP/1.1\r\nHost: x\r\n{SHOWN}\r\n\r\n"
            assert (await answer(address, lines.encode())).startswith(b"HTTP/1.1 200 ")

    run(scenario())


def test_a_token_does_not_make_room_for_a_larger_head() -> None:
    async def scenario() -> None:
        async with guarded_server(HttpSettings(SecretStr(TOKEN))) as address:
            head = f"GET /page HTTP/1.1\r\nHost: x\r\n{SHOWN}{'x' * HEADER_BYTES_MAX * 2}"
            assert (await answer(address, head.encode())).startswith(b"HTTP/1.1 431 ")

    run(scenario())


def test_a_node_answers_over_tls_and_nobody_in_the_clear(
    tmp_path: Path, tls_files: TlsFiles, tls_strangers: TlsFiles
) -> None:
    async def scenario() -> None:
        http = {"port": 0, "token": TOKEN, "tls": tls_of(tls_files).model_dump()}
        async with nats_and_node(tmp_path, http=http) as (_, node):
            tls = context(tls_files)
            assert await get(node, "/livez", tls=tls) == (HTTPStatus.OK, b"alive\n")
            assert (await get(node, "/metrics", tls=tls))[0] == HTTPStatus.UNAUTHORIZED
            status, body = await get(node, "/metrics", SHOWN, tls=tls)
            assert status == HTTPStatus.OK
            assert b"jetstream_node_info" in body
            clear = await exchange(node, f"GET /metrics HTTP/1.1\r\nHost: x\r\n{SHOWN}\r\n\r\n".encode())
            assert b"jetstream_node_info" not in clear[1] + clear[2]
            with pytest.raises(ssl.SSLCertVerificationError):
                await get(node, "/livez", tls=context(tls_strangers))
            old = context(tls_files)
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            assert (await get(node, "/livez", tls=old))[0] == HTTPStatus.OK
            assert await get(node, "/livez", tls=tls) == (HTTPStatus.OK, b"alive\n")

    run(scenario())


def test_who_lacks_the_certificate_that_is_wanted_sees_not_even_a_probe(
    tls_files: TlsFiles, tls_strangers: TlsFiles
) -> None:
    async def scenario() -> None:
        config = HttpConfig(tls=tls_of(tls_files, client_ca=tls_files.ca))
        async with guarded_server(http_settings(config)) as address:
            asks = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
            for identity in (None, tls_strangers):
                told = b""
                with suppress(ssl.SSLError, ConnectionError):
                    told = await answer(address, asks, context(tls_files, identity))
                assert told == b""
            told = await answer(address, asks, context(tls_files, tls_files))
            assert told.startswith(b"HTTP/1.1 200 ")

    run(scenario())


def test_peers_that_are_slow_over_tls_are_cut_off_in_time(
    tls_files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        settings = http_settings(HttpConfig(tls=tls_of(tls_files)))
        async with guarded_server(settings) as address:
            silent, silent_writer = await asyncio.open_connection(*address)
            silent_writer.write(b"\x16\x03\x01\x02\x00")  # the beginning of a handshake
            slow, slow_writer = await asyncio.open_connection(*address, ssl=context(tls_files))
            slow_writer.write(b"GET /page HTTP/1.1\r\nHost: ")
            assert await slow.read() == b""
            assert await silent.read() == b""
            for writer in (silent_writer, slow_writer):
                writer.close()

    monkeypatch.setattr(http_server, "PATIENCE", Patience(hello_ns=200_000_000))
    run(scenario())


def test_peers_that_never_read_over_tls_are_cut_off_in_time(
    tls_files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def large() -> Page:
        return Page(HTTPStatus.OK, "text/plain", bytes(16 * MIB))

    async def scenario() -> None:
        settings = http_settings(HttpConfig(tls=tls_of(tls_files)))
        async with serving_pages(Pages(every={"/page": large}), settings) as (server, address):
            # The limit stops the peer's reading at once; the page is more than the kernels hold meanwhile.
            _, writer = await asyncio.open_connection(*address, ssl=context(tls_files), limit=1)
            writer.write(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: server.counters.connections_overdue == 1)
            writer.transport.abort()

    monkeypatch.setattr(http_server, "PATIENCE", Patience(stalled_ns=500_000_000))
    run(scenario())


def health_check(file: Path, **environment: str) -> tuple[int, str]:
    """Run the image's health check as the image does."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(REPOSITORY / "containers" / "health_check.py"), str(file)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("said", ["in the file", "in the environment"])
@pytest.mark.parametrize("guard", ["none", "token", "tls", "client certificates"])
def test_the_health_check_of_the_image_asks_as_the_settings_say(
    tmp_path: Path, tls_files: TlsFiles, guard: str, said: str
) -> None:
    tls = {"certificate": tls_files.server_certificate, "key": tls_files.server_key}
    if guard == "client certificates":
        tls["client_ca"] = tls_files.ca
    guards: dict[str, object] = {} if guard == "none" else {"tls": tls}
    if guard == "token":
        guards = {"token": TOKEN}

    async def scenario() -> None:
        async with nats_and_node(tmp_path, http={"port": 0, **guards}) as (url, node):
            assert node.http_address is not None
            lines = [f"port = {node.http_address[1]}"]
            lines += [f'tls.{name} = "{path}"' for name, path in tls.items() if "tls" in guards]
            file, environment = tmp_path / "node.toml", dict[str, str]()
            if said == "in the file":
                file.write_text("\n".join(('[http]\nhost = "0.0.0.0"', *lines)))
            else:
                file.write_text("[http]\nport = 1\n")
                for line in lines:
                    name, _, value = line.partition(" = ")
                    environment[f"JETSTREAM_NODE_HTTP__{name.replace('.', '__').upper()}"] = value.strip('"')
            code, output = await asyncio.to_thread(health_check, file, **environment)
            assert (code, json.loads(output)["ready"]) == (0, True)
            await with_a_broken_stream(url, node)
            code, output = await asyncio.to_thread(health_check, file, **environment)
            assert (code, json.loads(output)["ready"]) == (1, False)

    run(scenario())


def test_nodes_that_are_just_started_take_the_token_from_the_environment(tmp_path: Path) -> None:
    cluster = start(tmp_path / "data", "--http-port", "0", JETSTREAM_NODE_HTTP__TOKEN=TOKEN)
    addresses = [node["endpoints"]["http"].rpartition(":") for node in cluster.nodes.values()]

    async def scenario() -> None:
        for host, _, port in addresses:
            for header, status in ((SHOWN, b"200"), ("X: y", b"401")):
                lines = f"GET /metrics HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode()
                assert (await answer((host, int(port)), lines)).startswith(b"HTTP/1.1 " + status)

    with cluster.process:
        assert len(addresses) == 3
        run(scenario())


def test_a_token_for_a_port_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the nodes would open the port that is the default."""
    monkeypatch.setenv("JETSTREAM_NODE_HTTP__TOKEN", TOKEN)
    refused = command("up", "--nodes", "3", "--data", str(tmp_path))
    assert refused.exit_code == ExitCode.REFUSED
    assert "JETSTREAM_NODE_HTTP__TOKEN is set, and there is no port" in refused.stderr
    assert TOKEN not in refused.stderr


def test_a_node_that_is_just_started_takes_token_and_tls_from_the_environment(
    tmp_path: Path, tls_files: TlsFiles
) -> None:
    process, endpoints = up(
        tmp_path / "data",
        "--http-port",
        "0",
        JETSTREAM_NODE_HTTP__TOKEN=TOKEN,
        JETSTREAM_NODE_HTTP__TLS__CERTIFICATE=str(tls_files.server_certificate),
        JETSTREAM_NODE_HTTP__TLS__KEY=str(tls_files.server_key),
    )
    host, _, port = endpoints["http"].rpartition(":")

    async def scenario() -> None:
        for header, status in ((SHOWN, b"200"), ("X: y", b"401")):
            lines = f"GET /metrics HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode()
            told = await answer((host, int(port)), lines, context(tls_files))
            assert told.startswith(b"HTTP/1.1 " + status)

    with process:
        run(scenario())
