"""One life of a node's process as a member of the metadata group: registered, with a lease, at times the
controller.

Does what `metadata/node` does on an event loop: what the machines decide, in order, and nothing else.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from envelope.types import Incarnation, LeaderEpoch, NodeId
from jetstream.replica.leader_events import ProposeIsr
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import BeginStream, ChangeIsr, Command, ConfirmRemoval, RegisterNode
from metadata.catalog.events import CommandRefused, Events, NodeRegistered, RemovalConfirmed
from metadata.catalog.tables import Stream
from metadata.controller.controller_term import Replaced
from metadata.controller.events import RowsChanged
from metadata.controller.liveness_reporter import LivenessReporter
from metadata.raft.messages.node_messages import LeaseGranted, LeaseRefused, NodeMessage
from metadata.raft.messages.wire import Forwarded
from metadata.raft.proposals import ProposalId
from tests.simulation.cluster.controller_driver import ControllerDriver
from tests.simulation.cluster.proposals import Proposals
from tests.simulation.replica.lost_logs import registration
from tests.simulation.replica.messages import Ping, Row, ToMetadata
from tests.simulation.replica.metadata_service import rows_of
from tests.simulation.replica.swarm import LEASE

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World
    from tests.simulation.replica.life import Life

_DEADLINE: Final = 6 * LEASE
"""So long is a command sent again, unless it is a registration."""


class Member:
    """See the module, and `tests.simulation.replica.link.Link`."""

    def __init__(self, world: "World", life: "Life") -> None:
        self._world, self._life, self._name = world, life, life.name
        self._voter = world.voters[life.name]
        self._machine = world.machines[life.name]
        self._machine.listener = self
        self._proposals = Proposals(world, life)
        self._controller_driver = ControllerDriver(world, life, self._proposals, self._tell)
        self._reporter = LivenessReporter(life.name, life.lease, world.swarm.controller)
        self._unheard: set[NodeId] = set()
        self._rows_at = 0
        self._rows_owed = 0
        """Rows that are on their way: a process that stands still takes none."""
        self._begun: set[tuple[Incarnation, LeaderEpoch]] = set()

    @property
    def catalog(self) -> Catalog:
        """As far as this member has applied it."""
        return self._machine.catalog

    def ask(self, command: Command) -> None:
        """Have a command applied that somebody asks this node for."""
        self._proposals.submit(command, _no_outcome, _DEADLINE)

    # --- the link of the replicas -----------------------------------------------------------------------

    def begin(self) -> None:
        """Register this start, however long it takes."""
        node = self._life.node
        start = registration(self._name, node.directory, node.images, self.catalog)
        command = replace(start, peer_host="127.0.0.1", peer_port=9000)  # so that it can be a voter
        self._proposals.submit(command, partial(self._registered, command))

    def begin_stream(self, row: Stream) -> None:
        """Have the group know that a new stream's leader has a log, however long it takes."""
        if (row.incarnation, row.leader_epoch) not in self._begun:
            self._begun.add((row.incarnation, row.leader_epoch))
            self._proposals.submit(
                BeginStream(row.name, row.incarnation, self._name, row.leader_epoch), _no_outcome
            )

    def propose(self, proposal: ProposeIsr, command: ChangeIsr) -> None:
        """Have the group decide on an ISR."""

        def decided(events: Events | None) -> None:
            if events is not None and isinstance(events[0], CommandRefused):
                self._life.refused(command.stream, proposal.leader_epoch, proposal.number, events[0])

        self._proposals.submit(command, decided, _DEADLINE)

    def silent(self, row: Stream) -> None:
        """Say that a leader is not heard, until it is."""
        if row.leader is not None:
            self._unheard.add(row.leader)
            self._reporter.unheard(row.leader)

    def heard(self, peer: NodeId) -> None:
        """Say no more that a node is not heard."""
        self._unheard.discard(peer)
        self._reporter.heard(peer)

    def stop(self) -> None:
        """Say that the process is about to stop."""
        self._reporter.stop()
        self._say()

    def receive(self, message: ToMetadata) -> None:
        """There is no service here."""
        raise AssertionError(f"not for a node: {message}")

    def tick(self) -> None:
        """Let time have passed."""
        self._controller_driver.look()
        self._controller_driver.tick()
        self._say()
        for peer in sorted(self._unheard):
            self._world.replicas.network.send((self._name, peer), Ping(self._name))
        if self._life.node_epoch:
            ordered = {removal.incarnation for removal in self.catalog.removals(self._name)}
            for incarnation in sorted(self._life.owed & ordered):
                self._life.owed.discard(incarnation)
                self.ask(ConfirmRemoval(self._name, incarnation))

    # --- the voter's state machine ----------------------------------------------------------------------

    def applied(self, events: Events) -> None:
        """An entry was applied here."""
        self._world.applied(self._machine, events)
        if isinstance(events[0], RemovalConfirmed):
            self._life.owed.discard(events[0].incarnation)
        self._controller_driver.heard(RowsChanged(events))
        if self._life.node_epoch:
            self._learn(rows_of(events))

    def restored(self) -> None:
        """Everything may have changed."""
        self._controller_driver.heard(Replaced())
        if self._life.node_epoch:
            self._learn((*self.catalog.nodes(), *self.catalog.streams()))

    def decided(self, proposal_id: ProposalId, events: Events | None) -> None:
        """A proposal was applied, perhaps one of this life."""
        self._proposals.decided(proposal_id, events)

    def leader_changed(self) -> None:
        """Whoever leads now knows nothing."""
        for step in (self._controller_driver.look, self._say):
            self._world.timeline.after(0, self._life.hold, step)
        self._proposals.leader_changed()

    def _registered(self, command: RegisterNode, events: Events | None) -> None:
        life = self._life
        now = registration(self._name, life.node.directory, life.node.images, self.catalog)
        if not set(command.lost).issuperset(now.lost) or now.restored:
            self._world.trace.counts["registered_again"] += 1
            self.begin()  # what is lost, or back, was not known here yet
            return
        if events is None or not isinstance(events[0], NodeRegistered):
            # The answer is lost: the process ends, and the next one registers anew.
            self._world.trace.counts["registration_lost"] += 1
            life.node.superseded()
            return
        life.node_epoch = events[0].node.node_epoch
        self._world.replicas.checks.told(life.node.directory)
        self._reporter.begin(life.node_epoch)
        self._learn((*self.catalog.nodes(), *self.catalog.streams()))

    def _learn(self, rows: Iterable[Row]) -> None:
        """Let the replicas know, in order, and perhaps late."""
        world = self._world
        late = 0 if world.healing else world.replicas.delay(world.swarm.late_rows)
        if not late and not self._rows_owed:
            self._life.learn(rows)
            return

        def learn_late() -> None:
            self._rows_owed -= 1
            self._life.learn(rows)

        self._rows_owed += 1
        self._rows_at = max(self._rows_at, world.timeline.now + late)
        world.timeline.at(self._rows_at, self._life.hold, learn_late)

    # --- what nodes say ---------------------------------------------------------------------------------

    def told(self, message: NodeMessage | Forwarded) -> None:
        """Take in what another node says, or this one to itself."""
        match message:
            case Forwarded():
                for payload in message.payloads:
                    self._proposals.propose_here(payload)
            case LeaseGranted():
                if self._reporter.granted(message, self._life.now()):
                    self._life.lease_resumed()
            case LeaseRefused():
                if self._reporter.is_over(message):
                    self._life.node.superseded()
            case _:
                self._controller_driver.told(message)

    def _say(self) -> None:
        voter = self._voter.life
        if voter is not None:
            for message in self._reporter.due_messages(voter.raft.leader, voter.raft.term, self._life.now()):
                self._tell(message)

    def _tell(self, message: NodeMessage) -> None:
        if message.target == self._name:
            self.told(message)
        else:
            self._world.saying.send((self._name, message.target), message)


def _no_outcome(_: Events | None) -> None:
    """Take no notice: what came of it shows in the rows."""
