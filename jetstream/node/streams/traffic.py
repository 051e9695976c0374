"""The messages of other nodes to this node's replicas: fetches, answers, and signs of life."""

import logging
from collections.abc import Callable, Iterable

from envelope.types import Incarnation, LeaderEpoch, NodeId, StreamName
from jetstream.node.replicas.context import NodeServices
from jetstream.node.replicas.led_stream import LeadingStream
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.streams.repair_exchange import RepairExchange
from jetstream.replica.desired_role import may_lead_soon
from jetstream.replica.leader_events import Event, FetchArrived, FollowerLost, LeaseRenewed
from jetstream.replica.wire import (
    Answer,
    FetchMessage,
    FetchRefusal,
    RefusedMessage,
    RepairAnswer,
    RepairMessage,
)
from metadata.catalog.catalog import Catalog
from metadata.catalog.tables import Stream
from metadata.node.leases.membership import Membership

_log = logging.getLogger(__name__)


class EarlyFetches:
    """The newest fetch of each follower of a stream that this node does not lead yet, but may be about to.

    A follower may know of a reign before the leader has begun it; refused, it would ask again much later.
    """

    def __init__(self) -> None:
        self._fetches: dict[Incarnation, dict[NodeId, FetchArrived]] = {}

    def keep(self, incarnation: Incarnation, arrived: FetchArrived) -> None:
        """Keep one until the reign begins, or another does."""
        self._fetches.setdefault(incarnation, {})[arrived.follower] = arrived

    def forget(self, incarnation: Incarnation, leader_epoch: LeaderEpoch) -> None:
        """Drop those of a stream that others lead, or nobody, in that reign: the followers fetch again.

        Followers may be ahead of this node: what they ask of a later reign may be this node's to answer.
        """
        fetches = self._fetches.pop(incarnation, {})
        kept = {node: early for node, early in fetches.items() if early.fetch.leader_epoch > leader_epoch}
        if kept:
            self._fetches[incarnation] = kept

    def drop(self, incarnation: Incarnation) -> None:
        """Drop those of a stream that is gone."""
        self._fetches.pop(incarnation, None)

    def reign_begun(self, leading: LeadingStream) -> None:
        """Handle the kept fetches of a reign that has begun."""
        for arrived in self.taken(leading.context.incarnation):
            leading.driver.handle(arrived)

    def taken(self, incarnation: Incarnation) -> tuple[FetchArrived, ...]:
        """Return those of a stream, and keep them no more."""
        return tuple(self._fetches.pop(incarnation, {}).values())


class ReplicaTraffic:
    """The `SessionHost` of a node.

    Attributes:
        repairs: batches for logs that have damaged ones.
    """

    def __init__(
        self,
        replicas: Iterable[StreamReplica],
        find: Callable[[Incarnation], StreamReplica | None],
        early: EarlyFetches,
        catalog: Catalog,
        services: NodeServices,
    ) -> None:
        """Serve replicas.

        Args:
            replicas: those whose log is open.
            find: returns one of them.
            early: keeps what comes too early.
            catalog: as far as it is applied here.
            services: send refusals and repairs.
        """
        self.repairs = RepairExchange(find, self._row_of, services)
        self._replicas = replicas
        self._find = find
        self._early = early
        self._catalog = catalog
        self._cluster = services.cluster
        self.membership: Membership | None = None
        """Records which peers are alive; None until it is set."""

    def fetched(self, peer: NodeId, name: StreamName, incarnation: Incarnation, fetch: FetchMessage) -> None:
        """See `SessionHost.fetched`."""
        replica = self._find(incarnation)
        if replica is not None and replica.leading is not None:
            replica.leading.driver.fetched(peer, fetch)
        elif may_lead_soon(fetch.leader_epoch, self._row_of(name, incarnation), self._cluster.node_id):
            self._early.keep(incarnation, FetchArrived(peer, fetch))
        else:
            refused = RefusedMessage(fetch.leader_epoch, FetchRefusal.NOT_LEADING)
            self._cluster.sessions.answer(peer, name, incarnation, refused)

    def _row_of(self, name: StreamName, incarnation: Incarnation) -> Stream | None:
        row = self._catalog.stream(name)
        return row if row is not None and row.incarnation == incarnation else None

    def answered(self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: Answer) -> None:
        """See `SessionHost.answered`."""
        del name
        replica = self._find(incarnation)
        if replica is not None and replica.following is not None:
            replica.following.answered(peer, message)

    def repair_asked(
        self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: RepairMessage
    ) -> None:
        """See `SessionHost.repair_asked`."""
        self.repairs.asked(peer, name, incarnation, message)

    def repair_answered(
        self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: RepairAnswer
    ) -> None:
        """See `SessionHost.repair_answered`."""
        del name
        self.repairs.answered(peer, incarnation, message)

    def connected(self, peer: NodeId) -> None:
        """See `SessionHost.connected`: fetch the streams that the peer leads."""
        for replica in self._replicas:
            if replica.following is not None and replica.following.leader == peer:
                replica.following.connected()

    def disconnected(self, peer: NodeId) -> None:
        """See `SessionHost.disconnected`."""
        for replica in self._replicas:
            if replica.following is not None and replica.following.leader == peer:
                replica.following.disconnected()

    def died(self, peer: NodeId) -> None:
        """See `SessionHost.died`: have its streams led by others, and do not wait for it as a follower."""
        _log.warning("node died node=%s", peer)
        self._lost(peer)

    def silent(self, peer: NodeId) -> None:
        """See `SessionHost.silent`; as `died`."""
        _log.warning("node silent node=%s", peer)
        self._lost(peer)

    def heard(self, peer: NodeId) -> None:
        """See `SessionHost.heard`."""
        _log.info("node heard again node=%s", peer)
        if self.membership is not None:
            self.membership.heard(peer)

    def lease_resumed(self) -> None:
        """Handle a renewed lease: the node may answer again as a leader."""
        self._notify_leaders(LeaseRenewed())

    def _lost(self, peer: NodeId) -> None:
        if self.membership is not None:
            self.membership.unheard(peer)
        self._notify_leaders(FollowerLost(peer))

    def _notify_leaders(self, event: Event) -> None:
        for replica in self._replicas:
            if replica.leading is not None:
                replica.leading.driver.handle(event)
