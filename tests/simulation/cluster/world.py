"""What the parts of one run share: the worlds of the two other simulators, on one clock and one chance."""

from random import Random
from typing import TYPE_CHECKING

from envelope.types import NodeId
from metadata.catalog.events import CommandRefused, Events
from metadata.raft.messages.node_messages import NodeMessage
from metadata.raft.messages.wire import Forwarded
from tests.simulation.cluster.catalog_machine import CatalogMachine
from tests.simulation.cluster.checkers.controller_drivers import ControllerDrivers
from tests.simulation.cluster.checkers.voters import Voters
from tests.simulation.cluster.member import Member
from tests.simulation.cluster.swarm import Swarm
from tests.simulation.network import Network
from tests.simulation.raft.voter import Voter
from tests.simulation.raft.world import World as RaftWorld
from tests.simulation.replica.metadata_service import row_text, rows_of
from tests.simulation.replica.world import World as ReplicaWorld
from tests.simulation.timeline import Timeline
from tests.simulation.trace import Trace

if TYPE_CHECKING:
    from tests.simulation.cluster.node import ClusterNode
    from tests.simulation.replica.life import Life


class World:
    """One run; ``saying`` carries what nodes and the metadata leader say to each other."""

    def __init__(self, rng: Random, swarm: Swarm, trace: Trace) -> None:
        self.rng, self.swarm, self.trace = rng, swarm, trace
        self.timeline = timeline = Timeline()
        self.machines: dict[NodeId, CatalogMachine] = {}
        """Of the voters' present lives."""
        self.voters: dict[NodeId, Voter] = {}
        self.raft = RaftWorld(rng, swarm.raft, trace, timeline, self._new_machine)
        self.replicas = ReplicaWorld(rng, swarm.replica, trace, self._new_link, timeline)
        self.saying: Network[NodeMessage | Forwarded] = Network(timeline, rng, swarm.saying)
        self.stewards = ControllerDrivers(self)
        self.chosen_voters: Voters | None = None
        """Judges the voters, where controllers choose them; None: chance does."""
        self.nodes: dict[NodeId, ClusterNode] = {}
        self._applied = 0

    @property
    def steps(self) -> int:
        """How many events machines were given."""
        return self.raft.steps + self.replicas.steps

    @property
    def healing(self) -> bool:
        """Whether nothing goes wrong any more."""
        return self.raft.healing

    def heal(self) -> None:
        """Let nothing go wrong from now on."""
        self.raft.healing = self.replicas.healing = True

    def applied(self, machine: CatalogMachine, events: Events) -> None:
        """A voter has applied an entry; if it is the first, the catalogue has changed for everybody."""
        if machine.index <= self._applied:
            return
        self._applied = machine.index
        machine.catalog.audit()
        if isinstance(events[0], CommandRefused):
            self.trace.counts["command_refused"] += 1
        if self.trace.on:
            rows = " ".join(map(row_text, rows_of(events)))
            self.replicas.note("meta", f"{machine.index}: {rows or type(events[0]).__name__}")
        self.stewards.applied(events, machine.deciding)
        self.replicas.checks.catalog_changed(machine.catalog)

    def _new_machine(self, voter: NodeId) -> CatalogMachine:
        machine = self.machines[voter] = CatalogMachine()
        return machine

    def _new_link(self, life: "Life") -> Member:
        return Member(self, life)
