"""Faults of consumer groups, on processes: what members were told is true, and no record is left out."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from jetstream.client.nodes.socket_access import SocketAccess
from jetstream.client.nodes.socket_link import SocketLink
from jetstream.protocol.group_requests import FindCoordinator
from jetstream.protocol.group_responses import CoordinatorResponse
from tests.chaos.group_scene import GroupScene, Stage, group_scene, stage
from tests.chaos.members import MemberProcess
from tests.support.faulty_network import Pair
from tests.support.group_history import AskedFor, Committed, Committing, Granted, Outcome, PutOut
from tests.support.node_cluster import ClusterNode
from tests.support.nodes import WAIT_SECONDS, run


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("nodes")) as made:
        yield made


def decided(scene: GroupScene, member: MemberProcess) -> list[Committed]:
    """Return what the member was told of its commits, but for those that it asks for again.

    Who gives its connection up, because something else that it asked for was not answered in time, or not by
    the coordinator, does not hear what became of a commit that was under way.
    """
    return [told for told in scene.answered(member) if told.code != "connection_lost"]


@pytest.mark.slow(
    "tests/integration/test_group_members.py::test_a_silent_member_is_put_out_and_fenced",
    "tests/integration/test_cluster_groups.py::test_a_killed_coordinator_loses_no_cursor_and_moves_nothing",
    "tests/simulation/test_group_seeds.py",
)
@pytest.mark.parametrize(("is_library", "outcome"), [(False, "refused"), (True, "unknown")])
def test_a_member_that_stood_still_beyond_its_session_commits_nothing(
    ground: Stage, tmp_path: Path, is_library: bool, outcome: Outcome
) -> None:
    async def scenario() -> None:
        async with group_scene(ground, tmp_path, f"frozen-{outcome}", ("one", "two")) as scene:
            await scene.create(2)
            await scene.publish(20)
            one = scene.member("one", session_ms=1_500, gated=True, is_library=is_library)
            two = scene.member("two")
            await one.start()
            await scene.until(lambda: scene.delivered(one) > 0)
            one.stand_still()
            one.open_gate()
            await two.start()
            await scene.until_done()
            assert scene.owned(two) == set(scene.published)
            one.go_on()
            await scene.until(lambda: scene.has_heard(PutOut, one))
            await scene.until(lambda: len(decided(scene, one)) > 0)
            told = decided(scene, one)[0]
            assert (told.outcome, told.code) == (outcome, "member_fenced")
            await scene.until_shared(one, two)
            one.open_gate(1_000)
            await scene.publish(20)
            await scene.until_done()
            await scene.judge()

    run(scenario())


def test_a_member_that_is_told_to_leave_while_it_starts_leaves(ground: Stage, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group_scene(ground, tmp_path, "newborn", ("one",)) as scene:
            await scene.create(1)
            one = scene.member("one", is_library=True)
            await one.start()
            assert await one.stop() == 0

    run(scenario())


@pytest.mark.slow(
    "tests/simulation/test_group_seeds.py",
    "tests/unit/consumer_groups/coordinator/test_fencing.py",
)
def test_requests_that_come_late_and_again_change_nothing(ground: Stage, tmp_path: Path) -> None:
    async def scenario() -> None:
        names = ("one", "two", "three")
        async with group_scene(ground, tmp_path, "repeated", names) as scene:
            await scene.create(3)
            one, two, three = (scene.member(name, session_ms=1_500, again=1.0) for name in names)
            scene.network.slow(list(scene.network.directions), 0.01, None)
            for member in (one, two, three):
                await member.start()
            await scene.publish(10)
            await scene.until_shared(one, two, three)
            await one.kill()
            await scene.publish(10)
            await scene.until_done()
            assert await two.stop() == 0
            await one.start()
            await scene.until_shared(one, three)
            before = _repeated(scene)
            await scene.publish(10)
            await scene.until(lambda: _repeated(scene) >= before + 5)
            await scene.until_done()
            await scene.judge()

    run(scenario())


def _repeated(scene: GroupScene) -> int:
    return sum(isinstance(event, Committing) and event.again for event in scene.recorder.group_events)


async def kill_coordinator(scene: GroupScene, leader: str) -> None:
    scene.cluster[leader].kill()


async def stop_coordinator(scene: GroupScene, leader: str) -> None:
    assert await asyncio.to_thread(scene.cluster[leader].stop) == 0


async def reassign_shard(scene: GroupScene, leader: str) -> None:
    await scene.move(scene.shard, [name for name in scene.cluster.nodes if name != leader])


@pytest.mark.slow(
    "tests/integration/test_cluster_groups.py::test_a_killed_coordinator_loses_no_cursor_and_moves_nothing",
    "tests/simulation/test_group_seeds.py",
)
@pytest.mark.parametrize("move", [kill_coordinator, stop_coordinator, reassign_shard])
def test_a_partition_is_handed_over_although_the_coordinator_moves(
    ground: Stage, tmp_path: Path, move: Callable[[GroupScene, str], Awaitable[None]]
) -> None:
    async def scenario() -> None:
        async with group_scene(ground, tmp_path, move.__name__, ("one", "two")) as scene:
            await scene.create(2)
            await scene.publish(20)
            one = scene.member("one", session_ms=10_000, gated=True)
            two = scene.member("two", is_library=True)
            await one.start()
            await scene.until(lambda: scene.delivered(one) > 0)
            leader = await scene.coordinator()
            await two.start()
            await scene.until(lambda: scene.has_heard(AskedFor, one))
            await move(scene, leader)
            await scene.cluster.until_led_by_another(scene.client, scene.shard, leader)
            one.open_gate(1_000)
            await scene.until_shared(one, two)
            await scene.until_done()
            assert not scene.has_heard(PutOut, one)
            await scene.judge()

    run(scenario())


def cut_off(member: str, node: str) -> list[Pair]:
    return [(member, node), (node, member)]


def unanswered(member: str, node: str) -> list[Pair]:
    return [(node, member)]


@pytest.mark.slow(
    "tests/simulation/test_group_seeds.py",
    "tests/unit/consumer_groups/coordinator/test_fencing.py",
)
@pytest.mark.parametrize("cut", [cut_off, unanswered])
def test_a_member_that_cannot_hear_its_coordinator_is_put_out_and_nothing_is_lost(
    ground: Stage, tmp_path: Path, cut: Callable[[str, str], list[Pair]]
) -> None:
    async def scenario() -> None:
        async with group_scene(ground, tmp_path, cut.__name__, ("one", "two")) as scene:
            await scene.create(2)
            one, two = (scene.member(name, session_ms=1_500, is_library=True) for name in ("one", "two"))
            await one.start()
            await scene.until(lambda: len(scene.owned(one)) == 2)
            leader = await scene.coordinator()
            for stream in scene.published:
                await scene.move(stream, [name for name in scene.cluster.nodes if name != leader])
            await scene.publish(10)
            await scene.until_done()
            before = scene.delivered(one)
            scene.network.hold(cut("one", leader))
            await scene.publish(10)
            await two.start()
            await scene.until_done()
            assert scene.owned(two) == set(scene.published)
            assert scene.delivered(one) > before, "it reads on where it is not cut off"
            scene.network.heal(lose=True)
            await scene.until(lambda: scene.has_heard(PutOut, one))
            await scene.until_shared(one, two)
            await scene.publish(10)
            await scene.until_done()
            await scene.judge()

    run(scenario())


@pytest.mark.slow(
    "tests/simulation/test_group_seeds.py",
    "tests/unit/consumer_groups/coordinator/test_fencing.py",
)
def test_nothing_moves_while_the_shard_lacks_replicas(ground: Stage, tmp_path: Path) -> None:
    """Two of its three stand still, but a majority of the voters goes on, and the coordinator with them."""

    async def scenario() -> None:
        async with group_scene(ground, tmp_path, "lacking", ("one", "two")) as scene:
            await scene.create(2)
            one, two = scene.member("one", session_ms=1_500, is_library=True), scene.member("two")
            await one.start()
            await two.start()
            await scene.until_shared(one, two)
            await scene.move(scene.shard, ["a"])
            assert await scene.move(scene.shard, ["a", "b", "d"]) == "a"
            for stream in scene.published:
                await scene.move(stream, ["c"])
            await scene.publish(10)
            await scene.until_done()
            for name in ("b", "d"):
                scene.cluster[name].stand_still()
            await scene.publish(10)
            known = len(scene.recorder.group_events)
            await scene.until(lambda: _without_outcome(scene, known) >= 2)
            await one.kill()
            await scene.until(lambda: _without_outcome(scene, known) >= 4)
            heard = scene.recorder.group_events[known:]
            assert not any(isinstance(event, Granted | PutOut | AskedFor) for event in heard)
            for name in ("b", "d"):
                scene.cluster[name].send(signal.SIGCONT)
            await scene.until(lambda: scene.owned(two) == set(scene.published))
            await scene.until_done()
            await scene.judge()

    run(scenario())


def _without_outcome(scene: GroupScene, known: int) -> int:
    heard = scene.recorder.group_events[known:]
    return sum(isinstance(event, Committed) and event.outcome == "unknown" for event in heard)


@pytest.mark.slow(
    "tests/simulation/test_group_seeds.py",
    "tests/unit/consumer_groups/coordinator/test_fencing.py",
)
def test_groups_go_on_without_nats(ground: Stage, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group_scene(ground, tmp_path, "silent", ("one", "two")) as scene:
            await scene.create(2)
            one = scene.member("one", session_ms=1_500, gated=True)
            two = scene.member("two", gated=True, is_library=True)
            await one.start()
            await two.start()
            await scene.until_shared(one, two)
            leader = await scene.coordinator()
            await scene.publish(30)
            await asyncio.to_thread(scene.stage.nats.kill)
            for node in scene.cluster.nodes.values():
                assert await _coordinator_told_by(node, scene.group) == leader
            one.open_gate(10)
            two.open_gate(1_000)
            await scene.until(lambda: len(scene.answered(one)) == 10)
            await one.kill()
            await scene.until_done()
            scene.cluster[leader].kill()
            await one.start()
            one.open_gate(1_000)
            await scene.until_shared(one, two)
            await asyncio.to_thread(scene.stage.nats.start)
            await scene.publish(10)
            await scene.until_done()
            await scene.judge()

    run(scenario())


async def _coordinator_told_by(node: ClusterNode, group: str) -> str:
    link = await SocketLink.open("127.0.0.1", node.socket_port, WAIT_SECONDS, SocketAccess())
    try:
        found = (await link.ask(FindCoordinator(id=link.next_id(), group=group))).response
        assert isinstance(found, CoordinatorResponse)
        return found.node
    finally:
        link.close()
