"""Questions about a stream whose leader is dead: they hold up nobody, and are answered from what is known."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.nodes import request, run


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path) as scene:
        yield scene


def test_questions_about_a_dead_leaders_stream_hold_up_nobody_and_are_all_answered(
    scene: ClusterScene,
) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await js.streams.create("lone", "lone.>", replicas=1)
            leader = (await js.streams.info("lone")).leader
            assert leader is not None
            scene.cluster[leader].kill()
            async with asyncio.TaskGroup() as tasks:
                infos = [tasks.create_task(request(js.nats, "stream.info", name="lone")) for _ in range(300)]
                nodes = (await request(js.nats, "cluster.info"))["nodes"]
            assert len(nodes) == 3
            for info in infos:
                assert "error" not in info.result()
                assert info.result()["leader"] in (leader, None)

    run(test())


def test_a_question_waits_for_the_next_leader_if_there_is_one(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await js.streams.create("whole", "whole.>", replicas=3)
            leader = (await scene.cluster.until_whole(js.nats, "whole"))["leader"]
            scene.cluster[leader].kill()
            infos = await asyncio.gather(*(request(js.nats, "stream.info", name="whole") for _ in range(10)))
            assert all(info["leader"] not in (leader, None) for info in infos)

    run(test())
