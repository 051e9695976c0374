"""Nodes without a vote: they hold, lead and serve streams, fail over, come and go while the cluster runs."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from tests.support import node_cluster
from tests.support.commands import jetstream, succeeded
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import ClusterNode, NodeCluster, asked
from tests.support.nodes import WAIT_SECONDS, request, run
from tests.support.pauses import pause
from tests.support.publishers import Witness

_streams = count()


@pytest.fixture(scope="module")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server.url


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, nats_url: str) -> Iterator[NodeCluster]:
    """Three voters a, b, c, and two data nodes d, e, all running."""
    nodes = NodeCluster(tmp_path_factory.mktemp("cluster"), nats_url, size=3, data=2)
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.close()


@asynccontextmanager
async def publisher_of(subject: str, url: str) -> AsyncIterator[Witness]:
    """A publisher, connected."""
    witness = Witness(subject, url)
    await witness.open()
    try:
        yield witness
    finally:
        await witness.close()


@asynccontextmanager
async def client_of(cluster: NodeCluster, url: str) -> AsyncIterator[Client]:
    """A connection, once every node that runs has registered and is alive."""
    async with publisher_of("unused", url) as witness:
        running = {name for name, node in cluster.nodes.items() if node.is_running}
        await until_alive(witness.client, running)
        yield witness.client


async def until_alive(client: Client, names: set[str]) -> dict[str, Any]:
    """Wait until exactly these nodes are alive; returns what the cluster says of itself."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            info = await asked(client, "cluster.info")
            if {node["id"] for node in info.get("nodes", ()) if node["alive"]} == names:
                return info


async def created(client: Client, replicas: list[str]) -> str:
    """A new stream on these nodes, led by the first."""
    stream = f"s{next(_streams)}"
    await node_cluster.created(client, stream, replicas)
    await until_on(client, stream, replicas)
    return stream


async def until_on(client: Client, stream: str, replicas: list[str]) -> None:
    """Wait until the stream is on these nodes, all in sync, and the first of them leads."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            info = await asked(client, "stream.info", name=stream)
            is_there = info.get("replicas") == replicas and info["target"] is None
            is_led = is_there and info["leader"] == replicas[0] and info["state"] == "online"
            if is_led and set(info["isr"]) == set(replicas):
                return


def health(node: ClusterNode) -> dict[str, Any]:
    """What a node answers to a probe, {} while nobody does."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/healthz", timeout=5) as answer:
            body: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as refusal:
        body = json.load(refusal)
    except OSError:
        return {}
    return body


async def until_health_says(node: ClusterNode, word: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not any(
            word in problem for problem in (await asyncio.to_thread(health, node)).get("problems", ())
        ):
            await pause()


async def until_logged(node: ClusterNode, word: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while word not in node.log.read_text():
            await pause()


@pytest.mark.slow(
    "tests/simulation/test_cluster_seeds.py",
    "tests/integration/test_killed_leaders.py",
)
def test_a_data_node_leads_is_killed_and_another_takes_over_without_loss(
    cluster: NodeCluster, nats_url: str
) -> None:
    async def test() -> None:
        async with client_of(cluster, nats_url) as client:
            stream = await created(client, ["d", "e", "a"])
            async with publisher_of(f"{stream}.n", nats_url) as publisher:
                await publisher.publish(200)
                await publisher.wait_for_acks(200)
                cluster["d"].kill()
                await publisher.publish(200)
                await cluster.until_led_by_another(client, stream, "d")
                await publisher.retry_until_acked()
                assert not publisher.contradictions
                cluster["d"].start()
                await until_alive(client, set("abcde"))
                await cluster.until_whole(client, stream, 3)
                assert (await request(client, "stream.info", name=stream))["high_watermark"] == 400

    run(test())


def test_roles_are_told_and_placement_uses_data_nodes_too(cluster: NodeCluster, nats_url: str) -> None:
    async def test() -> None:
        async with client_of(cluster, nats_url) as client:
            info = await request(client, "cluster.info")
            roles = {node["id"]: node["role"] for node in info["nodes"]}
            assert roles == {"a": "voter", "b": "voter", "c": "voter", "d": "data", "e": "data"}
            assert info["metadata_leader"] in "abc"
            streams = [f"s{next(_streams)}" for _ in range(5)]
            for stream in streams:
                await request(client, "stream.create", name=stream, subject=f"{stream}.>", replicas=2)
            infos = [await request(client, "stream.info", name=stream) for stream in streams]
            assert {node for one in infos for node in one["replicas"]} >= {"d", "e"}
            for stream in streams:
                await request(client, "stream.delete", name=stream)

    run(test())


def test_the_metadata_leader_is_killed_and_data_nodes_go_on(cluster: NodeCluster, nats_url: str) -> None:
    async def test() -> None:
        async with client_of(cluster, nats_url) as client:
            stream = await created(client, ["d", "e"])
            async with publisher_of(f"{stream}.n", nats_url) as publisher:
                before = (await request(client, "stream.info", name=stream))["leader_epoch"]
                for _ in range(2):
                    leader = (await until_alive(client, set("abcde")))["metadata_leader"]
                    cluster[leader].kill()
                    await publisher.publish(50)
                    await publisher.wait_for_acks(publisher.published)
                    info = await until_alive(client, set("abcde") - {leader})
                    assert info["metadata_leader"] != leader
                    cluster[leader].start()
                await until_alive(client, set("abcde"))
                info = await request(client, "stream.info", name=stream)
                assert (info["leader"], info["leader_epoch"]) == ("d", before), (
                    "nothing of it was led by voters"
                )
                assert info["high_watermark"] == 100
                # what is decided now reaches the data nodes
                other = await created(client, ["e", "d"])
                assert (await request(client, "stream.delete", name=other))["name"] == other

    run(test())


def test_voters_are_restarted_one_after_the_other_under_a_publisher(
    cluster: NodeCluster, nats_url: str
) -> None:
    async def test() -> None:
        async with client_of(cluster, nats_url) as client:
            stream = await created(client, ["e", "d"])
            async with publisher_of(f"{stream}.n", nats_url) as publisher:
                for name in "abc":
                    assert cluster[name].stop() == 0
                    await publisher.publish(20)
                    cluster[name].start()
                    await until_alive(client, set("abcde"))
                await publisher.retry_until_acked()
                assert not publisher.contradictions
                info = await request(client, "stream.info", name=stream)
                assert (info["leader"], info["high_watermark"], set(info["isr"])) == ("e", 60, {"d", "e"})

    run(test())


def test_a_drained_data_node_is_removed_and_comes_back_as_a_new_one(
    cluster: NodeCluster, nats_url: str
) -> None:
    async def test() -> None:
        async with client_of(cluster, nats_url) as client:
            shown = await asyncio.to_thread(succeeded, "cluster", "info", nats=nats_url)
            assert " data " in shown
            remove = ("cluster", "remove")
            answer = await asyncio.to_thread(jetstream, *remove, "a", nats=nats_url)
            assert answer.exit_code != 0
            assert "is a voter of the metadata log" in answer.stderr
            stream = await created(client, ["e", "a"])
            refused = await request(client, "cluster.remove", node="e")
            assert refused["error"]["err_code"] == "node_in_use"
            before = {node["id"]: node for node in (await request(client, "cluster.info"))["nodes"]}
            await asyncio.to_thread(succeeded, "cluster", "drain", "e", nats=nats_url)
            async with asyncio.timeout(WAIT_SECONDS):
                while (answer := await asyncio.to_thread(jetstream, *remove, "e", nats=nats_url)).exit_code:
                    assert "drain it first" in answer.stderr
                    await pause()
            assert cluster["e"].wait() == 0, "it stops by itself, and in order"
            info = await until_alive(client, set("abcd"))
            assert [node["id"] for node in info["nodes"]] == list("abcd")
            assert "removed from the cluster" in cluster["e"].log.read_text()
            cluster["e"].start()
            info = await until_alive(client, set("abcde"))
            after = {node["id"]: node for node in info["nodes"]}
            assert after["e"]["node_epoch"] > before["e"]["node_epoch"], (
                "no start is taken for an earlier one"
            )
            await request(client, "stream.reassign", name=stream, replicas=["e", "d"])
            await until_on(client, stream, ["e", "d"])

    run(test())


@pytest.mark.slow(
    "tests/integration/test_data_nodes.py::test_a_drained_data_node_is_removed_and_comes_back_as_a_new_one"
)
def test_a_dead_data_node_is_removed_once_its_replicas_are_elsewhere(
    cluster: NodeCluster, nats_url: str
) -> None:
    async def test() -> None:
        async with client_of(cluster, nats_url) as client:
            stream = await created(client, ["d", "e", "a"])
            cluster["d"].kill()
            await until_alive(client, set("abce"))
            await request(client, "cluster.drain", node="d")
            async with asyncio.timeout(WAIT_SECONDS):
                while "error" in (answer := await asked(client, "cluster.remove", node="d")):
                    assert answer["error"]["err_code"] == "node_in_use"
            info = await request(client, "cluster.info")
            assert "d" not in [node["id"] for node in info["nodes"]]
            assert "d" not in (await request(client, "stream.info", name=stream))["replicas"]
            cluster["d"].start()
            await until_alive(client, set("abcde"))

    run(test())


@pytest.mark.slow("tests/integration/test_growing_clusters.py")
def test_a_data_node_without_voters_waits_and_says_so(tmp_path: Path, nats_url: str) -> None:
    async def test() -> None:
        cluster = NodeCluster(tmp_path, nats_url, size=3, data=1, api_prefix='"waiting.api"')
        data = cluster["d"]
        try:
            data.start()
            await until_health_says(data, "no voter of the metadata log answers: a, b, c")
            await until_logged(data, "waiting for a voter of the metadata log")
            cluster.start("a")
            await until_health_says(data, "the voters of the metadata log have no leader")
            cluster.start("bc")
            async with asyncio.timeout(WAIT_SECONDS):
                while not (await asyncio.to_thread(health, data)).get("ready"):
                    pass
            for name in "abc":
                cluster[name].kill()
            await until_health_says(data, "no voter of the metadata log answers")
            data.kill()
            data.log.unlink()
            data.start()
            await until_logged(data, "waiting for a voter of the metadata log")
            assert data.stop() == 0, "it stops in order though it has not started yet"
        finally:
            cluster.close()

    run(test())
