"""Streams in an object store, on three nodes that share a folder, and die while they use it."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envelope.errors import JetstreamError
from jetstream.client.connection import JetstreamClient
from jetstream.tier.download import read_manifest
from jetstream.tier.object_store import ObjectStore
from jetstream.tier.restore import Remains, all_remains
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.node_cluster import ClusterNode
from tests.support.nodes import WAIT_SECONDS, request, run
from tests.support.pauses import pause

CONFIG: dict[str, Any] = {
    "tier": True,
    "rewrite_after": 0,
    "local_retention": 0.001,
    "dedupe_window": 0,
    "segment_bytes": 64 * 1024,
}
MANY = 2000
"""Records of a kilobyte: so many that there is time to kill who uploads or drops them."""
TRIES = 5
"""A machine that is busy with other things may be too late."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[ClusterScene]:
    settings = {"maintenance_interval": '"PT0.02S"', "tier": f'"{store}"'}
    with three_nodes(tmp_path_factory.mktemp("tiered"), **settings) as scene:
        yield scene


async def published(js: JetstreamClient, stream: str, turns: range) -> None:
    """Values of a kilobyte that tell their offset, in batches of a few."""
    for turn in range(turns.start, turns.stop, 20):
        await js.publish_all(
            (f"{stream}.x", b"%d " % number + b"x" * 1000)
            for number in range(turn, min(turn + 20, turns.stop))
        )


async def check_read(js: JetstreamClient, stream: str, count: int) -> None:
    """Every record is there, once and in order, whichever replica is asked."""
    for _ in range(3):
        async with js.read(stream, read_from="any", follow=True, end=count) as reader:
            found = [int(record.value.split()[0]) async for record in reader if record.value is not None]
        assert found == list(range(count))


async def until_tiered(scene: ClusterScene, js: JetstreamClient, stream: str, end: int) -> dict[str, Any]:
    """Wait until what is below ``end`` is in the store, and not at its leader."""
    return await scene.until(
        js.nats,
        stream,
        lambda info: (
            info["tier"] is not None
            and (info["tier"]["end"] or 0) >= end
            and info["tier"]["local_start_offset"] >= end
        ),
    )


def remains(store: Path, incarnation: str) -> Remains:
    found = all_remains(ObjectStore.at(str(store)))
    [wanted] = [one for one in found if one.manifest.incarnation == incarnation]
    return wanted


def files_of(store: Path, incarnation: str) -> set[str]:
    return {str(file.relative_to(store)) for file in store.glob(f"*{incarnation}/*")}


async def until_removed(scene: ClusterScene, incarnation: str) -> None:
    """Wait until every node has removed its part of a stream's life, in the store too."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not all(scene.logged(node, "stream removed", incarnation) for node in "abc"):
            await pause()


async def check_no_leaks(store: Path, incarnation: str) -> None:
    """What is in the store is what the newest manifest lists, and that manifest."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = remains(store, incarnation)
            listed = {segment.path for segment in found.manifest.segments} | {found.path}
            if files_of(store, incarnation) == listed:
                return
            await pause()


async def killed_while(
    node: ClusterNode, is_under_way: Callable[[], bool], is_over: Callable[[], bool]
) -> bool:
    """Kill a node in the midst of something: it stands still while that is made sure of; False: too late."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not is_over():
            if is_under_way():
                node.stand_still()
                if is_under_way():
                    node.kill()
                    return True
                node.send(signal.SIGCONT)
            await asyncio.sleep(0)
    return False


def unlisted(store: Path, incarnation: str) -> tuple[set[str], set[str]]:
    """The segments of a stream that a manifest in the store names, and those that none does."""
    files, listed = files_of(store, incarnation), set[str]()
    for path in files:
        if not path.endswith(".arrows"):
            with contextlib.suppress(JetstreamError):  # half written, or deleted meanwhile
                manifest = read_manifest(ObjectStore.at(str(store)), path)
                listed |= {segment.path for segment in manifest.segments}
    return listed, {path for path in files if path.endswith(".arrows")} - listed


def local_segments(scene: ClusterScene, node: str, incarnation: str) -> set[str]:
    """The names of the segments on a node's disk."""
    [directory] = scene.files(node, incarnation)
    return {name.removesuffix(".arrows") for name in os.listdir(directory) if name.endswith(".arrows")}


async def check_goes_on(scene: ClusterScene, store: Path, js: JetstreamClient, stream: str) -> None:
    """Nothing of ``MANY`` records is lost, doubled or left over, and what is published next is uploaded."""
    await check_read(js, stream, MANY)
    await published(js, stream, range(MANY, MANY + 300))
    info = await until_tiered(scene, js, stream, MANY + 100)
    await check_read(js, stream, MANY + 300)
    await check_no_leaks(store, info["incarnation"])
    for node in "abc":
        assert not scene.logged(node, "Traceback")


async def check_local_files(scene: ClusterScene, node: str, incarnation: str) -> None:
    """A node has the last segments of a stream, and nothing of others."""
    async with asyncio.timeout(WAIT_SECONDS):
        while len(local_segments(scene, node, incarnation)) > 3:
            await pause()
        [directory] = scene.files(node, incarnation)
        names = {Path(name) for name in os.listdir(directory)}
        while any(name.suffix == ".new" for name in names):  # a state file that is being written
            await pause()
            names = {Path(name) for name in os.listdir(directory)}
    indexes = {name.stem for name in names if name.suffix == ".index"}
    assert indexes <= local_segments(scene, node, incarnation)


async def killed_while_it_uploads(scene: ClusterScene, store: Path, js: JetstreamClient, stream: str) -> str:
    """Kill the leader of a stream while it uploads; return its name, empty if it was too late."""
    off = {**CONFIG, "tier": False, "local_retention": None}
    await scene.created(js.nats, stream, ["a", "b", "c"], **off)
    await published(js, stream, range(MANY))
    info = await scene.cluster.info(js.nats, stream)
    life, leader = info["incarnation"], info["leader"]
    sealed = len(local_segments(scene, leader, life)) - 1

    def is_uploading() -> bool:
        """What was uploaded is not all named, and not all is uploaded."""
        listed, others = unlisted(store, life)
        return bool(listed and others) and len(listed) + len(others) < sealed

    await js.streams.update(stream, tier=True, local_retention=0.001)
    is_killed = await killed_while(
        scene.cluster[leader], is_uploading, lambda: len(unlisted(store, life)[0]) >= sealed
    )
    return leader if is_killed else ""


async def killed_while_it_drops(scene: ClusterScene, store: Path, js: JetstreamClient, stream: str) -> str:
    """Kill the leader of a stream while it drops what was uploaded; return as `killed_while_it_uploads`."""
    del store
    keeping = {**CONFIG, "local_retention": None, "local_retention_bytes": 1 << 30}
    await scene.created(js.nats, stream, ["a", "b", "c"], **keeping)
    await published(js, stream, range(MANY))
    info = await scene.until(
        js.nats, stream, lambda info: bool(info["tier"]) and info["tier"]["end"] >= MANY - 100
    )
    life, leader = info["incarnation"], info["leader"]
    before = local_segments(scene, leader, life)

    def kept() -> int:
        return len(local_segments(scene, leader, life))

    assert len(before) > MANY // 100, "nothing was dropped so far"
    await js.streams.update(stream, local_retention_bytes=64 * 1024)
    is_killed = await killed_while(
        scene.cluster[leader], lambda: 3 < kept() < len(before), lambda: kept() <= 3
    )
    return leader if is_killed else ""


@pytest.mark.parametrize(
    "strike",
    [
        killed_while_it_uploads,
        pytest.param(
            killed_while_it_drops, marks=pytest.mark.slow("tests/integration/test_cluster_tiers.py")
        ),
    ],
)
def test_a_leader_that_dies_while_it_uploads_or_drops_loses_and_repeats_nothing(
    scene: ClusterScene,
    store: Path,
    strike: Callable[[ClusterScene, Path, JetstreamClient, str], Awaitable[str]],
) -> None:
    async def test() -> None:
        async with scene.client() as js:
            for number in range(TRIES):
                stream = f"{strike.__name__}-{number}"
                if leader := await strike(scene, store, js, stream):
                    break
            else:
                raise AssertionError("always too late")
            await scene.cluster.until_taken_over(js.nats, stream, leader)
            scene.cluster[leader].start()  # before it is so far behind that it begins anew
            await scene.cluster.until_whole(js.nats, stream)
            incarnation = (await scene.cluster.info(js.nats, stream))["incarnation"]
            for node in "abc":
                await check_local_files(scene, node, incarnation)
            await check_goes_on(scene, store, js, stream)

    run(test())


def test_a_new_replica_begins_where_its_leader_does_and_reads_what_is_before(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "moving", ["a"], **CONFIG)
            await published(js, "moving", range(400))
            before = await until_tiered(scene, js, "moving", 200)
            await request(js.nats, "stream.reassign", name="moving", replicas=["b"])
            after = await scene.until(
                js.nats, "moving", lambda info: info["leader"] == "b" and info["target"] is None
            )
            assert after["tier"]["local_start_offset"] >= before["tier"]["local_start_offset"]
            assert after["log_start_offset"] == 0
            await check_read(js, "moving", 400)

    run(test())


@pytest.mark.slow("tests/unit/metadata/test_unclean_elections.py", "tests/crash/test_tiers.py")
def test_who_leads_uncleanly_goes_on_where_the_store_ends(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "behind", ["a", "b"], min_insync_replicas=1, **CONFIG)
            await scene.until(js.nats, "behind", lambda info: info["leader"] == "a")
            await published(js, "behind", range(20))
            scene.cluster["b"].kill()
            await scene.until(js.nats, "behind", lambda info: info["isr"] == ["a"])
            await published(js, "behind", range(20, 400))
            await until_tiered(scene, js, "behind", 200)
            scene.cluster["a"].kill()
            scene.cluster["b"].start()
            await scene.until_alive(js.nats, "bc")
            await scene.until_elected(js.nats, "behind", "b")
            await scene.cluster.until_taken_over(js.nats, "behind", "a")
            info = await scene.cluster.info(js.nats, "behind")
            end = info["last_unclean_election"]["from_offset"]
            assert 200 <= end <= 400, "b had 20 records"
            assert (info["tier"]["end"], info["log_start_offset"], info["high_watermark"]) == (end, 0, end)
            assert scene.logged("b", "log begins anew where the object store ends", "stream=behind")
            await published(js, "behind", range(end, end + 300))
            scene.cluster["a"].start()
            await scene.cluster.until_whole(js.nats, "behind", replicas=2)
            await until_tiered(scene, js, "behind", end + 100)
            await check_read(js, "behind", end + 300)

    run(test())


async def copied(place: Path, kept: Path) -> None:
    """Copy a directory of a store at a time when nobody deletes old manifests there."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                shutil.copytree(place, kept)
                break
            except shutil.Error:
                shutil.rmtree(kept)
                await pause()


@pytest.mark.slow(
    "tests/unit/tier/test_restore.py",
    "tests/integration/test_tiers.py",
)
def test_a_deleted_stream_is_made_again_on_three_nodes_if_its_objects_were_kept(
    scene: ClusterScene, store: Path, tmp_path: Path
) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "again", ["a", "b", "c"], **CONFIG)
            await published(js, "again", range(400))
            info = await until_tiered(scene, js, "again", 200)
            life, place = info["incarnation"], Path(info["tier"]["manifest"]).parent
            await copied(store / place, tmp_path / "kept")
            await js.streams.delete("again")
            await until_removed(scene, life)
            assert not files_of(store, life)
            shutil.copytree(tmp_path / "kept", store / place)
            kept, end = files_of(store, life), remains(store, life).manifest.end
            restored = await js.streams.restore("again")
            assert (restored.log_start_offset, restored.log_end_offset) == (0, end)
            await scene.cluster.until_whole(js.nats, "again")
            await published(js, "again", range(end, end + 300))
            await until_tiered(scene, js, "again", end + 100)
            await check_read(js, "again", end + 300)
            await js.streams.delete("again")
            await until_removed(scene, restored.incarnation)
            assert not files_of(store, restored.incarnation)
            assert files_of(store, life) == kept, "what an earlier life has left is not the new one's"

    run(test())
