"""A directory of several nodes on one machine: who they are and where they find each other.

    name          content
    cluster       state file: the nodes in order, the port at which each is dialled by the others, and how
                  many of them, the first ones, are voters
    lock          held while a process runs the nodes
    ID            the data directory of a node
    ID/node.toml  its settings, written anew at every start

The ports of the peers stay as they are, because every node knows the others by them.
"""

import json
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import SystemRandom
from typing import Final

from envelope.errors import CorruptDataError, InvalidConfig, StorageError, UnavailableError
from envelope.types import NodeId
from jetstream.cli.serve.data_directory import CLUSTER_FILE, claim_data_directory
from jetstream.log.disk.identity import IDENTITY_FILE, LOCK_FILE
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.disk.state_file import NEW_SUFFIX, Json, decode_state, natural, read_whole, write_state
from jetstream.node.settings.node_config import LogFormat
from metadata.limits import VOTERS_ALLOWED

HOST: Final = "127.0.0.1"
NODES_MAX: Final = 5
SETTINGS_FILE: Final = "node.toml"

_IDS: Final = ("a", "b", "c", "d", "e")
_HARMLESS: Final = frozenset((LOCK_FILE, CLUSTER_FILE + NEW_SUFFIX, "lost+found"))
_PORTS: Final = range(10_000, 30_000)
"""Below those that the kernel gives to connections: a node that is away keeps its port to itself."""


@dataclass(frozen=True, slots=True)
class NodePorts:
    """Where one node listens for readers, and for probes if at all."""

    socket: int
    http: int | None


@dataclass(frozen=True, slots=True)
class ClusterDirectory:
    """A claimed directory.

    Attributes:
        path: absolute.
        peers: every node with its peer port, in the order in which they start and stop.
        voters: so many of them, the first ones, have a vote; the others are data nodes.
    """

    path: Path
    peers: Mapping[NodeId, int]
    voters: int

    def settings_file(self, node: NodeId) -> Path:
        """Return where a node's settings are."""
        return self.path / node / SETTINGS_FILE

    def write_settings(
        self, ports: Mapping[NodeId, NodePorts], log_level: str, log_format: LogFormat = LogFormat.TEXT
    ) -> None:
        """Write every node's settings; its NATS is not in them, as that may hold secrets.

        Raises:
            StorageError: a node's directory cannot be used.
        """
        dialled = [(node, f"{HOST}:{port}") for node, port in self.peers.items()]
        voters = ", ".join(f'{node} = "{address}"' for node, address in dialled[: self.voters])
        for place, (node, address) in enumerate(dialled):
            claim_data_directory(self.path / node)
            http = ports[node].http
            self.settings_file(node).write_text(
                "# Written by `jetstream up --nodes` at every start.\n"
                f'node_id = "{node}"\n'
                f"data = {json.dumps(str(self.path / node), ensure_ascii=False)}\n"
                f"log_level = {json.dumps(log_level)}\n"
                f'log_format = "{log_format}"\n'
                f'[socket]\nhost = "{HOST}"\nport = {ports[node].socket}\n'
                + ("" if http is None else f'[http]\nhost = "{HOST}"\nport = {http}\n')
                + f"[peers]\nvoters = {{ {voters} }}\n"
                + (f'advertise = "{address}"\n' if place >= self.voters else "")
            )


@contextmanager
def cluster_directory(path: Path, count: int, voters: int | None = None) -> Iterator[ClusterDirectory]:
    """Make ``path`` the directory of ``count`` nodes, or find it so, and keep it locked for the block.

    Args:
        path: made if it is not there.
        count: of nodes.
        voters: so many of them have a vote; None: all.

    Raises:
        InvalidConfig: it is that of another number of nodes, or of voters.
        StorageError: a process uses it, or it has files that are not ours.
        CorruptDataError: the file that says which nodes there are is damaged.
    """
    voters = count if voters is None else voters
    assert voters in VOTERS_ALLOWED, f"{voters} voters"
    assert voters <= count <= NODES_MAX, f"{count} nodes"
    disk = OsDisk(path)
    try:
        lock = disk.lock(LOCK_FILE)
        try:
            peers = _known(disk, path, count, voters) or _new(disk, path, count, voters)
            yield ClusterDirectory(path.resolve(), peers, voters)
        finally:
            lock.close()
    finally:
        disk.close()


def ports_of(nodes: Collection[NodeId], first: int | None, taken: Collection[int]) -> dict[NodeId, int]:
    """Return a port for each node: from ``first`` on, or free ones if it is 0.

    Raises:
        InvalidConfig: there are not so many ports from there on, or one is ``taken``.
    """
    ports = free_ports(len(nodes)) if not first else list(range(first, first + len(nodes)))
    if ports[-1] >= 1 << 16:
        raise InvalidConfig(f"{len(nodes)} nodes do not find {len(nodes)} ports from {first} on")
    both = sorted(set(ports) & set(taken))
    if both:
        raise InvalidConfig(f"port {both[0]} would be used twice: choose another first port")
    return dict(zip(nodes, ports, strict=True))


def free_ports(count: int) -> list[int]:
    """Return so many different ports of this machine that nobody has now.

    Raises:
        UnavailableError: too few are found.
    """
    found: list[int] = []
    for port in SystemRandom().sample(_PORTS, 64 * count):
        try:
            socket.create_server((HOST, port)).close()
        except OSError:
            continue
        found.append(port)
        if len(found) == count:
            return found
    raise UnavailableError(f"no {count} free ports found between {_PORTS.start} and {_PORTS.stop}")


def _known(disk: OsDisk, path: Path, count: int, voters: int) -> dict[NodeId, int] | None:
    """Return the nodes that were here before, None if the directory is new."""
    if disk.exists(IDENTITY_FILE):
        raise InvalidConfig(f"{path} has the data of a single node: choose another directory with --data")
    if not disk.exists(CLUSTER_FILE):
        return None
    state = decode_state(read_whole(disk, CLUSTER_FILE))
    peers = state.get("peer_ports")
    if not isinstance(peers, dict):
        raise CorruptDataError(f"{path / CLUSTER_FILE} names no nodes")
    known_voters = natural(state, "voters") if "voters" in state else len(peers)
    if len(peers) != count:
        raise InvalidConfig(
            f"{path} has the data of {len(peers)} nodes, and their number stays: "
            f"--nodes {len(peers)}, or choose another directory with --data"
        )
    if known_voters != voters:
        raise InvalidConfig(
            f"{path} has the data of {known_voters} voters, and their number stays: "
            f"--voters {known_voters}, or choose another directory with --data"
        )
    return {NodeId(node): int(str(port)) for node, port in sorted(peers.items())}


def _new(disk: OsDisk, path: Path, count: int, voters: int) -> dict[NodeId, int]:
    strangers = [name for name in disk.listdir("") if name not in _HARMLESS]
    if strangers:
        raise StorageError(f"{path} holds {strangers[0]!r}, and nothing that says it is ours")
    peers = {NodeId(node): port for node, port in zip(_IDS[:count], free_ports(count), strict=True)}
    ports: dict[str, Json] = {str(node): port for node, port in peers.items()}
    write_state(disk, CLUSTER_FILE, {"peer_ports": ports, "voters": voters})
    return peers
