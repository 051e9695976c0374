"""What is measured: our node, NATS JetStream, and a NATS server that stores nothing, behind one Protocol.

Streams of a load are ``BENCH-0`` … on subjects ``bench`` (one stream) or ``bench.0`` … (several); they are
created empty before each measurement, asked what they hold after it, and deleted.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

import nats
import nats.errors
from nats.aio.client import Client
from nats.js.api import StorageType, StreamConfig

from benchmarks.batches import count_batches
from benchmarks.loadgen import Address, copy, responder, store
from benchmarks.processes import API_PREFIX, nats_server, node

SUBJECT: Final = "bench"
REQUESTS_AT_ONCE: Final = 32
REQUEST_SECONDS_MAX: Final = 30.0

OURS_ALWAYS: Final = "ours, sync always"
OURS_OS: Final = "ours, sync os"
PEER_DEFAULT: Final = "JetStream R1, default"
PEER_ALWAYS: Final = "JetStream R1, sync always"
BARE: Final = "bare request-reply"
BARE_STORE_ALWAYS: Final = "bare store, sync always"
BARE_STORE_OS: Final = "bare store, sync os"

T = TypeVar("T")
R = TypeVar("R")


class RequestRefused(Exception):
    """A system under test refused to create, describe or delete a stream."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What the streams of a load hold after it."""

    records: tuple[int, ...]
    batches: int | None = None
    """All streams together; None where the system does not show it."""
    in_sync: int | None = None
    """Replicas that were in sync at the end, of the stream that had fewest; None where there is one copy."""
    problem: str | None = None
    """What happened to the streams that a run must not have; None if nothing did."""


Count = Callable[[], Holdings | None]


class System(Protocol):
    """Something that answers published messages."""

    @property
    def name(self) -> str:
        """What tables call it."""
        ...

    @property
    def address(self) -> Address:
        """Of the NATS server that messages are published to."""
        ...

    @property
    def processes(self) -> Mapping[str, int]:
        """Pids by role; their CPU time is what the system costs."""
        ...

    def streams(self, count: int) -> AbstractContextManager[Count]:
        """Create ``count`` empty streams, delete them after.

        Yields a function that asks every stream what it holds; it returns None where nothing is stored.
        """
        ...


def stream_name(index: int) -> str:
    """Return the name of a load's stream."""
    return f"BENCH-{index}"


def node_socket(address: Address) -> str:
    """Return ``host:port`` where the node behind a NATS server serves readers."""
    (info,) = each(address, [{}], lambda client, body: ask(client, "cluster.info", body))
    node_info = info["nodes"][0]
    return f"{node_info['host']}:{node_info['port']}"


def node_http(address: Address) -> str:
    """Return ``host:port`` of the HTTP port of the node behind a NATS server."""
    (info,) = each(address, [{}], lambda client, body: ask(client, "cluster.info", body))
    node_info = info["nodes"][0]
    return f"{node_info['host']}:{node_info['http_port']}"


def subjects(count: int) -> list[str]:
    """Return the subjects the load generator publishes to for ``count`` streams."""
    return [SUBJECT] if count == 1 else [f"{SUBJECT}.{index}" for index in range(count)]


@dataclass(frozen=True, slots=True)
class Ours:
    """Streams of our node with one sync mode."""

    name: str
    address: Address
    processes: Mapping[str, int]
    settings: Mapping[str, object]
    """Keys of ``stream.create`` beside name and subject."""
    data: Path
    """Of the node: the batches of a run are counted there."""

    @contextmanager
    def streams(self, count: int) -> Iterator[Count]:
        """Create streams through the request API."""
        configs = [
            {"name": stream_name(index), "subject": subject, **self.settings}
            for index, subject in enumerate(subjects(count))
        ]
        names = [{"name": config["name"]} for config in configs]
        each(self.address, configs, lambda client, body: ask(client, "stream.create", body))

        def count_records() -> Holdings:
            infos = each(self.address, names, lambda client, body: ask(client, "stream.info", body))
            records = tuple(int(info["log_end_offset"]) for info in infos)
            whole = all(int(info["log_start_offset"]) == 0 for info in infos)
            return Holdings(records, count_batches(self.data) if whole else None)

        try:
            yield count_records
        finally:
            each(self.address, names, lambda client, body: ask(client, "stream.delete", body))


@dataclass(frozen=True, slots=True)
class NatsJetStream:
    """NATS's own JetStream: file storage, one replica, everything else as it comes."""

    name: str
    address: Address
    processes: Mapping[str, int]

    @contextmanager
    def streams(self, count: int) -> Iterator[Count]:
        """Create streams with the official client."""
        configs = [
            StreamConfig(
                name=stream_name(index), subjects=[subject], storage=StorageType.FILE, num_replicas=1
            )
            for index, subject in enumerate(subjects(count))
        ]
        each(self.address, configs, lambda client, config: client.jetstream().add_stream(config))

        async def messages(client: Client, config: StreamConfig) -> int:
            assert config.name is not None
            return (await client.jetstream().stream_info(config.name)).state.messages

        async def delete(client: Client, config: StreamConfig) -> bool:
            assert config.name is not None
            return await client.jetstream().delete_stream(config.name)

        try:
            yield lambda: Holdings(tuple(each(self.address, configs, messages)))
        finally:
            each(self.address, configs, delete)


@dataclass(frozen=True, slots=True)
class BareRequestReply:
    """A NATS server between the generator and a responder in C: the ceiling of any system behind NATS."""

    name: str
    address: Address
    processes: Mapping[str, int]

    @contextmanager
    def streams(self, count: int) -> Iterator[Count]:
        """Answer the same subjects instead of storing what they carry."""
        with responder(self.address, SUBJECT if count == 1 else f"{SUBJECT}.>"):
            yield lambda: None


@dataclass(slots=True)
class BareStore:
    """A program that appends what comes to one file, and so do its copies, before it answers.

    No batches, checksums, offsets, ids or epochs, nor a way to read: what any store behind NATS has to do.
    """

    name: str
    address: Address
    nats_server: int
    """Its pid."""
    directory: Path
    sync: str
    """"always" or "os"."""
    copies: Sequence[str] = ()
    """The roles of those beside the first; without any that is the only one, "node"."""
    program: Sequence[str] = ()
    """In C without any."""
    processes: Mapping[str, int] = field(default_factory=dict)

    @contextmanager
    def streams(self, count: int) -> Iterator[Count]:
        """Store all that is published, whatever the stream, in files that are removed after."""
        subject = SUBJECT if count == 1 else f"{SUBJECT}.>"
        files = [self.directory / f"{number}" for number in range(1 + len(self.copies))]
        with ExitStack() as stack:
            for file in files:
                stack.callback(file.unlink, missing_ok=True)
            copies = [stack.enter_context(copy(file, self.sync, self.program)) for file in files[1:]]
            ports = [port for _, port in copies]
            first_store = store(self.address, subject, files[0], self.sync, ports, self.program)
            pid = stack.enter_context(first_store)
            followers = {role: of_copy for role, (of_copy, _) in zip(self.copies, copies, strict=True)}
            first = "leader" if self.copies else "node"
            self.processes = {first: pid, **followers, "nats-server": self.nats_server}
            yield lambda: None


@dataclass(slots=True)
class Laboratory:
    """Starts each system once, when it is first asked for, and keeps it until the end of the benchmark."""

    directory: Path
    _stack: ExitStack = field(default_factory=ExitStack)
    _started: dict[str, System] = field(default_factory=dict)

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        """Stop every process."""
        self._stack.close()

    def system(self, name: str, **settings: object) -> System:
        """Return the system of that name; ``settings`` go into ``stream.create`` of ours."""
        key = name + json.dumps(settings, sort_keys=True)
        if key not in self._started:
            self._started[key] = self._start(name, settings)
        return self._started[key]

    def _start(self, name: str, settings: Mapping[str, object]) -> System:
        if name in (PEER_DEFAULT, PEER_ALWAYS):
            words = "sync_interval: always" if name == PEER_ALWAYS else ""
            address, pid = self._stack.enter_context(nats_server(self._fresh(), words))
            return NatsJetStream(name, address, {"nats-server": pid})
        if name in (BARE_STORE_ALWAYS, BARE_STORE_OS):
            return self._bare_store(name, "always" if name == BARE_STORE_ALWAYS else "os")
        # A server each: what one system leaves in its buffers or heap is nothing to the next.
        address, pid = self._stack.enter_context(nats_server(self._fresh()))
        if name == BARE:
            return BareRequestReply(name, address, {"nats-server": pid})
        assert name in (OURS_ALWAYS, OURS_OS), f"no system {name!r}"
        directory = self._fresh()
        node_pid = self._stack.enter_context(node(directory, address))
        sync: dict[str, object] = {"sync": "always" if name == OURS_ALWAYS else "os"}
        return Ours(
            name, address, {"node": node_pid, "nats-server": pid}, sync | dict(settings), directory / "data"
        )

    def _bare_store(
        self, name: str, sync: str, copies: Sequence[str] = (), program: Sequence[str] = ()
    ) -> BareStore:
        address, pid = self._stack.enter_context(nats_server(self._fresh()))
        directory = self._fresh()
        directory.mkdir()
        return BareStore(
            name=name,
            address=address,
            nats_server=pid,
            directory=directory,
            sync=sync,
            copies=copies,
            program=program,
        )

    def _fresh(self) -> Path:
        return self.directory / f"{len(list(self.directory.iterdir())):02d}"


# What the servers answer is JSON of shapes that are not ours to type.
Answer = dict[str, Any]


def each(address: Address, things: Sequence[T], act: Callable[[Client, T], Awaitable[R]]) -> list[R]:
    """Do ``act`` for all ``things`` over one connection, some at once; results are in order."""

    async def all_of_them() -> list[R]:
        client = await nats.connect(address.url)
        gate = asyncio.Semaphore(REQUESTS_AT_ONCE)

        async def one(thing: T) -> R:
            async with gate:
                return await act(client, thing)

        try:
            return list(await asyncio.gather(*(one(thing) for thing in things)))
        finally:
            await client.close()

    return asyncio.run(all_of_them())


async def ask(
    client: Client, method: str, body: Mapping[str, object], seconds_max: float = REQUEST_SECONDS_MAX
) -> Answer:
    """Send one request of our API.

    Raises:
        RequestRefused: the node answers with an error.
        nats.errors.Error: nobody answers.
    """
    message = await client.request(f"{API_PREFIX}.{method}", json.dumps(body).encode(), timeout=seconds_max)
    answer: Answer = json.loads(message.data)
    if "error" in answer:
        raise RequestRefused(f"{method}: {answer['error']}")
    return answer
