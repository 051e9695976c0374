"""A real node on a real nats-server, in this process or as a process of its own."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from nats.aio.client import Client

from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from jetstream.node.runtime.clock import Clock
from jetstream.node.settings.node_config import NodeConfig, load_config
from tests.support.forked_process import ForkedProcess

T = TypeVar("T")

WAIT_SECONDS = 60.0


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine on the loop the node runs on in production."""

    async def bounded() -> T:
        async with asyncio.timeout(240):
            return await coroutine

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())


def node_config(data: Path, url: str, **changes: object) -> NodeConfig:
    """Settings of a node on free ports."""
    flags: dict[str, object] = {"data": data, "nats": {"urls": [url]}, "socket": {"port": 0}}
    return load_config(flags={**flags, **changes})


@asynccontextmanager
async def nats_and_node(
    directory: Path, clock: Clock | None = None, **changes: object
) -> AsyncIterator[tuple[str, Node]]:
    """A fresh nats-server (without its own JetStream) and a node attached to it, in this process."""
    async with (
        EmbeddedNatsServer(directory / "nats") as server,
        Node(node_config(directory / "data", server.url, **changes), clock) as node,
    ):
        yield server.url, node


async def request(client: Client, operation: str, /, **body: object) -> dict[str, Any]:
    """One request of the JSON API, as any NATS client would send it."""
    reply = await client.request(f"jetstream.api.{operation}", json.dumps(body).encode(), timeout=10)
    answer: dict[str, Any] = json.loads(reply.data)
    return answer


class NodeProcess:
    """A node as its own process, for tests that kill it."""

    def __init__(
        self, data: Path, url: str, descriptors: tuple[int, int] | None = None, **environment: str
    ) -> None:
        """``descriptors``: its soft and its hard limit; None: those of the tests."""
        soft, hard = descriptors or (0, 0)
        limited = ["tests.support.few_descriptors", str(soft), str(hard), "jetstream"]
        self._module, *self._before = limited if descriptors else ["jetstream"]
        self._data = data
        self._url = url
        self._environment: Mapping[str, str] = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoints: dict[str, str] = {}

    def start(self) -> None:
        """Start it; returns once it says ready."""
        arguments = ["up", "--nats", self._url, "--data", str(self._data), "--port", "0", "--json"]
        self._process = ForkedProcess(
            self._module,
            [*self._before, *arguments],
            environment={**os.environ, **self._environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event.get("event") == "ready":
                return
            if "endpoint" in event:
                self.endpoints[event["endpoint"]] = event["address"]
        raise AssertionError(f"the node stopped before it was ready: {self._process.wait()}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL, as an out-of-memory killer would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        assert process.stdout is not None
        process.stdout.close()
        return process.wait(timeout=WAIT_SECONDS)
