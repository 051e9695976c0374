"""A node as a child process of the command."""

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from envelope.types import NodeId

_PR_SET_PDEATHSIG: Final = 1
_CHUNK_BYTES: Final = 65_536
_libc: Final = ctypes.CDLL(None)


class NodeProcess:
    """The process of a node, started again and again.

    Attributes:
        name: the node's id.
        endpoints: what can be connected to, by what it is for; of the process that runs now.
        ready: set while a process runs and serves.
        ended: set while none runs.
        last_words: the error that it has reported at its end; empty if it has not.
    """

    def __init__(
        self, name: NodeId, settings: Path, environment: Mapping[str, str], log: Callable[[str, str], None]
    ) -> None:
        """Prepare it; ``log`` gets its name and the lines of its log."""
        self.name = name
        self.endpoints: dict[str, str] = {}
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.ended.set()
        self.last_words = ""
        self._settings = settings
        self._environment = environment
        self._told = log
        self._process: asyncio.subprocess.Process | None = None
        self._owed: signal.Signals | None = None
        """The signal sent to a process that was just being started."""

    @property
    def pid(self) -> int:
        """Process id; only while one runs."""
        assert self._process is not None, f"node {self.name} does not run"
        return self._process.pid

    async def run(self) -> int:
        """Start it and return its exit code when it has ended, negative for a signal.

        It has a session of its own, so that Ctrl-C does not reach it but through us, and is killed by the
        kernel when this process dies. A caller that is cancelled kills it.
        """
        self.last_words = ""
        self.ended.clear()
        try:
            return await self._run()
        finally:
            self._process = self._owed = None
            self.ready.clear()
            self.endpoints = {}
            self.ended.set()

    async def _run(self) -> int:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "jetstream", "node", "--json", "--config", str(self._settings)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
            preexec_fn=_dying_with(os.getpid()),
        )
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        if self._owed is not None:
            process.send_signal(self._owed)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen(process.stdout))
                tasks.create_task(self._hand_on(process.stderr))
                return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs or is being started."""
        self._owed = number
        if self._process is not None:
            self._process.send_signal(number)

    async def _listen(self, output: asyncio.StreamReader) -> None:
        async for line in _lines(output):
            if not line.endswith(b"}"):
                return  # it was killed within a line
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "endpoint" and event["endpoint"] != "data":
                self.endpoints[event["endpoint"]] = event["address"]
            elif event["event"] == "ready":
                self.ready.set()

    async def _hand_on(self, output: asyncio.StreamReader) -> None:
        async for line in _lines(output):
            text = line.decode(errors="replace")
            if text.startswith('{"error"') and text.endswith("}"):
                self.last_words = json.loads(text)["error"]["description"]
                text = f"error: {self.last_words}"
            self._told(self.name, text)


def outcome_text(code: int) -> str:
    """Return how a process ended, for people."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines of any length."""
    rest = b""
    while chunk := await stream.read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def _dying_with(parent: int) -> Callable[[], None]:
    """Return what a child does first: have the kernel kill it when the process ``parent`` ends."""

    def ask() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended before it was asked
            os._exit(1)

    return ask
