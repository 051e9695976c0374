"""The node as a member of its cluster: registered, with a lease, in touch with the others.

A node that others cannot dial has no sessions and needs no lease: it elects itself. The other nodes are known
from the catalogue, which says as well when they come and go; the addresses that the settings say count more.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Final

from envelope.errors import NotLeader, StreamOffline
from envelope.types import Incarnation, LeaderEpoch, LogIndex, NodeEpoch, NodeId, StreamName
from jetstream.node.peers.fetch_sessions import PeerSessionSettings
from jetstream.node.peers.sessions import ReplicaSessions
from jetstream.node.replicas.catch_up import CatchUp
from jetstream.node.replicas.context import ClusterServices, NoSessions
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.timers import Timers
from jetstream.node.settings.peer_settings import PeerSettings
from jetstream.node.streams.directory import NodeStreams
from jetstream.replica.settings import ReplicaSettings
from jetstream.replica.throttle import Throttle
from metadata.catalog.catalog import registered_level
from metadata.catalog.commands import ChangeLeader, RegisterNode
from metadata.catalog.events import Events, NodeForgotten, NodeRegistered
from metadata.catalog.nodes import lost_replicas, restored_replicas
from metadata.catalog.tables import InSyncReplica
from metadata.catalog.tables import RegisteredNode as CatalogNode
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.leases.controller_driver import ControllerDriver
from metadata.node.leases.membership import Membership

_log = logging.getLogger(__name__)

_HAND_OVER_SECONDS: Final = 5.0
"""How long a node that stops waits for others to lead its streams."""

_FETCH_TIMEOUT_NS: Final = 30_000_000_000
"""A session loses messages only with its connection, and is notified of that."""

_ASK_AHEAD_RECORDS_MIN: Final = 32


class ClusterMember:
    """Wires membership, controller driver and sessions to a node's streams.

    Attributes:
        services: what the streams need of the cluster.
        on_removed: called on the loop when the catalogue has forgotten this node, which is to stop.
    """

    def __init__(self, group: MetadataQuorum, peers: PeerSettings, clock: Clock, executor: Executor) -> None:
        """Prepare; `host` sets the streams, `run` does the work."""
        self._group = group
        self._peers = peers
        self._node_id = peers.identity.node_id
        self._executor = executor
        self._membership = Membership(group, self._node_id, is_alone=peers.address is None)
        self._controller_driver = ControllerDriver(group, self._node_id)
        self._sessions: ReplicaSessions | None = None
        self._streams: NodeStreams | None = None
        self._timers = Timers(clock)
        self.on_removed: Callable[[], None] = lambda: None
        self.services = ClusterServices(
            node_id=self._node_id,
            lease=self._membership.lease,
            sessions=NoSessions(),
            timers=self._timers,
            propose=group.propose,
            epoch_of=self._epoch_of,
            confirm_leadership=self._confirm_leadership,
            settings=ReplicaSettings(
                fetch_timeout_ns=_FETCH_TIMEOUT_NS, ask_ahead_records_min=_ASK_AHEAD_RECORDS_MIN
            ),
            catch_up=CatchUp(Throttle(peers.catch_up_bytes)),
        )

    def host(self, streams: NodeStreams) -> None:
        """Pass the catalogue's events and the other nodes' messages to ``streams``."""
        self._streams = streams
        self._group.subscribe(self)  # before the streams, which may send to a node that has just come
        self._group.subscribe(streams)
        self._membership.on_resumed = streams.traffic.lease_resumed
        streams.traffic.membership = self._membership
        if self._peers.address is not None:
            self._sessions = ReplicaSessions(
                self._peers.identity,
                {},
                streams.traffic,
                PeerSessionSettings(),
                self._executor,
            )
            self.services.sessions = self._sessions
            self.restored()

    async def run(self) -> None:
        """Take part until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._timers.run())
            if self._sessions is not None:
                tasks.create_task(self._membership.run())
                tasks.create_task(self._controller_driver.run())
                tasks.create_task(self._sessions.run(self._group.member.server))

    async def join(self, registration: RegisterNode, held: frozenset[Incarnation]) -> None:
        """Register this start, and which of the logs are gone that were created on its directory.

        A node that is alone leads all its streams anew, others are elected by the controller driver.

        Args:
            registration: as yet without what is lost.
            held: the lives of streams that have a log.
        """
        await self._group.led()
        await self._group.reached(LogIndex(1))  # which is a leader's, so there always is one
        if not self._group.catalog.nodes():
            await self._group.catch_up()  # so that it brings its level only to a cluster that is new
        registered = None
        while registered is None:
            registered = await self._registered(registration, held)
        for row in self._group.catalog.streams():
            if row.incarnation not in held and self._node_id in row.blank:
                _log.error("log is gone stream=%s: it is blank until it is copied runbook=RB-13", row.name)
        self.services.node_epoch = registered.node.node_epoch
        if self._sessions is not None:
            self._membership.begin(registered.node.node_epoch)
            self.restored()
            return
        due = self._group.catalog.due_elections()
        for elected in await asyncio.gather(*map(self._group.propose, due)):
            elected.answer()

    async def _registered(
        self, registration: RegisterNode, held: frozenset[Incarnation]
    ) -> NodeRegistered | None:
        """Register; return the answer, None if it has to be done again: another start does no harm.

        The answer may have come inside a snapshot, which does not tell it; and the catalogue may have been
        behind here, so that something is lost, or is back, that was not named, or the feature level.
        """
        named = self._on_disk(registration, held)
        applied = await self._group.propose(named, deadline_seconds=None)
        now = self._on_disk(registration, held)
        if applied.events is None or not set(named.lost).issuperset(now.lost) or now.restored:
            return None
        if named.feature_level != now.feature_level:
            return None
        registered = applied.answer()
        assert isinstance(registered, NodeRegistered), f"a registration is answered by {registered}"
        return registered

    def _on_disk(self, registration: RegisterNode, held: frozenset[Incarnation]) -> RegisterNode:
        """Return the registration as it is to be by what is known of the catalogue here."""
        rows = tuple(self._group.catalog.streams())
        lost = lost_replicas(rows, self._node_id, held)
        own = InSyncReplica(self._node_id, registration.directory)
        return replace(
            registration,
            lost=lost,
            restored=restored_replicas(rows, own, held),
            feature_level=registered_level(self._group.catalog),
        )

    async def leave(self) -> None:
        """Hand leadership over to other replicas, where they can lead."""
        if self._sessions is not None and self.services.node_epoch:
            if not await self._membership.stop(_HAND_OVER_SECONDS):
                _log.warning("stopping without having handed over everything")
            assert self._streams is not None, "streams are hosted before the node stops"
            await self._streams.settled()

    def alive(self) -> frozenset[NodeId] | None:
        """Return the nodes that can hold a new stream; None if another knows."""
        if self._sessions is None:
            return frozenset((self._node_id,))
        return self._controller_driver.alive()

    def ordered_election(self, stream: StreamName, node: NodeId) -> ChangeLeader:
        """Return the command for ``node`` to lead an offline stream: `ControllerDriver.ordered_election`."""
        if self._sessions is None:
            raise NotLeader("only who leads the metadata log of a cluster can say who is dead")
        return self._controller_driver.ordered_election(stream, node)

    # --- catalogue events (CatalogListener) --------------------------------------------------------

    def applied(self, events: Events) -> None:
        """Handle nodes that were registered or removed."""
        for event in events:
            match event:
                case NodeRegistered(node):
                    self._meet(node)
                case NodeForgotten(node):
                    self._part(node.node_id)
                    self._look_for_itself()
                case _:
                    pass

    def restored(self) -> None:
        """Handle a restored catalogue: any node may have been registered or removed."""
        nodes = {node.node_id: node for node in self._group.catalog.nodes()}
        for node in nodes.values():
            self._meet(node)
        for node_id in self._sessions.peers if self._sessions is not None else ():
            if node_id not in nodes:
                self._part(node_id)
        self._look_for_itself()

    def _meet(self, node: CatalogNode) -> None:
        if self._sessions is None or node.node_id == self._node_id:
            return
        address = self._group.addresses.of(node.node_id)
        if address is not None:
            self._sessions.meet(node.node_id, address)

    def _part(self, node_id: NodeId) -> None:
        """Close the session with a node that was removed."""
        if self._sessions is not None:
            self._sessions.part(node_id)
            self._membership.heard(node_id)

    def _look_for_itself(self) -> None:
        """Find out whether this start of the node was removed; an earlier one may have been."""
        if self.services.node_epoch and self._group.catalog.node(self._node_id) is None:
            _log.warning("node=%s was removed from the cluster", self._node_id)
            self.on_removed()

    async def _confirm_leadership(
        self, incarnation: Incarnation, name: StreamName, leader_epoch: LeaderEpoch
    ) -> None:
        await self._membership.confirm_leadership()
        row = self._group.catalog.stream(name)
        wanted = (incarnation, self._node_id, leader_epoch)
        if row is None or (row.incarnation, row.leader, row.leader_epoch) != wanted:
            raise StreamOffline(f"stream {name} is not led here any more")

    def _epoch_of(self, node_id: NodeId) -> NodeEpoch:
        node = self._group.catalog.node(node_id)
        return node.node_epoch if node is not None else NodeEpoch(0)
