"""Consumers in a cluster of three whose nodes are killed: none stops, none loses its partitions."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from envelope.internal_streams import group_shard
from jetstream.client.connection import JetstreamClient
from jetstream.client.consume.options import ConsumeOptions
from tests.support.cluster_scene import ClusterScene
from tests.support.consumers import fill, take, until
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster
from tests.support.nodes import run

STREAMS = ("s0", "s1", "s2", "s3")
EACH = 50


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ClusterScene]:
    with NatsServer(tmp_path / "nats") as server:
        cluster = NodeCluster(tmp_path, server.url, size=3, data=0)
        try:
            cluster.start()
            yield ClusterScene(cluster, server.url)
        finally:
            cluster.close()


async def with_streams(js: JetstreamClient) -> None:
    for stream in STREAMS:
        await js.streams.create(stream, f"{stream}.>", replicas=3)
        await fill(js, stream, range(EACH))


def test_a_coordinator_that_is_killed_stops_no_consumer(scene: ClusterScene) -> None:
    """Both consumers go on with what they have; nothing comes twice, and nothing is committed behind."""

    async def test() -> None:
        told: list[str] = []
        async with scene.client() as js, scene.client() as other_js:
            await with_streams(js)
            options = ConsumeOptions(
                commit_records=5,
                on_revoked=lambda _: told.append("revoked"),
                on_lost=lambda _: told.append("lost"),
            )
            async with (
                js.consume(STREAMS, group="g", **options) as one,
                other_js.consume(STREAMS, group="g", **options) as two,
            ):
                taken = await take(one, 1)
                async with asyncio.TaskGroup() as tasks:
                    theirs = tasks.create_task(take(two, 1))
                    await until(lambda: len(two.assignment) == 2)
                    taken += await take(one, 30)
                taken += theirs.result()
                told.clear()
                shard = group_shard("g")
                leader = (await scene.cluster.until_whole(js.nats, shard))["leader"]
                scene.cluster[leader].kill()
                async with asyncio.TaskGroup() as tasks:
                    found = [tasks.create_task(take(one, 40)), tasks.create_task(take(two, 40))]
                taken += [each for some in found for each in some.result()]
                info = await scene.until(js.nats, shard, lambda info: info["leader"] not in (None, leader))
                assert info["leader"] != leader
                await asyncio.gather(one.commit(), two.commit())
                assert told == []
                assert (len(one.assignment), len(two.assignment)) == (2, 2)
            async with js.consume(STREAMS, group="g") as rest:
                taken += await take(rest, len(STREAMS) * EACH - len(taken))
            assert sorted(taken) == [(stream, offset) for stream in STREAMS for offset in range(EACH)]

    run(test())
