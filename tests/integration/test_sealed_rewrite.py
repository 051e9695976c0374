"""The sealed rewrite of streams on real nodes."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

import jetstream
from envelope.types import TimestampUs
from jetstream.client.connection import JetstreamClient
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.inspection import SegmentReport, inspect_stream
from jetstream.log.log import Log, LogConfig
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.compaction import stored_records
from tests.support.nodes import WAIT_SECONDS, NodeProcess, nats_and_node, request, run
from tests.support.pauses import pause
from tests.support.sockets import until

CONFIG: dict[str, Any] = {"rewrite_after": 0.2, "segment_bytes": 64 * 1024}
MANY = 200


def value(number: int) -> bytes:
    """What record ``number`` has."""
    return b"%d " % number + b"x" * 400


async def published(js: JetstreamClient, stream: str, numbers: range) -> None:
    """One record after the other, each in a batch of its own."""
    for number in numbers:
        await js.publish(f"{stream}.x", value(number))


def state_of(directory: Path) -> tuple[list[Path], str]:
    """What shows that the log of a directory is being rewritten: new files, and how far it has come."""
    mark = directory / "rewritten"
    return list(directory.glob("*.arrows.new")), mark.read_text() if mark.exists() else ""


async def until_it_rewrites(js: JetstreamClient, stream: str, directory: Path) -> None:
    """Let a stream be rewritten from now on, and wait until that has begun."""
    before = state_of(directory)
    await js.streams.update(stream, rewrite_after=CONFIG["rewrite_after"])
    async with asyncio.timeout(WAIT_SECONDS):
        while state_of(directory) == before:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0)


async def check_read(js: JetstreamClient, stream: str, count: int, start: int = 0) -> None:
    """A reader finds all of them, each once and in order."""
    found = [(record.offset, record.value) async for record in js.read(stream, start=start)]
    assert found == [(number, value(number)) for number in range(start, count)]


def test_single_records_that_plain_clients_publish_are_merged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            nats_and_node(tmp_path, maintenance_interval=0.1) as (url, node),
            jetstream.connect(url) as js,
        ):
            await js.streams.create("orders", "orders.>", **CONFIG)
            client = await nats.connect(url)
            for number in range(MANY):
                await client.request("orders.x", value(number))
            stream = node.stream("orders")
            assert stream is not None
            last = stream.log.reader.segments[-1]
            await until(lambda: stream.log.rewritten_end == last.base)
            info = await request(client, "stream.info", name="orders")
            assert info["rewritten_end"] == last.base > MANY // 2
            assert info["bytes"] < MANY * 600
            assert max(segment.size for segment in stream.log.reader.segments[:-1]) < 10_000
            await check_read(js, "orders", MANY)
            for start in (1, 50, 77, last.base - 1):
                await check_read(js, "orders", MANY, start)
            assert (await request(client, "stream.update", name="orders", rewrite_after=0))["config"][
                "rewrite_after"
            ] == "PT0S"
            assert (await request(client, "stream.info", name="orders"))["rewritten_end"] is None
            await client.close()

    run(scenario())


@pytest.mark.slow(
    "tests/property/test_sealed_rewrite.py",
    "tests/integration/test_sealed_rewrite.py::test_single_records_that_plain_clients_publish_are_merged",
)
def test_a_node_that_is_killed_while_it_rewrites_knows_every_message_and_id(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        data, sent = tmp_path / "data", 0
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            process = NodeProcess(data, server.url, JETSTREAM_NODE_MAINTENANCE_INTERVAL="PT0.02S")
            process.start()
            async with jetstream.connect(server.url) as js:
                await js.streams.create("orders", "orders.>", **CONFIG)
            [directory] = (data / "streams").glob("orders@*")
            for _ in range(2):
                async with jetstream.connect(server.url) as js:
                    await js.streams.update("orders", rewrite_after=0)
                client = await nats.connect(server.url)
                for number in range(sent, sent + MANY):
                    await client.request("orders.x", value(number), headers={"Nats-Msg-Id": f"m{number}"})
                sent += MANY
                async with jetstream.connect(server.url) as js:
                    await until_it_rewrites(js, "orders", directory)
                process.kill()
                process.start()
                for number in (sent - 1, sent - MANY, 0):
                    answer = await client.request(
                        "orders.x", value(number), headers={"Nats-Msg-Id": f"m{number}"}, timeout=10
                    )
                    assert json.loads(answer.data)["seq"] == number + 1, "its message ids are read back"
                async with jetstream.connect(server.url) as js:
                    await check_read(js, "orders", sent)
                await client.close()
            process.kill()
        segments = on_disk(directory, sent)
        assert min(len(segment.batches) for segment in segments) == 1, "it was rewritten, too"

    run(scenario())


def on_disk(directory: Path, count: int) -> tuple[SegmentReport, ...]:
    """The segments of a node that has ended, once its log was opened and has all records."""
    disk = OsDisk(directory.parent)
    try:
        log = Log.open(disk, directory.name, LogConfig(), TimestampUs(0), "full")
        assert log.reader.corrupt_ranges == ()
        assert sorted(stored_records(log)) == list(range(count))
        log.close()
        assert not list(directory.glob("*.new"))
        report = inspect_stream(disk, directory.name)
        assert report.healthy
        return report.segments
    finally:
        disk.close()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("rewritten"), maintenance_interval='"PT0.1S"') as scene:
        yield scene


async def until_rewritten(scene: ClusterScene, stream: str, nodes: str, end: int) -> None:
    """Wait until these nodes have rewritten a stream up to there."""
    async with asyncio.timeout(WAIT_SECONDS):
        for node in nodes:
            metric = "jetstream_stream_rewritten_offset"
            while await asyncio.to_thread(scene.metric, node, metric, stream) < end:
                await pause()


@pytest.mark.slow(
    "tests/property/test_sealed_rewrite.py",
    "tests/integration/test_sealed_rewrite.py::test_single_records_that_plain_clients_publish_are_merged",
)
def test_a_replica_that_was_away_goes_on_inside_a_merged_batch(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "away", ["a", "b", "c"], **CONFIG)
            await scene.until(js.nats, "away", lambda info: set(info["isr"]) == {"a", "b", "c"})
            await published(js, "away", range(10))
            info = await scene.until(js.nats, "away", lambda info: info["leader"] is not None)
            away = next(node for node in "cba" if node != info["leader"])
            scene.cluster[away].kill()
            await scene.until(js.nats, "away", lambda info: away not in info["isr"])
            await published(js, "away", range(10, MANY))
            await until_rewritten(scene, "away", info["leader"], MANY // 2)
            [files] = scene.files(info["leader"], info["incarnation"])
            first = min(files.glob("*.arrows")).stat().st_size
            assert first < 10_000, "the segment in which it has ended is one batch now"
            [other] = set("abc") - {away, info["leader"]}
            metric = "jetstream_stream_rewritten_offset"
            assert scene.metric(other, metric, "away") == 0, "who does not know how far all are waits"
            scene.cluster[away].start()
            await scene.until(js.nats, "away", lambda info: set(info["isr"]) == {"a", "b", "c"})
            await check_read(js, "away", MANY)
            await until_rewritten(scene, "away", "abc", MANY // 2)
            assert not scene.logged(away, "beginning the log anew", "away")
            assert not scene.logged(away, "cutting the log back", "away")
            assert scene.cluster[away].stop() == 0
            [directory] = scene.files(away, info["incarnation"])
            on_disk(directory, MANY)
            scene.cluster[away].start()

    run(test())


@pytest.mark.slow(
    "tests/property/test_sealed_rewrite.py",
    "tests/integration/test_sealed_rewrite.py::test_single_records_that_plain_clients_publish_are_merged",
)
def test_a_leader_that_is_killed_while_it_rewrites_loses_nothing(scene: ClusterScene) -> None:
    """The last of the file: it ends the nodes."""

    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "failover", ["a", "b", "c"], **{**CONFIG, "rewrite_after": 0})
            await published(js, "failover", range(MANY))
            info = await scene.until(js.nats, "failover", lambda info: info["leader"] is not None)
            leader = info["leader"]
            [files] = scene.files(leader, info["incarnation"])
            await until_it_rewrites(js, "failover", files)
            scene.cluster[leader].kill()
            await scene.until(
                js.nats,
                "failover",
                lambda info: info["state"] == "online" and info["leader"] != leader,
            )
            await check_read(js, "failover", MANY)
            await published(js, "failover", range(MANY, 2 * MANY))
            scene.cluster[leader].start()
            await scene.until(js.nats, "failover", lambda info: set(info["isr"]) == {"a", "b", "c"})
            sent = 2 * MANY
            await until_rewritten(scene, "failover", "abc", sent // 2)
            await check_read(js, "failover", sent)
            for node in "abc":
                assert scene.cluster[node].stop() == 0
            for node in "abc":
                [directory] = scene.files(node, info["incarnation"])
                segments = on_disk(directory, sent)
                assert sum(len(segment.batches) == 1 for segment in segments) >= len(segments) // 2

    run(test())
