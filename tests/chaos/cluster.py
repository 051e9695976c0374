"""The cluster that chaos strikes: node processes, a nats-server, and a network whose every link can break.

Ports belong to their parties for the whole run, so that what is dialled while nobody listens is refused, as
between machines whose processes have died.
"""

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import nats.errors
from nats.aio.client import Client

from tests.support.faulty_network import Network, Pair, faulty_network, reserved_port
from tests.support.moved_clock import move_clock
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NAMES, ClusterNode, node_settings
from tests.support.small_disk import SmallDisk, can_mount

NATS: Final = "nats"
"""The name of the nats-server as a party of the network."""
_LISTENS: Final = "0A"
"""The state of a listening socket in /proc/net/tcp."""
_EXPECTED_ENDS: Final = ("cannot connect to NATS", "No space left", "disk_full", "DiskFull")
"""What a node may say that ends by itself while it starts, as long as that is the chaos around it."""


def is_listening(port: int) -> bool:
    """Tell whether a process listens on a port of loopback."""
    wanted = f"0100007F:{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(parts[1] == wanted and parts[3] == _LISTENS for parts in map(str.split, lines))


async def passes(seconds: float, event: asyncio.Event) -> bool:
    """Wait for an event, at most so long; return whether it came."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class ChaosCluster:
    """See the module; made by `chaos_cluster`.

    Attributes:
        nodes: by name.
        nats: the server itself, which clients reach directly.
        network: the ways of the nodes to each other and to NATS.
        small_disk: of one node, if this process may mount one.
        small: the name of that node.
        ended: nodes that ended by themselves, with their last words.
    """

    def __init__(
        self,
        nodes: Mapping[str, ClusterNode],
        nats_server: NatsServer,
        network: Network,
        small: tuple[str, SmallDisk | None],
    ) -> None:
        self.nodes = dict(nodes)
        self.nats = nats_server
        self.network = network
        self.small, self.small_disk = small
        self.ended: list[str] = []
        self.paused: set[str] = set()
        self._is_wanted: set[str] = set()
        self._is_closed: set[str] = set()
        self._limits: dict[int, tuple[int, int]] = {}
        """Of processes that may have fewer descriptors than they were started with: what they had."""

    async def start(self, name: str) -> None:
        """Start a node, or do nothing if it runs; does not wait."""
        if name not in self._is_wanted:
            self._is_wanted.add(name)
            self.nodes[name].start()

    async def kill(self, name: str) -> None:
        """SIGKILL."""
        self._is_wanted.discard(name)
        self.paused.discard(name)
        self.nodes[name].kill()
        self._refuse(name)

    async def stop(self, name: str) -> int:
        """SIGTERM; returns the exit code once it has ended."""
        self._is_wanted.discard(name)
        self.paused.discard(name)
        try:
            code = await asyncio.to_thread(self.nodes[name].stop)
        except subprocess.TimeoutExpired:
            self.ended.append(f"{name} did not stop when it was told")
            code = -signal.SIGKILL
        self._refuse(name)
        return code

    def pause(self, name: str) -> None:
        """SIGSTOP; nothing if it does not run."""
        if name in self._is_wanted and self.nodes[name].is_running:
            self.nodes[name].send(signal.SIGSTOP)
            self.paused.add(name)

    def resume(self, name: str) -> None:
        """SIGCONT, if it was paused."""
        if name in self.paused:
            self.paused.discard(name)
            self.nodes[name].send(signal.SIGCONT)

    def wipe(self, name: str) -> None:
        """Have a node that does not run find an empty data directory, as on a new disk."""
        for path in self.nodes[name].data.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def move_clock(self, name: str, ahead_s: float) -> None:
        """Let a node's wall clock be ahead, through restarts too; negative: behind."""
        clock = self.nodes[name].clock
        assert clock is not None, "its clock is the machine's"
        move_clock(clock, ahead_s)

    def limit_descriptors(self, name: str, few: int) -> bool:
        """Leave the node's process so few descriptors above those it has; return whether it runs."""
        node = self.nodes[name]
        if not node.is_running:
            return False
        opened = max(map(int, os.listdir(f"/proc/{node.pid}/fd")))
        soft, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        self._limits.setdefault(node.pid, (soft, hard))
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (opened + 1 + few, hard))
        return True

    async def watch(self, over: asyncio.Event) -> None:
        """Let diallers in where somebody listens, and note who ends by itself and start it again."""
        while not await passes(0.05, over):
            for name in tuple(self._is_wanted):
                node = self.nodes[name]
                if not node.is_running:
                    self._note_end(node)
                    node.kill()
                    self._refuse(name)
                    node.start()
                elif name in self._is_closed and is_listening(node.peer_port):
                    self._is_closed.discard(name)
                    self.network.is_down(name, down=False)

    async def heal(self, *, lose: bool) -> None:
        """Mend all but clocks, and start everybody; with ``lose`` what the network has held is lost."""
        if self.small_disk is not None:
            self.small_disk.free()
        if not self.nats.running:
            await asyncio.to_thread(self.nats.restart)
        self.nats.resume()
        self.network.heal(lose=lose)
        for pid in {node.pid for node in self.nodes.values() if node.is_running} & self._limits.keys():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, self._limits[pid])
        self._limits.clear()
        for name in self.nodes:
            self.resume(name)
            await self.start(name)

    def keep_small_disk(self) -> None:
        """Copy what is on the small disk, which is gone in the end, beside it."""
        if self.small_disk is not None:
            data = self.nodes[self.small].data
            shutil.copytree(data, data.with_name("small-disk"), ignore=shutil.ignore_patterns("ballast"))

    async def close(self) -> None:
        """Kill what still runs."""
        for name in tuple(self._is_wanted):
            await self.kill(name)

    def _refuse(self, name: str) -> None:
        self._is_closed.add(name)
        self.network.is_down(name, down=True)

    def _note_end(self, node: ClusterNode) -> None:
        lines = node.log.read_text().splitlines()[-30:]
        if not any(words in line for words in _EXPECTED_ENDS for line in lines[-3:]):
            self.ended.append(f"{node.name} ended by itself: {lines[-3:]}")


async def asked(client: Client, operation: str, seconds: float = 2.0, /, **body: object) -> dict[str, Any]:
    """Ask the request API once; return {} if nobody answers in time."""
    try:
        reply = await client.request(f"jetstream.api.{operation}", json.dumps(body).encode(), timeout=seconds)
    except (nats.errors.Error, OSError):
        return {}
    answer: dict[str, Any] = json.loads(reply.data)
    return answer


async def until_answered(
    client: Client, is_right: Callable[[dict[str, Any]], bool], operation: str, /, **body: object
) -> dict[str, Any]:
    """Ask until the answer is right; the caller bounds it."""
    never = asyncio.Event()
    while not is_right(answer := await asked(client, operation, **body)):
        await passes(0.05, never)
    return answer


def pairs_between(ones: set[str], others: set[str]) -> list[Pair]:
    """Return all pairs from one set to another, in a fixed order."""
    return [(one, other) for one in sorted(ones) for other in sorted(others) if one != other]


@asynccontextmanager
async def chaos_cluster(
    directory: Path, size: int, small: tuple[str, int], clients: Sequence[str] = ()
) -> AsyncIterator[ChaosCluster]:
    """A cluster whose processes run.

    Args:
        directory: of everything.
        size: nodes, all of them voters.
        small: the node with the small disk, and its size in bytes.
        clients: parties that have ways of their own to the nodes' sockets.
    """
    names = NAMES[:size]
    async with AsyncExitStack() as stack:
        server = stack.enter_context(NatsServer(directory / "nats"))
        ports = {name: _three_ports(stack) for name in names}
        targets = {(one, other): ports[other][0] for one in names for other in names if one != other}
        targets |= {(name, NATS): server.port for name in names}
        targets |= {(client, name): ports[name][1] for client in clients for name in names}
        disk: SmallDisk | None = None
        if can_mount():
            disk = stack.enter_context(SmallDisk(directory / small[0] / "data", small[1]))
        network = await stack.enter_async_context(faulty_network(targets))
        nodes: dict[str, ClusterNode] = {}
        for name in names:
            voters = {
                other: ports[name][0] if other == name else network.port(name, other) for other in names
            }
            url = f"nats://127.0.0.1:{network.port(name, NATS)}"
            settings = node_settings(name, directory / name / "data", ports[name], voters, url)
            nodes[name] = ClusterNode(name, directory / name, ports[name], settings)
            nodes[name].clock = directory / name / "clock"
        cluster = ChaosCluster(nodes, server, network, (small[0], disk))
        stack.push_async_callback(cluster.close)
        for name in names:
            cluster.move_clock(name, 0.0)
            await cluster.start(name)
        yield cluster


def _three_ports(stack: contextlib.AsyncExitStack) -> tuple[int, int, int]:
    found = [reserved_port() for _ in range(3)]
    for reservation, _ in found:
        stack.callback(socket.socket.close, reservation)
    return found[0][1], found[1][1], found[2][1]
