"""Clusters of three: our nodes on one plain nats-server, and three nats-servers with JetStream.

All processes share the machine and its disk, so every record is written and synced three times there.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

import nats
import nats.errors
from nats.aio.client import Client
from nats.js.api import StorageType, StreamConfig
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from benchmarks.batches import count_batches
from benchmarks.loadgen import Address
from benchmarks.processes import NODE_PROGRAM, ProcessError, last_words, nats_server
from benchmarks.server_process import ServerProcess
from benchmarks.systems import RequestRefused, ask
from jetstream.node.nats.embedded_server import find_nats_server

HOST: Final = "127.0.0.1"
NAMES: Final = ("a", "b", "c")
REPLICAS: Final = len(NAMES)
READY: Final = "READY"
READY_SECONDS_MAX: Final = 60.0
ATTEMPT_SECONDS_MAX: Final = 2.0
LOOK_SECONDS: Final = 0.05
"""Between two looks at a cluster that is not yet as it should be."""

UNSETTLED: Final = (nats.errors.Error, JetStreamError, RequestRefused, OSError, TimeoutError)
"""What a cluster without a leader answers with."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Where a stream's copies are."""

    leader: str | None
    """Name of the server that leads and can commit; None while nobody can."""
    in_sync: frozenset[str]
    """The servers whose copies are up to date, the leader's included."""
    leader_epoch: int | None = None
    """None where the system does not show it."""

    @property
    def is_whole(self) -> bool:
        """Tell whether there is a leader and every copy is up to date."""
        return self.leader is not None and len(self.in_sync) == REPLICAS


class Cluster(Protocol):
    """Three servers that replicate streams."""

    @property
    def servers(self) -> Mapping[str, ServerProcess]:
        """By name."""
        ...

    @property
    def others(self) -> Mapping[str, int]:
        """Pids by role of what runs beside the three."""
        ...

    def address(self, server: str) -> Address:
        """Return where a publisher connects to that is to reach ``server`` on the shortest way."""
        ...

    async def create(self, client: Client, name: str, subject: str, settings: Mapping[str, object]) -> None:
        """Create a stream with three replicas; ``settings`` are for ours alone."""
        ...

    async def place(self, client: Client, name: str) -> StreamPlace:
        """Ask where a stream is."""
        ...

    async def records(self, client: Client, name: str) -> int:
        """Ask how many records a stream holds; it has lost none of its start."""
        ...

    def batches(self) -> tuple[int, ...] | None:
        """Return the batches that lie on each server's disk; None where the system does not show it."""
        ...

    async def delete(self, client: Client, name: str) -> None:
        """Delete a stream."""
        ...

    async def metadata_leader(self, client: Client) -> str | None:
        """Ask which server leads the metadata."""
        ...


@dataclass(frozen=True, slots=True)
class NodeCluster:
    """Three of our nodes, attached to one nats-server as clients."""

    servers: Mapping[str, ServerProcess]
    others: Mapping[str, int]
    nats_address: Address
    data: Mapping[str, Path]
    """By name; the segments are below."""

    def address(self, server: str) -> Address:
        """Return the one nats-server's address."""
        assert server in self.servers, server
        return self.nats_address

    async def create(self, client: Client, name: str, subject: str, settings: Mapping[str, object]) -> None:
        """Create a stream through the request API; a majority of its replicas is its least ISR."""
        body = {"name": name, "subject": subject, "replicas": REPLICAS, **settings}
        await ask(client, "stream.create", body)

    async def place(self, client: Client, name: str) -> StreamPlace:
        """Ask for the stream's leader and ISR."""
        info = await ask(client, "stream.info", {"name": name}, ATTEMPT_SECONDS_MAX)
        heard = all(one["log_end_offset"] is not None for one in info["replica_states"] if one["in_sync"])
        leader = info["leader"] if info["state"] == "online" and heard else None
        return StreamPlace(leader, frozenset(info["isr"]), int(info["leader_epoch"]))

    async def records(self, client: Client, name: str) -> int:
        """Ask for the end of the leader's log, which begins at 0."""
        info = await ask(client, "stream.info", {"name": name})
        assert int(info["log_start_offset"]) == 0, "a stream of a benchmark keeps all"
        return int(info["log_end_offset"])

    def batches(self) -> tuple[int, ...]:
        """Count the batches in the segment files of every node."""
        return tuple(count_batches(data) for data in self.data.values())

    async def delete(self, client: Client, name: str) -> None:
        """Delete a stream through the request API."""
        await ask(client, "stream.delete", {"name": name})

    async def metadata_leader(self, client: Client) -> str | None:
        """Ask for the leader of the metadata log."""
        leader: str | None = (await ask(client, "cluster.info", {}, ATTEMPT_SECONDS_MAX))["metadata_leader"]
        return leader


@dataclass(frozen=True, slots=True)
class NatsCluster:
    """Three nats-servers with JetStream."""

    servers: Mapping[str, ServerProcess]
    addresses: Mapping[str, Address]
    others: Mapping[str, int]

    def address(self, server: str) -> Address:
        """Return the address of that server itself: a publisher elsewhere pays for one more hop."""
        return self.addresses[server]

    async def create(self, client: Client, name: str, subject: str, settings: Mapping[str, object]) -> None:
        """Create a stream: file storage, three replicas, everything else as it comes.

        A server that was struck a moment ago may be no peer yet to place a replica on.
        """
        assert not settings, "these are ours"
        config = StreamConfig(name=name, subjects=[subject], storage=StorageType.FILE, num_replicas=REPLICAS)

        async def create() -> bool:
            await client.jetstream(timeout=ATTEMPT_SECONDS_MAX * 5).add_stream(config)
            return True

        await eventually(f"creation of {name}", create)

    async def place(self, client: Client, name: str) -> StreamPlace:
        """Ask for the stream's leader, and which of its peers have all that it has."""
        cluster = (await client.jetstream(timeout=ATTEMPT_SECONDS_MAX).stream_info(name)).cluster
        assert cluster is not None, "a stream of a cluster"
        if cluster.leader is None:
            return StreamPlace(None, frozenset())
        current = {peer.name for peer in cluster.replicas or [] if peer.current and peer.name is not None}
        return StreamPlace(cluster.leader, frozenset(current | {cluster.leader}))

    async def records(self, client: Client, name: str) -> int:
        """Ask for the number of messages."""
        return (await client.jetstream().stream_info(name)).state.messages

    def batches(self) -> None:
        """Return None: they are not shown."""
        return

    async def delete(self, client: Client, name: str) -> None:
        """Delete a stream; a server that was struck a moment ago may not answer the first request."""

        async def delete() -> bool:
            with suppress(NotFoundError):  # by the request before, whose answer did not come
                await client.jetstream(timeout=ATTEMPT_SECONDS_MAX).delete_stream(name)
            return True

        await eventually(f"deletion of {name}", delete)

    async def metadata_leader(self, client: Client) -> str | None:
        """Return None: an ordinary client is not told."""
        assert client.is_connected
        return None


@contextmanager
def node_cluster(
    directory: Path, log_level: str = "warning", program: Sequence[str] = NODE_PROGRAM
) -> Iterator[NodeCluster]:
    """Run three nodes and their nats-server while the block runs."""
    ports = free_ports(REPLICAS)
    voters = ", ".join(f'{name} = "{HOST}:{port}"' for name, port in zip(NAMES, ports, strict=True))
    with ExitStack() as stack:
        address, pid = stack.enter_context(nats_server(directory / "nats"))
        servers = {}
        for name in NAMES:
            place = directory / name
            place.mkdir()
            (place / "node.toml").write_text(
                f'node_id = "{name}"\ndata = "{place / "data"}"\nlog_level = "{log_level}"\n'
                f'[nats]\nurls = ["{address.url}"]\n[socket]\nport = 0\n[peers]\nvoters = {{{voters}}}\n'
            )
            command = [*program, "node", "--config", str(place / "node.toml")]
            servers[name] = ServerProcess(f"node {name}", command, place / "log")
            stack.callback(servers[name].stop)
            servers[name].start()
        data = {name: directory / name / "data" for name in NAMES}
        cluster = NodeCluster(servers, {"nats-server": pid}, address, data)
        _wait_until_ready(cluster)
        yield cluster


@contextmanager
def nats_cluster(directory: Path, jetstream: str = "") -> Iterator[NatsCluster]:
    """Run three nats-servers with JetStream while the block runs; ``jetstream`` as for `nats_server`."""
    ports = free_ports(2 * REPLICAS)
    clients, routes = ports[:REPLICAS], ports[REPLICAS:]
    urls = ", ".join(f'"nats://{HOST}:{port}"' for port in routes)
    with ExitStack() as stack:
        servers = {}
        for name, client, route in zip(NAMES, clients, routes, strict=True):
            place = directory / name
            place.mkdir(parents=True)
            (place / "nats-server.conf").write_text(
                f'server_name: "{name}"\nlisten: "{HOST}:{client}"\n'
                f'cluster {{\n  name: "bench"\n  listen: "{HOST}:{route}"\n  routes: [{urls}]\n}}\n'
                f'jetstream {{\n  store_dir: "{place / "store"}"\n  {jetstream}\n}}\n'
            )
            command = [find_nats_server(), "-c", str(place / "nats-server.conf")]
            servers[name] = ServerProcess(f"nats-server {name}", command, place / "log")
            stack.callback(servers[name].stop)
            servers[name].start()
        addresses = {name: Address(HOST, port) for name, port in zip(NAMES, clients, strict=True)}
        cluster = NatsCluster(servers, addresses, {})
        _wait_until_ready(cluster)
        yield cluster


def free_ports(count: int) -> list[int]:
    """Return loopback ports that nobody has now, all different."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for found in sockets:
            found.bind((HOST, 0))
        return [int(found.getsockname()[1]) for found in sockets]


@asynccontextmanager
async def connected(address: Address) -> AsyncIterator[Client]:
    """Connect to a NATS server, which may still be starting."""
    client = await eventually(
        f"connection to {address.url}", lambda: nats.connect(address.url, error_cb=_seen)
    )
    try:
        yield client
    finally:
        await client.close()


async def eventually(
    what: str, act: Callable[[], Awaitable[T | None]], seconds_max: float = READY_SECONDS_MAX
) -> T:
    """Repeat ``act`` until it returns something; what an unsettled cluster answers is no answer.

    Raises:
        ProcessError: it has not within ``seconds_max``.
    """
    deadline = time.monotonic() + seconds_max
    problem: Exception | None = None
    while time.monotonic() < deadline:
        try:
            result = await act()
        except UNSETTLED as error:
            problem = error
        else:
            if result is not None:
                return result
        await asyncio.sleep(LOOK_SECONDS)
    raise ProcessError(f"{what}: not within {seconds_max:.0f} s; last error: {problem!r}")


async def until_whole(cluster: Cluster, client: Client, name: str) -> StreamPlace:
    """Wait until a stream has a leader and all its copies; return where they are."""

    async def look() -> StreamPlace | None:
        place = await cluster.place(client, name)
        return place if place.is_whole else None

    return await eventually(f"three copies of {name} in sync", look)


async def _seen(_error: Exception) -> None:
    """Refused connections are repeated, and told if nothing comes of it; nats-py would print each."""


def _wait_until_ready(cluster: Cluster) -> None:
    """A cluster is ready when it keeps a stream on all three servers."""

    async def create(client: Client) -> bool:
        assert all(server.pid for server in cluster.servers.values()), "one that has ended has no pid"
        await cluster.create(client, READY, READY.lower(), {})
        return True

    async def ready() -> None:
        async with connected(cluster.address(NAMES[0])) as client:
            await eventually("a first stream", lambda: create(client))
            await until_whole(cluster, client, READY)
            await cluster.delete(client, READY)

    try:
        asyncio.run(ready())
    except ProcessError as error:
        words = "\n".join(f"{name}: {last_words(one.log)}" for name, one in cluster.servers.items())
        raise ProcessError(f"{error}\n{words}") from None
