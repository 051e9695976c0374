"""Readers over HTTP that follow, go away, stall, or send what no client sends."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import pyarrow as pa
import pytest

import jetstream
from envelope.limits import MIB
from jetstream.node.http import server as http_server
from jetstream.node.http.v1 import api, reading
from jetstream.node.node import Node
from jetstream.protocol.liveness import Patience
from tests.support.http_reading import ask, raw_exchange
from tests.support.nodes import nats_and_node, run
from tests.support.scraping import exchange, metrics
from tests.support.sockets import until

CLOSE = "Connection: close"
HEAD = "GET /v1/streams/orders/records?{} HTTP/1.1", "Host: localhost"


@asynccontextmanager
async def followed(directory: Path, **http: object) -> AsyncIterator[tuple[Node, jetstream.JetstreamClient]]:
    """A node with a stream of one record."""
    async with (
        nats_and_node(directory, http={"port": 0, **http}) as (url, node),
        jetstream.connect(url) as js,
    ):
        await js.streams.create("orders", "orders.>")
        await js.publish("orders.a", b"0")
        yield node, js


def request_of(query: str, *headers: str) -> tuple[str, ...]:
    return (HEAD[0].format(query), HEAD[1], *headers)


async def chunk(reader: asyncio.StreamReader) -> bytes:
    """The next chunk of a body; none is its end."""
    size = int(await reader.readline(), 16)
    data = await reader.readexactly(size)
    if size:
        await reader.readexactly(2)
    return data


async def head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def test_a_reader_that_follows_gets_each_record_when_it_is_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            followed(tmp_path) as (node, js),
            raw_exchange(node, *request_of("follow=true")) as (lines, _),
            raw_exchange(node, *request_of("follow=true", "Accept: text/event-stream")) as (events, _),
            raw_exchange(node, *request_of("follow=true&format=arrow")) as (arrow, _),
        ):
            for reader in (lines, events, arrow):
                await head(reader)
            batches = await chunk(arrow)
            for number in range(5):
                value = str(number)
                line = json.loads((await lines.readuntil(b"}\n")).splitlines()[-1])
                assert (line["offset"], line["value"]) == (number, value)
                event = await events.readuntil(b"}\n\n")
                assert f"id: {number}\ndata: ".encode() in event
                batches += await chunk(arrow)
                found = pa.ipc.open_stream(batches).read_all()["value"].to_pylist()
                assert found == [str(each).encode() for each in range(number + 1)]
                await js.publish("orders.a", str(number + 1).encode())

    run(scenario())


def test_events_say_now_and_then_that_nothing_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with (
            followed(tmp_path) as (node, _),
            raw_exchange(node, *request_of("from=latest&follow=1&format=events")) as (reader, _),
        ):
            await head(reader)
            assert await chunk(reader) == await chunk(reader) == b":\n\n"

    monkeypatch.setattr(reading, "WAIT_MS", 20)
    run(scenario())


@pytest.mark.parametrize("how", ["closed", "half-closed"])
def test_a_reader_that_goes_away_ends_its_answer(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        async with followed(tmp_path) as (node, _):
            async with raw_exchange(node, *request_of("from=latest&follow=true")) as (reader, writer):
                await head(reader)
                assert (await metrics(node))["jetstream_socket_parked_fetches", ()] == 1
                if how == "half-closed":
                    writer.write_eof()
                    assert await reader.read() == b""
            await until_parked(node, 0)

    run(scenario())


def test_a_range_that_is_handed_over_when_its_reader_goes_is_given_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever turn of the loop it goes in."""

    async def scenario() -> None:
        async with followed(tmp_path) as (node, js):
            for _ in range(8):
                await js.publish("orders.large", bytes(MIB))
            assert node.http_address is not None
            stream, loop = node.stream("orders"), asyncio.get_running_loop()
            assert stream is not None
            leases = [segment._leases for segment in stream.log.reader.segments]
            for turns in range(40):
                for query in ("format=arrow", "format=ndjson", "limit=2&subject=orders.>"):
                    with socket.socket() as peer:
                        peer.setblocking(False)
                        await loop.sock_connect(peer, node.http_address)
                        await loop.sock_sendall(peer, "\r\n".join((*request_of(query), "", "")).encode())
                        for _ in range(turns):
                            await asyncio.sleep(0)
                        abort = struct.pack("ii", 1, 0)
                        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, abort)
            while (await metrics(node))["jetstream_http_connections", ()] > 1:
                pass
            segments = stream.log.reader.segments
            # A thread may have something of a peer that has gone in its hands.
            await until(lambda: [segment._leases for segment in segments] == leases)
            assert (await metrics(node))["jetstream_socket_selection_bytes", ()] == 0

    run(scenario())
    assert "http request failed" not in caplog.text


def test_a_node_that_stops_ends_followed_responses_with_where_to_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            running = AsyncExitStack()
            node, _ = await running.enter_async_context(followed(tmp_path))
            reader, _ = await stack.enter_async_context(raw_exchange(node, *request_of("follow=true")))
            await reader.readuntil(b'"value":"0"}\n')
            await running.aclose()
            said = b"0\r\njetstream-next-offset: 1\r\njetstream-error: unavailable\r\n\r\n"
            assert (await reader.read()).endswith(said)

    run(scenario())


async def until_parked(node: Node, count: int) -> None:
    while (await metrics(node))["jetstream_socket_parked_fetches", ()] != count:
        pass


def test_a_half_closed_request_with_an_end_is_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            followed(tmp_path) as (node, _),
            raw_exchange(node, *request_of("format=ndjson")) as (reader, writer),
        ):
            writer.write_eof()
            assert (await reader.read()).endswith(b"\r\n0\r\njetstream-next-offset: 1\r\n\r\n")

    run(scenario())


def test_a_whole_url_is_asked_for_like_its_path(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            followed(tmp_path) as (node, _),
            raw_exchange(node, "GET HTTP://other/v1/streams HTTP/1.1", HEAD[1], CLOSE) as (reader, _),
        ):
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
            assert b'"total":1' in answer

    run(scenario())


def test_requests_on_one_connection_are_answered_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with followed(tmp_path) as (node, js):
            for number in range(1, 20):
                await js.publish("orders.a", str(number).encode())
            lines = [
                line
                for number in range(20)
                for line in (f"GET /v1/streams/orders/records/{number}/value HTTP/1.1", "Host: localhost", "")
            ]
            async with raw_exchange(node, *lines[:-1]) as (reader, _):
                for number in range(20):
                    assert (await head(reader)).startswith(b"HTTP/1.1 200 ")
                    value = str(number).encode()
                    assert await reader.readexactly(len(value)) == value

    run(scenario())


def test_a_reader_that_never_reads_is_bounded_and_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with followed(tmp_path) as (node, js):
            for _ in range(24):
                await js.publish("orders.large", bytes(MIB))
            before = (await metrics(node))["jetstream_socket_selection_bytes", ()]
            async with (
                raw_exchange(node, *request_of("format=ndjson")) as (lines, _),
                raw_exchange(node, *request_of("format=arrow")) as (batches, _),
            ):
                for reader in (lines, batches):
                    await head(reader)  # and no more: what it holds is bounded, too
                await js.publish("orders.a", b"publishers go on")
                await until_overdue(node, 2)
            assert (await metrics(node))["jetstream_socket_selection_bytes", ()] == before == 0

    monkeypatch.setattr(http_server, "PATIENCE", Patience(stalled_ns=500_000_000))
    run(scenario())


async def until_overdue(node: Node, count: int) -> None:
    while (await metrics(node))["jetstream_http_connections_total", ("overdue",)] < count:
        pass


def test_a_range_that_is_removed_while_it_is_sent_arrives_as_far_as_it_was_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path, http={"port": 0}) as (url, node), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>", segment_bytes=MIB)
            for number in range(24):
                await js.publish("orders.a", bytes([number]) * MIB)
            async with raw_exchange(node, *request_of("format=arrow")) as (reader, _):
                await head(reader)
                first = await chunk(reader)
                body = first + await chunk(reader)
                await js.streams.truncate("orders", before=23)
                refused = await ask(node, "/v1/streams/orders/records?from=0")
                assert refused.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
                values = pa.ipc.open_stream(body).read_all()["value"]
                assert [value.as_py()[0] for value in values] == list(range(len(values)))
                rest = await reader.read()
                assert not rest.endswith(b"0\r\n\r\n"), "the rest is gone: the body has no end"

    run(scenario())


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /v1/streams HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET /v1/streams HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        (b"GET /v1/streams HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n", 501),
        (b"GET /v1/streams HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /v1/streams HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n", 421),
        (b"GET  /v1/streams HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /v1/streams\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /v1/" + b"a" * 65_536 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"POST /v1/streams HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + b"a" * 200_000, 405),
        (b"DELETE /v1/streams/orders HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"OPTIONS /v1/streams HTTP/1.1\r\nHost: x\r\nOrigin: http://evil\r\n\r\n", 405),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 405),
    ],
)
def test_requests_that_two_servers_could_read_differently_are_refused(
    tmp_path: Path, sent: bytes, status: int
) -> None:
    async def scenario() -> None:
        async with followed(tmp_path) as (node, _):
            answered, said, _ = await exchange(node, sent)
            assert answered == status
            assert b"access-control" not in said.lower(), "no other page may read it"
            assert (await ask(node, "/v1/streams")).status == HTTPStatus.OK

    run(scenario())


def test_a_length_beside_chunks_is_no_second_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with followed(tmp_path) as (node, _):
            lines = (
                "GET /v1/streams HTTP/1.1",
                "Host: localhost",
                "Content-Length: 4",
                "Transfer-Encoding: chunked",
                "",
                "0",
                "",
                "GET /v1/streams/orders HTTP/1.1",
                "Host: localhost",
            )
            async with raw_exchange(node, *lines) as (reader, _):
                assert (await reader.read()).count(b"HTTP/1.1 ") == 1

    run(scenario())


def test_readers_take_no_descriptors_from_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with followed(tmp_path) as (node, _):
            monkeypatch.setattr(api, "READERS_MAX", 1)
            async with raw_exchange(node, *request_of("follow=true")) as (reader, _):
                await head(reader)
                refused = await ask(node, "/v1/streams/orders/records")
                assert (refused.status, refused.json()["err_code"]) == (503, "overloaded")
                assert refused.headers["retry-after"] == "1"
                assert (await ask(node, "/v1/streams/orders")).status == HTTPStatus.OK
            await until_parked(node, 0)
            monkeypatch.setattr(api, "may_keep", lambda share, fileno: False)
            assert (await ask(node, "/v1/streams/orders/records")).status == HTTPStatus.SERVICE_UNAVAILABLE

    run(scenario())


def test_an_old_client_gets_a_body_that_ends_with_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            followed(tmp_path) as (node, _),
            raw_exchange(node, "GET /v1/streams/orders/records?columns=value HTTP/1.0") as (reader, _),
        ):
            said, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert b"chunked" not in said.lower()
            assert json.loads(body)["value"] == "0"

    run(scenario())
