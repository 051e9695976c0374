"""A node's link to a metadata group that is a service on the network."""

from itertools import count
from typing import TYPE_CHECKING

from envelope.types import Incarnation, MonotonicNs, NodeId, StreamName
from jetstream.replica.leader_events import ProposeIsr
from metadata.catalog.commands import ChangeIsr, ConfirmRemoval
from metadata.catalog.events import CommandRefused, NodeRegistered, RemovalConfirmed
from metadata.catalog.tables import RegisteredNode, Stream
from tests.simulation.replica.lost_logs import registration
from tests.simulation.replica.messages import (
    METADATA,
    Answer,
    Heartbeat,
    LeaderSilent,
    LeaseGranted,
    LeaseRefused,
    Message,
    Notice,
    Request,
    RequestId,
    Stopping,
    ToMetadata,
)
from tests.simulation.replica.swarm import LEASE

if TYPE_CHECKING:
    from tests.simulation.replica.life import Life
    from tests.simulation.replica.service_world import ServiceWorld

_REGISTRATION_RETRY = LEASE // 2
_HEARTBEATS_PER_LEASE = 5


class ServiceLink:
    """See `tests.simulation.replica.link.Link`."""

    def __init__(self, world: "ServiceWorld", life: "Life") -> None:
        self._world, self._life = world, life
        self._confirmations = count(-1, -1)
        self._confirming: dict[Incarnation, int] = {}
        self._index = -1
        self._requests = 0
        self._proposals: dict[RequestId, tuple[StreamName, int, int]] = {}
        self._heartbeat_at = life.now()

    def begin(self) -> None:
        """Register, again and again until it is answered."""
        life = self._life
        if life.over or life.node_epoch:
            return
        node = life.node
        command = registration(
            life.name,
            node.directory,
            node.images,
            self._world.metadata.catalog,
            unsynced_kept=node.unsynced_kept,
        )
        self._send(Request((life.name, life.number, 0), command))
        self._world.timeline.after(_REGISTRATION_RETRY, life.hold, self.begin)

    def propose(self, proposal: ProposeIsr, command: ChangeIsr) -> None:
        """Send an ISR that a leader proposes."""
        self._requests += 1
        request_id = (self._life.name, self._life.number, self._requests)
        self._proposals[request_id] = command.stream, proposal.leader_epoch, proposal.number
        self._send(Request(request_id, command))

    def begin_stream(self, row: Stream) -> None:
        """There are no new streams here."""
        raise AssertionError(f"{row.name} has begun")

    def silent(self, row: Stream) -> None:
        """Report a leader once."""
        self._send(LeaderSilent(self._life.name, row.name, row.leader_epoch))

    def heard(self, peer: NodeId) -> None:
        """Nothing was promised to the service about a node that is not heard."""

    def stop(self) -> None:
        """Say so once."""
        if self._life.node_epoch:
            self._send(Stopping(self._life.name, self._life.node_epoch))

    def tick(self) -> None:
        """Ask for a lease, and confirm what was removed."""
        life, now = self._life, self._life.now()
        if life.node_epoch and now >= self._heartbeat_at:
            self._heartbeat_at = MonotonicNs(now + LEASE // _HEARTBEATS_PER_LEASE)
            self._send(Heartbeat(life.name, life.node_epoch, now))
            if self._world.swarm.has_read_replicas:
                self._owe_again()
            for incarnation in sorted(life.owed):
                command = ConfirmRemoval(life.name, incarnation)
                self._send(Request((life.name, life.number, self._confirmation(incarnation)), command))

    def _confirmation(self, incarnation: Incarnation) -> int:
        """Return the number of a confirmation; where read replicas come and go, one until it is answered.

        A second one that comes late would be taken for that of a later removal.
        """
        if not self._world.swarm.has_read_replicas:
            return next(self._confirmations)
        return self._confirming.setdefault(incarnation, next(self._confirmations))

    def _owe_again(self) -> None:
        """Confirm what the catalogue still waits for: the answer to an earlier confirmation may come late.

        Elsewhere nothing waits for that, and recorded seeds stay as they are.
        """
        for removal in self._world.metadata.catalog.removals(self._life.name):
            if removal.name not in self._life.replicas:
                self._life.owed.add(removal.incarnation)

    def receive(self, message: ToMetadata) -> None:
        """Take in what the service says."""
        life = self._life
        match message:
            case Answer():
                self._answered(message)
            case LeaseGranted(node_epoch, until, index):
                if node_epoch == life.node_epoch:
                    self._catch_up(index)
                    self._renew(until)
            case LeaseRefused(node_epoch):
                if life.node_epoch and node_epoch > life.node_epoch:
                    life.node.superseded()
            case Notice(index):
                self._catch_up(index)
            case _:
                raise AssertionError(f"not for a node: {message}")

    def _send(self, message: Message) -> None:
        self._world.network.send((self._life.name, METADATA), message)

    def _answered(self, answer: Answer) -> None:
        life = self._life
        if answer.request_id[1] != life.number:
            return
        if isinstance(answer.event, NodeRegistered):
            self._registered(answer.event.node, answer)
            return
        if isinstance(answer.event, RemovalConfirmed):
            life.owed.discard(answer.event.incarnation)
            self._confirming.pop(answer.event.incarnation, None)
            return
        proposal = self._proposals.pop(answer.request_id, None)
        if proposal is not None and isinstance(answer.event, CommandRefused):
            life.refused(*proposal, answer.event)

    def _registered(self, node: RegisteredNode, answer: Answer) -> None:
        life = self._life
        if life.node_epoch:
            return
        life.node_epoch = node.node_epoch
        life.node.unsynced_kept = True
        self._world.checks.told(life.node.directory)
        self._index = answer.index
        life.learn(answer.rows)

    def _catch_up(self, index: int) -> None:
        """See what the catalogue has changed up to ``index``."""
        if not self._life.node_epoch or index <= self._index:
            return
        rows = self._world.metadata.rows_after(self._index, index)
        self._index = index
        if self._world.swarm.coalesced_notices:
            newest = {(type(row), row.name if isinstance(row, Stream) else row.node_id): row for row in rows}
            rows = list(newest.values())
        self._life.learn(rows)

    def _renew(self, until: MonotonicNs) -> None:
        life = self._life
        if until > life.lease.until and not life.over:
            had_lapsed = not life.lease.is_valid(life.now())
            life.lease.until = until
            if had_lapsed:
                life.lease_resumed()
