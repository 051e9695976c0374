"""Voters of a cluster of real nodes: shown, changed in number, and kept when a dead node is removed."""

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.commands import jetstream, succeeded
from tests.support.growing_cluster import are_alive, are_voters, client_of, until_info, until_removed
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster, asked
from tests.support.nodes import WAIT_SECONDS, request, run
from tests.support.pauses import pause


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    with NatsServer(tmp_path / "nats") as server:
        yield server.url


@pytest.fixture
def cluster(tmp_path: Path, nats_url: str) -> Iterator[NodeCluster]:
    """Three voters, a, b and c, all running."""
    nodes = NodeCluster(tmp_path / "cluster", nats_url, size=3)
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.close()


def test_voters_are_shown_and_become_as_many_as_an_operator_wants(
    cluster: NodeCluster, nats_url: str
) -> None:
    async def test() -> None:
        async with client_of(nats_url) as client:
            info = await until_info(client, are_alive("abc"), lambda info: info["cluster_id"])
            cluster_id = info["cluster_id"]
            assert re.fullmatch("[0-9a-f]{32}", cluster_id)
            assert (info["voters"], info["learners"], info["voters_wanted"]) == (["a", "b", "c"], [], None)
            leader = info["metadata_leader"]
            update = ("cluster", "update", "--voters")
            refused = await asyncio.to_thread(jetstream, *update, "2", nats=nats_url)
            assert (refused.exit_code, "voters: 2 is none of 1, 3, 5" in refused.stderr) == (4, True)
            nothing = await asyncio.to_thread(jetstream, "cluster", "update", nats=nats_url)
            assert (nothing.exit_code, "--voters" in nothing.stderr) == (2, True)
            said = await asyncio.to_thread(succeeded, *update, "1", nats=nats_url)
            assert said.startswith("voters (1 wanted): ")
            info = await until_info(client, are_voters(leader))
            roles = {node["id"]: node["role"] for node in info["nodes"]}
            assert roles == {name: "voter" if name == leader else "data" for name in "abc"}
            assert (info["voters_wanted"], info["cluster_id"]) == (1, cluster_id)
            shown = await asyncio.to_thread(succeeded, "cluster", "info", nats=nats_url)
            assert f"voters (1 wanted): {leader}\n" in shown
            for name in "abc":
                if name != leader:
                    cluster[name].kill()
            await until_info(client, are_alive(leader))
            answer = await asked(client, "cluster.update", voters=None)
            assert (answer["voters_wanted"], answer["voters"]) == (None, [leader]), "it decides alone"

    run(test())


def test_the_node_of_a_dead_voter_is_removed_its_vote_is_kept_and_it_comes_back(
    cluster: NodeCluster, nats_url: str
) -> None:
    async def test() -> None:
        async with client_of(nats_url) as client:
            info = await until_info(client, are_alive("abc"))
            leader = info["metadata_leader"]
            dead = next(name for name in "cba" if name != leader)
            refused = await asked(client, "cluster.remove", node=dead)
            assert refused["error"]["err_code"] == "node_in_use"
            assert "stop it, then remove it" in refused["error"]["description"]
            cluster[dead].kill()
            await until_removed(client, dead)
            info = await until_info(client, lambda info: info["metadata_leader"] is not None)
            assert dead not in [node["id"] for node in info["nodes"]]
            assert info["voters"] == ["a", "b", "c"], "two disks hold the metadata, and not one"
            cluster[dead].start()
            info = await until_info(client, are_alive("abc"))
            assert [node["role"] for node in info["nodes"]] == ["voter"] * 3

    run(test())


def test_nobody_is_removed_without_a_majority(cluster: NodeCluster, nats_url: str) -> None:
    async def test() -> None:
        async with client_of(nats_url) as client:
            info = await until_info(client, are_alive("abc"))
            others = [name for name in "abc" if name != info["metadata_leader"]]
            for name in others:
                cluster[name].kill()
            await until_info(client, lambda info: info["metadata_leader"] is None)
            refused = await request(client, "cluster.remove", node=others[0])
            assert refused["error"]["err_code"] == "not_leader", "nothing was decided"
            for name in others:
                cluster[name].start()
            await until_info(client, are_alive("abc"))

    run(test())


def test_a_dead_node_shows_in_the_metrics_of_the_others(cluster: NodeCluster, nats_url: str) -> None:
    def voters(name: str) -> tuple[float, float]:
        node = cluster[name]
        return node.metric("jetstream_metadata_voters"), node.metric("jetstream_metadata_voters_heard")

    def replicas(name: str) -> tuple[float, ...]:
        kinds = ("replicas", "isr_replicas", "isr_minimum")
        return tuple(cluster[name].metric(f'jetstream_stream_{kind}{{stream="orders"}}') for kind in kinds)

    async def until_shown(
        shown: Callable[[str], tuple[float, ...]], name: str, numbers: tuple[int, ...]
    ) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while shown(name) != numbers:
                await pause()

    async def test() -> None:
        async with client_of(nats_url) as client:
            leader = (await until_info(client, are_alive("abc")))["metadata_leader"]
            follower, other = (name for name in "abc" if name != leader)
            await asked(client, "stream.create", name="orders", subject="orders.>", replicas=3)
            await until_shown(voters, leader, (3, 3))
            assert voters(follower) == (0, 0), "only the leader knows"
            await until_shown(replicas, follower, (3, 3, 2))
            cluster[other].kill()
            await until_shown(voters, leader, (3, 2))
            await until_shown(replicas, follower, (3, 2, 2))
            cluster[other].start()
            await until_shown(voters, leader, (3, 3))
            await until_shown(replicas, follower, (3, 3, 2))

    run(test())
