"""Streams that move between three nodes under publishing: nothing acked is lost or stored twice."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster, asked
from tests.support.nodes import WAIT_SECONDS, request, run
from tests.support.pauses import pause
from tests.support.publishers import Publishing, Witness

_streams = count()


@dataclass(frozen=True)
class Scene:
    """Three nodes on one nats-server."""

    cluster: NodeCluster
    url: str

    def directories(self, node: str, incarnation: str) -> list[Path]:
        """Where a node has files of a life of a stream."""
        return list((self.cluster[node].data / "streams").glob(f"*{incarnation}*"))

    async def until_gone(self, node: str, incarnation: str) -> None:
        """Wait until a node has removed its files of a stream."""
        async with asyncio.timeout(WAIT_SECONDS):
            while self.directories(node, incarnation):
                await pause()

    async def until_moved(self, client: Client, stream: str, replicas: list[str]) -> dict[str, Any]:
        """Wait until a stream's replicas are these, all in sync, with one of them leading."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                info = await self.cluster.info(client, stream)
                is_there = info.get("replicas") == replicas and info["target"] is None
                if is_there and set(info["isr"]) == set(replicas) and info["state"] == "online":
                    return info


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("moves")
    with NatsServer(directory / "nats") as server:
        cluster = NodeCluster(directory, server.url)
        try:
            cluster.start()
            yield Scene(cluster, server.url)
        finally:
            cluster.close()


async def move(scene: Scene, client: Client, stream: str, replicas: list[str]) -> dict[str, Any]:
    """Reassign a stream and wait until it is there; a node that has just lost it removes its files first."""
    answer = await request(client, "stream.reassign", name=stream, replicas=replicas)
    async with asyncio.timeout(WAIT_SECONDS):
        while answer.get("error", {}).get("err_code") == "removal_pending":
            answer = await request(client, "stream.reassign", name=stream, replicas=replicas)
    assert [one["after"] for one in answer["moves"]] == [replicas]
    return await scene.until_moved(client, stream, replicas)


def test_a_stream_moves_while_it_is_published_to(scene: Scene) -> None:
    async def test() -> None:
        stream = f"s{next(_streams)}"
        publishing = Publishing(scene.url, stream)
        await publishing.witness.open()
        client = publishing.witness.client
        await scene.cluster.until_ready(client)
        await request(client, "stream.create", name=stream, subject=f"{stream}.>", replicas=2)
        incarnation = (await move(scene, client, stream, ["a", "b"]))["incarnation"]
        async with publishing.going_on():
            after = before = await move(scene, client, stream, ["a", "b"])
            for replicas in (["b", "c"], ["c"], ["c", "a", "b"], ["a"], ["a", "c"]):
                after = await move(scene, client, stream, replicas)
                assert after["leader"] in replicas
                assert after["config"]["replicas"] == len(replicas)
                for node in set("abc") - set(replicas):
                    await scene.until_gone(node, incarnation)
            assert after["leader_epoch"] > before["leader_epoch"]
        await publishing.witness.close()

    run(test())


def test_a_move_that_cannot_end_is_cancelled_and_the_next_one_ends(scene: Scene) -> None:
    async def test() -> None:
        stream = f"s{next(_streams)}"
        publishing = Publishing(scene.url, stream)
        await publishing.witness.open()
        client = publishing.witness.client
        await scene.cluster.until_ready(client)
        await request(client, "stream.create", name=stream, subject=f"{stream}.>", replicas=1)
        incarnation = (await move(scene, client, stream, ["a"]))["incarnation"]
        refused = await request(client, "stream.reassign", name=stream, cancel=True)
        assert refused["error"]["err_code"] == "invalid_config"
        refused = await request(client, "stream.reassign", name=stream, replicas=["x"])
        assert refused["error"]["err_code"] == "node_not_found"
        scene.cluster["c"].kill()
        async with publishing.going_on():
            async with asyncio.timeout(
                WAIT_SECONDS
            ):  # NATS may hand the request to the node that has just died
                while "moves" not in await asked(client, "stream.reassign", name=stream, replicas=["c"]):
                    pass
            during = await scene.cluster.info(client, stream)
            assert (during["replicas"], during["target"]) == (["a", "c"], ["c"])
            answer = await request(client, "stream.reassign", name=stream, cancel=True)
            [moved] = answer["moves"]
            assert (moved["stream"], moved["before"], moved["after"]) == (stream, ["c"], ["a"])
            assert (await scene.until_moved(client, stream, ["a"]))["leader"] == "a"
            scene.cluster["c"].start()
            await scene.until_gone("c", incarnation)
            assert (await move(scene, client, stream, ["c"]))["leader"] == "c"
        await publishing.witness.close()

    run(test())


@pytest.mark.slow("tests/integration/test_cluster_moves.py::test_a_stream_moves_while_it_is_published_to")
def test_a_drained_node_has_nothing_left_and_comes_back_by_rebalancing(scene: Scene) -> None:
    async def test() -> None:
        streams = [f"s{next(_streams)}" for _ in range(4)]
        witness = Witness("unused", scene.url)
        await witness.open()
        client = witness.client
        await scene.cluster.until_ready(client)
        for stream in streams:
            await request(client, "stream.create", name=stream, subject=f"{stream}.>", replicas=2)
        refused = await request(client, "stream.create", name="all", subject="all.>", replicas=3)
        assert "error" not in refused
        refused = await request(client, "cluster.drain", node="a")
        assert refused["error"]["err_code"] == "invalid_config", "three replicas need three nodes"
        await request(client, "stream.delete", name="all")

        moves = (await request(client, "cluster.drain", node="a"))["moves"]
        assert moves
        for made in moves:
            assert "a" in made["before"]
            assert "a" not in made["after"]
            info = await scene.until_moved(client, made["stream"], made["after"])
            await scene.until_gone("a", info["incarnation"])
        assert not list((scene.cluster["a"].data / "streams").iterdir())
        refused = await request(client, "cluster.remove", node="a")
        assert refused["error"]["err_code"] == "node_in_use"

        planned = await request(client, "cluster.rebalance", dry_run=True)
        assert (await request(client, "cluster.rebalance", dry_run=True)) == planned, (
            "a dry run moves nothing"
        )
        moves = (await request(client, "cluster.rebalance"))["moves"]
        assert moves == planned["moves"]
        for made in moves:
            await scene.until_moved(client, made["stream"], made["after"])
        infos = [await request(client, "stream.info", name=stream) for stream in streams]
        assert any("a" in info["replicas"] for info in infos), "it has its share again"
        await witness.close()

    run(test())
