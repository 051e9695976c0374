"""The number of replicas that new streams have on three nodes."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.nodes import request, run

_streams = count()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("numbers")) as started:
        yield started


def test_new_streams_have_the_clusters_number_of_replicas(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            client = js.nats
            answer = await request(client, "cluster.update", default_replicas=3)
            assert answer["default_replicas"] == 3
            names = [f"s{next(_streams)}" for _ in range(3)]
            lone, said, parted = names
            made = await js.streams.create(lone, f"{lone}.>", min_insync_replicas=2)
            assert len(made.replicas) == made.config.replicas == 3
            assert (await js.streams.create(said, f"{said}.>", replicas=1)).config.replicas == 1
            split = await js.streams.create(parted, f"{parted}.>", partitions=2, partition_by="queue")
            assert [len(one.replicas) for one in split.partitions] == [3, 3]

            leader = (await js.requests.cluster_info()).metadata_leader
            assert leader is not None
            scene.cluster[leader].kill()
            scene.cluster[leader].start()
            await scene.cluster.until_ready(client)
            assert (await js.requests.cluster_info()).default_replicas == 3

            answer = await request(client, "cluster.update", default_replicas=None)
            assert answer["default_replicas"] == 1
            config: dict[str, object] = {"name": lone, "subject": f"{lone}.>", "min_insync_replicas": 2}
            found = await request(client, "stream.create", **config)
            assert (found["created"], found["config"]["replicas"]) == (False, 3), "whatever it has"
            found = await request(client, "stream.create", **config, replicas=2)
            assert found["error"]["err_code"] == "stream_exists"

    run(test())
