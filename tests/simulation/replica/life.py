"""One life of a node's process: registers, holds a lease, hears of the catalogue, runs its replicas."""

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from envelope.types import Incarnation, MonotonicNs, NodeEpoch, NodeId, StreamName
from jetstream.replica.isr import refusal_of
from jetstream.replica.leader_events import FetchArrived, ProposeIsr
from metadata.catalog.commands import ChangeIsr, ConfirmRemoval
from metadata.catalog.events import NodeRegistered, Refused, RemovalConfirmed
from metadata.catalog.tables import Node, Stream
from metadata.lease import Lease
from tests.simulation.replica.messages import (
    METADATA,
    Answer,
    Heartbeat,
    LeaseGranted,
    LeaseRefused,
    Message,
    Notice,
    Ping,
    Pong,
    Publish,
    Request,
    RequestId,
    Row,
    Stopping,
    ToReplica,
)
from tests.simulation.replica.replica import Replica, refuse
from tests.simulation.replica.swarm import LEASE
from tests.simulation.replica.world import World
from tests.support.catalogs import register

if TYPE_CHECKING:
    from tests.simulation.replica.node import SimulatedNode

_REGISTRATION_RETRY = LEASE // 2
_HEARTBEATS_PER_LEASE = 5


class Life:
    """Everything that a process forgets when it ends."""

    def __init__(self, world: World, node: "SimulatedNode", number: int) -> None:
        self.world, self.node, self.name, self.number = world, node, node.name, number
        self.node_epoch = NodeEpoch(0)
        """0 until it has registered."""
        self.lease = Lease()
        self.replicas: dict[StreamName, Replica] = {}
        self.owed: set[Incarnation] = set()
        """Lives of streams whose files were removed; to be confirmed."""
        self.confirmations = count(-1, -1)
        self._index = -1
        self._requests = 0
        self._proposals: dict[RequestId, tuple[StreamName, int, int]] = {}
        self._heartbeat_at = self.now()
        self.heard_at: dict[NodeId, MonotonicNs] = {}
        """When each peer was last heard of."""

    def begin(self) -> None:
        """Begin to run."""
        self._register()
        self._tick()

    @property
    def over(self) -> bool:
        """Whether the process has ended."""
        return self.node.life is not self

    def now(self) -> MonotonicNs:
        """Return what the machine's clock shows."""
        return self.node.now()

    def hold(self, step: Callable[[], None]) -> None:
        """Take a step of this process, once it is not paused; never if it has ended."""
        if not self.over:
            self.node.hold(step)

    def row_of(self, stream: StreamName) -> Stream:
        """Return the newest row that this process knows."""
        row = self.replicas[stream].row
        assert row is not None, f"{self.name} knows {stream}"
        return row

    # --- the catalogue ----------------------------------------------------------------------------------

    def _register(self) -> None:
        if self.over or self.node_epoch:
            return
        command = register(self.name, self.node.directory)
        self.world.network.send((self.name, METADATA), Request((self.name, self.number, 0), command))
        self.world.timeline.after(_REGISTRATION_RETRY, self.hold, self._register)

    def propose(self, stream: StreamName, proposal: ProposeIsr, command: ChangeIsr) -> None:
        """Send an ISR that a leader proposes."""
        self._requests += 1
        request_id = (self.name, self.number, self._requests)
        self._proposals[request_id] = stream, proposal.leader_epoch, proposal.number
        self.world.network.send((self.name, METADATA), Request(request_id, command))

    def _answered(self, answer: Answer) -> None:
        if answer.request_id[1] != self.number:
            return
        if isinstance(answer.event, NodeRegistered):
            self._registered(answer.event.node, answer)
            return
        if isinstance(answer.event, RemovalConfirmed):
            self.owed.discard(answer.event.incarnation)
            return
        proposal = self._proposals.pop(answer.request_id, None)
        if proposal is None or not isinstance(answer.event, Refused):
            return
        stream, leader_epoch, number = proposal
        reign = self.replicas[stream].reign if stream in self.replicas else None
        if reign is None or reign.leader.leader_epoch != leader_epoch:
            return
        refusal = refusal_of(number, answer.event)
        if refusal is not None:
            reign.tell(refusal)

    def _registered(self, node: Node, answer: Answer) -> None:
        if self.node_epoch:
            return
        self.node_epoch = node.node_epoch
        self._index = answer.index
        self._learn(answer.rows)

    def _catch_up(self, index: int) -> None:
        """See what the catalogue has changed up to ``index``."""
        if not self.node_epoch or index <= self._index:
            return
        rows = self.world.metadata.rows_after(self._index, index)
        self._index = index
        if self.world.swarm.coalesced_notices:
            newest = {(type(row), row.name if isinstance(row, Stream) else row.node_id): row for row in rows}
            rows = list(newest.values())
        self._learn(rows)

    def _learn(self, rows: "list[Row] | tuple[Row, ...]") -> None:
        for row in rows:
            if self.over:
                return
            if isinstance(row, Stream):
                _take_in(self, row)
            elif row.node_id == self.name and row.node_epoch > self.node_epoch:
                self.node.superseded()

    # --- messages ---------------------------------------------------------------------------------------

    def receive(self, message: Message) -> None:
        """Take in what arrived."""
        match message:
            case ToReplica() | Ping() | Pong():
                self.heard_at[message.source] = self.now()
                self._receive_of_peer(message)
            case Answer():
                self._answered(message)
            case LeaseGranted(node_epoch, until, index):
                if node_epoch == self.node_epoch:
                    self._catch_up(index)
                    self._renew(until)
            case LeaseRefused(node_epoch):
                if self.node_epoch and node_epoch > self.node_epoch:
                    self.node.superseded()
            case Notice(index):
                self._catch_up(index)
            case _:
                raise AssertionError(f"not for a node: {message}")

    def _receive_of_peer(self, message: ToReplica | Ping | Pong) -> None:
        if isinstance(message, Ping):
            self.world.network.send((self.name, message.source), Pong(self.name))
        elif isinstance(message, ToReplica):
            replica = self.replicas.get(message.stream)
            if replica is not None:
                replica.receive(message)
            elif isinstance(message.event, FetchArrived):
                refuse(self, message)

    def stop(self) -> None:
        """Say that it is about to stop."""
        if self.node_epoch:
            self.world.network.send((self.name, METADATA), Stopping(self.name, self.node_epoch))

    def publish(self, message: Publish) -> None:
        """Take in a message from the bus."""
        if message.stream in self.replicas:
            self.replicas[message.stream].publish(message)

    def _renew(self, until: MonotonicNs) -> None:
        if until > self.lease.until and not self.over:
            had_lapsed = not self.lease.is_valid(self.now())
            self.lease.until = until
            if had_lapsed:
                self.tell(Replica.lease_resumed)

    def tell(self, step: Callable[[Replica], None]) -> None:
        """Let every replica take a step."""
        for replica in self.replicas.values():
            step(replica)

    def _tick(self) -> None:
        if self.over:
            return
        self.hold(self._ticked)
        interval = self.world.swarm.settings.heartbeat_interval_ns
        self.world.timeline.after(int(interval * (0.5 + 0.5 * self.world.rng.random())), self._tick)

    def _ticked(self) -> None:
        now = self.now()
        if self.node_epoch and now >= self._heartbeat_at:
            self._heartbeat_at = MonotonicNs(now + LEASE // _HEARTBEATS_PER_LEASE)
            self.world.network.send((self.name, METADATA), Heartbeat(self.name, self.node_epoch, now))
            _confirm_removals(self)
        for leader in {replica.leader: None for replica in self.replicas.values()}:
            if leader is not None and leader != self.name:
                self.world.network.send((self.name, leader), Ping(self.name))
        for replica in self.replicas.values():
            replica.tick()


def _take_in(life: Life, row: Stream) -> None:
    """Begin, go on with, or end the replica of a stream."""
    replica = life.replicas.get(row.name)
    if life.name in row.replicas:
        life.owed.discard(row.incarnation)
        if replica is None:
            known = life.node.known_high_watermark(row.name)
            replica = life.replicas[row.name] = Replica(life, life.node.image(row.name), known)
        replica.learn(row)
        return
    if replica is not None:
        del life.replicas[row.name]
        replica.end(row)
    if life.node.images.pop(row.name, None) is not None:
        life.world.trace.counts["removed"] += 1
    life.owed.add(row.incarnation)


def _confirm_removals(life: Life) -> None:
    for incarnation in sorted(life.owed):
        command = ConfirmRemoval(life.name, incarnation)
        request = Request((life.name, life.number, next(life.confirmations)), command)
        life.world.network.send((life.name, METADATA), request)
