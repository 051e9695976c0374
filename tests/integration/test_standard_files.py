"""Standard input, output and error of nodes and commands: closed by the parent, or read by nobody."""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

import jetstream
from envelope.errors import NoResponders
from jetstream.client.connection import JetstreamClient
from tests.support.commands import succeeded
from tests.support.nats_server import NatsServer
from tests.support.nodes import WAIT_SECONDS, nats_and_node, run
from tests.support.pauses import pause
from tests.support.sockets import until

_PIPE_BYTES = 4096
DROPPED = "jetstream_log_lines_dropped_total"


def without(closed: str, *arguments: str) -> list[str]:
    """Return the command line of the program with some of its standard files closed."""
    return ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-m", "jetstream", *arguments]


@pytest.mark.parametrize(
    "closed",
    [
        "<&- >&- 2>&-",
        *(
            pytest.param(some, marks=pytest.mark.slow("tests/integration/test_standard_files.py"))
            for some in ("<&-", ">&-", "2>&-")
        ),
    ],
)
def test_a_command_without_standard_files_does_its_work(tmp_path: Path, closed: str) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            command = without(closed, "pub", "orders.new", "hello", "--nats", url)
            process = await asyncio.create_subprocess_exec(*command)
            assert await process.wait() == 0
            async with js.read("orders") as records:
                assert [record.value async for record in records] == [b"hello"]

    run(scenario())


async def created(js: JetstreamClient) -> None:
    """Create the stream, once there is a node: this one prints nothing when it is ready."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                await js.streams.create("orders", "orders.>")
            except NoResponders:
                await pause()
            else:
                return


def test_a_node_without_standard_files_writes_into_no_segment(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    """Whatever is opened next would otherwise have the number that is printed to."""

    async def scenario(node: subprocess.Popen[bytes]) -> None:
        async with jetstream.connect(nats_server.url) as js:
            await created(js)
            for number in range(100):
                await js.publish("orders.new", b"%d" % number)
            node.send_signal(signal.SIGTERM)  # it prints that it stops
            await until(lambda: node.poll() is not None)
            assert node.returncode == 0

    data = tmp_path / "data"
    arguments = ("up", "--data", str(data), "--port", "0", "--nats", nats_server.url, "--log-level", "debug")
    with subprocess.Popen(without("<&- >&- 2>&-", *arguments)) as node:
        try:
            run(scenario(node))
        finally:
            node.kill()
    assert "100 records in 1 segments" in succeeded("inspect", str(data))


def test_a_node_whose_log_nobody_reads_takes_messages_and_stops(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    async def scenario(node: subprocess.Popen[bytes], port: int) -> None:
        async with jetstream.connect(nats_server.url) as js:
            await js.streams.create("orders", "orders.>")
            for _ in range(60):
                with closing(socket.create_connection(("127.0.0.1", port))) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")  # a line in the log
                    stranger.recv(4096)
                await js.publish("orders.new", b"x")
            node.send_signal(signal.SIGTERM)
            await until(lambda: node.poll() is not None)
            assert node.returncode == 0

    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    arguments = ("--port", "0", "--nats", nats_server.url, "--log-level", "debug")
    command = [sys.executable, "-m", "jetstream", "up", "--data", str(tmp_path / "data"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer) as node:
        try:
            assert node.stdout is not None
            endpoints = dict(line.decode().split()[:2] for line in iter(node.stdout.readline, b"ready\n"))
            run(scenario(node, int(endpoints["socket"].rpartition(":")[2])))
        finally:
            node.kill()
            os.close(reader)
            os.close(writer)


def test_lines_of_the_log_that_nobody_can_read_any_more_are_a_metric(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    reader, writer = os.pipe()
    arguments = ("--port", "0", "--http-port", "0", "--nats", nats_server.url, "--log-level", "debug")
    command = [sys.executable, "-m", "jetstream", "up", "--data", str(tmp_path / "data"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer) as node:
        try:
            assert node.stdout is not None
            endpoints = dict(line.decode().split()[:2] for line in iter(node.stdout.readline, b"ready\n"))
            os.close(writer)
            assert dropped_lines(endpoints["http"]) == 0
            os.close(reader)
            run(after_a_refused_reader(endpoints))
        finally:
            node.kill()


async def after_a_refused_reader(endpoints: dict[str, str]) -> None:
    """Return once the line about a connection that breaks the protocol is counted."""
    port = int(endpoints["socket"].rpartition(":")[2])
    with closing(socket.create_connection(("127.0.0.1", port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.recv(4096)
    await until(lambda: dropped_lines(endpoints["http"]) >= 1)


def dropped_lines(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}/metrics") as page:
        [line] = [line for line in page.read().decode().splitlines() if line.startswith(f"{DROPPED} ")]
    return int(float(line.split()[1]))
