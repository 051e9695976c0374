"""The composition root: builds a node's parts, starts and stops them in order.

Start: data directory → metadata → NATS → sockets → registered as a new start → logs recovered → streams led
or followed as the catalogue says → API. Stop is the reverse, and nothing that was received is left behind:
hand over what others can lead, leave the subjects, finish the mailboxes, sync, checkpoint, close.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from envelope.errors import UnavailableError
from envelope.types import NodeId
from jetstream.fetch.catch_up_scheduler import CatchUpScheduler
from jetstream.log.disk.identity import DirectoryIdentity
from jetstream.log.disk.machine_id import machine_id
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.api.operations import ApiOperations, ApiServices
from jetstream.node.api.server import RequestApi
from jetstream.node.cluster.discovery import Discovery, NoticeBoard, find_place, hear, own_notice
from jetstream.node.cluster.member import ClusterMember
from jetstream.node.cluster.metadata_part import keep_cluster_id, open_metadata, taking_part
from jetstream.node.disk.group_commit import GroupCommit
from jetstream.node.disk.stream_files import STREAMS_DIRECTORY, StreamFiles
from jetstream.node.disk.thread import DiskThread
from jetstream.node.disk.unsynced_marker import BootMarker, present_kernel
from jetstream.node.groups.cursor_store import CursorStore
from jetstream.node.groups.requests import GroupRequestHandler
from jetstream.node.groups.shards import GroupService
from jetstream.node.http.access import http_settings
from jetstream.node.http.metric_sources import Sources
from jetstream.node.http.pages import node_pages, searching_pages
from jetstream.node.http.server import HttpServer, Pages
from jetstream.node.http.v1.api import read_api
from jetstream.node.maintenance.compactor import Compactor
from jetstream.node.maintenance.housekeeper import Housekeeper
from jetstream.node.maintenance.repair import Repairing
from jetstream.node.maintenance.rewriter import Rewriter
from jetstream.node.maintenance.scrubber import Scrubber
from jetstream.node.maintenance.sealed_segments import SegmentKeeper
from jetstream.node.nats.audit_trail import AuditTrail
from jetstream.node.nats.link import NatsLink
from jetstream.node.nats.subscriptions import Subscriptions
from jetstream.node.nats.watch import LinkWatch
from jetstream.node.readers.responses import ServerIdentity
from jetstream.node.readers.server import SocketServer, SocketSettings
from jetstream.node.readers.settings import socket_settings
from jetstream.node.replicas.context import NodeServices
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.catch_up_queue import CatchUpQueue
from jetstream.node.runtime.clock import Clock, SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.node.runtime.paced_thread import PacedThread
from jetstream.node.runtime.removal_clock import RemovalClock
from jetstream.node.runtime.task_group import task_group
from jetstream.node.runtime.version import VERSION
from jetstream.node.settings.node_config import NodeConfig
from jetstream.node.settings.peer_settings import PeerSettings, peer_settings
from jetstream.node.streams.directory import NodeStreams
from jetstream.node.tiers.segment_cache import Tier, node_tier
from jetstream.node.tiers.tiering import Tiering
from metadata.catalog.commands import RegisterNode
from metadata.node.admission.descriptors import DescriptorBudget, DescriptorShare, budget
from metadata.node.catalogue.group import MetadataQuorum
from metadata.partitioning import binds

_log = logging.getLogger(__name__)

_READER_THREADS: Final = 2


class Node:
    """A node; an async context manager that is ready once entered."""

    def __init__(
        self,
        config: NodeConfig,
        clock: Clock | None = None,
        lines_dropped: Callable[[], int] = lambda: 0,
    ) -> None:
        """``lines_dropped``: how many lines whoever writes the log has dropped; for the metrics."""
        self.config = config
        self._clock = clock or SystemClock()
        self._lines_dropped = lines_dropped
        self._removal_clock = RemovalClock(self._clock)
        self._running: AbstractAsyncContextManager[None] | None = None
        self._streams: NodeStreams | None = None
        self.node_id = NodeId("")
        self.socket_host = ""
        self.socket_port = 0
        self.http_address: tuple[str, int] | None = None
        self.removed = asyncio.Event()
        """Set when the cluster has removed this node, which is then to be left."""
        self._is_ready = False

    @property
    def endpoints(self) -> list[tuple[str, str]]:
        """The listening addresses, as (name, address)."""
        endpoints = [("socket", f"{self.socket_host}:{self.socket_port}")]
        if self.http_address is not None:
            endpoints.append(("http", "{}:{}".format(*self.http_address)))
        return endpoints

    async def __aenter__(self) -> Self:
        """Start; returns when every stream that can serve does.

        Raises:
            InvalidConfig: a certificate, a key or a token cannot be used.
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

    def stream(self, name: str) -> StreamReplica | None:
        """Return this node's replica of the stream of that name, None if there is no such stream.

        Raises:
            NotReplica: other nodes have it.
            StreamOffline: its log is not open (yet).
        """
        return self._streams.stream(name) if self._streams is not None else None

    async def wait_closed(self) -> None:
        """Wait until cancelled; a failure of the node cancels a task that waits inside its context."""
        await asyncio.Event().wait()

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        """Start part after part; the stack stops them in reverse, as far as they were started."""
        async with AsyncExitStack() as stack:
            parts = await self._open_ground(stack)
            tasks = await stack.enter_async_context(task_group())
            shell = self._assembled(parts, tasks)
            shell.cluster.on_removed = self.removed.set
            stack.push_async_callback(shell.tier.stop)
            background = [tasks.create_task(parts.crash.watch(), name="crash")]
            stack.callback(_cancel_all, background)
            parts.http.pages = shell.pages
            for link in (shell.answers, shell.ingest):
                await link.open()
                stack.push_async_callback(link.close)
            stack.push_async_callback(self._close_streams, parts, shell)
            stack.push_async_callback(parts.http.stop)  # its pages show the streams
            await self._listen(shell.server)
            stack.push_async_callback(shell.server.stop)
            api = read_api(parts.http.settings, shell.server, shell.streams, shell.api.question, self._clock)
            parts.http.open_api(api, shell.server.dispatcher, shell.server.ticket_refusals)
            stack.push_async_callback(parts.http.close_api)
            if shell.discovery is not None:
                background.append(tasks.create_task(shell.discovery.run()))
            background += [tasks.create_task(work()) for work in shell.work]
            _warn_of_a_second_answerer(shell.answers)
            held = await parts.disk_thread.call(shell.streams.files.held)
            stack.push_async_callback(shell.streams.drain)
            stack.push_async_callback(self._leave, parts, shell)
            await shell.cluster.join(self._registration(parts), held)
            parts.witness.registered()
            await shell.streams.begin()
            await shell.api.attach()
            stack.push_async_callback(shell.api.stop)
            self._is_ready = True
            _log.info("node ready node=%s endpoints=%s", self.node_id, self.endpoints)
            yield

    async def _open_ground(self, stack: AsyncExitStack) -> "_Parts":
        """Open what is below NATS and the sockets; probes are answered before anything is waited for."""
        _warn_of_few_descriptors(budget())
        socket = socket_settings(self.config.socket)
        disk = stack.enter_context(closing(OsDisk(self.config.data)))
        identity = stack.enter_context(closing(DirectoryIdentity.open_or_create(disk))).identity
        crash = Crash()
        scheduler = CatchUpScheduler(self.config.socket.catch_up_share, len(os.sched_getaffinity(0)))
        queue = CatchUpQueue(scheduler, self._clock, asyncio.get_running_loop())
        disk_thread = DiskThread(SyncScheduler(disk), crash, catch_up_queue=queue)
        stack.push_async_callback(disk_thread.stop)
        readers = stack.enter_context(ThreadPoolExecutor(_READER_THREADS, "jetstream-reader"))
        http = HttpServer(searching_pages(), http_settings(self.config.http), readers, self._clock, queue)
        stack.push_async_callback(http.stop)
        await self._answer_probes(http)
        witness = BootMarker(disk, present_kernel())
        unsynced_kept = witness.begin()
        self.node_id = NodeId(self.config.node_id or f"node-{identity[:8]}")
        peers = await asyncio.to_thread(peer_settings, self.config, self.node_id)
        begin, heard = await find_place(self.config, peers, identity, disk, self._clock)
        # Streams without metadata are a loss to be reported, not an empty cluster to begin (D13).
        is_new = not disk.exists(STREAMS_DIRECTORY)
        group = await open_metadata(disk, peers, identity, begin, is_new=is_new)
        if heard is not None:
            hear(group, heard)
        await stack.enter_async_context(taking_part(group, peers, crash))
        keep_cluster_id(group, disk)
        return _Parts(
            disk=disk,
            identity=identity,
            disk_thread=disk_thread,
            metadata=group,
            peers=peers,
            crash=crash,
            readers=readers,
            socket=socket,
            witness=witness,
            http=http,
            unsynced_kept=unsynced_kept,
        )

    async def _leave(self, parts: "_Parts", shell: "_Shell") -> None:
        self._is_ready = False
        _log.info("node stopping node=%s", self.node_id)
        if not parts.crash.reported:
            await shell.cluster.leave()

    async def _close_streams(self, parts: "_Parts", shell: "_Shell") -> None:
        if not parts.crash.reported and await shell.streams.close():
            parts.witness.stopped()

    def _assembled(self, parts: "_Parts", tasks: asyncio.TaskGroup) -> "_Shell":
        """Make everything that stands on NATS and the sockets; nothing runs yet."""
        config, clock = self.config, self._clock
        ingest = NatsLink(config.nats, LinkWatch("ingest", clock), parts.crash)
        answers = NatsLink(config.nats, LinkWatch("answers", clock), parts.crash)
        tier = node_tier(config, parts.disk, clock, tasks)
        cluster = ClusterMember(parts.metadata, parts.peers, clock, parts.readers)
        acks = ingest if config.nats.acks_on_ingest else answers
        services = _stream_services(
            parts=parts, clock=clock, links=(ingest, acks), cluster=cluster, tier=tier, tasks=tasks
        )
        streams = NodeStreams(StreamFiles(parts.disk, clock, config.verify), parts.metadata.catalog, services)
        cursors = CursorStore(streams.stream, parts.readers)
        groups = GroupService(parts.metadata.catalog, streams.stream, parts.readers, services)
        self._streams = streams
        cluster.host(streams)
        parts.metadata.subscribe(groups)
        api = self._api(parts, (ingest, answers), cluster, streams, (tier, cursors, groups))
        server = SocketServer(
            directory=streams,
            identity=ServerIdentity(self.node_id, VERSION, _machine(config)),
            executor=parts.readers,
            clock=clock,
            groups=GroupRequestHandler(groups, api.coordinator, tasks),
            settings=parts.socket,
        )
        # Both ends of these exist now.
        server.ticket_refusals.audit = api.audit.note
        ingest.watch.on_gap = streams.note
        streams.gone_listeners.append(server.stream_gone)
        streams.reign_listeners += [cursors.reign_begun, groups.reign_begun]
        thread = PacedThread("jetstream-segments")
        compactor, rewriter, scrubber = works = self._segment_works(parts, thread)
        sources = Sources(
            node=self.node_id,
            streams=streams,
            removal_clock=self._removal_clock,
            links=(ingest, answers),
            disk=parts.disk_thread.counters,
            publish_latency=services.publish_latency,
            server=server,
            http=parts.http,
            compaction=compactor.counters,
            rewrite=rewriter.counters,
            scrub=scrubber.counters,
            tier=tier,
            cursors=cursors,
            groups=groups,
            lines_dropped=self._lines_dropped,
            metadata=parts.metadata,
            doors=(server.door, parts.metadata.member.server.door, parts.http.door),
            audit=api.audit,
        )
        upkeep = self._upkeep(parts, SegmentKeeper(thread, works, streams), streams, tier)
        return _Shell(
            ingest=ingest,
            answers=answers,
            cluster=cluster,
            streams=streams,
            server=server,
            api=api,
            tier=tier,
            pages=node_pages(sources, lambda: self._is_ready, lambda: parts.metadata.problem),
            discovery=self._discovery(parts, answers),
            work=(cluster.run, ingest.supervise, answers.supervise, api.run, cursors.run, *upkeep),
        )

    def _api(
        self,
        parts: "_Parts",
        links: tuple[NatsLink, NatsLink],
        cluster: ClusterMember,
        streams: NodeStreams,
        stores: tuple[Tier, CursorStore, GroupService],
    ) -> RequestApi:
        prefix = self.config.api_prefix
        (ingest, answers), (tier, cursors, groups) = links, stores
        told = ApiServices(
            clock=self._clock,
            link=answers,
            interruption=lambda: ingest.watch.interruption,
            alive=cluster.alive,
            node_epoch=lambda: cluster.services.node_epoch,
            ordered_election=cluster.ordered_election,
            tier=tier,
            cursors=cursors,
            groups=groups,
            ticket_lifetime=self.config.socket.ticket_lifetime,
            ticket_grace=self.config.socket.ticket_grace,
            audit=AuditTrail(self.config.audit, prefix, self.node_id, answers),
        )
        operations = ApiOperations(
            prefix=prefix,
            cluster=self.config.cluster,
            node_id=self.node_id,
            metadata=parts.metadata,
            streams=streams,
            services=told,
        )
        return RequestApi(
            prefix,
            self.node_id,
            parts.metadata,
            operations,
            told,
            names_in_subjects=self.config.api.names_in_subjects == "required",
        )

    def _upkeep(
        self, parts: "_Parts", segments: SegmentKeeper, streams: NodeStreams, tier: Tier
    ) -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
        interval, clock = self.config.maintenance_interval, self._clock
        housekeeper = Housekeeper(parts.disk_thread, self._removal_clock, streams, parts.witness)
        yield partial(housekeeper.run, self.config.checkpoint_interval, interval)
        yield partial(segments.run, interval)
        yield partial(Repairing(streams.traffic.repairs, parts.disk_thread, clock, streams).run, interval)
        yield partial(Tiering(tier, self._removal_clock, streams, streams.retry_removals).run, interval)

    def _segment_works(self, parts: "_Parts", thread: PacedThread) -> tuple[Compactor, Rewriter, Scrubber]:
        return (
            Compactor(parts.disk, parts.disk_thread, self._removal_clock, thread),
            Rewriter(parts.disk, parts.disk_thread, self._clock, thread, parts.metadata.catalog.stream),
            Scrubber(self._clock, thread, self.node_id, self.config.scrub_interval),
        )

    async def _answer_probes(self, http: HttpServer) -> None:
        """Listen before anything is waited for: a probe must not take a node that waits for dead."""
        if self.config.http is not None:
            host, port = self.config.http.host, self.config.http.port
            try:
                self.http_address = await http.start(host, port)
            except OSError as error:
                raise UnavailableError(f"cannot listen on {host}:{port}: {error}") from None

    async def _listen(self, server: SocketServer) -> None:
        """Bind the address first: the catalogue passes it to clients."""
        settings = self.config.socket
        try:
            host, self.socket_port = await server.start(settings.host, settings.port)
        except OSError as error:
            raise UnavailableError(f"cannot listen on {settings.host}:{settings.port}: {error}") from None
        self.socket_host = settings.advertise or host

    def _discovery(self, parts: "_Parts", link: NatsLink) -> Discovery | None:
        if parts.peers.address is None:
            return None
        board = NoticeBoard(link, self.config, parts.peers)
        own = own_notice(parts.peers, parts.identity, parts.disk)
        return Discovery(board, own, parts.metadata, self._clock)

    def _registration(self, parts: "_Parts") -> RegisterNode:
        address = parts.peers.address
        return RegisterNode(
            self.node_id,
            parts.identity,
            self.socket_host,
            self.socket_port,
            http_port=None if self.http_address is None else self.http_address[1],
            version=VERSION,
            unsynced_kept=parts.unsynced_kept,
            peer_host=None if address is None else address.host,
            peer_port=None if address is None else address.port,
            rack=self.config.rack,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The parts below NATS and the sockets."""

    disk: OsDisk
    identity: str
    disk_thread: DiskThread
    metadata: MetadataQuorum
    peers: PeerSettings
    crash: Crash
    readers: ThreadPoolExecutor
    socket: SocketSettings
    witness: BootMarker
    http: HttpServer
    unsynced_kept: bool
    """All that an earlier start wrote is there, also what it never synced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shell:
    """The parts above NATS and the sockets."""

    ingest: NatsLink
    answers: NatsLink
    cluster: ClusterMember
    streams: NodeStreams
    server: SocketServer
    api: RequestApi
    tier: Tier
    pages: Pages
    """Of the HTTP port."""
    discovery: Discovery | None
    """Speaks with other nodes; None of a node that they cannot dial."""
    work: tuple[Callable[[], Coroutine[Any, Any, None]], ...]
    """Runs as long as the node does."""


def _stream_services(
    parts: _Parts,
    clock: Clock,
    links: tuple[NatsLink, NatsLink],
    cluster: ClusterMember,
    tier: Tier,
    tasks: asyncio.TaskGroup,
) -> NodeServices:
    ingest, acks = links
    catalog = parts.metadata.catalog
    return NodeServices(
        clock=clock,
        disk=parts.disk_thread,
        group_commit=GroupCommit(parts.disk_thread, acks.flush_raw, parts.crash),
        subscriptions=Subscriptions(ingest, catalog.partitions_of, tasks),
        send_acks=acks.publish_raw,
        binds=partial(binds, catalog),
        cluster=cluster.services,
        tasks=tasks,
        crash=parts.crash,
        tier=tier,
    )


def _machine(config: NodeConfig) -> str | None:
    """Return the machine that readers get, if they may read the node's files."""
    return machine_id() if config.socket.short_circuit_reads else None


def _cancel_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


def _warn_of_few_descriptors(descriptors: DescriptorBudget) -> None:
    if descriptors.is_small:
        text = (
            "few descriptors limit=%d: readers share %d with all else, logs and peers %d; raise LimitNOFILE"
        )
        _log.warning(
            text,
            descriptors.limit,
            descriptors.end_of(DescriptorShare.READERS),
            descriptors.end_of(DescriptorShare.NODE),
        )


def _warn_of_a_second_answerer(link: NatsLink) -> None:
    """A NATS server with its own JetStream acks on the same reply subjects if it has streams there too."""
    if link.server_has_jetstream:
        _log.warning("the NATS server has its own JetStream enabled: do not bind one subject in both")
