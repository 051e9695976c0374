"""Nodes that coordinate groups, as systems under test: one alone, and three that have all shards."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nats.aio.client import Client

from benchmarks.clusters import REPLICAS, eventually, node_cluster
from benchmarks.group_members import find_coordinator
from benchmarks.loadgen import Address
from benchmarks.processes import nats_server, node
from benchmarks.systems import ask, each
from envelope.internal_streams import group_shard
from envelope.types import StreamName

ONE: Final = "ours, one node"
THREE: Final = "ours, three nodes"


@dataclass(frozen=True, slots=True)
class GroupNodes:
    """Running nodes."""

    name: str
    address: Address
    """Of the NATS server."""
    nats_pid: int
    pids: Mapping[str, int]
    """Of the nodes, by node id."""
    sockets: Mapping[str, str]
    """Where each serves members: ``host:port``, by node id."""

    def create_streams(self, names: list[str]) -> None:
        """Create streams with as many copies as there are nodes."""
        bodies = [{"name": name, "subject": name.lower(), "replicas": len(self.pids)} for name in names]
        each(self.address, bodies, lambda client, body: ask(client, "stream.create", body))

    def coordinator(self, group: str) -> str:
        """Return the node that coordinates ``group``; its shard has all copies in sync from then on."""
        shard = group_shard(group)
        found = find_coordinator(next(iter(self.sockets.values())), group)
        self.until_whole(shard)
        return str(found["node"])

    def until_whole(self, name: StreamName) -> None:
        """Wait until an internal stream has a leader, and all its copies in sync."""
        wanted = min(REPLICAS, len(self.pids))

        async def look(client: Client, name: StreamName) -> None:
            async def whole() -> bool | None:
                info = await ask(client, "stream.info", {"name": name})
                return True if info["leader"] is not None and len(info["isr"]) == wanted else None

            await eventually(f"{wanted} copies of {name} in sync", whole)

        each(self.address, [name], look)

    def roles(self, coordinator: str) -> dict[str, int]:
        """Return the processes by what they are to a shard that ``coordinator`` leads."""
        followers = {f"follower {name}": pid for name, pid in self.pids.items() if name != coordinator}
        return {"coordinator": self.pids[coordinator], **followers, "nats-server": self.nats_pid}


@contextmanager
def group_nodes(name: str, directory: Path) -> Iterator[GroupNodes]:
    """Run ``ONE`` or ``THREE`` nodes in a fresh directory while the block runs."""
    if name == THREE:
        with node_cluster(directory) as cluster:
            pids = {name: server.pid for name, server in cluster.servers.items()}
            nats_pid = cluster.others["nats-server"]
            yield GroupNodes(name, cluster.nats_address, nats_pid, pids, sockets_of(cluster.nats_address))
    else:
        with nats_server(directory / "nats") as (address, nats_pid), node(directory / "node", address) as pid:
            sockets = sockets_of(address)
            yield GroupNodes(name, address, nats_pid, dict.fromkeys(sockets, pid), sockets)


def sockets_of(address: Address) -> dict[str, str]:
    """Return where the nodes behind a NATS server serve members, by node id."""
    (info,) = each(address, [{}], lambda client, body: ask(client, "cluster.info", body))
    return {one["id"]: f"{one['host']}:{one['port']}" for one in info["nodes"]}
