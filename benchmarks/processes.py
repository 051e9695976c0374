"""The programs under test as real child processes: nats-server (with and without JetStream) and our node.

Each is started in a fresh directory on a free loopback port and stopped by its process id. All processes see
the same file system, so that one fdatasync costs them the same.
"""

import asyncio
import ctypes
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import nats
import nats.errors

from benchmarks.loadgen import Address
from jetstream.node.nats.embedded_server import find_nats_server

START_SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.02
API_PREFIX: Final = "jetstream.api"
NODE_PROGRAM: Final = (sys.executable, "-m", "jetstream")
"""Followed by the words of its command line."""

_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None)


class ProcessError(Exception):
    """A program under test did not start, or ended by itself; its last words are the message."""


@contextmanager
def nats_server(directory: Path, jetstream: str | None = None) -> Iterator[tuple[Address, int]]:
    """Run a nats-server; yields its address and pid.

    Args:
        directory: of its configuration, log and store.
        jetstream: settings inside ``jetstream { … }`` beside the store directory; None leaves it off.
    """
    directory.mkdir(parents=True)
    config = f'listen: "127.0.0.1:-1"\nports_file_dir: "{directory}"\n'
    if jetstream is not None:
        config += f'jetstream {{\n  store_dir: "{directory / "store"}"\n  {jetstream}\n}}\n'
    path = directory / "nats-server.conf"
    path.write_text(config)
    with _running([find_nats_server(), "-c", str(path)], directory / "log") as process:
        yield _wait_for_ports_file(process, directory), process.pid


@contextmanager
def node(
    directory: Path, nats_address: Address, program: Sequence[str] = NODE_PROGRAM, socket: str = ""
) -> Iterator[int]:
    """Run one of our nodes attached to the NATS server at ``nats_address``; yields its pid.

    Args:
        directory: of its configuration, log and data.
        nats_address: where the server listens.
        program: followed by the words of a node's command line.
        socket: settings of the readers' socket, as lines of TOML.
    """
    directory.mkdir(parents=True)
    path = directory / "node.toml"
    path.write_text(
        f'data = "{directory / "data"}"\nlog_level = "warning"\n'
        f'[nats]\nurls = ["{nats_address.url}"]\n[socket]\nport = 0\n{socket}\n[http]\nport = 0\n'
    )
    command = [*program, "node", "--config", str(path)]
    with _running(command, directory / "log") as process:
        asyncio.run(_wait_for_api(process, nats_address, directory / "log"))
        yield process.pid


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as words:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            preexec_fn=stop_with_parent,  # noqa: PLW1509 - no thread of ours runs while systems start
        )
        try:
            yield process
        finally:
            ended = process.poll() is not None
            if ended:
                print(f"{command[0]} ended by itself: {last_words(log)}", file=sys.stderr)
            stop(process)
        if ended:
            raise ProcessError(f"{command[0]} ended under load")


def stop_with_parent() -> None:
    """A killed benchmark must leave no server behind."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, politely first, and wait for it."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for_ports_file(process: subprocess.Popen[bytes], directory: Path) -> Address:
    """nats-server writes the ports it took once it listens."""
    for _ in _attempts(process, directory / "log"):
        for path in directory.glob("*.ports"):
            text = path.read_text()
            if text.endswith("}"):
                host, _, port = json.loads(text)["nats"][0].removeprefix("nats://").rpartition(":")
                return Address(host, int(port))
    raise ProcessError(f"nats-server did not listen: {last_words(directory / 'log')}")


async def _wait_for_api(process: subprocess.Popen[bytes], address: Address, log: Path) -> None:
    """A node is ready when it answers a request."""
    connection = await nats.connect(address.url)
    try:
        for _ in _attempts(process, log):
            try:
                await connection.request(f"{API_PREFIX}.cluster.info", b"{}", timeout=1)
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                continue
            return
    finally:
        await connection.close()
    raise ProcessError(f"the node did not answer: {last_words(log)}")


def _attempts(process: subprocess.Popen[bytes], log: Path) -> Iterator[None]:
    """Pace the polling of a process that starts; ends at the deadline."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        yield
        if process.poll() is not None:
            raise ProcessError(f"ended at start with {process.returncode}: {last_words(log)}")
        time.sleep(POLL_SECONDS)


def last_words(log: Path) -> str:
    """Return the end of a program's log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-12:])
