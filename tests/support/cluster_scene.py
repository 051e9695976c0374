"""Three node processes on one nats-server, and what tests that kill some of them look at."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nats.aio.client import Client

import jetstream
from jetstream.client.connection import JetstreamClient
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster, asked, created, until
from tests.support.nodes import WAIT_SECONDS


@dataclass(frozen=True)
class ClusterScene:
    """Nodes a, b and c, all voters."""

    cluster: NodeCluster
    url: str

    @asynccontextmanager
    async def client(self) -> AsyncIterator[JetstreamClient]:
        async with jetstream.connect(self.url) as js:
            await self.cluster.until_ready(js.nats)
            yield js

    async def created(self, client: Client, stream: str, replicas: list[str], **config: object) -> None:
        """Create a stream on these nodes, the first one leading."""
        await created(client, stream, replicas, **config)

    async def until(
        self, client: Client, stream: str, is_so: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """Wait until the stream's info is so."""
        return await until(client, stream, is_so)

    async def until_alive(self, client: Client, alive: str) -> None:
        """Wait until the metadata leader knows these nodes to be alive, and no others."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                nodes = (await asked(client, "cluster.info")).get("nodes", ())
                if {node["id"] for node in nodes if node["alive"]} == set(alive):
                    return

    async def until_elected(self, client: Client, stream: str, node: str) -> dict[str, Any]:
        """Have a node lead uncleanly, once the lease of whoever led has run out."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                answer = await asked(client, "stream.elect", name=stream, node=node, unclean=True)
                if answer and "error" not in answer:
                    return answer

    def metric(self, node: str, name: str, stream: str) -> float:
        """A number of a stream, as the node tells it."""
        return self.cluster[node].metric(f'{name}{{stream="{stream}"}}')

    def logged(self, node: str, *words: str) -> list[str]:
        """The lines of a node's log with all these words."""
        lines = self.cluster[node].log.read_text().splitlines()
        return [line for line in lines if all(word in line for word in words)]

    def files(self, node: str, incarnation: str) -> list[Path]:
        """Where a node has files of a life of a stream."""
        return list((self.cluster[node].data / "streams").glob(f"*{incarnation}*"))


@contextmanager
def three_nodes(directory: Path, **settings: str) -> Iterator[ClusterScene]:
    """Start them, with these lines of TOML by key; whoever still runs in the end is killed."""
    with NatsServer(directory / "nats") as server:
        cluster = NodeCluster(directory, server.url, size=3, data=0, **settings)
        try:
            cluster.start()
            yield ClusterScene(cluster, server.url)
        finally:
            cluster.close()
