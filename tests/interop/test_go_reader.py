"""The socket protocol is thin: a reader in Go, under 100 lines, written from docs/protocol.md alone.

And the official NATS client of that language publishes to our streams with its own JetStream API.
"""

import asyncio
import json
import re
import shutil
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import pytest

import jetstream
from tests.support.commands import REPOSITORY, WAIT_SECONDS
from tests.support.go_programs import EXAMPLES, NotBuildable, go_examples
from tests.support.nodes import nats_and_node, request, run
from tests.support.tcp_proxy import Flip, proxied

LINES_MAX = 100
_SLOW = pytest.mark.slow("tests/interop/test_go_reader.py")
ARROW_MESSAGE = b"\xff\xff\xff\xff"
VECTORS = json.loads((REPOSITORY / "docs" / "protocol" / "vectors.json").read_text(encoding="utf-8"))
BATCHES = [bytes.fromhex(batch) for batch in VECTORS["batches"]]


@pytest.fixture(scope="module")
def programs() -> Path:
    try:
        return go_examples()
    except NotBuildable as missing:
        pytest.skip(str(missing))


async def program(path: Path, *arguments: str) -> tuple[int, list[str], str]:
    """Run one of the examples; return its exit code, the lines that it printed, and its complaints."""
    process = await asyncio.create_subprocess_exec(
        path, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(WAIT_SECONDS):
        printed, complaints = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode().splitlines(), complaints.decode()


async def read(programs: Path, port: int) -> list[dict[str, Any]]:
    """Read the stream ``orders`` to its end."""
    code, lines, complaints = await program(programs / "read", "127.0.0.1", str(port), "orders")
    assert (code, complaints) == (0, "")
    return [json.loads(line) for line in lines]


def test_the_reader_is_short() -> None:
    assert len((EXAMPLES / "read" / "main.go").read_text(encoding="utf-8").splitlines()) < LINES_MAX


def test_the_examples_are_formatted_as_go_programs_are() -> None:
    if (gofmt := shutil.which("gofmt")) is None:
        pytest.skip("there is no gofmt command on the PATH")
    done = subprocess.run([gofmt, "-l", EXAMPLES], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""


def test_the_official_client_publishes_and_the_reader_reads(tmp_path: Path, programs: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node), await nats.connect(url) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            code, acks, complaints = await program(programs / "publish", url)
            assert (code, complaints) == (0, "")
            assert acks == [
                "stored: orders 1 false",
                "stored: orders 1 true",
                "refused: 400 10071 wrong last sequence: 1",
                "stored: orders 2 false",
                "refused: 400 10070 wrong last msg ID: ",
                "refused: 400 10060 expected stream does not match",
                "failed: nats: no response from stream",
                "stored: orders 1003 false",
            ]
            records = await read(programs, node.socket_port)
            assert [record["offset"] for record in records] == list(range(1003))
            assert {record["subject"] for record in records} == {"orders.new"}
            assert [record["value"] for record in records] == ["one", *["two"] * 1002]

    run(scenario())


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_the_reader_reads_what_every_kind_of_record_holds(
    tmp_path: Path, programs: Path, compression: str
) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>", segment_bytes=1 << 20, compression=compression)
            await js.publish("orders.ü", "größer".encode(), key="k", txid=7, headers={"A": "b", "C": ""})
            await js.publish("orders.gone", None, key="k")
            await js.publish_all([("orders.many", b"%d" % number) for number in range(3000)])
            for letter in "xyz":
                await js.publish("orders.large", letter.encode() * 3_000_000)
            async with proxied(node.socket_port, keeps_responses=True) as proxy:
                first, gone, *many = await read(programs, proxy.port)
                compressed = len(proxy.response(0)) < 3_000_000
            assert compressed == (compression != "none")
            assert isinstance(first.pop("timestamp"), str)
            assert first == {
                "offset": 0,
                "subject": "orders.ü",
                "key": "k",
                "headers": [
                    {"key": "A", "value": "b"},
                    {"key": "C", "value": ""},
                    {"key": "Jetstream-Key", "value": "k"},
                    {"key": "Jetstream-Txid", "value": "7"},
                ],
                "txid": 7,
                "value": "größer",
            }
            assert (gone["subject"], gone["key"], gone["value"]) == ("orders.gone", "k", None)
            assert {many[0][column] for column in ("key", "headers", "txid")} == {None}
            assert [record["offset"] for record in many] == list(range(2, 3005))
            assert [record["value"] for record in many[:3000]] == [str(number) for number in range(3000)]
            assert [record["value"] for record in many[3000:]] == [letter * 3_000_000 for letter in "xyz"]

    run(scenario())


def test_the_reader_begins_in_the_middle_of_a_batch(tmp_path: Path, programs: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await js.publish_all([("orders.many", b"%d" % number) for number in range(3000)])
            await js.streams.truncate("orders", before=1234)
            records = await read(programs, node.socket_port)
            assert [record["offset"] for record in records] == list(range(1234, 3000))
            assert [record["value"] for record in records] == [str(number) for number in range(1234, 3000)]

    run(scenario())


@pytest.mark.parametrize("every", [157, pytest.param(23, marks=_SLOW)])
def test_the_reader_notices_a_flipped_bit_wherever_it_is_in_a_batch(
    tmp_path: Path, programs: Path, every: int
) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.new", b"x" * 1000, key="k", txid=7, headers={"A": "b"})
            async with proxied(node.socket_port, keeps_responses=True) as proxy:
                assert len(await read(programs, proxy.port)) == 1
                said = proxy.response(0)
            places = range(said.index(ARROW_MESSAGE), said.index(b"x" * 1000) + 1000, every)
            faults = [Flip(place, 1 << place % 8) for place in places]
            async with proxied(node.socket_port, *faults) as proxy:
                for fault in faults:
                    code, lines, complaints = await program(
                        programs / "read", "127.0.0.1", str(proxy.port), "orders"
                    )
                    assert (code, lines) == (1, []), fault
                    assert "damaged" in complaints, fault
                    assert "checksum" in complaints, fault

    run(scenario())


def test_the_reader_stops_with_what_the_node_says(tmp_path: Path, programs: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (_, node):
            code, lines, complaints = await program(
                programs / "read", "127.0.0.1", str(node.socket_port), "orders"
            )
            assert (code, lines) == (1, [])
            assert "stream_not_found" in complaints

    run(scenario())


def test_the_reader_asks_ahead_of_the_answers(tmp_path: Path, programs: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.new", b"the only batch")
            async with proxied(node.socket_port) as proxy:
                assert len(await read(programs, proxy.port)) == 1
                requested = bytes(proxy.connections[0].requested)
            # The first answer holds all there is: the others were asked for before it came.
            offsets = re.findall(rb'"op":"fetch".*?"offset":([^,]+)', requested)
            assert offsets == [b"0", b'"next"', b'"next"']

    run(scenario())


@asynccontextmanager
async def a_node_that_says(*frames: bytes) -> AsyncIterator[int]:
    """A server that says just this, whatever it is asked; yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(frames))
        writer.write_eof()
        with suppress(ConnectionResetError):  # a reader that stops leaves answers unread
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def a_frame(body: bytes = b"", **header: int) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<IQ", len(text), len(body)) + text + body


def test_the_reader_leaves_out_what_a_body_holds_beyond_its_range(programs: Path) -> None:
    frames = a_frame(id=0), a_frame(id=1, offset=1, high_watermark=4), a_frame(BATCHES[0] + BATCHES[1])

    async def scenario() -> None:
        async with a_node_that_says(*frames) as port:
            assert [record["offset"] for record in await read(programs, port)] == [1, 2, 3]

    run(scenario())


@pytest.mark.parametrize(
    ("answers", "printed", "complaint"),
    [
        ([[0, 2]], [0, 1, 2], "a batch at 5 and not at 3"),
        ([[0], [2]], [0, 1, 2], "a batch at 5 and not at 3"),
        ([[0, 0]], [0, 1, 2], "a batch at 0 and not at 3"),
        ([[1]], [], "a batch at 3 and not at 0"),
        ([[]], [], "a batch is damaged or missing"),
        ([[0]], [0, 1, 2], "EOF"),
    ],
)
def test_the_reader_notices_what_is_missing_or_comes_twice(
    programs: Path, answers: list[list[int]], printed: list[int], complaint: str
) -> None:
    bodies = [b"".join(BATCHES[number] for number in answer) for answer in answers]
    frames = [a_frame(id=0), a_frame(id=1, offset=0, high_watermark=7), *(a_frame(body) for body in bodies)]

    async def scenario() -> None:
        async with a_node_that_says(*frames) as port:
            code, lines, complaints = await program(programs / "read", "127.0.0.1", str(port), "orders")
        assert code == 1
        assert [json.loads(line)["offset"] for line in lines] == printed
        assert complaint in complaints

    run(scenario())
