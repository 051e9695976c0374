"""Streams that get more and fewer replicas by `stream.update` on three nodes, and the default of new ones."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from nats.aio.client import Client

from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.nodes import WAIT_SECONDS, request, run
from tests.support.pauses import pause
from tests.support.publishers import Publishing

_streams = count()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("numbers")) as started:
        yield started


def has_replicas(number: int) -> Callable[[dict[str, Any]], bool]:
    """A condition for `ClusterScene.until`: the stream has so many, all in sync, and is not being moved."""

    def is_so(info: dict[str, Any]) -> bool:
        is_there = info["target"] is None and info["config"]["replicas"] == len(info["replicas"]) == number
        return bool(is_there and set(info["isr"]) == set(info["replicas"]) and info["state"] == "online")

    return is_so


async def updated(client: Client, stream: str, **changes: object) -> dict[str, Any]:
    answer = await request(client, "stream.update", **{"name": stream, **changes})
    assert "error" not in answer, answer
    return answer


async def refused(client: Client, stream: str, **changes: object) -> str:
    """The word of the error with which an update is refused."""
    word: str = (await request(client, "stream.update", name=stream, **changes))["error"]["err_code"]
    return word


def test_a_stream_grows_to_three_replicas_outlives_its_leader_and_shrinks_under_load(
    scene: ClusterScene,
) -> None:
    async def test() -> None:
        stream = f"s{next(_streams)}"
        publishing = Publishing(scene.url, stream)
        witness = publishing.witness
        await witness.open()
        client = witness.client
        await scene.cluster.until_ready(client)
        await request(client, "stream.create", name=stream, subject=f"{stream}.>", replicas=1)
        async with publishing.going_on():
            await witness.wait_for_acks(20)
            first = await scene.until(client, stream, has_replicas(1))
            answer = await updated(client, stream, replicas=3, labels={"copies": "3"})
            assert answer["replicas"][0] == first["leader"], "what there is stays"
            assert answer["config"]["labels"] == {"copies": "3"}
            grown = await scene.until(client, stream, has_replicas(3))
            assert (grown["replicas"][0], grown["leader"]) == (first["leader"], first["leader"])

            old = first["leader"]
            scene.cluster[old].kill()
            before = len(witness.acked)
            await scene.cluster.until_taken_over(client, stream, old)
            await witness.wait_for_acks(before + 40)
            scene.cluster[old].start()
            led = await scene.until(client, stream, has_replicas(3))

            await updated(client, stream, replicas=1)
            shrunk = await scene.until(client, stream, has_replicas(1))
            assert shrunk["leader"] in shrunk["isr"]
            async with asyncio.timeout(WAIT_SECONDS):
                for node in set(led["replicas"]) - set(shrunk["replicas"]):
                    while scene.files(node, first["incarnation"]):
                        await pause()
        await witness.close()

    run(test())


def test_what_a_number_of_replicas_means_when_it_cannot_be_now(scene: ClusterScene) -> None:
    async def test() -> None:
        stream = f"s{next(_streams)}"
        async with scene.client() as js:
            client = js.nats
            await scene.created(client, stream, ["a"])
            whole = (await request(client, "stream.info", name=stream))["config"]
            assert (await updated(client, stream, **whole))["target"] is None
            assert await refused(client, stream, replicas=4) == "invalid_config", "there are three nodes"
            assert await refused(client, stream, replicas=3, min_insync_replicas=2) == "invalid_config"
            assert await refused(client, "__cursors", replicas=3) == "unsupported"
            assert await refused(client, "nothing", replicas=3) == "stream_not_found"

            # A move that cannot end, as one of its nodes is dead.
            scene.cluster["c"].kill()
            await scene.until_alive(client, "ab")
            begun = await request(client, "stream.reassign", name=stream, replicas=["a", "c"])
            assert begun["total"] == 1
            assert await refused(client, stream, replicas=3) == "reassignment_under_way"
            for number in (1, 2):
                assert (await updated(client, stream, replicas=number))["target"] == ["a", "c"]
            whole = (await request(client, "stream.info", name=stream))["config"]
            assert (await updated(client, stream, **whole))["target"] == ["a", "c"]
            assert (await request(client, "stream.reassign", name=stream, cancel=True))["total"] == 1
            await scene.until(client, stream, has_replicas(1))

            assert await refused(client, stream, replicas=3) == "invalid_config", "two are alive"
            await updated(client, stream, replicas=2)
            assert (await scene.until(client, stream, has_replicas(2)))["replicas"] == ["a", "b"]
            await updated(client, stream, min_insync_replicas=2)
            assert await refused(client, stream, replicas=1) == "invalid_config"
            scene.cluster["c"].start()
            await scene.cluster.until_ready(client)

    run(test())


def test_shrinking_drops_the_replica_that_is_not_in_sync(scene: ClusterScene) -> None:
    async def test() -> None:
        stream = f"s{next(_streams)}"
        async with scene.client() as js:
            await scene.created(js.nats, stream, ["a", "b", "c"])
            scene.cluster["b"].kill()
            await scene.until(js.nats, stream, lambda info: set(info["isr"]) == {"a", "c"})
            await updated(js.nats, stream, replicas=2)
            assert (await scene.until(js.nats, stream, has_replicas(2)))["replicas"] == ["a", "c"]
            scene.cluster["b"].start()
            await scene.cluster.until_ready(js.nats)

    run(test())


def test_all_partitions_follow_and_those_that_are_added_with_them(scene: ClusterScene) -> None:
    async def test() -> None:
        stream = f"s{next(_streams)}"
        async with scene.client() as js:
            client = js.nats
            made = await js.streams.create(stream, f"{stream}.>", partitions=2, partition_by="key")
            assert made.config.replicas == 1
            changed = await updated(client, stream, replicas=2, partitions=3)
            assert changed["effective_partitions"] == 3
            placed = [await scene.until(client, f"{stream}/{number}", has_replicas(2)) for number in range(3)]
            held = [node for info in placed for node in info["replicas"]]
            assert {node: held.count(node) for node in "abc"} == dict.fromkeys("abc", 2)
            await updated(client, stream, replicas=1)
            for number in range(3):
                await scene.until(client, f"{stream}/{number}", has_replicas(1))
            whole = await js.streams.partitions(stream)
            assert (whole.config.replicas, whole.config.partitions) == (1, 3)

    run(test())


def test_read_replicas_become_replicas_where_no_other_node_is_left(scene: ClusterScene) -> None:
    async def test() -> None:
        stream = f"s{next(_streams)}"
        async with scene.client() as js:
            await scene.created(js.nats, stream, ["a"])
            await updated(js.nats, stream, read_replicas=2)
            assert await refused(js.nats, stream, replicas=3) == "invalid_config", "none is left"
            await updated(js.nats, stream, replicas=3, read_replicas=0)
            info = await scene.until(js.nats, stream, has_replicas(3))
            assert (info["replicas"][0], info["read_replicas"]) == ("a", [])

    run(test())


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

            await updated(client, said, replicas=None)
            await scene.until(client, said, has_replicas(3))
            answer = await request(client, "cluster.update", default_replicas=None)
            assert answer["default_replicas"] == 1
            config: dict[str, object] = {"name": lone, "subject": f"{lone}.>", "min_insync_replicas": 2}
            found = await request(client, "stream.create", **config)
            assert (found["created"], found["config"]["replicas"]) == (False, 3), "whatever it has"
            found = await request(client, "stream.create", **config, replicas=2)
            assert found["error"]["err_code"] == "stream_exists"

    run(test())
