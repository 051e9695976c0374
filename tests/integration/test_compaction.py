"""Compaction of streams on real nodes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

import jetstream
from envelope.errors import OffsetForgotten
from envelope.types import TimestampUs
from jetstream.client.connection import JetstreamClient
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.inspection import inspect_stream
from jetstream.log.log import Log, LogConfig
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from tests.support import compaction
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.compacting_nodes import CONFIG, is_compacting, latest, published, until_compacted
from tests.support.log_files import check_files_owned
from tests.support.nodes import WAIT_SECONDS, NodeProcess, nats_and_node, request, run
from tests.support.sockets import until


def test_what_plain_clients_publish_is_compacted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            nats_and_node(tmp_path, maintenance_interval=0.1) as (url, node),
            jetstream.connect(url) as js,
        ):
            await js.streams.create("prices", "prices.>", **CONFIG)
            client = await nats.connect(url)
            for turn in range(300):
                headers = {"Jetstream-Key": f"k{turn % 7}"}
                value = b"%d " % turn + b"x" * 1000
                await client.request("prices.x", value, WAIT_SECONDS, headers=headers)
            for key in ("k1", "k2"):
                headers = {"Jetstream-Key": key, "Jetstream-Tombstone": "1"}
                await client.request("prices.x", b"", WAIT_SECONDS, headers=headers)
            stream = node.stream("prices")
            assert stream is not None
            await until(lambda: stream.log.compaction.cleaned_end > 200)
            async with js.read("prices") as reader:
                records = [record async for record in reader]
            assert len(records) < 200
            await client.close()

    run(scenario())


@pytest.mark.slow("tests/crash/test_compaction.py")
def test_a_node_that_is_killed_while_it_compacts_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        data = tmp_path / "data"
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            process = NodeProcess(data, server.url, JETSTREAM_NODE_MAINTENANCE_INTERVAL="PT0.02S")
            process.start()
            async with jetstream.connect(server.url) as js:
                await js.streams.create("prices", "prices.>", **CONFIG)
            [directory] = (data / "streams").glob("prices@*")
            expected: dict[bytes, bytes] = {}
            for turn in range(5):
                async with jetstream.connect(server.url) as js:
                    for attempt in range(20):
                        keys = [f"k{number % 40}-{number % 7}" for number in range(2000)]
                        values = [
                            b"%d-%d-%d " % (turn, attempt, number) + b"x" * 500 for number in range(2000)
                        ]
                        await js.publish_all(
                            ("prices.x", value, {"key": key}) for key, value in zip(keys, values, strict=True)
                        )
                        expected |= {key.encode(): value for key, value in zip(keys, values, strict=True)}
                        if is_compacting(directory):
                            break
                    else:
                        raise AssertionError("it was never seen to compact")
                process.kill()
                process.start()
                async with jetstream.connect(server.url) as js:
                    assert latest([record async for record in js.read("prices")]) == expected
            process.kill()
        disk = OsDisk(directory.parent)
        log = Log.open(disk, directory.name, LogConfig(), TimestampUs(0), "full")
        assert log.reader.corrupt_ranges == ()
        assert len(compaction.stored_records(log)) < 5 * 2000, "it was compacted, too"
        check_files_owned(log, is_just_opened=True)
        log.close()
        disk.close()

    run(scenario())


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("compacted"), maintenance_interval='"PT0.1S"') as scene:
        yield scene


async def deleted(js: JetstreamClient, stream: str, *keys: str) -> None:
    for key in keys:
        await js.publish(f"{stream}.x", None, key=key)


def stored(scene: ClusterScene, node: str, incarnation: str) -> dict[int, compaction.Stored]:
    """All that a node that has stopped has on disk of a stream, after looking for anything wrong."""
    [directory] = scene.files(node, incarnation)
    disk = OsDisk(directory.parent)
    try:
        assert inspect_stream(disk, directory.name).healthy
        log = Log.open(disk, directory.name, LogConfig(), TimestampUs(0))
        check_files_owned(log, is_just_opened=True)
        found = compaction.stored_records(log)
        log.close()
        return found
    finally:
        disk.close()


def test_replicas_compact_by_themselves_and_answer_alike(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "alike", ["a", "b", "c"], **CONFIG)
            await published(js, "alike", range(300))
            await deleted(js, "alike", "k1", "k2")
            await published(js, "alike", range(303, 600, 7))  # of one key
            await until_compacted(scene, "alike", "abc", cleaned=280)
            info = await scene.until(js.nats, "alike", lambda info: info["isr"] == ["a", "b", "c"])
            assert info["compaction"]["cleaned_end"] >= 280
            by_reader = latest([record async for record in js.read("alike")])
            assert set(by_reader) == {b"k0", b"k3", b"k4", b"k5", b"k6"} | {b"k2"}
            for node in "abc":
                assert scene.cluster[node].stop() == 0
            on_disk = [stored(scene, node, info["incarnation"]) for node in "abc"]
            for records in on_disk:
                assert len(records) < 200
                assert {key: value for key, (_, value) in compaction.latest(records).items()} == by_reader
            scene.cluster.start()

    run(test())


async def one_by_one(js: JetstreamClient, stream: str, turns: range, keys: int = 7) -> None:
    """As `published`, in batches of one record."""
    for turn in turns:
        await js.publish(f"{stream}.x", b"%d " % turn + b"x" * 1000, key=f"k{turn % keys}")


async def check_alike(scene: ClusterScene, js: JetstreamClient, keys: dict[str, set[bytes]]) -> None:
    """All three nodes are in sync and have the same last value of each of a stream's keys, and no others."""
    lives, by_reader = {}, {}
    for stream, wanted in keys.items():
        info = await scene.until(js.nats, stream, lambda info: set(info["isr"]) == {"a", "b", "c"})
        lives[stream] = info["incarnation"]
        by_reader[stream] = latest([record async for record in js.read(stream)])
        assert set(by_reader[stream]) == wanted
    for node in "abc":
        assert scene.cluster[node].stop() == 0
    for node in "abc":
        for stream, life in lives.items():
            found = compaction.latest(stored(scene, node, life))
            values = {key: value for key, (_, value) in found.items()}
            assert values == by_reader[stream], (node, stream)
    scene.cluster.start()
    for stream in keys:
        await scene.until(js.nats, stream, lambda info: info["state"] == "online")


@pytest.mark.slow("tests/property/test_compaction.py", "tests/integration/test_compacted_streams.py")
def test_a_replica_that_was_away_catches_up_through_what_was_compacted(scene: ClusterScene) -> None:
    """Two streams, of which one loses keys meanwhile."""
    streams = ("away", "away-deletes")

    def begun_anew() -> list[int]:
        return [len(scene.logged("c", "beginning the log anew", f"stream={name} ")) for name in streams]

    async def test() -> None:
        async with scene.client() as js:
            for name, retention in zip(streams, (3600, 0.3), strict=True):
                config = {**CONFIG, "tombstone_retention": retention}
                await scene.created(js.nats, name, ["a", "b", "c"], **config)
                await one_by_one(js, name, range(100))
                await one_by_one(js, name, range(2, 37, 7))  # of one key: its end will lie among what goes
            before = begun_anew()
            scene.cluster["c"].kill()
            for name in streams:
                await scene.until(js.nats, name, lambda info: set(info["isr"]) == {"a", "b"})
                if name == "away-deletes":
                    await deleted(js, name, "k1", "k2")
                await one_by_one(js, name, range(2, 400, 7))  # of one key
                await one_by_one(js, name, range(3, 400, 7))
            for name in streams:
                await until_compacted(scene, name, "ab", cleaned=155)
            info = await scene.cluster.info(js.nats, "away-deletes")
            await until_compacted(scene, "away-deletes", info["leader"], purged=107)
            scene.cluster["c"].start()
            keys = {b"k%d" % number for number in range(7)}
            await check_alike(scene, js, {"away": keys, "away-deletes": keys - {b"k1"}})
            anew = [after > earlier for earlier, after in zip(before, begun_anew(), strict=True)]
            assert anew == [False, True], "only who may have missed a tombstone copies everything"

    run(test())


def test_a_read_replica_that_becomes_a_replica_knows_the_sessions_whose_records_are_gone(
    scene: ClusterScene,
) -> None:
    """It copied the stream when they were gone already: only the leader's note tells of them."""

    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "promoted", ["a"], **CONFIG)
            place: dict[str, Any] = {"session": "importer", "sequence": 1, "sequence_after": 0}
            await js.publish("promoted.x", b"of the session", key="k1", **place)
            for start in range(0, 400, 100):
                await published(js, "promoted", range(start, start + 100))
            await until_compacted(scene, "promoted", "a", cleaned=200)
            await request(js.nats, "stream.update", name="promoted", read_replicas=1)
            info = await scene.until(
                js.nats,
                "promoted",
                lambda info: (
                    [state["high_watermark"] for state in info["replica_states"] if state["is_read_replica"]]
                    == [info["high_watermark"]]
                ),
            )
            (other,) = info["read_replicas"]
            await request(js.nats, "stream.reassign", name="promoted", replicas=[other], read_replicas=[])
            await scene.until(js.nats, "promoted", lambda info: info["leader"] == other)
            await scene.until(js.nats, "promoted", lambda info: info["state"] == "online")
            with pytest.raises(OffsetForgotten):
                await js.publish("promoted.x", b"of the session", key="k1", **place)

    run(test())
