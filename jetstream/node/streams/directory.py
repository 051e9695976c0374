"""All replicas of this node: opened as the catalogue says, found by name, closed."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from envelope.errors import JetstreamError, NotReplica, StreamLost, StreamOffline
from envelope.partition_errors import PartitionsMissing
from envelope.types import Incarnation, NodeId, StreamName
from jetstream.node.disk.stream_files import StreamFiles
from jetstream.node.nats.gaps import Gap
from jetstream.node.replicas.context import NodeServices
from jetstream.node.replicas.led_stream import LeadingStream
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.replicas.replica_controller import ReplicaController
from jetstream.node.runtime.catch_up_queue import CatchUpQueue
from jetstream.node.streams.traffic import EarlyFetches, ReplicaTraffic
from jetstream.protocol.responses import NodeMetadata
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import ConfirmRemoval
from metadata.catalog.directories import directory_of
from metadata.catalog.events import (
    Events,
    IsrChanged,
    LeaderChanged,
    PartitionCountChanged,
    ReplicasReassigned,
    StreamCreated,
    StreamDeleted,
    StreamUpdated,
    TierAdvanced,
    TxidChanged,
)
from metadata.catalog.tables import Removal, Stream
from metadata.partitioning import is_partitioned

_log = logging.getLogger(__name__)

T = TypeVar("T")

_TIER_SECONDS: Final = 5.0
"""How long the removal of a stream's objects is waited for; the next attempt finds less to do."""


class NodeStreams:
    """The node's replicas; the socket server's `StreamDirectory`, and a `CatalogListener`.

    Attributes:
        files: where they lie.
        catalog: as far as it is applied here.
        traffic: the messages of other nodes to them.
        catch_up_queue: of readers: short, and waited for, while one of the streams is appended to.
        gone_listeners: called with every stream that is removed from this node.
        reign_listeners: called whenever this node begins to lead a stream.
    """

    def __init__(self, files: StreamFiles, catalog: Catalog, services: NodeServices) -> None:
        """Hold no replica yet; `begin` opens them."""
        self.files = files
        self.catalog = catalog
        self._services = services
        self.catch_up_queue: CatchUpQueue = services.disk.catch_up_queue
        self._node_id: NodeId = services.cluster.node_id
        self.gone_listeners: list[Callable[[StreamName], None]] = []
        self._controllers: dict[Incarnation, ReplicaController] = {}
        self._replicas: dict[Incarnation, StreamReplica] = {}
        """Theirs."""
        self._early = EarlyFetches()
        self.reign_listeners: list[Callable[[LeadingStream], None]] = [self._early.reign_begun]
        self.traffic = ReplicaTraffic(self, self._replicas.get, self._early, catalog, services)
        self._tasks: asyncio.TaskGroup = services.tasks
        self._removals: dict[Incarnation, asyncio.Task[None]] = {}
        self._began = False
        self._knows_all = False
        """Whether the catalogue was as new as this start of the node, so that what it lacks is not there."""

    def __iter__(self) -> Iterator[StreamReplica]:
        """Yield every replica whose log is open."""
        return iter(
            [controller.replica for controller in self._controllers.values() if controller.replica.is_open]
        )

    # --- what readers ask (StreamDirectory) --------------------------------------------------------

    def stream(self, name: str) -> StreamReplica | None:
        """Return the stream's replica, None if there is no such stream.

        Raises:
            StreamIsPartitioned: there are its partitions instead.
            NotReplica: other nodes have it.
            StreamOffline: its log is not open (yet), or the node does not know yet what streams there are.
        """
        row = self.row(name)
        if row is None:
            return None
        if self._node_id not in row.replicas and self._node_id not in row.read_replicas:
            detail = {} if row.leader is None else {"leader": row.leader}
            raise NotReplica(f"stream {name} is on {', '.join(row.holders)}", **detail)
        replica = self._replicas.get(row.incarnation)
        if replica is None:
            raise StreamOffline(f"stream {name} is offline: it is being recovered")
        if replica.problem is not None:
            kind = StreamLost if isinstance(replica.problem, StreamLost) else StreamOffline
            raise kind(f"stream {name} is offline: {replica.problem.description}")
        return replica

    def row(self, name: str) -> Stream | None:
        """Return the catalogue's row of a stream, None if there is no such stream.

        Raises:
            StreamIsPartitioned: there are its partitions instead.
            StreamOffline: the node does not know yet what streams there are.
        """
        row = self.catalog.stream(StreamName(name))
        if row is None and not self._knows_all:
            # Until a majority was heard the catalogue may be empty: readers would take that for an answer.
            raise StreamOffline("this node is starting: it does not know yet which streams there are")
        if row is None and self.catalog.is_partitioned(name):
            raise is_partitioned(name, self.catalog)
        return row

    def names(self) -> Sequence[str]:
        """Return the names of all streams, ascending."""
        return [stream.name for stream in self.catalog.streams()]

    def problems(self) -> Iterator[tuple[StreamName, JetstreamError]]:
        """Yield every stream of this node that does not take or serve what it should, and why; ascending.

        Partitions that wait for others to be made do what they should.
        """
        for row in self.catalog.streams():
            if self._node_id not in row.replicas and self._node_id not in row.read_replicas:
                continue
            replica = self._replicas.get(row.incarnation)
            health_error = StreamOffline("it is being recovered") if replica is None else replica.health_error
            if health_error is not None and not isinstance(health_error, PartitionsMissing):
                yield row.name, health_error

    def nodes(self) -> Sequence[NodeMetadata]:
        """Return all nodes of the cluster."""
        return [
            NodeMetadata(id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in self.catalog.nodes()
        ]

    # --- catalogue events (CatalogListener) --------------------------------------------------------

    async def begin(self) -> None:
        """Open every replica of this node; return when each leads or follows as the catalogue says.

        The node is registered, and knows of every reign before that.
        """
        self._began = self._knows_all = True
        self.restored()
        await self.settled()

    def applied(self, events: Events) -> None:
        """Handle the events of a command."""
        if not self._began:
            return
        for event in events:
            match event:
                case StreamDeleted(stream, removal):
                    self._early.drop(stream.incarnation)
                    if self._node_id in removal.pending:
                        self._begin_removal(removal)
                    elif stream.incarnation in self._controllers:
                        self._controllers[stream.incarnation].changed(None)
                case ReplicasReassigned(stream, _, removal) | StreamUpdated(stream, _, removal):
                    self._changed(stream)
                    if removal is not None and self._node_id in removal.pending:
                        self._begin_removal(removal)
                case (
                    StreamCreated(stream)
                    | LeaderChanged(stream)
                    | IsrChanged(stream)
                    | TierAdvanced(stream)
                    | TxidChanged(stream)
                ):
                    self._changed(stream)
                case PartitionCountChanged(partitioned):
                    self._services.subscriptions.counts_changed(partitioned)
                case _:
                    pass

    def restored(self) -> None:
        """Handle a restored catalogue: everything may have changed."""
        if not self._began:
            return
        rows = {row.incarnation: row for row in self.catalog.streams()}
        for incarnation, controller in self._controllers.items():
            if incarnation not in rows:
                controller.changed(None)
        for row in rows.values():
            self._changed(row)
        for removal in self.catalog.removals(self._node_id):
            self._begin_removal(removal)
        self._services.subscriptions.counts_changed()

    def _changed(self, row: Stream) -> None:
        if row.leader != self._node_id:
            self._early.forget(row.incarnation, row.leader_epoch)
        controller = self._controllers.get(row.incarnation)
        if controller is None:
            if self._node_id not in row.replicas and self._node_id not in row.read_replicas:
                return
            replica = StreamReplica(row, self._services, self.files, partial(_notify, self.reign_listeners))
            controller = self._controllers[row.incarnation] = ReplicaController(replica, self._services)
            self._replicas[row.incarnation] = replica
        controller.replica.tiered.changed(row)
        controller.changed(row)

    def _begin_removal(self, removal: Removal) -> None:
        earlier = self._removals.get(removal.incarnation)
        task = self._tasks.create_task(self._remove(removal, earlier))
        self._removals[removal.incarnation] = task

        def done(task: "asyncio.Task[None]") -> None:
            if self._removals.get(removal.incarnation) is task:
                del self._removals[removal.incarnation]

        task.add_done_callback(done)

    async def removed(self, incarnation: Incarnation) -> None:
        """Return when a deleted stream's files are gone from this node, or cannot be removed now."""
        removal = self._removals.get(incarnation)
        if removal is not None:
            await asyncio.wait((removal,))

    def retry_removals(self) -> None:
        """Begin again what could not be removed; the object store may be back."""
        for removal in self.catalog.removals(self._node_id) if self._began else ():
            if removal.incarnation not in self._removals:
                self._begin_removal(removal)

    async def _remove(self, removal: Removal, earlier: "asyncio.Task[None] | None") -> None:
        """Stop the replica, remove its files durably, and confirm that to the catalogue.

        One removal after the other, and only what is still owed: the stream may come back to this node.
        """
        if earlier is not None:
            await asyncio.wait((earlier,))
        if removal.incarnation not in {owed.incarnation for owed in self.catalog.removals(self._node_id)}:
            return
        controller = self._controllers.get(removal.incarnation)
        if controller is not None:
            controller.changed(None)
            _notify(self.gone_listeners, removal.name)
            await controller.settled()
            self._controllers.pop(removal.incarnation, None)
            self._replicas.pop(removal.incarnation, None)
        try:
            await self._services.disk.call(partial(self.files.remove, removal.name, removal.incarnation))
            if removal.is_tiered:
                directory = directory_of(removal.name, removal.incarnation)
                async with asyncio.timeout(_TIER_SECONDS):
                    await self._services.tier.write(lambda store: store.delete_directory(directory))
            confirm = ConfirmRemoval(self._node_id, removal.incarnation)
            await self._services.cluster.propose(confirm)
        except (JetstreamError, TimeoutError) as error:
            _log.warning("files not removed yet stream=%s error=%s", removal.name, error)
        else:
            _log.info("stream removed stream=%s incarnation=%s", removal.name, removal.incarnation)

    async def settled(self) -> None:
        """Return when every replica is as the catalogue wants it, as far as that is possible."""
        for controller in tuple(self._controllers.values()):
            await controller.settled()

    # --- life ------------------------------------------------------------------------------------

    def note(self, gap: Gap) -> None:
        """Add an interruption of the ingest connection to every led stream's possible gaps."""
        for replica in self:
            if replica.leading is not None:
                replica.context.gaps.add(gap)

    async def drain(self) -> None:
        """Leave every subject and finish every mailbox: what NATS had delivered is stored and acked."""
        self._began = False
        for controller in self._controllers.values():
            controller.stop_moving()
        await self.settled()
        leading = [replica.leading for replica in self if replica.leading is not None]
        await asyncio.gather(*(stream.detach() for stream in leading))
        await asyncio.gather(*(stream.drained() for stream in leading))

    async def close(self) -> bool:
        """Sync and close every log; return whether all that was written is on disk."""
        return all(await asyncio.gather(*(controller.end() for controller in self._controllers.values())))


def _notify(listeners: Iterable[Callable[[T], None]], subject: T) -> None:
    for listener in listeners:
        listener(subject)
