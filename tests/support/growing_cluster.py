"""Nodes that find each other over NATS, of which one begins the cluster, and what that says of itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client

from tests.support.node_cluster import ClusterNode, NodeCluster, asked, free_ports
from tests.support.nodes import WAIT_SECONDS
from tests.support.pauses import pause

Info = dict[str, Any]
"""The answer to ``cluster.info``."""


class GrowingCluster(NodeCluster):
    """A cluster without nodes at first."""

    def __init__(self, directory: Path, url: str) -> None:
        """Prepare for nodes on this NATS."""
        super().__init__(directory, url, size=0)
        self._directory = directory
        self._url = url

    def add(
        self,
        name: str,
        peers: str = "",
        *,
        place: str = "",
        advertise: int | None = None,
        **settings: str,
    ) -> ClusterNode:
        """Return a node that has not been started.

        Args:
            name: of the node.
            peers: more lines of TOML of its peers section, such as ``init = true``.
            place: of its directory, if there are two of that name.
            advertise: port at which others dial it; None: the one at which it listens.
            settings: lines of TOML by key.
        """
        place = place or name
        ports = free_ports(3)
        directory = self._directory / place
        common = {
            "node_id": f'"{name}"',
            "data": f'"{directory / "data"}"',
            "log_level": '"info"',
            **settings,
        }
        text = "\n".join(f"{key} = {value}" for key, value in common.items())
        node = ClusterNode(
            name,
            directory,
            (ports[0], ports[1], ports[2]),
            f"""{text}
[nats]
urls = ["{self._url}"]
[socket]
port = {ports[1]}
[http]
port = {ports[2]}
[peers]
port = {ports[0]}
advertise = "127.0.0.1:{ports[0] if advertise is None else advertise}"
{peers}
""",
        )
        self.nodes[place] = node
        return node

    def begin(self, *, joining: str = "") -> None:
        """Add and start node a, which begins the cluster, and the nodes of these names, which join it."""
        self.add("a", "init = true").start()
        for name in joining:
            self.add(name).start()


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    """A connection to NATS."""
    client = await nats.connect(url)
    try:
        yield client
    finally:
        await client.close()


async def until_info(
    client: Client, *conditions: Callable[[Info], bool], seconds: float = WAIT_SECONDS
) -> Info:
    """Return what the cluster says of itself, once all of that is so."""
    info: Info = {}
    try:
        async with asyncio.timeout(seconds):
            while True:
                info = await asked(client, "cluster.info")
                if info.get("nodes") and all(is_so(info) for is_so in conditions):
                    return info
    except TimeoutError as error:
        error.add_note(f"the cluster says {info}")
        raise


def are_alive(names: str) -> Callable[[Info], bool]:
    """Whether exactly these nodes are alive, each named by a letter."""
    return lambda info: [node["id"] for node in info["nodes"] if node["alive"]] == list(names)


def are_voters(names: str) -> Callable[[Info], bool]:
    """Whether exactly these nodes vote, and no other is about to."""
    return lambda info: (info["voters"], info["learners"]) == (list(names), [])


async def until_removed(client: Client, node: str) -> None:
    """Remove a node that is dead, as soon as the cluster is sure that it is."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (answer := await asked(client, "cluster.remove", node=node)) != {"node": node}:
            if answer:
                assert answer["error"]["err_code"] == "node_in_use", answer


async def until_logged(node: ClusterNode, word: str, times: int = 1) -> None:
    """Wait until a node's log says so, so many times since its first start."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (node.log.read_text() if node.log.exists() else "").count(word) < times:
            await pause()


def ended(node: ClusterNode) -> str:
    """Wait until a node gives up; return what its log says."""
    assert node.wait() != 0
    return node.log.read_text()
