"""Nodes of the last version without feature levels are upgraded one by one, and back again, under load."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client

import jetstream
from metadata.features import LATEST_LEVEL
from tests.support.cluster_scene import ClusterScene
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import ClusterNode, NodeCluster, asked
from tests.support.node_versions import PRESENT, NodeVersion, before_levels
from tests.support.nodes import WAIT_SECONDS, request, run
from tests.support.pauses import pause
from tests.support.publishers import Publishing

pytestmark = pytest.mark.slow("tests/unit/metadata/test_feature_levels.py")

SUBJECTS = [f"shop.{'x' * 200}.{number}" for number in range(60)]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> NodeVersion:
    return before_levels(tmp_path_factory.mktemp("before"))


@asynccontextmanager
async def nodes_of(
    version: NodeVersion | None, directory: Path
) -> AsyncIterator[tuple[ClusterScene, Client, Publishing]]:
    """Three voters and a data node of a version with a stream on all of them, and a publisher."""
    with NatsServer(directory) as server:
        scene = ClusterScene(NodeCluster(directory, server.url, data=1), server.url)
        publishing = Publishing(server.url, "orders")
        try:
            for node in scene.cluster.nodes.values():
                node.version = version
            scene.cluster.start()
            await publishing.witness.open()
            client = publishing.witness.client
            await scene.cluster.until_ready(client)
            await request(client, "stream.create", name="orders", subject="orders.>", replicas=4)
            await scene.cluster.until_whole(client, "orders")
            yield scene, client, publishing
        finally:
            await publishing.witness.close()
            scene.cluster.close()


async def replaced(
    scene: ClusterScene, client: Client, names: Iterable[str], version: NodeVersion | None
) -> None:
    """Go on with another version, one node after the other, each only when all replicas are in sync again."""
    for name in names:
        node, before = scene.cluster[name], (await starts(client))[name]
        assert await asyncio.to_thread(node.stop) == 0
        node.version = version
        node.start()
        async with asyncio.timeout(WAIT_SECONDS):
            while (await starts(client)).get(name, 0) <= before:
                await pause()
        await scene.cluster.until_whole(client, "orders")


async def starts(client: Client) -> dict[str, int]:
    """Return the node_epochs of the nodes that are alive; of none while nobody knows."""
    nodes = (await asked(client, "cluster.info")).get("nodes", ())
    return {node["id"]: node["node_epoch"] for node in nodes if node["alive"]}


async def until_it_has_no_part(scene: ClusterScene, name: str) -> None:
    """Wait until a node has ended, as it cannot read what is in its log, or was told that it is too old.

    What comes first is chance: voters that turn it away do not hear how far its log reaches.
    """
    async with asyncio.timeout(WAIT_SECONDS):
        while scene.cluster[name].is_running:
            if scene.logged(name, "refuses us", "this node can feature level 0"):
                return
            await pause()


async def refused(client: Client, operation: str, **body: object) -> str:
    """Return the err_code of a request that is refused."""
    answer = await request(client, operation, **body)
    return str(answer["error"]["err_code"])


async def level(client: Client) -> int:
    info = await request(client, "cluster.info")
    return int(info["feature_level"])


async def fill_the_metadata_log(scene: ClusterScene, client: Client) -> None:
    """Change what takes much space until every node has taken a snapshot."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not all(map(has_taken_a_snapshot, scene.cluster.nodes.values())):
            limits = (request(client, "namespace.limit", name="shop", subjects=SUBJECTS) for _ in range(16))
            assert all("error" not in answer for answer in await asyncio.gather(*limits))


def has_taken_a_snapshot(node: ClusterNode) -> bool:
    """Return whether its metadata log begins with one; a data node has no log."""
    log = node.data / "metadata"
    return not log.exists() or any(b"JSCS" in path.read_bytes() for path in log.glob("*.wal"))


def test_nodes_are_upgraded_one_by_one_and_go_back_and_nothing_is_lost_or_doubled(
    tmp_path: Path, before: NodeVersion
) -> None:
    async def test() -> None:
        async with nodes_of(before, tmp_path) as (scene, client, publishing), publishing.going_on():
            await replaced(scene, client, "abd", None)
            await replaced(scene, client, "c", before)  # so that one of the others leads the metadata log
            answer = await request(client, "node.a.cluster.update", feature_level="latest")
            assert answer["error"]["err_code"] == "nodes_too_old"
            assert answer["error"]["detail"]["nodes"] == "c"
            await replaced(scene, client, "c", None)

            assert await level(client) == 0
            assert await refused(client, "cluster.update", default_replicas=2) == "feature_level_too_low"
            assert (
                await refused(client, "stream.update", name="orders", replicas=2) == "feature_level_too_low"
            )
            await request(client, "stream.update", name="orders", labels={"by": "the new version"})
            await fill_the_metadata_log(scene, client)

            await replaced(scene, client, "abcd", before)
            info = await scene.cluster.info(client, "orders")
            assert info["config"]["labels"] == {"by": "the new version"}
            await request(client, "stream.update", name="orders", labels={"by": "the old version"})

            await replaced(scene, client, "dcba", None)
            async with jetstream.connect(scene.url) as js:
                nodes = (await js.requests.cluster_info()).nodes
                assert {node.feature_level for node in nodes} == {LATEST_LEVEL}
            answer = await request(client, "cluster.update", feature_level="latest", default_replicas=2)
            assert (answer["feature_level"], answer["default_replicas"]) == (LATEST_LEVEL, 2)

            for name in "cd":
                node = scene.cluster[name]
                assert await asyncio.to_thread(node.stop) == 0
                node.version = before
                node.start()
                await until_it_has_no_part(scene, name)
                node.kill()
                node.version = None
                node.start()
            info = await scene.cluster.until_whole(client, "orders")
            assert info["config"]["labels"] == {"by": "the old version"}

    run(test())


@contextmanager
def alone(version: NodeVersion, directory: Path, url: str) -> Iterator[None]:
    """Run a node without others for the block; it must stop cleanly."""
    arguments = ["up", "--nats", url, "--data", str(directory / "data"), "--port", "0", "--json"]
    with (directory / "node.log").open("ab") as log, version.started(arguments, log) as process:
        try:
            yield
            process.terminate()
            assert process.wait(WAIT_SECONDS) == 0
        finally:
            process.kill()


def test_a_node_that_is_alone_is_upgraded_and_goes_back_until_its_level_is_raised(
    tmp_path: Path, before: NodeVersion
) -> None:
    async def test() -> None:
        with NatsServer(tmp_path) as server:
            async with jetstream.connect(server.url) as js:
                for number, version in enumerate((before, PRESENT, before, PRESENT)):
                    with alone(version, tmp_path, server.url):
                        while not await asked(js.nats, "cluster.info"):
                            await pause()
                        if not number:
                            await js.streams.create("orders", "orders.>")
                        while (await asked(js.nats, "stream.info", name="orders")).get("state") != "online":
                            await pause()
                        assert (await js.publish("orders.x", b"%d" % number)).offset == number
                        assert (await js.requests.cluster_info()).feature_level == 0
                        if number == 3:
                            answer = await request(js.nats, "cluster.update", feature_level=LATEST_LEVEL)
                            assert answer["feature_level"] == LATEST_LEVEL
                            assert [record.value async for record in js.read("orders")] == [
                                b"0",
                                b"1",
                                b"2",
                                b"3",
                            ]

    run(test())
