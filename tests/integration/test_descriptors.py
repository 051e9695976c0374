"""A node that runs short of descriptors: idle peers at every port, segments that are read, logs to open.

Its limit is lowered from outside while it runs, or given to it at its start.
"""

import asyncio
import contextlib
import json
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import APIError

import jetstream
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from tests.support.node_cluster import NodeCluster
from tests.support.nodes import WAIT_SECONDS, NodeProcess, request, run
from tests.support.pauses import pause
from tests.support.sockets import RawPeer, until

LIMIT: Final = 1024
IDLE: Final = 1200
VALUE: Final = b"v" * 16_384
SEGMENT: Final = 65_536
OUT_OF_RESOURCES: Final = 10_023


@contextlib.contextmanager
def idle_peers(*ports: int) -> Iterator[None]:
    """So many connections to each port, on which nothing is ever said."""
    with contextlib.ExitStack() as stack:
        for port in ports * IDLE:
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        yield


def port_of(node: NodeProcess, endpoint: str) -> int:
    return int(node.endpoints[endpoint].rpartition(":")[2])


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def metrics(port: int) -> dict[str, float]:
    """What the node tells at its HTTP port, asked again where others have taken the place."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answer = (await reader.read()).decode()
                writer.close()
                if " 200 " in answer.partition("\r\n")[0]:
                    lines = [
                        line for line in answer.splitlines() if line.startswith(("jetstream_", "process_"))
                    ]
                    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
            await pause()


async def publish(client: Client, stream: str, count: int) -> None:
    """Publish so many records, of which four fill a segment."""
    for _ in range(count):
        await client.jetstream().publish(f"{stream}.x", VALUE, timeout=WAIT_SECONDS)


async def refused(client: Client, stream: str) -> int | None:
    """Publish one more; return why it was refused, None if it was not."""
    try:
        await publish(client, stream, 1)
    except APIError as error:
        return error.err_code
    return None


def synced_ends(data: Path, stream: str) -> list[int]:
    """What the checkpoints of the stream's logs say."""
    found = data.glob(f"streams/{stream}*/checkpoint")
    return [json.loads(path.read_text().splitlines()[0])["synced_end"] for path in found]


async def until_checkpointed(data: Path, stream: str, end: int) -> None:
    """Wait until the stream's checkpoint says that it is synced up to ``end``."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            if end in synced_ends(data, stream):
                return
            await pause()


@asynccontextmanager
async def node_on_nats(
    directory: Path, descriptors: tuple[int, int]
) -> AsyncIterator[tuple[NodeProcess, Client, str]]:
    """A node with such limits, soft and hard, a client, and the URL of NATS."""
    async with EmbeddedNatsServer(directory / "nats") as server:
        node = NodeProcess(
            directory / "data", server.url, descriptors=descriptors, JETSTREAM_NODE_HTTP__PORT="0"
        )
        node.start()
        try:
            async with await nats.connect(server.url) as client:
                yield node, client, server.url
            assert node.stop() == 0
        finally:
            node.kill()


def test_idle_connections_at_every_port_hold_up_no_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_on_nats(tmp_path, (128, LIMIT)) as (node, client, url):
            assert resource.prlimit(node.pid, resource.RLIMIT_NOFILE) == (LIMIT, LIMIT), "raised at the start"
            await request(client, "stream.create", name="s", subject="s.>", segment_bytes=SEGMENT)
            await publish(client, "s", 1)
            await until_checkpointed(tmp_path / "data", "s", 1)
            before = open_files(node.pid)
            readers, http = port_of(node, "socket"), port_of(node, "http")
            with idle_peers(readers, http):
                await publish(client, "s", 20)
                await until_checkpointed(tmp_path / "data", "s", 21)
                info = await request(client, "stream.info", name="s")
                assert (info["state"], len(info.get("corrupt_ranges", []))) == ("online", 0)
                assert open_files(node.pid) < LIMIT * 3 // 4
                peer = RawPeer(readers)
                assert "error" not in await peer.ask(op="hello", id=0, protocol=1), "who speaks is heard"
                peer.close()
                found = await metrics(http)
                for port in ("readers", "http"):
                    name = f'jetstream_connections_turned_away_total{{event="displaced",port="{port}"}}'
                    assert found[name] > IDLE / 2, sorted(found)
                assert found["process_max_fds"] == LIMIT
            async with asyncio.timeout(WAIT_SECONDS):
                while open_files(node.pid) > before:
                    await pause()
            await publish(client, "s", 5)
            async with jetstream.connect(url) as js:
                assert [record.offset async for record in js.read("s", start="earliest")] == list(range(26))

    run(scenario())


def test_readers_that_have_said_hello_take_no_more_than_their_share(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_on_nats(tmp_path, (LIMIT, LIMIT)) as (node, client, _):
            await request(client, "stream.create", name="s", subject="s.>", segment_bytes=SEGMENT)
            refused = 0
            with contextlib.ExitStack() as peers:
                for _ in range(LIMIT):
                    peer = RawPeer(port_of(node, "socket"))
                    peers.callback(peer.close)
                    with contextlib.suppress(ConnectionError):
                        refused += "error" in await peer.ask(op="hello", id=0, protocol=1)
                assert 0 < refused < LIMIT / 2
                await until(lambda: open_files(node.pid) <= LIMIT * 3 // 4)  # a file of the node's own goes
                await publish(client, "s", 12)
                await until_checkpointed(tmp_path / "data", "s", 12)

    run(scenario())


@pytest.mark.slow(
    "tests/crash/test_every_call_fails.py::test_no_descriptor_for_any_calls_refuses_and_goes_on"
)
def test_when_nothing_can_be_opened_publishers_are_refused_until_it_can(tmp_path: Path) -> None:
    """A limit below what is open already: a roll finds no descriptor, and passes when there is one."""

    async def scenario() -> None:
        async with node_on_nats(tmp_path, (LIMIT, LIMIT)) as (node, client, _):
            await request(client, "stream.create", name="s", subject="s.>", segment_bytes=SEGMENT)
            await publish(client, "s", 1)
            resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (10, LIMIT))
            acked, refusal = 1, await refused(client, "s")
            while refusal is None and acked < 20:
                acked, refusal = acked + 1, await refused(client, "s")
            assert refusal == OUT_OF_RESOURCES
            assert acked < 6
            created = await request(client, "stream.create", name="t", subject="t.>")
            assert "error" in created or created.get("state") != "online"
            resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
            await publish(client, "s", 9)
            await until_checkpointed(tmp_path / "data", "s", acked + 9)
            info = await request(client, "stream.info", name="s")
            assert (info["state"], info["log_end_offset"]) == ("online", acked + 9)
            async with asyncio.timeout(WAIT_SECONDS):
                while (await request(client, "stream.info", name="t")).get("state") != "online":
                    await pause()
            await publish(client, "t", 2)

    run(scenario())


@pytest.mark.slow(
    "tests/integration/test_descriptors.py::test_idle_connections_at_every_port_hold_up_no_stream"
)
def test_idle_connections_at_the_port_of_peers_hold_up_no_cluster(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            cluster = NodeCluster(tmp_path / "nodes", server.url)
            cluster.start()
            try:
                async with await nats.connect(server.url) as client:
                    await cluster.until_ready(client)
                    for node in cluster.nodes.values():
                        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
                    await request(
                        client, "stream.create", name="s", subject="s.>", segment_bytes=SEGMENT, replicas=3
                    )
                    leader = (await cluster.until_whole(client, "s"))["leader"]
                    with idle_peers(cluster[leader].peer_port):
                        await publish(client, "s", 10)
                        other = next(name for name in cluster.nodes if name != leader)
                        cluster[other].kill()
                        cluster[other].start()
                        await publish(client, "s", 10)
                        info = await cluster.until_whole(client, "s")
                    assert info["log_end_offset"] == 20
            finally:
                cluster.close()

    run(scenario())
