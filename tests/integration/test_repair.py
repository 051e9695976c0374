"""What is damaged on one node's disk is put back from another node's files, whoever leads."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envelope.errors import CorruptDataError
from envelope.types import Offset
from jetstream.client.connection import JetstreamClient
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.log import Log, LogConfig
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.logs import NOW
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.pauses import pause

NODES = ("a", "b", "c")
COUNT = 100
CONFIG = {"segment_bytes": 64 * 1024, "rewrite_after": 0}
CORRUPT = "jetstream_stream_corrupt_offsets"
REPAIRED = "jetstream_stream_repaired_offsets_total"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    settings = {"maintenance_interval": '"PT0.02S"', "verify": '"full"', "scrub_interval": '"PT0.5S"'}
    with three_nodes(tmp_path_factory.mktemp("damaged"), **settings) as scene:
        yield scene


async def filled(scene: ClusterScene, js: JetstreamClient, stream: str, replicas: int = 3) -> str:
    """Create and fill a stream of several segments; return the incarnation."""
    await scene.created(js.nats, stream, list(NODES[:replicas]), **CONFIG)
    for number in range(COUNT):
        await js.publish(f"{stream}.x", b"%d " % number + b"x" * 1000)
    info = await scene.cluster.until_whole(js.nats, stream, replicas)
    return str(info["incarnation"])


def stopped(scene: ClusterScene, *nodes: str) -> None:
    """Stop them cleanly, all at once: each one alone would wait for a majority."""
    with ThreadPoolExecutor() as pool:
        assert set(pool.map(lambda node: scene.cluster[node].stop(), nodes)) == {0}


def segments(scene: ClusterScene, node: str, incarnation: str) -> list[Path]:
    [directory] = scene.files(node, incarnation)
    return sorted(directory.glob("*.arrows"))


def contents(scene: ClusterScene, node: str, incarnation: str) -> list[bytes]:
    return [path.read_bytes() for path in segments(scene, node, incarnation)]


def damage(scene: ClusterScene, node: str, incarnation: str, offset: int) -> None:
    """Flip a bit of the batch with this offset, on a node that is stopped."""
    [directory] = scene.files(node, incarnation)
    log = Log.open(OsDisk(directory.parent), directory.name, LogConfig(), NOW)
    found = log.reader.locate(Offset(offset))
    path, position = directory.parent / found.segment.path, found.entry.position + 500
    log.close()
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


async def until_repaired(scene: ClusterScene, stream: str, **offsets: int) -> None:
    """Wait until so many offsets are repaired at each node, and none is refused any more."""
    async with asyncio.timeout(WAIT_SECONDS):
        for node, count in offsets.items():
            while (metric(scene, node, REPAIRED, stream), metric(scene, node, CORRUPT, stream)) != (count, 0):
                await pause()


def metric(scene: ClusterScene, node: str, name: str, stream: str) -> float | None:
    """A number of a stream; None while the node does not tell it."""
    try:
        return scene.metric(node, name, stream)
    except (OSError, ValueError):
        return None


async def check_read(js: JetstreamClient, stream: str) -> None:
    for node in NODES:
        async with js.read(stream, node=node, end=COUNT) as reader:
            found = [int(record.value.split()[0]) async for record in reader if record.value is not None]
        assert found == list(range(COUNT))


@pytest.mark.slow(
    "tests/crash/test_repair.py",
    "tests/simulation/test_replica_damage.py",
    "tests/integration/test_repair.py::test_damage_is_repaired_before_anything_is_known_to_be_committed",
)
def test_all_replicas_repair_each_other_whoever_leads(scene: ClusterScene) -> None:
    """The first batch of a segment, neighbours, and one of the segment that is being written."""

    async def scenario() -> None:
        async with scene.client() as js:
            incarnation = await filled(scene, js, "all")
            await scene.cluster.until_ready(js.nats)
            stopped(scene, *NODES)
            whole = contents(scene, "a", incarnation)
            assert len(whole) > 2
            for node, offsets in {"a": (0, 50), "b": (7, 8, 9), "c": (COUNT - 3,)}.items():
                assert contents(scene, node, incarnation) == whole, "replicas' files are equal"
                for offset in offsets:
                    damage(scene, node, incarnation, offset)
                assert contents(scene, node, incarnation) != whole
            scene.cluster.start()
            await scene.cluster.until_whole(js.nats, "all")
            await until_repaired(scene, "all", a=2, b=3, c=1)
            await check_read(js, "all")
            assert (await js.publish("all.x", b"more")).offset == COUNT
            stopped(scene, *NODES)
            for node in NODES:
                found = contents(scene, node, incarnation)
                assert found[:-1] == whole[:-1], "to the byte"
                assert found[-1][: len(whole[-1])] == whole[-1]
                assert scene.logged(node, "repaired", "all")
            scene.cluster.start()
            await scene.cluster.until_whole(js.nats, "all")
            for node in NODES:
                assert metric(scene, node, CORRUPT, "all") == 0, "and it is so on disk"

    run(scenario())


def test_damage_is_repaired_before_anything_is_known_to_be_committed(scene: ClusterScene) -> None:
    """Two of three have all of it, both with damage, and nothing is committed until the third one has it."""

    async def scenario() -> None:
        async with scene.client() as js:
            incarnation = await filled(scene, js, "few")
            stopped(scene, "c")
            for _ in range(10):
                await js.publish("few.x", b"c lacks it" + b"x" * 1000)
            await js.streams.update("few", min_insync_replicas=3)
            stopped(scene, "a", "b")
            damage(scene, "a", incarnation, COUNT + 2)
            damage(scene, "b", incarnation, COUNT + 5)
            scene.cluster.start()
            await scene.cluster.until_whole(js.nats, "few")
            await until_repaired(scene, "few", a=1, b=1)
            await check_read(js, "few")
            assert (await js.publish("few.x", b"more")).offset == COUNT + 10

    run(scenario())


@pytest.mark.slow(
    "tests/crash/test_repair.py",
    "tests/simulation/test_replica_damage.py",
    "tests/integration/test_repair.py::test_damage_is_repaired_before_anything_is_known_to_be_committed",
)
def test_what_nobody_has_intact_stays_refused_and_the_rest_is_repaired(scene: ClusterScene) -> None:
    async def scenario() -> None:
        async with scene.client() as js:
            incarnation = await filled(scene, js, "none")
            stopped(scene, *NODES)
            for node in NODES:
                damage(scene, node, incarnation, 5)
            damage(scene, "b", incarnation, 60)
            scene.cluster.start()
            await scene.cluster.until_whole(js.nats, "none")
            async with asyncio.timeout(WAIT_SECONDS):
                while (metric(scene, "b", REPAIRED, "none"), metric(scene, "b", CORRUPT, "none")) != (1, 1):
                    await pause()
                for node in NODES:
                    while not scene.logged(node, "not repaired", "none"):
                        await pause()
            assert [metric(scene, node, CORRUPT, "none") for node in NODES] == [1, 1, 1]
            with pytest.raises(CorruptDataError):
                async with js.read("none", end=COUNT) as reader:
                    [record async for record in reader]
            async with js.read("none", start=6, end=COUNT) as reader:
                assert len([record async for record in reader]) == COUNT - 6

    run(scenario())


@pytest.mark.slow(
    "tests/crash/test_repair.py",
    "tests/simulation/test_replica_damage.py",
    "tests/integration/test_repair.py::test_damage_is_repaired_before_anything_is_known_to_be_committed",
)
def test_a_stream_with_one_replica_has_nobody_to_ask(scene: ClusterScene) -> None:
    async def scenario() -> None:
        async with scene.client() as js:
            incarnation = await filled(scene, js, "one", replicas=1)
            stopped(scene, "a")
            damage(scene, "a", incarnation, 5)
            scene.cluster.start("a")
            await scene.cluster.until_whole(js.nats, "one", 1)
            async with asyncio.timeout(WAIT_SECONDS):
                while metric(scene, "a", CORRUPT, "one") != 1:
                    await pause()
            assert metric(scene, "a", REPAIRED, "one") == 0
            assert not scene.logged("a", "repaired", "stream=one")

    run(scenario())


@pytest.mark.slow(
    "tests/crash/test_repair.py",
    "tests/simulation/test_replica_damage.py",
    "tests/integration/test_repair.py::test_damage_is_repaired_before_anything_is_known_to_be_committed",
)
def test_damage_in_what_nobody_reads_is_found_and_repaired_while_the_node_runs(scene: ClusterScene) -> None:
    async def scenario() -> None:
        async with scene.client() as js:
            incarnation = await filled(scene, js, "unread")
            whole = contents(scene, "a", incarnation)
            for node in ("a", "b"):
                path = segments(scene, node, incarnation)[0]
                with path.open("r+b") as file:
                    file.seek(len(whole[0]) // 2)
                    file.write(bytes([whole[0][len(whole[0]) // 2] ^ 1]))
            await until_repaired(scene, "unread", a=1, b=1)
            assert [contents(scene, node, incarnation) for node in NODES] == [whole] * 3
            assert scene.logged("a", "Scrubber", "unread")

    run(scenario())
