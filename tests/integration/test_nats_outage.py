"""The NATS server goes away under load: the node resumes, says so, and has lost nothing it acked."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import PubAck
from nats.js.errors import NoStreamResponseError

import jetstream
from envelope.errors import UnavailableError
from envelope.limits import MAILBOX_MESSAGES_MAX
from jetstream.client.nodes.nats_connection import close_nats, connect_nats
from jetstream.ingest.messages import MessageBlock
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from jetstream.node.settings.node_config import load_config
from tests.conftest import StartNatsServer
from tests.support.nats_server import NatsServer
from tests.support.nodes import NodeProcess, node_config, request
from tests.support.pauses import pause
from tests.support.publishers import Witness
from tests.support.sockets import LOOPS, run, until


def test_a_restarted_server_leaves_a_reported_gap_and_no_acked_loss(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as first:
            port = int(first.url.rpartition(":")[2])
            async with Node(node_config(tmp_path / "data", first.url)):
                witness = Witness("numbers.all", first.url)
                await witness.open()
                assert witness._client is not None
                await request(witness._client, "stream.create", name="numbers", subject="numbers.>")
                await witness.publish(2000)
                await witness.wait_for_acks(500)
                await first.__aexit__(None, None, None)
                async with EmbeddedNatsServer(tmp_path / "nats2", port=port):
                    await witness.retry_until_acked()
                    info = await info_once_it_is_back(witness._client)
                    kinds = {gap["kind"] for gap in info["possible_gaps"]}
                    assert kinds & {"reconnect", "slow_consumer"}
                    await check_stored(witness)
                    await witness.close()

    run(scenario())


async def info_once_it_is_back(client: Client) -> dict[str, Any]:
    """The node's answering connection may come back later than the ingesting one."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await request(client, "stream.info", name="numbers")
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                await pause()


async def check_stored(witness: Witness) -> None:
    assert witness.contradictions == []
    values: list[int] = []
    async with jetstream.connect(witness.url) as js:
        async for record in js.read("numbers", start="earliest"):
            assert record.value is not None
            values.append(int(record.value))
    assert sorted(values) == list(range(witness.published))
    assert all(values[offset] == number for number, offset in witness.acked.items())


def test_a_node_without_a_reachable_server_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        nats = {"urls": ["nats://user:secret@127.0.0.1:1"], "start_timeout": 0.5}
        config = load_config(flags={"data": tmp_path / "data", "nats": nats, "socket": {"port": 0}})
        with pytest.raises(
            UnavailableError, match=r"cannot connect to NATS at nats://127\.0\.0\.1:1:"
        ) as caught:
            async with Node(config):
                pass
        assert "secret" not in str(caught.value)

    run(asyncio.wait_for(scenario(), 60))


def test_a_client_outlives_the_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server, await nats.connect(server.url) as client:
            for expected in (1, 2):
                async with Node(node_config(tmp_path / "data", server.url)):
                    await request(client, "stream.create", name="orders", subject="orders.>")
                    ack = await client.jetstream().publish("orders.new", b"x")
                    assert ack.seq == expected

    run(scenario())


def test_a_client_comes_back_however_long_nats_was_away(start_nats_server: StartNatsServer) -> None:
    """By itself nats-py closes its client for good after 60 attempts: two minutes at its usual pace."""
    attempts = 0

    async def count(_: Exception) -> None:
        nonlocal attempts
        attempts += 1

    async def store(message: Msg) -> None:
        await message.respond(b'{"stream":"a","seq":1}')

    async def scenario() -> None:
        server = start_nats_server()
        pace: dict[str, Any] = {"reconnect_time_wait": 0.001, "error_cb": count}
        async with jetstream.connect(server.url, **pace) as js:
            await js.nats.subscribe("a", cb=store)
            server.stop()
            await until(lambda: attempts > 150 or js.nats.is_closed)
            server.start()
            await until(lambda: js.nats.is_connected or js.nats.is_closed)
            assert (await js.publish("a", b"v")).offset == 0

    run(scenario())


def test_a_node_cut_off_as_a_slow_consumer_comes_back_and_reports_the_gap(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server('max_pending: 1048576\nwrite_deadline: "100ms"')

    async def scenario() -> None:
        node = NodeProcess(tmp_path / "data", server.url)
        node.start()
        try:
            async with await nats.connect(server.url) as client:
                await request(client, "stream.create", name="numbers", subject="numbers.>")
                os.kill(node.pid, signal.SIGSTOP)
                await flood(client, server)
                os.kill(node.pid, signal.SIGCONT)
                ack = await acked_once_it_is_back(client)
                info = await request(client, "stream.info", name="numbers")
                assert info["log_end_offset"] == ack.seq
                assert any(gap["kind"] in ("reconnect", "slow_consumer") for gap in info["possible_gaps"])
        finally:
            os.kill(node.pid, signal.SIGCONT)
            node.kill()

    run(scenario())


async def flood(client: Client, server: NatsServer) -> None:
    """Publish without waiting for acks until the server cuts the node off."""
    for _ in range(200):
        for _ in range(16):
            await client.publish("numbers.lost", bytes(65_536))
        await client.flush()
        if any("Slow Consumer" in line for line in server.log_lines):
            return
    raise AssertionError("the server never minded the slow consumer")


async def acked_once_it_is_back(client: Client) -> PubAck:
    async with asyncio.timeout(30):
        while True:
            try:
                return await client.jetstream().publish("numbers.one", b"x", timeout=1)
            except (NoStreamResponseError, nats.errors.TimeoutError):
                await pause()


def test_a_restart_is_told_as_a_gap_that_begins_with_the_last_record_or_the_streams_creation(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    async def scenario() -> None:
        async with await nats.connect(nats_server.url) as client:
            async with Node(node_config(tmp_path / "data", nats_server.url)):
                created = await request(client, "stream.create", name="empty", subject="empty.>")
                assert created["possible_gaps"] == []
            async with Node(node_config(tmp_path / "data", nats_server.url)):
                info = await request(client, "stream.info", name="empty")
                (gap,) = info["possible_gaps"]
                assert gap["kind"] == "restart"
                assert gap["since"] == created["created_at"]

    run(scenario())


def test_messages_beyond_the_mailbox_are_refused_or_told_as_an_overload(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    async def scenario() -> None:
        async with (
            Node(node_config(tmp_path / "data", nats_server.url)) as node,
            await nats.connect(nats_server.url) as client,
        ):
            await request(client, "stream.create", name="numbers", subject="numbers.>")
            inbox = client.new_inbox()
            refusals = await client.subscribe(inbox)
            await client.flush()
            stream = node.stream("numbers")
            assert stream is not None
            assert stream.leading is not None
            silent = MAILBOX_MESSAGES_MAX + 10
            stream.leading.deliver(block(silent, b""))
            stream.leading.deliver(block(1, inbox.encode()))
            refusal = json.loads((await refusals.next_msg(timeout=30)).data)
            assert refusal["error"]["err_code"] == 10077
            await stream.leading.drained()
            info = await request(client, "stream.info", name="numbers")
            (gap,) = info["possible_gaps"]
            assert (gap["kind"], gap["count"]) == ("overload", 10)
            assert info["log_end_offset"] == MAILBOX_MESSAGES_MAX

    run(scenario())


def block(count: int, reply: bytes) -> MessageBlock:
    return MessageBlock([b"numbers.one"] * count, [reply] * count, [b"x"] * count, [None] * count)


def test_a_client_is_closed_while_nats_is_away(start_nats_server: StartNatsServer) -> None:
    attempts = 0

    async def count(_: Exception) -> None:
        nonlocal attempts
        attempts += 1

    async def scenario() -> None:
        server = start_nats_server()
        pace: dict[str, Any] = {"reconnect_time_wait": 0.001, "error_cb": count}
        async with jetstream.connect(server.url, **pace) as js:
            server.stop()
            await until(lambda: attempts > 5)
            await js.nats.publish("a", b"for the next connection")
        assert js.nats.is_closed

    run(scenario())


@pytest.mark.parametrize("loop", list(LOOPS))
def test_a_client_is_closed_at_any_turn_after_its_connection_was_lost(tmp_path: Path, loop: str) -> None:
    """nats-py waits for the end of the old connection then, and gives that up with its reconnecting."""

    async def close_after(turns: int, url: str, connected: asyncio.Barrier) -> None:
        lost = asyncio.Event()

        async def told(_: Exception) -> None:
            lost.set()

        client = await connect_nats([url], {"error_cb": told}, 10)
        await connected.wait()
        await lost.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        await close_nats(client)
        closed.append(client.is_closed)

    closed: list[bool] = []

    async def scenario() -> None:
        connected = asyncio.Barrier(9)
        async with EmbeddedNatsServer(tmp_path / "nats") as server, asyncio.TaskGroup() as tasks:
            for turns in range(8):
                tasks.create_task(close_after(turns, server.url, connected))
            await connected.wait()
            await server.__aexit__(None, None, None)
        assert closed == [True] * 8

    run(scenario(), loop)
