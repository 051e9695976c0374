"""Several nodes as processes of their own on one nats-server, for tests that kill them."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import nats.errors
from nats.aio.client import Client

from tests.support.forked_process import ForkedProcess
from tests.support.node_versions import NodeVersion
from tests.support.nodes import WAIT_SECONDS, request
from tests.support.pauses import pause

NAMES: Final = ("a", "b", "c", "d", "e")


FIXED_PORTS: Final = range(10_240, 32_000)
"""Below those that the kernel gives to connections: it would give away a port whose node is down."""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody has now, all different."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.choice(FIXED_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in ports:
                ports.append(port)
    return ports


def node_settings(
    name: str, data: Path, ports: tuple[int, int, int], voters: Mapping[str, int], url: str, socket: str = ""
) -> str:
    """Return a node's configuration file.

    Args:
        name: the node's.
        data: its directory.
        ports: where it listens for peers, readers and probes.
        voters: the port at which it dials each voter, and its own if it is one; else it is a data node.
        url: of NATS.
        socket: more settings of the readers' socket, as lines of TOML.
    """
    dialled = ", ".join(f'{voter} = "127.0.0.1:{port}"' for voter, port in voters.items())
    advertised = "" if name in voters else f'advertise = "127.0.0.1:{ports[0]}"'
    return f"""
node_id = "{name}"
data = "{data}"
[nats]
urls = ["{url}"]
[socket]
port = {ports[1]}
{socket}
[http]
port = {ports[2]}
[peers]
voters = {{ {dialled} }}
{advertised}
"""


class ClusterNode:
    """One node's process, its directory and its ports, which stay through restarts."""

    def __init__(self, name: str, directory: Path, ports: tuple[int, int, int], settings: str) -> None:
        self.name = name
        self.data = directory / "data"
        self.peer_port, self.socket_port, self.http_port = ports
        self.log = directory / "node.log"
        self.version: NodeVersion | None = None
        """None: the one under test."""
        self.clock: Path | None = None
        """What says how wrong its wall clock is (`tests.support.moved_clock`); None: it is the machine's."""
        self._config = directory / "node.toml"
        directory.mkdir(parents=True, exist_ok=True)
        self._config.write_text(settings)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def metrics(self) -> dict[str, float]:
        """Scrape it; return the numbers by their names, with labels as the page shows them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics") as page:
            samples = [line.rpartition(" ") for line in page.read().decode().splitlines() if line[0] != "#"]
        return {name: float(number) for name, _, number in samples}

    def metric(self, name: str) -> float:
        """Scrape it; return the number of that name, which has its labels as the page shows them."""
        return self.metrics()[name]

    def start(self) -> None:
        """Start it; does not wait."""
        assert self._process is None
        arguments = ["jetstream", "node", "--config", str(self._config), "--json"]
        if self.clock is not None:
            arguments[:0] = ["tests.support.moved_clock", str(self.clock)]
        with self.log.open("ab") as log:
            if self.version is not None:
                self._process = self.version.started(arguments[1:], log)
                return
            self._process = ForkedProcess(arguments[0], arguments[1:], stdout=log, stderr=log)

    def send(self, number: signal.Signals) -> None:
        """Send a signal: SIGSTOP, SIGCONT."""
        os.kill(self.pid, number)

    def stand_still(self) -> None:
        """SIGSTOP; returns when all its threads do, until it is sent SIGCONT."""
        self.send(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """Wait until it ends by itself; returns the exit code."""
        process, self._process = self._process, None
        assert process is not None
        return process.wait(timeout=WAIT_SECONDS)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        if number is not signal.SIGKILL:
            process.send_signal(signal.SIGCONT)
        try:
            return process.wait(timeout=WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


class NodeCluster:
    """Nodes a, b, c…, of which the first are the voters."""

    def __init__(
        self, directory: Path, url: str, size: int = 3, data: int = 0, *, socket: str = "", **settings: str
    ) -> None:
        """Prepare so many voters, and data nodes.

        ``settings`` are lines of TOML by key, the same for all, and ``socket`` those of the readers' socket.
        """
        size += data
        names = NAMES[:size]
        ports = free_ports(3 * size)
        triples = [(ports[3 * place], ports[3 * place + 1], ports[3 * place + 2]) for place in range(size)]
        voters = {name: triple[0] for name, triple in zip(names[: size - data], triples, strict=False)}
        common = "\n".join(f"{key} = {value}" for key, value in {"log_level": '"info"', **settings}.items())
        self.nodes = {
            name: ClusterNode(
                name,
                directory / name,
                triple,
                common + node_settings(name, directory / name / "data", triple, voters, url, socket=socket),
            )
            for name, triple in zip(names, triples, strict=True)
        }

    def __getitem__(self, name: str) -> ClusterNode:
        return self.nodes[name]

    def start(self, names: Iterable[str] | None = None) -> None:
        """Start all, or some; does not wait."""
        for name in self.nodes if names is None else names:
            self.nodes[name].start()

    def close(self) -> None:
        """Kill what still runs."""
        for node in self.nodes.values():
            if node.is_running:
                node.kill()

    async def info(self, client: Client, stream: str) -> dict[str, Any]:
        """The stream's info; what is asked again while nobody can give it."""
        return await asked(client, "stream.info", name=stream)

    async def until_whole(self, client: Client, stream: str, replicas: int | None = None) -> dict[str, Any]:
        """Wait until the stream has a leader that serves and all (or so many) replicas are in sync."""
        wanted = len(self.nodes) if replicas is None else replicas
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                info = await self.info(client, stream)
                if info.get("state") == "online" and len(info["isr"]) >= wanted:
                    return info

    async def until_led_by_another(self, client: Client, stream: str, leader: str) -> None:
        """Wait until somebody else than ``leader`` leads the stream."""
        async with asyncio.timeout(WAIT_SECONDS):
            while (await self.info(client, stream)).get("leader") in (leader, None):
                await pause()

    async def until_taken_over(self, client: Client, stream: str, leader: str) -> None:
        """Wait until somebody else than ``leader`` takes what is published to ``stream``.x."""
        await self.until_led_by_another(client, stream, leader)
        async with asyncio.timeout(WAIT_SECONDS):
            while not await _is_heard(client, f"{stream}.x"):
                await pause()

    async def until_ready(self, client: Client) -> None:
        """Wait until the API answers and every node has registered and holds a lease."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                nodes = (await asked(client, "cluster.info")).get("nodes", ())
                if sum(node["alive"] is True for node in nodes) == len(self.nodes):
                    return


async def _is_heard(client: Client, subject: str) -> bool:
    """Whether a stream answers there: a leader is in the catalogue before it has subscribed.

    It is asked by a message that it has to refuse.
    """
    impossible = {"Nats-Expected-Last-Sequence": str(1 << 60)}
    try:
        await client.request(subject, b"", timeout=5, headers=impossible)
    except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
        return False
    return True


async def asked(client: Client, operation: str, /, **body: object) -> dict[str, Any]:
    """One request after a pause, for those who ask until an answer is right: {} if nobody answers.

    A node looks for a stream's leader for 3 s before it tells what is known without it. Nobody is waited for
    for longer than 5 s: NATS may have handed the question to a node that stands still.
    """
    await pause()
    try:
        reply = await client.request(f"jetstream.api.{operation}", json.dumps(body).encode(), timeout=5)
    except (nats.errors.Error, OSError):
        with contextlib.suppress(nats.errors.Error):
            await client.flush()
        return {}
    answer: dict[str, Any] = json.loads(reply.data)
    return answer


async def until(client: Client, stream: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the stream's info is so."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            info = await asked(client, "stream.info", name=stream)
            if "config" in info and is_so(info):
                return info


async def created(client: Client, stream: str, replicas: list[str], **config: object) -> None:
    """Create a stream on these nodes, the first one leading.

    Whoever leads would do so for ten seconds while another is only preferred: that one is alone for a moment.
    """
    minimum = config.pop("min_insync_replicas", None)
    place = {"name": stream, "subject": f"{stream}.>", "replicas": len(replicas)}
    answer = await request(client, "stream.create", **place, **config)
    assert "error" not in answer, answer
    leads = answer["leader"] == replicas[0]
    for nodes in (replicas,) if leads or len(replicas) == 1 else (replicas[:1], replicas):
        await moved(client, stream, nodes)
    if minimum is not None:
        answer = await request(client, "stream.update", name=stream, min_insync_replicas=minimum)
        assert "error" not in answer, answer


async def moved(client: Client, stream: str, nodes: list[str]) -> dict[str, Any]:
    """Move a stream to these nodes; asked again while that is refused for a moment."""
    async with asyncio.timeout(WAIT_SECONDS):
        while "error" in (answer := await request(client, "stream.reassign", name=stream, replicas=nodes)):
            assert answer["error"]["retriable"], answer
            await pause()
    return await until(client, stream, partial(_is_on, nodes))


def _is_on(nodes: list[str], info: dict[str, Any]) -> bool:
    """Whether a move to these nodes is over; who leads may still be any of them."""
    is_there = info["target"] is None and info["replicas"] == nodes and info["isr"] == nodes
    return is_there and info["state"] == "online"
