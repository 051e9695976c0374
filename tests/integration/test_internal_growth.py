"""Internal streams that were made on fewer nodes have three replicas once a data node has joined."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import jetstream
from envelope.internal_streams import CURSORS, group_shard
from tests.support.cluster_scene import ClusterScene
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster, moved, until
from tests.support.nodes import request, run

GROUP: Final = "billing"
SHARD: Final = group_shard(GROUP)


@contextmanager
def nodes(directory: Path, voters: int) -> Iterator[ClusterScene]:
    """So many voters that run, and a data node that does not yet."""
    with NatsServer(directory / "nats") as server:
        cluster = NodeCluster(directory, server.url, size=voters, data=1)
        try:
            cluster.start(list(cluster.nodes)[:voters])
            yield ClusterScene(cluster, server.url)
        finally:
            cluster.close()


def has_three(info: dict[str, Any]) -> bool:
    return info["target"] is None and len(info["replicas"]) == len(info["isr"]) == 3


async def commit(js: jetstream.JetstreamClient, offset: int) -> None:
    """Set a consumer's cursor, and one of a group."""
    await js.cursors.commit("reader", "orders", offset)
    cursors = [{"stream": "orders", "offset": offset}]
    answer = await request(js.nats, "group.reset", group=GROUP, cursors=cursors)
    assert "error" not in answer, answer


async def committed(js: jetstream.JetstreamClient) -> set[int | None]:
    """The offsets of both cursors."""
    [stored] = (await js.groups.info(GROUP)).cursors
    return {stored.offset, (await js.cursors.get("reader", "orders")).offset}


def test_a_third_node_gets_a_copy_when_it_joins_and_can_leave_again(tmp_path: Path) -> None:
    async def scenario(scene: ClusterScene) -> None:
        async with jetstream.connect(scene.url) as js:
            await scene.until_alive(js.nats, "ab")
            await js.streams.create("orders", "orders.>")
            await commit(js, 7)
            for name in (CURSORS, SHARD):
                assert sorted((await js.streams.info(name)).replicas) == ["a", "b"]
            scene.cluster["c"].start()
            for name in (CURSORS, SHARD):
                info = await until(js.nats, name, has_three)
                assert (info["replicas"][2], info["config"]["replicas"]) == ("c", 3)
            assert len((await js.streams.info("orders")).replicas) == 1, "those of users stay as they are"
            scene.cluster["c"].kill()
            await scene.until_alive(js.nats, "ab")
            await commit(js, 8)
            assert await committed(js) == {8}

            for name in (CURSORS, SHARD):
                await moved(js.nats, name, ["a", "b"])
            removed = await request(js.nats, "cluster.remove", node="c")
            assert removed == {"node": "c"}, "as the page for operators says"
            await commit(js, 9)

    with nodes(tmp_path, voters=2) as scene:
        run(scenario(scene))


def test_from_one_copy_there_are_three_and_the_first_may_die(tmp_path: Path) -> None:
    async def scenario(scene: ClusterScene) -> None:
        async with jetstream.connect(scene.url) as js:
            await scene.until_alive(js.nats, "abc")
            await js.streams.create("orders", "orders.>")
            await commit(js, 7)
            for name in (CURSORS, SHARD):
                await moved(js.nats, name, ["a"])
            scene.cluster["d"].start()
            for name in (CURSORS, SHARD):
                info = await until(js.nats, name, has_three)
                assert info["replicas"][0] == "a"
            scene.cluster["a"].kill()
            for name in (CURSORS, SHARD):
                await scene.cluster.until_led_by_another(js.nats, name, "a")
            assert await committed(js) == {7}
            await commit(js, 8)
            assert await committed(js) == {8}

    with nodes(tmp_path, voters=3) as scene:
        run(scenario(scene))
