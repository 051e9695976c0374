"""A node of this version in a cluster at a higher feature level says so and stops, and nothing is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import jetstream
from jetstream.client.connection import JetstreamClient
from metadata.features import LATEST_LEVEL
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster, asked
from tests.support.node_versions import LATER
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.publishers import Publishing

pytestmark = pytest.mark.slow("tests/integration/test_metadata_peers.py")

REFUSED = 4
"""The exit code."""


@asynccontextmanager
async def later_nodes(
    directory: Path, data: int = 0
) -> AsyncIterator[tuple[NodeCluster, JetstreamClient, Publishing]]:
    """Three voters of the later version, and so many data nodes that do not run yet; and a publisher."""
    with NatsServer(directory) as server:
        cluster = NodeCluster(directory, server.url, data=data)
        try:
            for node in cluster.nodes.values():
                node.version = LATER
            cluster.start("abc")
            async with jetstream.connect(server.url) as js:
                await until_alive(js, 3)
                publishing = Publishing(server.url, "orders")
                await publishing.witness.open()
                try:
                    yield cluster, js, publishing
                finally:
                    await publishing.witness.close()
        finally:
            cluster.close()


async def until_alive(js: JetstreamClient, count: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            nodes = (await asked(js.nats, "cluster.info")).get("nodes", ())
            if sum(node["alive"] is True for node in nodes) == count:
                return


async def said_why_it_stopped(cluster: NodeCluster, name: str) -> bool:
    """Run a node of this version until it ends by itself."""
    cluster[name].version = None
    cluster[name].start()
    code = await asyncio.to_thread(cluster[name].wait)
    cluster[name].version = LATER
    levels = f"can feature level {LATEST_LEVEL}, and the cluster is at {LATEST_LEVEL + 1}"
    return code == REFUSED and f"this node {levels}: upgrade the node" in cluster[name].log.read_text()


def test_a_voter_that_went_back_too_far_stops_and_nothing_is_lost(tmp_path: Path) -> None:
    async def test() -> None:
        async with later_nodes(tmp_path) as (cluster, js, publishing):
            assert (await js.requests.cluster_info()).feature_level == LATEST_LEVEL + 1
            await js.streams.create("orders", "orders.>", replicas=3)
            await cluster.until_whole(js.nats, "orders")
            async with publishing.going_on():
                assert await asyncio.to_thread(cluster["b"].stop) == 0
                assert await said_why_it_stopped(cluster, "b")
                cluster["b"].start()
                await cluster.until_whole(js.nats, "orders")

    run(test())


def test_a_new_node_that_is_too_old_stops_and_is_not_registered(tmp_path: Path) -> None:
    async def test() -> None:
        async with later_nodes(tmp_path, data=1) as (cluster, js, _):
            assert await said_why_it_stopped(cluster, "d")
            assert [node.id for node in (await js.requests.cluster_info()).nodes] == ["a", "b", "c"]
            cluster["d"].start()
            await until_alive(js, 4)

    run(test())
