"""The socket protocol is thin: a reader in JavaScript, under 100 lines, written from docs/protocol.md alone.

And the official NATS client of that language publishes to our streams with its own JetStream API.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest

import jetstream
from tests.support.javascript import script
from tests.support.node_packages import EXAMPLES, NotInstallable, installed_examples
from tests.support.nodes import nats_and_node, request, run

LINES_MAX = 100


@pytest.fixture(scope="module")
def examples() -> Path:
    try:
        return installed_examples()
    except NotInstallable as missing:
        pytest.skip(str(missing))


def test_the_reader_is_short() -> None:
    assert len((EXAMPLES / "read.mjs").read_text(encoding="utf-8").splitlines()) < LINES_MAX


def test_the_official_client_publishes_and_the_reader_reads(tmp_path: Path, examples: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node), await nats.connect(url) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            code, acks, complaints = await script(examples, "publish.mjs", url, "orders.new", "3")
            assert code == 0, complaints
            assert acks == [
                {"stream": "orders", "seq": 1, "duplicate": False},
                {"stream": "orders", "seq": 2, "duplicate": False},
                {"stream": "orders", "seq": 3, "duplicate": False},
                {"stream": "orders", "seq": 1, "duplicate": True},
                {"error": "wrong last sequence: 3"},
            ]
            code, records, complaints = await read(examples, node.socket_host, node.socket_port)
            assert code == 0, complaints
            assert records == [
                {"offset": number, "subject": "orders.new", "value": f"message {number}"}
                for number in range(3)
            ]

    run(scenario())


async def read(examples: Path, host: str, port: int) -> tuple[int, list[dict[str, object]], str]:
    return await script(examples, "read.mjs", host, str(port), "orders")


def test_the_reader_reads_what_every_kind_of_record_holds(tmp_path: Path, examples: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>", segment_bytes=1 << 20)
            await js.publish("orders.ü", "größer".encode(), key="k", txid=7, headers={"A": "b"})
            await js.publish("orders.gone", None, key="k")
            await js.publish_all([("orders.many", b"%d" % number) for number in range(3000)])
            await js.publish("orders.large", b"x" * 3_000_000)
            await js.streams.truncate("orders", before=1)
            code, records, complaints = await read(examples, node.socket_host, node.socket_port)
            assert code == 0, complaints
            assert [record["offset"] for record in records] == list(range(1, 3003))
            assert records[0] == {"offset": 1, "subject": "orders.gone", "value": None}
            assert [record["value"] for record in records[1:-1]] == [str(number) for number in range(3000)]
            assert records[-1]["value"] == "x" * 3_000_000

    run(scenario())


@asynccontextmanager
async def flipping(host: str, port: int, place: int) -> AsyncIterator[int]:
    """A proxy that flips a bit of the byte at ``place`` of what the node sends; yields its port."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flip: int | None) -> None:
        passed = 0
        while data := await reader.read(1 << 16):
            if flip is not None and passed <= flip < passed + len(data):
                data = data[: flip - passed] + bytes([data[flip - passed] ^ 1]) + data[flip - passed + 1 :]
            passed += len(data)
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node_reader, node_writer = await asyncio.open_connection(host, port)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(relay(reader, node_writer, None))
            tasks.create_task(relay(node_reader, writer, place))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_the_reader_notices_a_flipped_bit(tmp_path: Path, examples: Path, share: float) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.large", b"x" * 100_000)
            async with flipping(node.socket_host, node.socket_port, int(100_000 * share)) as port:
                code, records, complaints = await read(examples, "127.0.0.1", port)
            assert (code, records) == (1, [])
            assert "is damaged" in complaints

    run(scenario())
