"""Nodes that nobody told of each other form one cluster over NATS, once; others join it without a vote."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from tests.support.nats_server import NatsServer
from tests.support.node_cluster import ClusterNode, free_ports
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.pauses import pause
from tests.support.publishers import Witness

_clusters = count()


@pytest.fixture(scope="module")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server.url


class Strangers:
    """Nodes with an address and no list of voters, on a prefix of their own."""

    def __init__(self, directory: Path, url: str) -> None:
        self.prefix = f"bootstrap{next(_clusters)}.api"
        self.nodes: dict[str, ClusterNode] = {}
        self._directory = directory
        self._url = url

    def add(self, name: str, expect: int = 3, peers: str = "", **changes: str) -> ClusterNode:
        """A node that has not been started; ``changes`` to its settings by key."""
        ports = free_ports(3)
        place = self._directory / changes.pop("place", name)
        settings = {
            "node_id": f'"{name}"',
            "data": f'"{place / "data"}"',
            "log_level": '"info"',
            "api_prefix": f'"{self.prefix}"',
            **changes,
        }
        text = "\n".join(f"{key} = {value}" for key, value in settings.items()) + (
            f'\n[nats]\nurls = ["{self._url}"]\n[socket]\nport = {ports[1]}\n[http]\nport = {ports[2]}\n'
            f'[peers]\nbootstrap_expect = {expect}\n{peers or f"""advertise = "127.0.0.1:{ports[0]}" """}\n'
        )
        node = ClusterNode(name, place, (ports[0], ports[1], ports[2]), text)
        self.nodes[place.name] = node
        return node

    def close(self) -> None:
        for node in self.nodes.values():
            if node.is_running:
                node.kill()

    async def until_alive(self, client: Client, names: str) -> dict[str, str]:
        """Wait until exactly these nodes are alive; returns their roles."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                info = await self._info(client)
                alive = {node["id"] for node in info.get("nodes", ()) if node["alive"]}
                if alive == set(names):
                    return {node["id"]: node["role"] for node in info["nodes"]}

    async def _info(self, client: Client) -> dict[str, Any]:
        await pause()
        try:
            reply = await client.request(f"{self.prefix}.cluster.info", b"{}", timeout=10)
        except nats.errors.Error:
            await client.flush()
            return {}
        answer: dict[str, Any] = json.loads(reply.data)
        return answer

    async def create(self, client: Client, stream: str, replicas: int) -> dict[str, Any]:
        body = {"name": stream, "subject": f"{stream}.>", "replicas": replicas}
        reply = await client.request(f"{self.prefix}.stream.create", json.dumps(body).encode(), timeout=20)
        answer: dict[str, Any] = json.loads(reply.data)
        return answer


@pytest.fixture
def strangers(tmp_path: Path, nats_url: str) -> Iterator[Strangers]:
    found = Strangers(tmp_path, nats_url)
    try:
        yield found
    finally:
        found.close()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    client = await nats.connect(url)
    try:
        yield client
    finally:
        await client.close()


async def until_logged(node: ClusterNode, word: str) -> None:
    """Wait until a node's log says so."""
    async with asyncio.timeout(WAIT_SECONDS):
        while word not in (node.log.read_text() if node.log.exists() else ""):
            await pause()


def ended(node: ClusterNode) -> str:
    """Wait until a node gives up; returns what it said."""
    assert node.wait() != 0
    return node.log.read_text()


def formation(node: ClusterNode) -> dict[str, Any]:
    """What a node has on record."""
    found: dict[str, Any] = json.loads((node.data / "formation").read_text().splitlines()[0])
    return found


def test_three_processes_form_a_cluster_while_they_are_killed_and_a_fourth_joins_it(
    strangers: Strangers, nats_url: str
) -> None:
    async def test() -> None:
        a, b, c = (strangers.add(name) for name in "abc")
        a.start()
        b.start()
        await until_logged(a, "forming a cluster of 3 nodes: a, b")
        a.kill()
        a.start()
        c.start()
        # somebody has promised, perhaps all: in the middle of it one dies
        await until_logged(c, "formation: c promised=a, b, c")
        b.kill()
        b.start()
        async with connected(nats_url) as client:
            assert await strangers.until_alive(client, "abc") == dict.fromkeys("abc", "voter")
            assert len({json.dumps(formation(node)["formed"]) for node in (a, b, c)}) == 1
            strangers.add("d").start()
            roles = await strangers.until_alive(client, "abcd")
            assert roles == {"a": "voter", "b": "voter", "c": "voter", "d": "data"}
            info = await strangers.create(client, "orders", 4)
            assert sorted(info["isr"]) == list("abcd")
        publisher = Witness("orders.n", nats_url)
        await publisher.open()
        await publisher.publish(100)
        await publisher.retry_until_acked()
        await publisher.close()

    run(test())


def test_what_was_agreed_is_used_again_without_those_who_agreed(strangers: Strangers, nats_url: str) -> None:
    async def test() -> None:
        for name in "abcd":
            strangers.add(name).start()
        async with connected(nats_url) as client:
            roles = await strangers.until_alive(client, "abcd")
            data = next(name for name, role in roles.items() if role == "data")
            for node in strangers.nodes.values():
                node.kill()
            strangers.nodes[data].start()
            await until_logged(strangers.nodes[data], "waiting for a voter of the metadata log")
            for name in roles:
                if name != data:
                    strangers.nodes[name].start()
            assert await strangers.until_alive(client, "abcd") == roles

    run(test())


def test_a_node_that_waits_stops_in_order_when_it_is_told_to(strangers: Strangers) -> None:
    async def test() -> None:
        alone = strangers.add("a")
        alone.start()
        await until_logged(alone, "forming a cluster of 3 nodes: a")
        alone.send(signal.SIGTERM)
        assert alone.wait() == 0
        assert "stopped" in alone.log.read_text()

    run(test())


def test_nodes_that_contradict_each_other_say_so_and_give_up(strangers: Strangers) -> None:
    a = strangers.add("a")
    five = strangers.add("b", expect=5)
    a.start()
    five.start()
    assert "node a waits for 3 voters, and node b for 5" in ended(a)
    assert "node b waits for 5 voters, and node a for 3" in ended(five)

    a.start()
    double = strangers.add("a", place="another")
    double.start()
    for node in (a, double):
        assert "node a is another node too: directory" in ended(node)

    a.start()
    same_place = strangers.add("c", peers=f'advertise = "127.0.0.1:{a.peer_port}"')
    same_place.start()
    assert f"is at 127.0.0.1:{a.peer_port}, where node c says that it is" in ended(a)
    assert f"is at 127.0.0.1:{a.peer_port}, where node a says that it is" in ended(same_place)


def test_who_does_not_know_the_token_is_not_heard(strangers: Strangers) -> None:
    async def test() -> None:
        a = strangers.add("a", peers='host = "127.0.0.1"\ntoken = "ours"')
        stranger = strangers.add("b", peers='host = "127.0.0.1"\nport = 9295\ntoken = "theirs"')
        a.start()
        stranger.start()
        await until_logged(a, "a notice of node 'b' does not prove the token")
        await until_logged(stranger, "a notice of node 'a' does not prove the token")
        assert "forming a cluster of 3 nodes: a, b" not in a.log.read_text()

    run(test())
