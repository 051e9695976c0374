"""Several nodes on this machine, each a process of its own, kept running until they are to stop."""

import asyncio
import json
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from envelope.errors import UnavailableError
from envelope.types import NodeId
from jetstream.cli.serve.cluster_directory import ClusterDirectory
from jetstream.cli.serve.node_process import NodeProcess, outcome_text
from jetstream.client.connection import JetstreamClient
from jetstream.node.settings.node_config import ENV_PREFIX

RESTART_SECONDS: Final = 1.0
DEATHS_MAX: Final = 5
DEATHS_SECONDS: Final = 60.0
"""So many deaths of one node within this time are no accident."""

_STOP_SECONDS: Final = 60.0
"""How long a node may take to stop in order, with all it has to store; then it is killed."""

_LOOK_SECONDS: Final = 0.1
_DECIDED: Final = (
    "data",
    "node_id",
    "log_level",
    "log_format",
    "socket__port",
    "http__port",
    "peers__voters",
    "peers__advertise",
    "peers__init",
    "nats__urls",
)
"""Settings that are decided for each node here: the environment, which would win, must not say them."""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """The death, the restart or the stop of a node's process."""

    event: str
    node: NodeId
    details: Mapping[str, object]
    """As JSON values."""
    text: str
    """For people."""


def node_environment(nats: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of the nodes' processes.

    How they reach NATS (the node's ``nats`` settings, with their secrets) is in there and in no file.
    """
    decided = {ENV_PREFIX + name.upper() for name in _DECIDED}
    kept = {name: value for name, value in os.environ.items() if name.upper() not in decided}
    for name, value in nats.items():
        parts = value.items() if isinstance(value, dict) else ((None, value),)
        for part, text in parts:
            variable = "__".join(filter(None, ("nats", name, part)))
            kept[ENV_PREFIX + variable.upper()] = json.dumps(text) if isinstance(text, list) else str(text)
    return kept


class LocalCluster:
    """The nodes of a directory; made by `local_cluster`."""

    def __init__(
        self,
        nodes: Mapping[NodeId, NodeProcess],
        tasks: asyncio.TaskGroup,
        on_change: Callable[[NodeChange], None],
        failed: asyncio.Event,
    ) -> None:
        self.nodes = nodes
        self._tasks = tasks
        self._told = on_change
        self._failed = failed
        self._wanted: set[NodeId] = set()
        self._keepers: dict[NodeId, asyncio.Task[None]] = {}
        self._failure: UnavailableError | None = None

    def start(self, name: NodeId) -> None:
        """Start a node, and again a second after each death, until it is stopped or killed.

        A node that the cluster has removed stays away.

        A node that dies `DEATHS_MAX` times within `DEATHS_SECONDS` is given up: that is raised where the
        cluster is left.
        """
        assert name not in self._wanted, f"node {name} is started twice"
        self._wanted.add(name)
        self._keepers[name] = self._tasks.create_task(self._keep(name))

    async def _keep(self, name: NodeId) -> None:
        node = self.nodes[name]
        deaths: deque[float] = deque(maxlen=DEATHS_MAX)
        while name in self._wanted:
            code = await node.run()
            if name not in self._wanted:
                return
            if code == 0:  # nobody has told it to stop but the cluster
                self._wanted.discard(name)
                text = f"node {name} was removed from the cluster; the next start brings it back as a new one"
                self._told(NodeChange("removed", name, {}, text))
                return
            deaths.append(time.monotonic())
            words = f"; it said: {node.last_words}" if node.last_words else ""
            text = f"node {name} has died ({outcome_text(code)}){words}"
            self._told(NodeChange("died", name, {"exit_code": code, "reason": node.last_words or None}, text))
            if len(deaths) == DEATHS_MAX and deaths[-1] - deaths[0] < DEATHS_SECONDS:
                self._failure = UnavailableError(
                    f"{text}; given up after {DEATHS_MAX} deaths within {DEATHS_SECONDS:g} s"
                )
                self._failed.set()
                return
            await asyncio.sleep(RESTART_SECONDS)
            if name in self._wanted:
                self._told(NodeChange("restarted", name, {}, f"starting node {name} again"))

    async def kill(self, name: NodeId) -> None:
        """SIGKILL; returns when the process has ended. Only `start` starts it again."""
        self._wanted.discard(name)
        self.nodes[name].send(signal.SIGKILL)
        await self.nodes[name].ended.wait()
        self._keepers[name].cancel()  # it may be about to start it again

    async def until_ready(self, client: JetstreamClient) -> None:
        """Wait until every node serves and the cluster counts all of them as alive."""
        for node in self.nodes.values():
            await node.ready.wait()
        while True:
            try:
                infos = (await client.requests.cluster_info()).nodes
            except UnavailableError:  # nobody leads yet
                infos = []
            if self.nodes.keys() <= {info.id for info in infos if info.alive}:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def stop(self) -> None:
        """Stop the nodes one after the other, each as soon as the one before has handed over and ended."""
        self._wanted.clear()
        for name, node in self.nodes.items():
            if node.ended.is_set():
                continue
            node.send(signal.SIGTERM)
            text = f"node {name} has stopped"
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await node.ended.wait()
            except TimeoutError:
                await self.kill(name)
                text = f"node {name} did not stop within {_STOP_SECONDS:g} s and was killed"
            self._told(NodeChange("stopped", name, {}, text))

    def check(self) -> None:
        """Raise why the cluster was given up, if it was.

        Raises:
            UnavailableError: a node that would not live.
        """
        if self._failure is not None:
            raise self._failure


@asynccontextmanager
async def local_cluster(
    directory: ClusterDirectory,
    nats: Mapping[str, Any],
    on_change: Callable[[NodeChange], None],
    log: Callable[[str, str], None],
    failed: asyncio.Event,
) -> AsyncIterator[LocalCluster]:
    """Start every node of ``directory``, whose settings are written, and stop them in turn in the end.

    Args:
        directory: claimed.
        nats: how they reach NATS, as a node's ``nats`` settings.
        on_change: called with each change of a process.
        log: called with a node's name and each line of its log.
        failed: set when a node is given up; leave the block then.

    Raises:
        UnavailableError: at the end, a node was given up.
    """
    environment = node_environment(nats)
    nodes = {
        name: NodeProcess(name, directory.settings_file(name), environment, log) for name in directory.peers
    }
    async with asyncio.TaskGroup() as tasks:
        cluster = LocalCluster(nodes, tasks, on_change, failed)
        for name in nodes:
            cluster.start(name)
        try:
            yield cluster
        finally:
            await cluster.stop()
    cluster.check()
