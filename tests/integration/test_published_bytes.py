"""Whatever bytes a client of NATS publishes: no other stream has them, and no connection of a node falls.

nats-server itself says what a client may send: the bytes go through a real one, raw, and what it delivers is
taken apart by its own grammar, written down plainly (`parsed_by_reference`).
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nats
import pytest
from nats.aio.client import Client

import jetstream
from envelope.limits import MIB, RECORD_BYTES_MAX, SUBJECT_BYTES_MAX
from jetstream.client.connection import JetstreamClient
from jetstream.ingest.parser import MessageParser
from tests.conftest import StartNatsServer
from tests.support.nats_server import NatsServer
from tests.support.nodes import NodeProcess, request, run
from tests.support.parsed_stream import parsed_by_ours, parsed_by_reference
from tests.support.raw_nats import RawNats

CURSORS: Final = b"jetstream.api.cursors.plain"
INBOX: Final = b"_INBOX.adversary"
ODD: Final = [
    *(b"\v", b"\f", b"\x1c", b"\x1d", b"\x1e", b"\x1f", b"\x85", b"\xa0"),
    *(b"\0", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\r", b"*", b">", b"'", b'"', b"%b%d", b"\xe2\x80\xa8"),
]
"""Blanks of Python, bytes that are no UTF-8, wildcards, a lone CR: all of them pass nats-server."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A node with two streams, and an adversary without scruples on the same server."""

    process: NodeProcess
    client: Client
    js: JetstreamClient
    raw: RawNats

    async def stored(self, stream: str) -> list[tuple[str, bytes | None]]:
        """Return subjects and values of all records of a stream."""
        return [(record.subject, record.value) async for record in self.js.read(stream)]

    async def is_unharmed(self) -> None:
        """The node answers on both of its connections, and neither ever fell."""
        assert (await request(self.client, "cluster.info"))["nodes"]
        ack = await self.js.publish("payroll.honest", b"paid")
        assert ack.stream == "payroll"
        for stream in ("orders", "payroll"):
            info = await request(self.client, "stream.info", name=stream)
            assert (info["state"], info["possible_gaps"]) == ("online", [])
        assert await self.metric('jetstream_nats_reconnects_total{connection="ingest"}') == 0
        assert await self.metric('jetstream_nats_reconnects_total{connection="answers"}') == 0

    async def metric(self, series: str) -> float:
        """Return one number of the node's metrics."""
        address = self.process.endpoints["http"]
        host, _, port = address.rpartition("/")[2].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        page = (await reader.read()).decode()
        writer.close()
        return float(next(line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(series)))


@asynccontextmanager
async def scene(directory: Path, server: NatsServer, at: NatsServer | None = None) -> AsyncIterator[Scene]:
    """The node is attached to ``server``, the adversary to ``at``."""
    process = NodeProcess(directory / "data", server.url, JETSTREAM_NODE_HTTP__PORT="0")
    await asyncio.to_thread(process.start)
    raw = await RawNats.connect((at or server).port)
    try:
        async with await nats.connect(server.url) as client, jetstream.connect(server.url) as js:
            await js.streams.create("orders", "orders.>")
            await js.streams.create("payroll", "payroll.>")
            raw.send(b"SUB %b 1\r\n" % INBOX)
            await raw.flush()
            yield Scene(process, client, js, raw)
        assert await asyncio.to_thread(process.stop) == 0
    finally:
        raw.close()
        process.kill()


def published(seed: int, count: int) -> list[tuple[bytes, bytes, bytes, bytes | None]]:
    """Return subjects, reply subjects, payloads and headers as an adversary chooses them."""
    dice = random.Random(seed)

    def token() -> bytes:
        kind = dice.randrange(4)
        if kind == 0:
            return dice.choice(ODD) + b"%d" % dice.randrange(12)
        if kind == 1:
            raw = bytes(dice.randrange(256) for _ in range(dice.randrange(1, 8)))
            return raw.translate(None, b" \t\n.") or b"x"
        return b"x%d" % dice.randrange(5)

    def body() -> bytes:
        parts = [b"MSG payroll.x 2 3\r\nabc\r\n", b"\r\n", b"\r", b"\n", b"\x8aJSD", b"{}", b"\xff" * 9, b"7"]
        return b"".join(dice.choices(parts, k=dice.randrange(5)))

    def header() -> bytes | None:
        kind = dice.randrange(6)
        if kind == 0:
            return b"NATS/1.0\r\n%b: %b\r\n\r\n" % (token(), token())
        if kind == 1:
            name = dice.choice(
                (b"Jetstream-Txid", b"Nats-Msg-Id", b"Nats-Expected-Stream", b"Jetstream-Session")
            )
            return b"NATS/1.0\r\n%b: %b\r\n\r\n" % (name, dice.choice((b"9" * 60, b"-1", token(), b"orders")))
        return body() or None if kind == 2 else None

    messages: list[tuple[bytes, bytes, bytes, bytes | None]] = []
    for _ in range(count):
        root = dice.choice((b"orders", b"orders", CURSORS, b"jetstream.api", b"jetstream.api.cluster"))
        subject = b".".join([root, *(token() for _ in range(dice.randrange(1, 4)))])
        if dice.randrange(4) == 0:
            subject += dice.choice(ODD) + b"%d" % dice.randrange(1, 12)
        reply = dice.choice((b"", INBOX, INBOX + b"." + token(), b"r" * 3900, token()))
        messages.append((subject, reply, body(), header()))
    return messages


@pytest.mark.parametrize("seed", [1, 2])
def test_a_node_stores_what_the_server_delivers_and_nothing_else(
    seed: int, tmp_path: Path, nats_server: NatsServer
) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, nats_server) as here:
            observer = await RawNats.connect(nats_server.port)
            observer.send(b"SUB orders.> 5\r\nSUB jetstream.api.> 6\r\n")
            await observer.flush()
            for subject, reply, payload, header in published(seed, 600):
                if (
                    b"\r" in subject + reply
                ):  # where its buffer ends the server would take it for another line
                    await here.raw.flush()
                here.raw.publish(subject, payload, reply, header)
                if b"\r" in subject + reply:
                    await here.raw.flush()
            await here.raw.flush()
            await observer.flush()
            delivered = parsed_by_reference(observer.heard)
            assert delivered.rest == b""
            assert sum(len(of_sid) for segment in delivered.segments for of_sid in segment.values()) > 500
            dice = random.Random(seed)
            cuts = sorted(dice.choices(range(len(observer.heard)), k=50))
            pieces = [
                observer.heard[start:end]
                for start, end in zip([0, *cuts], [*cuts, len(observer.heard)], strict=True)
            ]
            ours = parsed_by_ours(pieces, MessageParser(max_control_line=1 << 20))
            assert not ours.refused
            assert without_replies_of_cr(ours.segments) == without_replies_of_cr(delivered.segments)
            await here.is_unharmed()
            plain = [
                (subject.decode(), payload)
                for segment in delivered.segments
                for subject, _, payload, header in segment.get(5, [])
                if header is None and not payload.startswith(b"\x8aJSD") and is_utf8(subject)
            ]
            stored = await here.stored("orders")
            assert [each for each in stored if each in set(plain)] == plain
            assert await here.stored("payroll") == [("payroll.honest", b"paid")]
            observer.close()

    run(scenario())


def without_replies_of_cr(segments: list[dict[int, Any]]) -> list[dict[int, Any]]:
    """Leave out reply subjects with a CR, as our parser does."""
    return [
        {
            sid: [(subject, b"" if b"\r" in reply else reply, *rest) for subject, reply, *rest in messages]
            for sid, messages in segment.items()
        }
        for segment in segments
    ]


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_bytes_of_a_subject_reach_neither_another_stream_nor_a_cursor(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, nats_server) as here:
            await here.js.cursors.commit("billing", "payroll", 0)
            for blank in ODD[:8]:
                for sid in range(1, 13):
                    here.raw.publish(b"orders.x%b%d" % (blank, sid), b"999999")
                    here.raw.publish(b"orders.billing.payroll%b%d" % (blank, sid), b"999999")
                    here.raw.publish(b"orders%b%d" % (blank, sid), b"999999")
                    here.raw.publish(b"orders.x", b"999999", b"r%b4" % blank)
            here.raw.publish(CURSORS + b".short", b"7", INBOX)
            await here.raw.flush()
            await here.is_unharmed()
            assert await here.stored("payroll") == [("payroll.honest", b"paid")]
            cursor = await request(here.client, "cursor.get", consumer="billing", stream="payroll")
            assert cursor["offset"] == 0

    run(scenario())


def test_what_cannot_be_stored_is_refused_on_a_reply_subject_of_any_bytes(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, nats_server) as here:
            inbox = INBOX + b"\xff\x0b4"
            here.raw.send(b"SUB %b 2\r\n" % inbox)
            here.raw.publish(b"orders.\xff", b"x", inbox)
            [refusal] = await here.raw.answer(inbox)
            assert "not UTF-8" in str(refusal["error"])
            here.raw.publish(b"orders.x", b"x", inbox)
            _, ack = await here.raw.answer(inbox, 2)
            assert ack["stream"] == "orders"
            here.raw.publish(b"jetstream.api.cluster.info", b"{}", inbox)
            *_, info = await here.raw.answer(inbox, 3)
            assert "nodes" in info
            await here.is_unharmed()

    run(scenario())


def test_a_reply_subject_that_cannot_be_answered_costs_nobody_a_connection(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    hub = start_nats_server('leafnodes { host: "127.0.0.1", port: -1 }\nserver_name: hub')
    leaf_port = leafnode_port(hub)
    leaf = start_nats_server(
        "server_name: leaf\nmax_control_line: 60000\n"
        f'leafnodes {{ remotes: [{{ url: "nats://127.0.0.1:{leaf_port}" }}] }}'
    )
    leaf.wait_for_log("Leafnode connection created")

    async def scenario() -> None:
        async with scene(tmp_path, hub, leaf) as here:
            await until_across(here)
            for reply in (b"r" * 4090, b"r" * 5000, b"r" * 30_000, b"a..b", b"a.>", b"orders.>"):
                here.raw.publish(b"orders.x", reply[:9], reply)
                here.raw.publish(b"jetstream.api.cluster.info", b"", reply)
                here.raw.publish(b"jetstream.api.nothing", b"\xff", reply)
            here.raw.publish(b"orders." + b"s" * SUBJECT_BYTES_MAX, b"x", INBOX)
            [refusal] = await here.raw.answer(INBOX)
            assert "limit" in str(refusal["error"])
            await here.is_unharmed()
            stored = [value for subject, value in await here.stored("orders") if subject == "orders.x"]
            assert len(stored) == 6
            assert await here.metric('jetstream_nats_dropped_total{connection="ingest",kind="reply"}') == 3
            assert await here.metric('jetstream_nats_dropped_total{connection="answers",kind="reply"}') == 6

    run(scenario())


def leafnode_port(server: NatsServer) -> int:
    """Return where a server with a free port listens for leaf nodes, as its log says."""
    server.wait_for_log("Listening for leafnode connections on")
    line = next(line for line in server.log_lines if "Listening for leafnode connections on" in line)
    return int(line.rpartition(":")[2])


async def until_across(here: Scene) -> None:
    """Return when the node's subscriptions are known to the adversary's server."""
    while True:
        here.raw.publish(b"jetstream.api.cluster.info", b"", INBOX)
        await here.raw.flush()
        if any(subject == INBOX for subject, *_ in here.raw.messages()):
            break
    here.raw.forget()
    while True:
        here.raw.publish(b"orders.first", b"", INBOX)
        await here.raw.flush()
        if any(b'"stream":"orders"' in payload for _, _, payload, _ in here.raw.messages()):
            break
    # What was asked too often is answered before this.
    here.raw.publish(b"orders.last", b"", INBOX + b".last")
    here.raw.send(b"SUB %b.last 9\r\n" % INBOX)
    here.raw.publish(b"orders.last", b"", INBOX + b".last")
    await here.raw.answer(INBOX + b".last")
    here.raw.forget()


def test_a_message_larger_than_any_record_is_refused_and_the_connection_stays(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server("max_payload: 100MB\nmax_pending: 256MB")

    async def scenario() -> None:
        async with scene(tmp_path, server) as here:
            here.raw.publish(b"orders.big", bytes(RECORD_BYTES_MAX + 1), INBOX)
            here.raw.publish(b"orders.big", bytes(8 * MIB), INBOX, b"NATS/1.0\r\n" + bytes(RECORD_BYTES_MAX))
            here.raw.publish(b"orders.small", b"x", INBOX)
            *refusals, ack = await here.raw.answer(INBOX, 3)
            assert all(f"the limit is {RECORD_BYTES_MAX}" in str(refusal["error"]) for refusal in refusals)
            assert ack["offset"] == 0
            here.raw.publish(b"jetstream.api.cluster.info", bytes(RECORD_BYTES_MAX + 1), INBOX)
            *_, refusal = await here.raw.answer(INBOX, 4)
            assert "the limit is" in str(refusal["error"])
            await here.is_unharmed()

    run(scenario())


def test_no_publisher_makes_the_answers_connection_deaf(tmp_path: Path, nats_server: NatsServer) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, nats_server) as here:
            for odd in ODD:
                here.raw.publish(b"jetstream.api.cluster.info", b"", INBOX + odd)
                here.raw.publish(b"jetstream.api.cluster.info", b"", odd)
                here.raw.publish(b"jetstream.api.info" + odd, b"\xff", INBOX, b"NATS/1.0" + odd)
                here.raw.publish(b"jetstream.api.cluster.info", b"[" * 100_000, INBOX, odd)
                here.raw.publish(b"jetstream.api.stream.info", b'{"name":"\\ud800"}', INBOX, b"\r\n\r\n")
                here.raw.publish(b"jetstream.api.discovery", b'{"cluster":' + b"9" * 5000 + b"}", odd)
                here.raw.publish(b"_INBOX." + odd, odd, odd, b"NATS/1.0 503" + odd)
            await here.raw.flush()
            await here.is_unharmed()

    run(scenario())
