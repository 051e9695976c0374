"""The controller of a metadata leader's term: grants leases, proposes the elections that are due.

Theory of operation. A stream needs another leader when it has none, when the leader's lease has run out, when
a majority of the other living members of its ISR does not hear it, or when its node is about to stop. Such
streams are *open*; only they are looked at, so that what is well costs nothing. The new leader comes from the
ISR, is alive and has the directory that was in sync; of several the first in the order of the replicas, so
that leaders stay where placement put them. The command is a compare-and-set: a decision on an old view
changes nothing.

A stream that is being moved is finished here: once its new replicas are in sync, one of them is elected and
the others are let go. A stream that is whole, and has been for a while, goes back to its preferred leader;
one stream at a time, as each election holds up publishers for a moment. An internal stream that was made when
there were fewer nodes gets more replicas (`internal_growth`). The metadata group itself gets the voters that
it should have (`voters`).

One report is enough for an ISR of two, as one is the majority of the others. So that two nodes that cannot
reach each other do not take turns, a leader that was replaced for its silence is not elected for another's
silence for a while.

All of it may be forgotten: the next metadata leader begins afresh, after a lease at most.

Sources: Kafka's controller (KIP-631 for nodes that are fenced when not heard, KIP-966 for unclean elections).
"""

from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from typing import Final, assert_never

from envelope.errors import UnknownStream
from envelope.types import LeaderEpoch, MonotonicNs, NodeEpoch, NodeId, StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import ChangeLeader, FinishReassignment, NameCluster
from metadata.catalog.events import (
    CommandRefused,
    IsrChanged,
    LeaderChanged,
    NodeRegistered,
    ReplicasReassigned,
    StreamCreated,
    StreamDeleted,
    StreamUpdated,
)
from metadata.catalog.events import Event as CatalogEvent
from metadata.catalog.reassignment import is_ready
from metadata.catalog.tables import InSyncReplica, Stream
from metadata.controller.alive_nodes import AliveNodes
from metadata.controller.events import (
    Action,
    ChangeVoters,
    Elect,
    Event,
    Finish,
    GrantLease,
    Grow,
    LeaderSilent,
    Name,
    NodeHeard,
    NodeStopping,
    NodeUnheard,
    RefuseLease,
    RowsChanged,
    Tick,
)
from metadata.controller.internal_growth import InternalGrowth
from metadata.controller.led_streams import LedStreams
from metadata.controller.preferred import PreferredLeaders
from metadata.controller.reports import SilenceReports
from metadata.controller.settings import ControllerSettings
from metadata.controller.unclean import last_choice, ordered_election
from metadata.controller.voters import VoterChanges
from metadata.features import Feature
from metadata.raft.configuration import QuorumState

_DEFAULT_SETTINGS: Final = ControllerSettings()


class _Cause(StrEnum):
    """Why a stream needs another leader."""

    VACANT = "vacant"
    DEAD = "dead"
    SILENT = "silent"
    STOPPING = "stopping"
    MOVING = "moving"
    """All of the target is in sync, and another leads."""
    ARRIVED = "arrived"
    """Not an election is due, but the end of a reassignment."""
    PREFERRED = "preferred"


class Controller:
    """See the module; there is one for every term that this node leads.

    Invariants:
        J1: an elected leader is alive, under the registered node_epoch, and in the ISR with its directory,
            unless all of the ISR is dead and the stream, or an operator, says so (`unclean`).
        J3: an election is proposed again only after the retry interval, or in another reign.
    """

    def __init__(
        self,
        catalog: Catalog,
        now: MonotonicNs,
        settings: ControllerSettings = _DEFAULT_SETTINGS,
        cluster_id: str | None = None,
    ) -> None:
        """Begin the term.

        Args:
            catalog: as new as this term, at least; applied to by the caller, read here.
            now: the time.
            settings: times.
            cluster_id: the id that a cluster without one is to get, drawn at random; None: it gets none.
        """
        self._catalog = catalog
        self._settings = settings
        self._alive_nodes = AliveNodes(catalog, now, settings.lease_ns)
        self._reports = SilenceReports(settings.report_valid_ns, settings.accused_ns)
        self._dead: set[NodeId] = set()
        """Nodes whose streams were opened because their lease has run out."""
        self._led = LedStreams(catalog.streams())
        self._preferred = PreferredLeaders(settings.preferred_settle_ns, settings.preferred_pause_ns)
        self._cluster_id, self._name_at = cluster_id, now
        self._voter_changes = VoterChanges(catalog, self._alive_nodes, settings)
        self._growth = InternalGrowth(catalog, self._alive_nodes, settings.retry_interval_ns)
        self._open: set[StreamName] = set()
        for stream in catalog.streams():
            self._preferred.put(stream, now)
            if stream.leader is None or stream.target is not None:
                self._open.add(stream.name)
        self._asked: dict[StreamName, tuple[LeaderEpoch, MonotonicNs]] = {}

    def handle(self, event: Event, now: MonotonicNs) -> tuple[Action, ...]:
        """Handle one event; return the actions of the shell, in order."""
        match event:
            case NodeHeard(node, node_epoch):
                return self._heard(node, node_epoch, now)
            case LeaderSilent(stream, leader_epoch, reporter):
                return self._report((stream,), reporter, now, leader_epoch)
            case NodeUnheard(node, reporter):
                return self._report(self._led.of(node), reporter, now)
            case NodeStopping(node, node_epoch):
                return self._stop(node, node_epoch, now)
            case RowsChanged(events):
                touched = {name for change in events for name in self._changed(change, now)}
                return tuple(self._elect(touched, now))
            case Tick(quorum):
                self._reports.expire(now)
                self._find_dead(now)
                streams = (*self._elect(self._open, now), *self._restore(now), *self._grow(now))
                return streams if quorum is None else (*streams, *self._tend_quorum(quorum, now))
            case _:
                assert_never(event)

    def alive(self, now: MonotonicNs) -> frozenset[NodeId]:
        """Return the nodes that were heard within a lease, in this term."""
        return frozenset(
            node.node_id for node in self._catalog.nodes() if self._alive_nodes.is_alive(node.node_id, now)
        )

    def ordered_election(
        self, name: StreamName, node: NodeId, now: MonotonicNs
    ) -> ChangeLeader | CommandRefused:
        """Return the command by which ``node`` leads an offline stream uncleanly, or why it may not."""
        row = self._catalog.stream(name)
        if row is None:
            return CommandRefused(UnknownStream, f"no stream {name!r}", (("stream", name),))
        return ordered_election(row, node, self._alive_nodes, now)

    def __str__(self) -> str:
        return f"controller dead={','.join(sorted(self._dead))} open={len(self._open)}"

    # --- events -------------------------------------------------------------------------------------------

    def _heard(self, node: NodeId, node_epoch: NodeEpoch, now: MonotonicNs) -> tuple[Action, ...]:
        registered = self._alive_nodes.registered_epoch(node)
        if node_epoch != registered:
            # An epoch that is not registered here yet will be, once this catalogue has caught up.
            return (RefuseLease(node, registered),) if node_epoch < registered else ()
        was_alive = self._alive_nodes.is_alive(node, now)
        self._alive_nodes.leases.renew(node, node_epoch, now)
        self._dead.discard(node)
        grant = GrantLease(node, node_epoch, self._settings.lease_ns)
        return (grant,) if was_alive else (grant, *self._elect(self._open, now))

    def _report(
        self,
        names: Collection[StreamName],
        reporter: NodeId,
        now: MonotonicNs,
        leader_epoch: LeaderEpoch | None = None,
    ) -> tuple[Action, ...]:
        """Record that a member of the ISR does not hear the leaders of these streams, of that reign."""
        counted: set[StreamName] = set()
        for name in names:
            row = self._catalog.stream(name)
            if row is None or reporter not in row.isr_nodes or leader_epoch not in (None, row.leader_epoch):
                continue
            self._reports.add(name, row.leader_epoch, reporter, now)
            counted.add(name)
        self._open |= counted
        return tuple(self._elect(counted, now))

    def _stop(self, node: NodeId, node_epoch: NodeEpoch, now: MonotonicNs) -> tuple[Action, ...]:
        if node_epoch != self._alive_nodes.registered_epoch(node):
            return ()
        self._alive_nodes.stopping.add(node)
        self._open |= self._led.of(node)
        return tuple(self._elect(self._open, now))

    def _changed(self, change: CatalogEvent, now: MonotonicNs) -> Collection[StreamName]:
        """Record the effect of a command; return the streams that may need, or can now have, an election."""
        match change:
            case NodeRegistered(node):
                self._alive_nodes.leases.renew(node.node_id, node.node_epoch, now)
                self._dead.discard(node.node_id)
                self._alive_nodes.stopping.discard(node.node_id)
                self._growth.look_at_all()
                return self._open
            case StreamDeleted(stream):
                self._close(stream.name, None)
                self._led.remove(stream.name)
                self._preferred.remove(stream.name)
                self._reports.forget(stream.name)
                return ()
            case (
                LeaderChanged(stream)
                | StreamCreated(stream)
                | IsrChanged(stream)
                | ReplicasReassigned(stream)
                | StreamUpdated(stream)
            ):
                if isinstance(change, ReplicasReassigned):
                    self._asked.pop(stream.name, None)  # what comes next is another question
                if isinstance(change, StreamCreated):
                    self._growth.look_at(stream.name)
                self._led.put(stream)
                self._preferred.put(stream, now)
                # Its leader may have died, or begun to stop, while it was proposed.
                self._open.add(stream.name)
                return (stream.name,)
            case _:
                return ()

    def _find_dead(self, now: MonotonicNs) -> None:
        for node in self._catalog.nodes():
            if node.node_id not in self._dead and self._alive_nodes.leases.is_dead(node.node_id, now):
                assert not self._alive_nodes.is_alive(node.node_id, now), (
                    f"J2: {node.node_id} is alive and dead"
                )
                self._dead.add(node.node_id)
                self._open |= self._led.of(node.node_id)

    # --- elections ----------------------------------------------------------------------------------------

    def _elect(self, names: Collection[StreamName], now: MonotonicNs) -> Iterator[Action]:
        """Propose leaders where one is needed and there is one; close the streams that need none."""
        for name in sorted(names):
            row = self._catalog.stream(name)
            cause = None if row is None else self._cause(row, now)
            if row is None or cause is None:
                self._close(name, row)
                continue
            asked = self._asked.get(name)
            if asked is not None and asked[0] == row.leader_epoch and now < asked[1]:
                continue
            action = Finish(_finish(row)) if cause is _Cause.ARRIVED else self._election(row, cause, now)
            if action is None:
                continue
            assert asked is None or asked < (row.leader_epoch, now + 1), f"J3: {name} again, after {asked}"
            self._asked[name] = (row.leader_epoch, MonotonicNs(now + self._settings.retry_interval_ns))
            if cause is _Cause.SILENT and row.leader is not None:
                self._reports.accuse(name, row.leader, now)
            yield action

    def _restore(self, now: MonotonicNs) -> Iterator[Action]:
        """Give a stream that is well back to its preferred leader, if that is well too."""
        name = self._preferred.next_due(now)
        row = None if name is None else self._catalog.stream(name)
        if row is not None and row.name not in self._open:
            election = self._election(row, _Cause.PREFERRED, now)
            if election is not None:
                yield election

    def _grow(self, now: MonotonicNs) -> Iterator[Action]:
        command = self._growth.next_move(now)
        if command is not None:
            yield Grow(command)

    def _tend_quorum(self, quorum: QuorumState, now: MonotonicNs) -> Iterator[Action]:
        """Give the cluster an id if it has none, and the metadata group the voters that it should have."""
        if self._catalog.cluster.feature_level < Feature.MEMBER_CHANGES.level:
            return  # there may be nodes that cannot read any of it
        is_nameless = self._catalog.cluster.cluster_id is None
        if is_nameless and self._cluster_id is not None and now >= self._name_at:
            self._name_at = MonotonicNs(now + self._settings.retry_interval_ns)
            yield Name(NameCluster(self._cluster_id))
        change = self._voter_changes.next_change(quorum, now)
        if change is not None:
            yield ChangeVoters(change)

    def _close(self, name: StreamName, row: Stream | None) -> None:
        self._open.discard(name)
        asked = self._asked.get(name)
        # What was asked for in this reign is under way, though its cause may have gone, and may come again.
        if asked is not None and (row is None or asked[0] != row.leader_epoch):
            del self._asked[name]

    def _election(self, row: Stream, cause: _Cause, now: MonotonicNs) -> Elect | None:
        leader = self._candidate(row, cause, now)
        unclean = leader is None
        if leader is None:
            leader = last_choice(row, self._alive_nodes, now)
        if leader is None:
            return None
        assert self._alive_nodes.is_eligible(leader, now), (
            f"J1: {leader} of {row.name} is not alive, or stops"
        )
        is_legitimate = self._alive_nodes.is_isr_dead(row, now) if unclean else leader in row.isr_nodes
        assert is_legitimate, f"J1: {leader} of {row.name}, in sync {row.isr_nodes}, unclean {unclean}"
        return Elect(
            ChangeLeader(
                stream=row.name,
                incarnation=row.incarnation,
                leader=leader,
                node_epoch=self._alive_nodes.registered_epoch(leader),
                expected_leader_epoch=row.leader_epoch,
                unclean=unclean,
            )
        )

    def _cause(self, row: Stream, now: MonotonicNs) -> _Cause | None:
        if row.leader is None:
            return _Cause.VACANT
        if self._alive_nodes.leases.is_dead(row.leader, now):
            return _Cause.DEAD
        if row.leader in self._alive_nodes.stopping:
            return _Cause.STOPPING
        others = {
            member.node_id
            for member in row.isr
            if member.node_id != row.leader and self._alive_nodes.is_alive(member.node_id, now)
        }
        reporters = self._reports.reporters(row.name, row.leader_epoch, now) & others
        if 2 * len(reporters) > len(others):
            return _Cause.SILENT
        if row.target is None or not is_ready(row):
            return None
        return _Cause.ARRIVED if row.leader in row.target else _Cause.MOVING

    def _candidate(self, row: Stream, cause: _Cause, now: MonotonicNs) -> NodeId | None:
        """Return the first member of the ISR that can lead instead of the present leader."""
        for member in _preference(row, cause):
            node = member.node_id
            if node == row.leader or not self._alive_nodes.is_eligible(node, now):
                continue
            if not self._alive_nodes.has_log(row, member):
                continue
            if cause in (_Cause.SILENT, _Cause.PREFERRED) and self._reports.is_accused(row.name, node, now):
                continue
            return node
        return None


def _preference(row: Stream, cause: _Cause) -> Sequence[InSyncReplica]:
    """Return the members of the ISR that may be elected for that cause, the best first."""
    match cause:
        case _Cause.MOVING:
            target = row.target or ()
            members = (member for member in row.isr if member.node_id in target)
            return sorted(members, key=lambda member: target.index(member.node_id))
        case _Cause.PREFERRED:
            return [member for member in row.isr if member.node_id == row.replicas[0]]
        case _:
            return row.isr


def _finish(row: Stream) -> FinishReassignment:
    return FinishReassignment(row.name, row.incarnation, row.isr_version, row.leader_epoch)
