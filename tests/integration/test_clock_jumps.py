"""A node whose wall clock is ahead for a moment: what it tells, what an operator mends, what stays."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

import jetstream
from envelope.errors import JetstreamError
from envelope.limits import SEGMENT_BYTES_MIN
from jetstream import PublishAck
from jetstream.client.connection import JetstreamClient
from jetstream.log.log import Log
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from jetstream.node.runtime.removal_clock import HOLD_NS
from jetstream.node.settings.node_config import load_config
from metadata.api.responses import StreamInfo
from tests.support.clocks import WrongClock
from tests.support.node_cluster import NodeCluster
from tests.support.nodes import nats_and_node, node_config, run
from tests.support.pauses import pause
from tests.support.scraping import metrics

YEARS = timedelta(days=9 * 365)
YEARS_US = YEARS // timedelta(microseconds=1)
AHEAD = ("jetstream_stream_time_ahead_seconds", ("orders",))
HELD_BACK = ("jetstream_retention_held_back_seconds", ())
SETTINGS: dict[str, object] = {"http": {"port": 0}, "maintenance_interval": 0.02}


def has_lost(log: Log) -> bool:
    return log.log_start_offset > 0


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await pause()


def test_an_operator_lets_the_time_of_a_stream_fall_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, everything = WrongClock(), [b"right", b"ahead", b"stands still", b"new"]

    async def fallen(js: JetstreamClient, node: Node) -> datetime:
        """Return the time of the stream before it fell."""
        await js.streams.create("orders", "orders.>")
        await js.publish("orders.a", b"right", message_id="right")
        clock.ahead_us = YEARS_US
        await js.publish("orders.a", b"ahead", message_id="ahead")
        clock.ahead_us = 0
        await js.publish("orders.a", b"stands still")
        await until(lambda: "time of stream ahead of clock" in caplog.text)
        assert (await metrics(node))[AHEAD] > YEARS.total_seconds() - 60
        assert (await js.streams.info("orders")).time_ahead > YEARS - timedelta(minutes=1)

        done = await js.streams.reset_time("orders")
        assert done.before - done.time > YEARS - timedelta(minutes=1)
        assert (await metrics(node))[AHEAD] == 0
        await until(lambda: "time of stream no longer ahead" in caplog.text)
        assert caplog.text.count("time of stream ahead of clock") == 1
        nothing = await js.streams.reset_time("orders")
        assert nothing.before == nothing.time == done.time
        assert (await js.publish("orders.a", b"ahead", message_id="ahead")).duplicate
        await js.publish("orders.a", b"new", message_id="new")
        return done.before

    async def check(js: JetstreamClient, before: datetime, ahead: datetime) -> None:
        for message_id in ("ahead", "new"):
            assert (await js.publish("orders.a", b"repeated", message_id=message_id)).duplicate
        assert (await js.streams.info("orders")).time_ahead == timedelta(0)
        for start, count in ((before, 4), (ahead, 3)):  # the first one in the order of the log
            async with js.read("orders", start=start) as records:
                assert [record.value async for record in records] == everything[-count:]

    async def scenario() -> None:
        begun = datetime.now(UTC) - timedelta(seconds=1)
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            config = node_config(tmp_path / "data", server.url, **SETTINGS)
            async with Node(config, clock) as node, jetstream.connect(server.url) as js:
                ahead = await fallen(js, node)
                await check(js, begun, ahead)
            async with Node(config, clock), jetstream.connect(server.url) as js:
                await check(js, begun, ahead)

    with caplog.at_level(logging.WARNING):
        run(scenario())


def test_retention_by_age_takes_nothing_while_the_clock_is_ahead_for_a_moment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        clock = WrongClock()
        async with (
            nats_and_node(tmp_path, clock, **SETTINGS) as (url, node),
            jetstream.connect(url) as js,
        ):
            day = timedelta(days=1)
            await js.streams.create(
                "orders", "orders.>", retention={"age": day}, segment_bytes=SEGMENT_BYTES_MIN
            )
            count = 0
            stream = node.stream("orders")
            assert stream is not None
            while len(stream.log.reader.segments) < 3:
                await js.publish("orders.a", b"x" * 10_000)
                count += 1
            clock.ahead_us = YEARS_US
            await until(lambda: "clock jumped ahead" in caplog.text)
            assert (await metrics(node))[HELD_BACK] > YEARS.total_seconds() - 60
            clock.ahead_us = 0
            await until(lambda: "clock is believed again" in caplog.text)
            assert (await metrics(node))[HELD_BACK] == 0
            assert (stream.log.log_start_offset, stream.log.log_end_offset) == (0, count)
            clock.passed_us = 2 * day // timedelta(microseconds=1)
            await until(lambda: stream.log.log_start_offset == count)

    with caplog.at_level(logging.WARNING):
        run(scenario())


def test_a_node_that_starts_with_its_clock_ahead_removes_nothing_for_an_hour(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock, rules = WrongClock(), {"retention": {"age": timedelta(days=1)}, "segment_bytes": 65536}
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            config = node_config(tmp_path / "data", server.url, **SETTINGS)
            async with Node(config, clock), jetstream.connect(server.url) as js:
                await js.streams.create("orders", "orders.>", **rules)
                for _ in range(12):
                    await js.publish("orders.a", b"x" * 10_000)
            clock.ahead_us = YEARS_US
            async with Node(config, clock) as node, jetstream.connect(server.url) as js:
                orders = node.stream("orders")
                assert orders is not None
                assert len(orders.log.reader.segments) > 1
                for name in ("one", "two"):  # passes of retention come to an end meanwhile
                    await js.streams.create(name, f"{name}.>", **{**rules, "retention": {"messages": 1}})
                    for _ in range(12):
                        await js.publish(f"{name}.a", b"x" * 10_000)
                    marker = node.stream(name)
                    assert marker is not None
                    await until(partial(has_lost, marker.log))
                assert orders.log.log_start_offset == 0
                clock.passed_us += HOLD_NS // 1000
                await until(lambda: orders.log.log_start_offset == 12)

    run(scenario())


async def running(node: Node, leaves: asyncio.Event) -> None:
    async with node:
        await leaves.wait()


async def published(js: JetstreamClient, value: bytes, message_id: str) -> PublishAck:
    """Publish until a leader answers."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await js.publish("orders.a", value, message_id=message_id)
            except JetstreamError:
                await pause()


def test_the_next_leader_goes_on_from_the_time_that_has_fallen(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server, asyncio.TaskGroup() as tasks:
            cluster = NodeCluster(tmp_path, server.url)
            clocks = {name: WrongClock() for name in cluster.nodes}
            leaves = {name: asyncio.Event() for name in cluster.nodes}
            ended = {
                name: tasks.create_task(
                    running(Node(load_config(tmp_path / name / "node.toml"), clock), leaves[name])
                )
                for name, clock in clocks.items()
            }
            async with jetstream.connect(server.url) as js:
                info = await created(js)
                assert info.leader is not None
                clocks[info.leader].ahead_us = YEARS_US
                await published(js, b"ahead", "ahead")
                clocks[info.leader].ahead_us = 0
                await published(js, b"stands still", "stands still")
                await js.streams.reset_time("orders")
                await published(js, b"new", "new")
                leaves[info.leader].set()
                await ended[info.leader]
                for message_id in ("ahead", "stands still", "new"):
                    assert (await published(js, b"repeated", message_id)).duplicate
                await published(js, b"after", "after")
                assert (await js.streams.info("orders")).leader not in (None, info.leader)
                async with js.read("orders") as records:
                    times = [record.timestamp async for record in records]
                assert times[0] == times[1] > times[2] + YEARS_US // 2
                assert times[2] <= times[3] < times[2] + YEARS_US // 2
            for leave in leaves.values():
                leave.set()

    run(scenario())


async def created(js: JetstreamClient) -> StreamInfo:
    """Create the stream on three nodes once there are so many; return its info."""
    async with asyncio.timeout(60):
        while True:
            try:
                info = await js.streams.create("orders", "orders.>", replicas=3)
            except JetstreamError:
                await pause()
            else:
                if len(info.isr) == 3 and info.leader is not None:
                    return info
                await pause()
