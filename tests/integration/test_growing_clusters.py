"""A cluster of real nodes grows from one node, shrinks, and replaces its voters while it serves."""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from nats.aio.client import Client

from tests.support.commands import REPOSITORY, CommandProcess, succeeded
from tests.support.growing_cluster import (
    GrowingCluster,
    are_alive,
    are_voters,
    client_of,
    ended,
    until_info,
    until_logged,
    until_removed,
)
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import ClusterNode, asked, free_ports
from tests.support.nodes import WAIT_SECONDS, request, run
from tests.support.publishers import Publishing

_KILLED_AT_ONE_STEP = pytest.mark.slow("tests/integration/test_growing_clusters.py")


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    with NatsServer(tmp_path / "nats") as server:
        yield server.url


@pytest.fixture
def cluster(tmp_path: Path, nats_url: str) -> Iterator[GrowingCluster]:
    nodes = GrowingCluster(tmp_path / "cluster", nats_url)
    try:
        yield nodes
    finally:
        nodes.close()


def test_one_node_becomes_three_and_loses_nothing_when_the_first_is_killed(
    cluster: GrowingCluster, nats_url: str
) -> None:
    async def test() -> None:
        cluster.begin()
        async with client_of(nats_url) as client:
            await until_info(client, are_alive("a"), are_voters("a"))
            await request(client, "stream.create", name="orders", subject="orders.>")
            publishing = Publishing(nats_url, "orders")
            await publishing.witness.open()
            async with publishing.going_on():
                await publishing.witness.wait_for_acks(100)
                for name in "bc":
                    cluster.add(name).start()
                await until_info(client, are_alive("abc"), are_voters("abc"))
                update = ("stream", "update", "orders", "--replicas", "3")
                await asyncio.to_thread(succeeded, *update, nats=nats_url)
                await cluster.until_whole(client, "orders", 3)
                cluster["a"].kill()
                await cluster.until_led_by_another(client, "orders", "a")
                await publishing.witness.wait_for_acks(publishing.witness.published + 100)
            await publishing.witness.close()

    run(test())


def test_all_voters_are_killed_at_once_and_are_the_same_again(cluster: GrowingCluster, nats_url: str) -> None:
    async def test() -> None:
        cluster.begin(joining="bc")
        async with client_of(nats_url) as client:
            before = await until_info(client, are_alive("abc"), are_voters("abc"))
            for node in cluster.nodes.values():
                node.kill()
            cluster.start()
            after = await until_info(client, are_alive("abc"), are_voters("abc"))
            assert after["cluster_id"] == before["cluster_id"]

    run(test())


async def with_a_fourth(cluster: GrowingCluster, client: Client) -> tuple[str, str]:
    """Start a node beside three voters; return one that does not lead, and who is left without it."""
    await until_info(client, are_alive("abc"), are_voters("abc"))
    cluster.add("d").start()
    info = await until_info(client, are_alive("abcd"), are_voters("abc"))
    gone = next(name for name in "cba" if name != info["metadata_leader"])
    return gone, "abc".replace(gone, "") + "d"


@pytest.mark.slow(
    "tests/integration/test_growing_clusters.py::test_all_voters_are_killed_at_once_and_are_the_same_again",
    "tests/unit/metadata/test_voters.py",
)
def test_a_removed_voter_comes_back_with_its_disk_and_observes(
    cluster: GrowingCluster, nats_url: str
) -> None:
    async def test() -> None:
        cluster.begin(joining="bc")
        async with client_of(nats_url) as client:
            gone, stay = await with_a_fourth(cluster, client)
            cluster[gone].kill()
            await until_removed(client, gone)
            await until_info(client, are_alive(stay), are_voters(stay), seconds=2 * WAIT_SECONDS)
            cluster[gone].start()
            info = await until_info(client, are_alive("abcd"), are_voters(stay))
            assert {node["id"]: node["role"] for node in info["nodes"]}[gone] == "data"
            assert cluster[gone].stop() == 0

    run(test())


@pytest.mark.slow(
    "tests/integration/test_growing_clusters.py::test_all_voters_are_killed_at_once_and_are_the_same_again",
    "tests/unit/metadata/test_voters.py",
)
def test_a_voter_that_was_frozen_while_it_was_removed_stops_by_itself(
    cluster: GrowingCluster, nats_url: str
) -> None:
    async def test() -> None:
        cluster.begin(joining="bc")
        async with client_of(nats_url) as client:
            frozen, stay = await with_a_fourth(cluster, client)
            cluster[frozen].stand_still()
            await until_removed(client, frozen)
            await until_info(client, are_voters(stay), seconds=2 * WAIT_SECONDS)
            cluster[frozen].send(signal.SIGCONT)
            assert cluster[frozen].wait() == 0
            assert "removed from the cluster" in cluster[frozen].log.read_text()

    run(test())


@pytest.mark.slow(
    "tests/integration/test_growing_clusters.py::test_all_voters_are_killed_at_once_and_are_the_same_again",
    "tests/unit/metadata/test_voters.py",
)
def test_a_voter_that_was_away_while_all_others_were_replaced_observes(
    cluster: GrowingCluster, nats_url: str
) -> None:
    async def test() -> None:
        cluster.begin(joining="bc")
        async with client_of(nats_url) as client:
            voters = "abc"
            await until_info(client, are_alive(voters), are_voters(voters))
            for dead, new in ("cd", "be", "af"):
                cluster.add(new).start()
                await until_info(client, are_alive(voters + new), are_voters(voters))
                cluster[dead].kill()
                await until_removed(client, dead)
                voters = voters.replace(dead, "") + new
                await until_info(client, are_alive(voters), are_voters(voters), seconds=2 * WAIT_SECONDS)
            cluster["c"].start()  # its log knows none of those that vote now, nor where they are
            await until_info(client, are_alive("cdef"), are_voters("def"))

    run(test())


def test_a_voter_whose_disk_was_wiped_votes_again_at_once(cluster: GrowingCluster, nats_url: str) -> None:
    async def test() -> None:
        cluster.begin(joining="bc")
        async with client_of(nats_url) as client:
            await until_info(client, are_alive("abc"), are_voters("abc"))
            cluster["c"].kill()
            shutil.rmtree(cluster["c"].data)
            cluster["c"].start()
            await until_logged(cluster["c"], "taking part as AsVoter", times=2)
            info = await until_info(client, are_alive("abc"), are_voters("abc"))
            # What remains is a majority only with the vote of the new disk.
            dead = "a" if info["metadata_leader"] == "b" else "b"
            cluster[dead].kill()
            await until_info(client, are_alive("abc".replace(dead, "")))

    run(test())


@pytest.mark.slow("tests/unit/metadata/test_voters.py")
def test_a_dead_voter_is_replaced_by_another_node_after_a_minute(
    cluster: GrowingCluster, nats_url: str
) -> None:
    async def test() -> None:
        cluster.begin(joining="bc")
        async with client_of(nats_url) as client:
            await until_info(client, are_alive("abc"), are_voters("abc"))
            cluster.add("d").start()
            info = await until_info(client, are_alive("abcd"), are_voters("abc"))
            dead = "b" if info["metadata_leader"] == "c" else "c"
            cluster[dead].kill()
            killed_at = time.monotonic()
            voters = "abc".replace(dead, "") + "d"
            await until_info(client, are_voters(voters), seconds=2 * WAIT_SECONDS)
            assert time.monotonic() - killed_at > 55, "it might have come back"
            cluster[dead].start()
            await until_info(client, are_alive("abcd"), are_voters(voters))

    run(test())


@pytest.mark.parametrize("absence", ["killed", "frozen"])
def test_a_voter_is_found_at_its_new_address_by_those_that_were_away(
    absence: str, cluster: GrowingCluster, nats_url: str
) -> None:
    async def test() -> None:
        cluster.begin(joining="bc")
        async with client_of(nats_url) as client:
            await until_info(client, are_alive("abc"), are_voters("abc"))
            before = cluster["b"]
            before.kill()
            others = cluster["a"], cluster["c"]
            for node in others:
                if absence == "killed":
                    node.kill()
                else:
                    node.stand_still()
            cluster.add("b").start()
            assert cluster["b"].peer_port != before.peer_port
            for node in others:
                if absence == "killed":
                    node.start()
                else:
                    node.send(signal.SIGCONT)
            await until_info(client, are_alive("abc"), are_voters("abc"))
            cluster["c"].kill()  # a and b need each other
            info = await until_info(client, are_alive("ab"))
            place = next(node for node in info["nodes"] if node["id"] == "b")
            assert place["peer_port"] == cluster["b"].peer_port

    run(test())


@pytest.mark.parametrize("victim", ["a", "b"])
@pytest.mark.parametrize(
    ("who", "moment"),
    [
        pytest.param("b", "is there, and is joined", marks=_KILLED_AT_ONE_STEP),
        pytest.param("b", "has a lease again", marks=_KILLED_AT_ONE_STEP),
        pytest.param("a", "learners=b@", marks=_KILLED_AT_ONE_STEP),
        ("b", "taking part as AsVoter"),
        pytest.param("a", ",b@", marks=_KILLED_AT_ONE_STEP),
    ],
)
def test_nodes_are_killed_at_every_step_from_observer_to_voter(
    victim: str, who: str, moment: str, cluster: GrowingCluster, nats_url: str
) -> None:
    async def test() -> None:
        cluster.begin()
        async with client_of(nats_url) as client:
            await until_info(client, are_alive("a"), are_voters("a"))
            for name in "bc":
                cluster.add(name).start()
            await until_logged(cluster[who], moment)
            cluster[victim].kill()
            cluster[victim].start()
            await until_info(client, are_alive("abc"), are_voters("abc"))
            cluster["a"].kill()
            await until_info(client, are_alive("bc"))

    run(test())


def test_nodes_that_were_killed_while_they_made_their_metadata_log_make_it_anew(
    cluster: GrowingCluster, nats_url: str
) -> None:
    def half_made(node: ClusterNode) -> None:
        node.kill()
        (node.data / "metadata").mkdir()
        node.start()

    async def test() -> None:
        cluster.begin(joining="b")
        await until_logged(cluster["a"], "looking for the cluster")
        half_made(cluster["a"])
        async with client_of(nats_url) as client:
            await until_info(client, are_alive("ab"), are_voters("a"))
            half_made(cluster["b"])
            cluster.add("c").start()
            await until_info(client, are_alive("abc"), are_voters("abc"))

    run(test())


def test_a_node_that_others_cannot_dial_observes_and_the_next_one_votes(
    cluster: GrowingCluster, nats_url: str
) -> None:
    async def test() -> None:
        cluster.begin(joining="b")
        (nobodys,) = free_ports(1)
        cluster.add("c", advertise=nobodys).start()
        async with client_of(nats_url) as client:
            await until_logged(cluster["c"], "taking part as AsObserver")
            await until_info(client, are_alive("abc"), are_voters("a"))
            cluster.add("d").start()
            await until_info(client, are_alive("abcd"), are_voters("abd"))
            assert cluster["c"].log.read_text().count("taking part as AsVoter") == 1, "it is not tried again"

    run(test())


def test_a_node_that_finds_no_cluster_stops_in_order_when_it_is_told_to(cluster: GrowingCluster) -> None:
    async def test() -> None:
        node = cluster.add("b")
        node.start()
        await until_logged(node, "looking for the cluster")
        assert node.stop() == 0
        assert "stopped" in node.log.read_text()

    run(test())


def test_two_nodes_that_are_to_begin_the_cluster_both_say_so_and_give_up(cluster: GrowingCluster) -> None:
    for name in "ab":
        cluster.add(name, "init = true").start()
    for name, other in ("ab", "ba"):
        assert f"node {name} is to begin the cluster, and so is {other} at" in ended(cluster[name])


def test_a_node_that_contradicts_those_that_run_says_so_and_gives_up(
    cluster: GrowingCluster, nats_url: str
) -> None:
    async def test() -> None:
        cluster.begin(joining="b")
        async with client_of(nats_url) as client:
            await until_info(client, are_alive("ab"))
            double = cluster.add("b", place="another")
            double.start()
            assert f"node b is another node too, b at 127.0.0.1:{cluster['b'].peer_port}" in ended(double)
            squatter = cluster.add("c", advertise=cluster["b"].peer_port)
            squatter.start()
            assert f"node c is where b at 127.0.0.1:{cluster['b'].peer_port} says that it is" in ended(
                squatter
            )
            for second in (f"b at 127.0.0.1:{double.peer_port}", f"c at 127.0.0.1:{cluster['b'].peer_port}"):
                await until_logged(cluster["b"], f"{second} has the id or the address")
            await until_info(client, are_alive("ab"), are_voters("a"))

    run(test())


def test_a_node_with_the_directory_of_another_cluster_is_not_taken_in(
    cluster: GrowingCluster, nats_url: str, tmp_path: Path, nats_server: NatsServer
) -> None:
    async def test() -> None:
        other = GrowingCluster(tmp_path / "other", nats_server.url)
        try:
            other.begin(joining="z")
            cluster.begin()
            async with client_of(nats_server.url) as client:
                await until_info(client, are_alive("az"), are_voters("a"))
            async with client_of(nats_url) as client:
                info = await until_info(client, are_alive("a"), lambda info: info["cluster_id"])
                for name in "az":
                    assert other[name].stop() == 0
                observer = cluster.add("z", data=f'"{other["z"].data}"')
                observer.start()
                refusal = ended(observer)
                assert "node z has the directory of cluster" in refusal
                assert f"is of cluster {info['cluster_id']} under the same name" in refusal
                voter = cluster.add("a", place="foreign", data=f'"{other["a"].data}"')
                voter.start()  # it needs nobody, so it goes on with the cluster that it has
                for node in (cluster["a"], voter):
                    await until_logged(node, "is of another cluster of this name: id=")
                assert voter.stop() == 0
                await until_info(client, are_alive("a"), are_voters("a"))
        finally:
            other.close()

    run(test())


def test_a_node_that_does_not_know_the_token_is_not_heard(cluster: GrowingCluster) -> None:
    async def test() -> None:
        cluster.add("a", 'init = true\ntoken = "ours"').start()
        cluster.add("b", 'token = "theirs"').start()
        await until_logged(cluster["a"], "a notice of node 'b' does not prove the token")
        await until_logged(cluster["b"], "a notice of node 'a' does not prove the token")
        assert "is there, and is joined" not in cluster["b"].log.read_text()

    run(test())


def test_a_node_without_peers_is_alone_until_it_is_reachable(
    cluster: GrowingCluster, nats_url: str, tmp_path: Path
) -> None:
    def started(*arguments: str) -> CommandProcess:
        node = CommandProcess(
            *("node", "--data", str(tmp_path / "alone"), "--node-id", "a", "--nats", nats_url, "--json"),
            *arguments,
            environment={"JETSTREAM_NODE_SOCKET__PORT": "0"},
        )
        node.lines_until('{"event":"ready"}')
        return node

    async def test() -> None:
        async with client_of(nats_url) as client:
            with started() as node:
                await request(client, "stream.create", name="orders", subject="orders.>")
                cluster.add("b").start()
                await asyncio.to_thread(succeeded, "pub", "orders.eu", "one", nats=nats_url)
                questions = await client.subscribe("jetstream.api.discovery")
                for _ in range(3):
                    notice = json.loads((await questions.next_msg(WAIT_SECONDS)).data)["notice"]
                    assert (notice["source"]["node_id"], notice["asks"]) == ("b", True), "nobody answers"
                os.kill(node.pid, signal.SIGKILL)
            (port,) = free_ports(1)
            with started("--advertise", f"127.0.0.1:{port}") as node:
                await until_info(client, are_alive("ab"), are_voters("a"))
                assert (await request(client, "stream.info", name="orders"))["high_watermark"] == 1
                assert node.signalled(signal.SIGTERM)[0] == 0

    run(test())


def test_one_node_becomes_three_as_the_operations_page_says(tmp_path: Path) -> None:
    first, stored, again, *joining, grown = _commands_of_the_page(tmp_path)
    url = re.findall(r"nats://[0-9.:]+", joining[0])[0]

    def started(line: str) -> CommandProcess:
        node = CommandProcess(*shlex.split(line)[1:], environment={"JETSTREAM_NODE_SOCKET__PORT": "0"})
        running.push(node)
        node.lines_until("ready")
        return node

    def done(lines: str) -> None:
        for line in lines.splitlines():
            succeeded(*shlex.split(line)[1:], nats=url)

    async def test() -> None:
        alone = started(first)
        await asyncio.to_thread(done, stored)
        assert alone.signalled(signal.SIGINT)[0] == 0
        started(again)
        joined = [started(line) for line in joining]
        async with client_of(url) as client:
            await until_info(client, lambda info: len(info["voters"]) == 3 and not info["learners"])
            await asyncio.to_thread(done, grown)
            async with asyncio.timeout(WAIT_SECONDS):
                while len((await asked(client, "stream.info", name="orders")).get("isr", ())) < 3:
                    pass
            os.kill(joined[0].pid, signal.SIGKILL)
            await asyncio.to_thread(done, "jetstream pub orders.eu two")
            assert (await asked(client, "stream.info", name="orders"))["high_watermark"] == 2
            created = await request(client, "stream.create", name="more", subject="more")
            assert len(created["replicas"]) == 3

    with ExitStack() as running:
        run(test())


def _commands_of_the_page(directory: Path) -> list[str]:
    """Return the blocks of commands that make three nodes of one, with free ports and data in there."""
    page = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^### From one node to three\n(.*?)^### ", page, re.MULTILINE | re.DOTALL)
    text = section.replace("jetstream up", "jetstream up --nats-port 4222").replace(
        "--data ", f"--data {directory}/"
    )
    ports = sorted(set(re.findall(r"\b(?:4222|9[34]0\d)\b", text)))
    for port, free in zip(ports, free_ports(len(ports)), strict=True):
        text = re.sub(rf"\b{port}\b", str(free), text)
    return re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
