"""A real node on a real nats-server, in this process or as a process of its own."""

import asyncio
import atexit
import json
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import uvloop
from nats.aio.client import Client

from jetstream.node.nats.embedded_server import MAX_PAYLOAD_BYTES
from jetstream.node.node import Node
from jetstream.node.runtime.clock import Clock
from jetstream.node.settings.node_config import NodeConfig, load_config
from tests.support.forked_process import ForkedProcess
from tests.support.nats_server import NatsServer

T = TypeVar("T")

WAIT_SECONDS = 60.0


def run(coroutine: Coroutine[Any, Any, T], limit_s: float = 240) -> T:
    """Run a test's coroutine on the loop the node runs on in production, for so many seconds at most."""

    async def bounded() -> T:
        async with asyncio.timeout(limit_s):
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
    """A nats-server (without its own JetStream) that is nobody else's, and a node in this process."""
    with _a_free_server() as url:
        async with Node(node_config(directory / "data", url, **changes), clock) as node:
            yield url, node


@contextmanager
def _a_free_server() -> Iterator[str]:
    """Give the URL of a server that nobody uses meanwhile: it keeps nothing, so the next test can have it.

    The kernel ends a server with the thread that started it, so those of other threads are theirs alone.
    """
    if threading.current_thread() is not threading.main_thread():
        with _server() as server:
            yield server.url
        return
    server = _free_servers.pop() if _free_servers else _ends_with_the_process.enter_context(_server())
    try:
        yield server.url
    finally:
        _free_servers.append(server)


@contextmanager
def _server() -> Iterator[NatsServer]:
    with (
        TemporaryDirectory(prefix="nats-") as directory,
        NatsServer(Path(directory), f"max_payload: {MAX_PAYLOAD_BYTES}") as server,
    ):
        yield server


_free_servers: list[NatsServer] = []
_ends_with_the_process = ExitStack()
atexit.register(_ends_with_the_process.close)


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
