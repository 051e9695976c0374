"""A stream in which nothing happens any more: by time alone its followers get to know what is committed."""

from collections.abc import Iterator

import pytest

from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.nodes import WAIT_SECONDS, run


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("quiet")) as scene:
        yield scene


def test_every_follower_gets_to_know_of_the_last_commit(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "quiet", ["a", "b", "c"])
            await js.publish("quiet.n", b"the only one", timeout=WAIT_SECONDS)
            info = await scene.until(
                js.nats,
                "quiet",
                lambda info: [state["high_watermark"] for state in info["replica_states"]] == [1, 1, 1],
            )
            assert info["isr"] == ["a", "b", "c"]

    run(test())
