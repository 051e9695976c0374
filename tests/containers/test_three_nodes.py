"""The cluster of compose.yaml: its containers are killed, paused, stopped and upgraded under a publisher."""

import asyncio
from collections.abc import Callable

import pytest

from tests.containers.composition import NODES, Composition, Running
from tests.containers.images import Images
from tests.containers.numbers import PART, Numbers, numbers
from tests.support.nodes import run

Act = Callable[[Running], object]


@pytest.mark.parametrize(
    ("leave", "come_back"),
    [
        (Running.kill, Running.start_again),
        (Running.kill, Running.replace),
        (Running.stop, Running.start_again),
        (Running.pause, Running.go_on),
    ],
    ids=["killed", "killed-then-a-new-container", "stopped", "paused"],
)
def test_a_cluster_goes_on_without_the_leader_and_takes_it_back(
    composition: Composition, leave: Act, come_back: Act
) -> None:
    async def leader_away(nodes: dict[str, Running]) -> None:
        async with numbers(composition.url, replicas=len(NODES)) as stream:
            leader = await stream.leader()
            await stream.witness.publish(PART)
            await asyncio.to_thread(leave, nodes[leader])
            await stream.witness.retry_until_acked()
            await stream.publish_acked()
            assert await stream.leader() != leader
            await asyncio.to_thread(come_back, nodes[leader])
            await asyncio.to_thread(nodes[leader].wait_until_ready)
            await stream.publish_until_in_sync(len(NODES))
            await stream.verify()

    run(leader_away(composition.start_nodes()))


def test_what_a_cluster_acked_is_there_in_new_containers_after_all_were_killed(
    composition: Composition,
) -> None:
    async def all_killed(nodes: dict[str, Running]) -> None:
        async with numbers(composition.url, replicas=len(NODES)) as stream:
            await stream.witness.publish(PART)
            for act in (Running.kill, Running.replace, Running.wait_until_ready):
                await asyncio.gather(*(asyncio.to_thread(act, node) for node in nodes.values()))
            await stream.witness.retry_until_acked()
            await stream.publish_until_in_sync(len(NODES))
            await stream.verify()

    run(all_killed(composition.start_nodes()))


async def _upgrade(stream: Numbers, nodes: dict[str, Running], image: str) -> None:
    """Replace one node after the other, the leader last, as docs/containers.md says."""
    leader = await stream.leader()
    for name in sorted(nodes, key=lambda name: name == leader):
        assert await asyncio.to_thread(nodes[name].stop) == 0
        await asyncio.to_thread(nodes[name].replace, image)
        await asyncio.to_thread(nodes[name].wait_until_ready)
        await stream.publish_until_in_sync(len(NODES))


def test_a_rolling_upgrade_under_a_publisher_loses_nothing(composition: Composition, images: Images) -> None:
    async def upgraded(nodes: dict[str, Running]) -> None:
        async with numbers(composition.url, replicas=len(NODES)) as stream:
            await stream.witness.publish(PART)
            await _upgrade(stream, nodes, images.newer_node)
            await stream.witness.retry_until_acked()
            await stream.verify()

    nodes = composition.start_nodes()
    assert {node.state["Image"] for node in nodes.values()} == {images.node}
    run(upgraded(nodes))
    assert {node.state["Image"] for node in nodes.values()} == {images.newer_node}
