"""The composition root: builds a node's parts, starts and stops them in order.

Start: data directory → metadata → a new epoch for every stream → logs recovered → NATS → sockets → API.
Stop is the reverse, and nothing that was received is left behind: leave the subjects, finish the mailboxes,
sync, checkpoint, close.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Final, Self

from envelope.errors import UnavailableError
from envelope.subjects import matches
from envelope.types import NodeId, StreamName
from jetstream.log.identity import DirectoryIdentity
from jetstream.log.os_disk import OsDisk
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.api import ApiServices, RequestApi
from jetstream.node.clock import Clock, SystemClock
from jetstream.node.config import NodeConfig
from jetstream.node.crash import Crash
from jetstream.node.disk_thread import DiskThread
from jetstream.node.group_commit import GroupCommit
from jetstream.node.health import judge
from jetstream.node.housekeeper import Housekeeper
from jetstream.node.http_server import HttpServer, Page
from jetstream.node.metrics import CONTENT_TYPE, Sources, exposition
from jetstream.node.nats_link import NatsLink
from jetstream.node.nats_watch import LinkWatch
from jetstream.node.socket_requests import ServerIdentity
from jetstream.node.socket_server import SocketServer, SocketSettings
from jetstream.node.socket_settings import socket_settings
from jetstream.node.stream import StreamOwner, StreamServices
from jetstream.node.streams import STREAMS_DIRECTORY, Streams
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import ConfirmRemoval, RegisterNode
from metadata.node.local import LocalMetadata

_log = logging.getLogger(__name__)

_METADATA_DIRECTORY: Final = "metadata"
_READER_THREADS: Final = 2


def _distribution_version() -> str:
    try:
        return version("jetstream-log")
    except PackageNotFoundError:
        return "0+unknown"


VERSION: Final = _distribution_version()


class Node:
    """One node; an async context manager that is ready once entered."""

    def __init__(self, config: NodeConfig, clock: Clock | None = None) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._running: AbstractAsyncContextManager[None] | None = None
        self._streams: Streams | None = None
        self.node_id = NodeId("")
        self.socket_host = ""
        self.socket_port = 0
        self.http_address: tuple[str, int] | None = None

    @property
    def endpoints(self) -> list[tuple[str, str]]:
        """What can be connected to, as (name, address)."""
        endpoints = [("socket", f"{self.socket_host}:{self.socket_port}")]
        if self.http_address is not None:
            endpoints.append(("http", "{}:{}".format(*self.http_address)))
        return endpoints

    async def __aenter__(self) -> Self:
        """Start; returns when every stream that can serve does.

        Raises:
            InvalidConfig: the socket's certificate, key or token cannot be used.
            UnavailableError: NATS cannot be reached, or the socket's address is taken.
            StorageError, CorruptDataError: the data directory cannot be used.
        """
        self._running = self._run()
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Stop; returns when everything received is durable and every file is closed."""
        assert self._running is not None, "entered before it is left"
        return await self._running.__aexit__(kind, error, trace)

    def stream(self, name: str) -> StreamOwner | None:
        """Return the running stream of that name, None if this node leads no such stream."""
        return self._streams.stream(name) if self._streams is not None else None

    async def wait_closed(self) -> None:
        """Wait until cancelled; a failure of the node cancels whoever waits inside its context."""
        await asyncio.Event().wait()

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        socket = socket_settings(self.config.socket)
        disk = OsDisk(self.config.data)
        identity = DirectoryIdentity.open_or_create(disk)
        crash = Crash()
        disk_thread = DiskThread(SyncScheduler(disk), crash)
        try:
            self.node_id = NodeId(self.config.node_id or f"node-{identity.identity[:8]}")
            # Streams without metadata are a loss to be told, not an empty cluster to begin (D13).
            is_new = not disk.exists(STREAMS_DIRECTORY)
            metadata = await disk_thread.call(
                lambda: LocalMetadata.open(disk, _METADATA_DIRECTORY, self.node_id, create=is_new)
            )
            try:
                with ThreadPoolExecutor(_READER_THREADS, "jetstream-reader") as readers:
                    parts = _Parts(disk, identity.identity, disk_thread, metadata, crash, readers, socket)
                    async with self._serve(parts):
                        yield
            finally:
                if not crash.reported:  # after an error of ours nothing more is written
                    await disk_thread.call(metadata.close)
        finally:
            await disk_thread.stop()
            identity.close()
            disk.close()

    @asynccontextmanager
    async def _serve(self, parts: "_Parts") -> AsyncIterator[None]:
        config, clock = self.config, self._clock
        async with _task_group() as tasks:
            tasks_of_node = [tasks.create_task(parts.crash.watch(), name="crash")]
            ingest_watch = LinkWatch("ingest", clock, lambda gap: streams.note(gap))  # noqa: PLW0108 - bound below
            ingest = NatsLink(config.nats, ingest_watch, parts.crash, batching=True)
            answers = NatsLink(config.nats, LinkWatch("answers", clock), parts.crash)
            group_commit = GroupCommit(parts.disk_thread, answers.flush_raw, parts.crash)
            services = StreamServices(
                clock,
                parts.disk_thread,
                group_commit,
                ingest,
                answers.publish_raw,
                _binds(parts.metadata.catalog),
            )
            streams = Streams(parts.disk, parts.metadata.catalog, services, tasks, config.verify)
            self._streams = streams
            server = SocketServer(
                streams, ServerIdentity(self.node_id, VERSION), parts.readers, clock, parts.socket
            )
            api = RequestApi(
                config.api_prefix,
                config.cluster,
                self.node_id,
                parts.metadata,
                streams,
                ApiServices(
                    clock, parts.disk_thread, answers, lambda: ingest_watch.interruption, server.stream_gone
                ),
            )
            keeper = Housekeeper(parts.disk_thread, clock, lambda: streams)
            links = (ingest, answers)
            http = HttpServer(
                _pages(Sources(VERSION, self.node_id, streams, links, parts.disk_thread.counters, server))
            )
            try:
                await self._listen(server, http)
                await self._begin_reign(parts, streams)
                await ingest.open()
                await answers.open()
                tasks_of_node += map(
                    tasks.create_task,
                    (
                        ingest.supervise(),
                        answers.supervise(),
                        api.run(),
                        keeper.checkpoint_every(config.checkpoint_interval),
                        keeper.retain_every(config.maintenance_interval),
                    ),
                )
                _warn_of_a_second_answerer(answers)
                await streams.attach_all()
                await api.attach()
                _log.info("node ready node=%s endpoints=%s", self.node_id, self.endpoints)
                yield
            finally:
                _log.info("node stopping node=%s", self.node_id)
                await streams.drain()
                await server.stop()
                await http.stop()
                if not parts.crash.reported:
                    await streams.close()
                await ingest.close()
                await answers.close()
                for task in tasks_of_node:
                    task.cancel()

    async def _listen(self, server: SocketServer, http: HttpServer) -> None:
        """Take the addresses first: the catalogue tells them to clients, and a probe hears of the start."""
        settings = self.config.socket
        try:
            host, self.socket_port = await server.start(settings.host, settings.port)
        except OSError as error:
            raise UnavailableError(f"cannot listen on {settings.host}:{settings.port}: {error}") from None
        self.socket_host = settings.advertise or host
        if self.config.http is not None:
            host, port = self.config.http.host, self.config.http.port
            try:
                self.http_address = await http.start(host, port)
            except OSError as error:
                raise UnavailableError(f"cannot listen on {host}:{port}: {error}") from None

    async def _begin_reign(self, parts: "_Parts", streams: Streams) -> None:
        """Register this start, finish owed removals, lead every stream under a new epoch (KIP-101)."""
        metadata, call = parts.metadata, parts.disk_thread.call
        register = RegisterNode(
            self.node_id,
            parts.identity,
            self.socket_host,
            self.socket_port,
            http_port=None if self.http_address is None else self.http_address[1],
            version=VERSION,
        )
        for result in await call(partial(metadata.propose, [register])):
            result.answer()
        for removal in metadata.catalog.removals(self.node_id):
            await streams.remove_files(removal.name, removal.incarnation)
            confirm = ConfirmRemoval(self.node_id, removal.incarnation)
            await call(partial(metadata.propose, [confirm]))
        for result in await call(partial(metadata.propose, metadata.catalog.due_elections())):
            result.answer()
        await streams.open_all(metadata.catalog.streams())


@dataclass(frozen=True, slots=True)
class _Parts:
    """What stands below NATS and the sockets."""

    disk: OsDisk
    identity: str
    disk_thread: DiskThread
    metadata: LocalMetadata
    crash: Crash
    readers: ThreadPoolExecutor
    socket: SocketSettings


@asynccontextmanager
async def _task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises a single error as it is: callers handle typed errors, not groups of one."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise


def _binds(catalog: Catalog) -> Callable[[str, str], bool]:
    """Return the look-up that `Nats-Expected-Stream` needs."""

    def binds(name: str, subject: str) -> bool:
        stream = catalog.stream(StreamName(name))
        return stream is not None and matches(stream.config.subject, subject)

    return binds


def _pages(sources: Sources) -> dict[str, Callable[[], Awaitable[Page]]]:
    """Return what the HTTP port answers."""
    write_metrics = exposition(sources)

    async def healthz() -> Page:
        lost = [link.watch.role for link in sources.links if not link.connected]
        health = judge(lost, sources.streams.problems())
        status = HTTPStatus.OK if health.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return Page(status, "application/json", json.dumps(health.document()).encode() + b"\n")

    async def livez() -> Page:
        return Page(HTTPStatus.OK, "text/plain; charset=utf-8", b"alive\n")

    async def metrics() -> Page:
        return Page(HTTPStatus.OK, CONTENT_TYPE, await write_metrics())

    return {"/healthz": healthz, "/livez": livez, "/metrics": metrics}


def _warn_of_a_second_answerer(link: NatsLink) -> None:
    """A NATS server with its own JetStream acks on the same reply subjects if it has streams there too."""
    if link.server_has_jetstream:
        _log.warning("the NATS server has its own JetStream enabled: do not bind one subject in both")
