"""One life of a node's process: registers, holds a lease, hears of the catalogue, runs its replicas."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from envelope.types import Incarnation, MonotonicNs, NodeEpoch, NodeId, StreamName
from jetstream.replica.isr import refusal_of
from jetstream.replica.wire import FetchMessage
from metadata.catalog.events import CommandRefused
from metadata.catalog.tables import Stream
from metadata.lease import Lease
from tests.simulation.replica.link import Link
from tests.simulation.replica.messages import (
    Message,
    Ping,
    Pong,
    Publish,
    RepairAnswer,
    RepairQuestion,
    Row,
    ToReplica,
)
from tests.simulation.replica.replica import Replica, refuse
from tests.simulation.replica.world import World

if TYPE_CHECKING:
    from tests.simulation.replica.node import SimulatedNode


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
        self.heard_at: dict[NodeId, MonotonicNs] = {}
        """When each peer was last heard of."""
        self.link: Link = world.new_link(self)

    def begin(self) -> None:
        """Begin to run."""
        self.link.begin()
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

    def refused(self, stream: StreamName, leader_epoch: int, number: int, refusal: CommandRefused) -> None:
        """The group has refused an ISR that a leader proposed."""
        reign = self.replicas[stream].reign if stream in self.replicas else None
        if reign is None or reign.leader.leader_epoch != leader_epoch:
            return
        refused = refusal_of(number, refusal)
        if refused is not None:
            reign.tell(refused)

    def learn(self, rows: Iterable[Row]) -> None:
        """Take in rows that have changed, in order."""
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
            case RepairQuestion() | RepairAnswer():
                if message.stream in self.replicas:
                    self.replicas[message.stream].repairing.receive(message)
            case ToReplica() | Ping() | Pong():
                self.heard_at[message.source] = self.now()
                self.link.heard(message.source)
                self._receive_of_peer(message)
            case _:
                self.link.receive(message)

    def _receive_of_peer(self, message: ToReplica | Ping | Pong) -> None:
        if isinstance(message, Ping):
            self.world.network.send((self.name, message.source), Pong(self.name))
        elif isinstance(message, ToReplica):
            replica = self.replicas.get(message.stream)
            if replica is not None:
                replica.receive(message)
            elif isinstance(message.message, FetchMessage):
                refuse(self, message)

    def publish(self, message: Publish) -> None:
        """Take in a message from the bus."""
        if message.stream in self.replicas:
            self.replicas[message.stream].publish(message)

    def lease_resumed(self) -> None:
        """The lease had lapsed, or was never there, and is valid again."""
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
        self.link.tick()
        for leader in {replica.leader: None for replica in self.replicas.values()}:
            if leader is not None and leader != self.name:
                self.world.network.send((self.name, leader), Ping(self.name))
        for replica in self.replicas.values():
            replica.tick()


def _take_in(life: Life, row: Stream) -> None:
    """Begin, go on with, or end the replica of a stream."""
    replica = life.replicas.get(row.name)
    if life.name in row.holders:
        life.owed.discard(row.incarnation)
        if replica is None and row.is_lost_by(life.name):
            return  # nothing is begun where the last log is gone
        if replica is None:
            known = life.node.known_high_watermark(row.name)
            replica = life.replicas[row.name] = Replica(life, life.node.image(row.name), known)
        replica.learn(row)
        return
    if replica is not None:
        del life.replicas[row.name]
        replica.end(row)
    if life.node.images.pop(row.name, None) is not None:
        life.world.checks.removed(life.node.directory, row.name)
        life.world.trace.counts["removed"] += 1
    life.owed.add(row.incarnation)
