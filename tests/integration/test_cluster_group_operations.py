"""What operators ask of groups in a cluster of three, whose shards are led by different nodes."""

import asyncio
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest
from nats.aio.client import Client

from envelope.errors import UnavailableError
from envelope.internal_streams import INTERNAL_STREAMS, group_shard, is_group_shard
from jetstream.client.admin.group_lag import CursorStatus, GroupLag
from jetstream.client.connection import JetstreamClient
from metadata.limits import LIST_PAGE_MAX
from tests.support.cluster_scene import ClusterScene
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster, asked
from tests.support.nodes import WAIT_SECONDS, request, run
from tests.support.pauses import pause

GROUPS = sorted(f"g{number}" for number in range(20))
MANY = LIST_PAGE_MAX + 40
SHARDS = [name for name in INTERNAL_STREAMS if is_group_shard(name)]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ClusterScene]:
    with NatsServer(tmp_path / "nats") as server:
        cluster = NodeCluster(tmp_path, server.url, size=3, data=0)
        try:
            cluster.start()
            yield ClusterScene(cluster, server.url)
        finally:
            cluster.close()


async def set_cursor(client: Client, group: str, offset: int) -> None:
    """Set one, again while it is refused for a moment."""
    place = {"stream": "orders", "offset": offset}
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            answer = await asked(client, "group.reset", group=group, cursors=[place])
            if answer and "error" not in answer:
                return
            assert not answer or answer["error"]["retriable"], answer


async def leaders(scene: ClusterScene, client: Client) -> dict[str, str]:
    """Who leads each shard, once all have three replicas in sync."""
    return {name: (await scene.cluster.until_whole(client, name))["leader"] for name in SHARDS}


async def until_listed(client: Client, node: str) -> list[str]:
    """What a node lists once it lists anything; before that it says that it cannot."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            answer = await asked(client, f"node.{node}.group.list")
            if "groups" in answer:
                return [each["group"] for each in answer["groups"]]
            assert not answer or answer["error"]["retriable"], answer


async def until_told(js: JetstreamClient, group: str) -> GroupLag:
    """How far a group is behind, once that is told."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                return await js.groups.lag(group)
            except UnavailableError:
                await pause()


def test_every_node_lists_all_groups_or_says_that_it_cannot(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            assert await js.groups.list() == []
            knows = (await request(js.nats, "cluster.info"))["metadata_leader"]
            for node in scene.cluster.nodes.keys() - {knows}:
                async with asyncio.timeout(WAIT_SECONDS):
                    while not (answer := await asked(js.nats, f"node.{node}.group.list")):
                        pass
                assert answer["error"]["err_code"] == "not_leader", "it may not have heard of a shard yet"
            for number, group in enumerate(GROUPS):
                await set_cursor(js.nats, group, number)
            assert {group_shard(group) for group in GROUPS} == set(SHARDS)
            led = await leaders(scene, js.nats)
            assert len(set(led.values())) > 1, "a list takes more than one node"
            for node in scene.cluster.nodes:
                assert await until_listed(js.nats, node) == GROUPS
            page = await request(js.nats, "group.list", offset=3, limit=4)
            assert ([each["group"] for each in page["groups"]], page["total"]) == (GROUPS[3:7], len(GROUPS))
            killed = led[group_shard(GROUPS[0])]
            scene.cluster[killed].kill()
            for node in scene.cluster.nodes.keys() - {killed}:
                assert await until_listed(js.nats, node) == GROUPS
            for number, group in enumerate(GROUPS):
                info = await js.groups.info(group)
                assert [cursor.offset for cursor in info.cursors] == [number]
                assert info.coordinator != killed

    run(test())


@pytest.mark.slow(
    "tests/integration/test_cluster_group_operations.py::test_every_node_lists_all_groups_or_says_that_it_cannot"
)
def test_a_node_that_stands_still_makes_no_list_shorter(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            for number, group in enumerate(GROUPS):
                await set_cursor(js.nats, group, number)
            led = await leaders(scene, js.nats)
            still = led[group_shard(GROUPS[0])]
            scene.cluster[still].stand_still()
            # At first it is waited for in vain.
            for node in scene.cluster.nodes.keys() - {still}:
                assert await until_listed(js.nats, node) == GROUPS
            for group in GROUPS[:1]:
                await set_cursor(js.nats, group, 100)
                assert [cursor.offset for cursor in (await js.groups.info(group)).cursors] == [100]

    run(test())


@pytest.mark.slow(
    "tests/integration/test_cluster_group_operations.py::test_every_node_lists_all_groups_or_says_that_it_cannot"
)
def test_more_groups_of_another_node_than_it_tells_at_once_are_listed(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            for group in GROUPS:
                await set_cursor(js.nats, group, 0)
            led = await leaders(scene, js.nats)
            first_node = min(scene.cluster.nodes)
            elsewhere = next(name for name, node in led.items() if node != first_node)
            possible = (f"x{number}" for number in count())
            many = list(islice((name for name in possible if group_shard(name) == elsewhere), MANY))
            names = sorted([*GROUPS, *many])
            place = [{"stream": "orders", "offset": 0}]
            for first in range(0, MANY, 32):
                some = many[first : first + 32]
                resets = [request(js.nats, "group.reset", group=name, cursors=place) for name in some]
                assert all("error" not in answer for answer in await asyncio.gather(*resets))
            offset = len(names) - 50
            page = await request(js.nats, f"node.{first_node}.group.list", offset=offset, limit=100)
            assert [each["group"] for each in page["groups"]] == names[offset:]
            assert page["total"] == len(names)
            assert [each.group for each in await js.groups.list()] == names

    run(test())


def test_a_lag_that_nobody_can_tell_is_no_number(scene: ClusterScene) -> None:
    """A stream with one replica, whose node is dead, beside one that is led by another."""

    async def test() -> None:
        async with scene.client() as js:
            for stream, node in (("lost", "a"), ("kept", "b")):
                await scene.created(js.nats, stream, [node])
                await js.publish_all([(f"{stream}.x", b"%d" % number) for number in range(5)])
            moves = await js.groups.reset("billing", 2, streams=["lost", "kept"])
            assert [(move.stream, move.after) for move in moves] == [("kept", 2), ("lost", 2)]
            await scene.cluster.until_whole(js.nats, group_shard("billing"))
            before = await js.groups.lag("billing")
            assert [(each.stream, each.lag) for each in before.partitions] == [("kept", 3), ("lost", 3)]
            scene.cluster["a"].kill()
            found = await until_told(js, "billing")
            told = [(each.stream, each.standing, each.cursor, each.lag) for each in found.partitions]
            assert told == [("kept", CursorStatus.CURRENT, 2, 3), ("lost", CursorStatus.OFFLINE, 2, None)]
            assert (found.total, found.unknown) == (3, 1)

    run(test())


def test_a_group_is_deleted_through_any_node(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            for group in GROUPS[:6]:
                answer = await request(js.nats, "group.delete", group=group)
                assert answer["error"]["err_code"] == "group_not_found"
            await asyncio.gather(*(set_cursor(js.nats, group, 1) for group in GROUPS[:6]))
            assert [each.group for each in await js.groups.list()] == GROUPS[:6]
            for group in GROUPS[:6]:
                await js.groups.delete(group)
            assert await js.groups.list() == []

    run(test())
