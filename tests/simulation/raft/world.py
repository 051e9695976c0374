"""What the parts of one run share."""

from collections.abc import Callable, Collection
from random import Random

from envelope.types import NodeId
from metadata.raft.events import Persist
from metadata.raft.messages.voter_messages import AppendResponse, Message, VoteRequest, VoteResponse
from metadata.raft.settings import RaftSettings
from tests.simulation.network import Network
from tests.simulation.raft.checkers.applied import Applied
from tests.simulation.raft.checkers.commits import Commits
from tests.simulation.raft.checkers.disks import check_write
from tests.simulation.raft.checkers.elections import Elections
from tests.simulation.raft.checkers.log_matching import LogMatching
from tests.simulation.raft.checkers.members import Members, are_majority
from tests.simulation.raft.checkers.promises import Promises
from tests.simulation.raft.checkers.reads import History, Reads
from tests.simulation.raft.disk import LogImage
from tests.simulation.raft.disk_losses import DiskLosses
from tests.simulation.raft.state_machine import State, StateMachine
from tests.simulation.raft.swarm import Swarm
from tests.simulation.raft.tally import Tally
from tests.simulation.timeline import Timeline
from tests.simulation.trace import Trace


class Checks:
    """Every checker, told of what concerns several of them in one call."""

    def __init__(self, disks: dict[NodeId, LogImage], beginning: State, founders: frozenset[NodeId]) -> None:
        self.disks = disks
        self.asked: dict[NodeId, LogImage] = {}
        """The logs of the voters that are alive as they want them, ahead of their disks."""
        self.elections = Elections()
        self.log_matching = LogMatching()
        self.members = Members(founders)
        self.commits = Commits(disks, self.members)
        self.promises = Promises(disks)
        self.applied = Applied(beginning)
        self.reads = Reads()
        self.history = History()
        self.heard: dict[tuple[NodeId, NodeId], int] = {}
        """When a leader was last given an answer of its term by another member."""

    def write(self, name: NodeId, persist: Persist) -> None:
        """A write becomes durable on the disk ``name``."""
        disk = self.disks[name]
        check_write(name, disk, persist)
        lost = disk.write(persist)
        self.promises.wrote(name)
        if lost:
            self.commits.lost(name)
        for send in persist.then:
            self.promised(send.message)

    def disk_lost(self, name: NodeId, disk: LogImage) -> None:
        """A voter starts with an empty disk in place of ``disk``."""
        self.promises.disk_lost(name)
        self.commits.disk_lost(name, disk)

    def sent(self, message: Message) -> None:
        """A message leaves that waited for nothing."""
        self.elections.sent(message)
        self.promised(message)

    def promised(self, message: Message) -> None:
        """A message may leave from now on."""
        if isinstance(message, VoteRequest) or (isinstance(message, VoteResponse) and message.granted):
            self.commits.votes(message.source)
        leader_log = None
        if isinstance(message, AppendResponse):
            log = self.asked.get(message.target)
            if log is not None and self.elections.leads(message.target, message.term):
                leader_log = log if log.hard_state.term == message.term else None
        self.promises.sent(message, leader_log)


class World:
    """One run's time, chance, network, disks and checkers."""

    def __init__(
        self,
        rng: Random,
        swarm: Swarm,
        trace: Trace,
        timeline: Timeline | None = None,
        new_machine: Callable[[NodeId], StateMachine] = lambda voter: Tally(),
        losses: Random | None = None,
    ) -> None:
        """Begin empty.

        Args:
            rng: all chance.
            swarm: what kind of world it is.
            trace: takes what happens.
            timeline: where others take part too.
            new_machine: returns a voter's state machine, before the first entry, for a new life of it.
            losses: the chance by which disks are lost; None: that of all.
        """
        self.rng, self.swarm, self.trace = rng, swarm, trace
        self.timeline = timeline or Timeline()
        self.new_machine = new_machine
        self.network: Network[Message] = Network(self.timeline, rng, swarm.weather)
        self.settings = RaftSettings(
            election_timeout_ns=swarm.election_timeout,
            heartbeat_interval_ns=swarm.heartbeat_interval,
            append_bytes_max=swarm.append_bytes_max,
            appends_in_flight_max=swarm.appends_in_flight_max,
            entries_in_flight_max=swarm.entries_in_flight_max,
        )
        self.disks = {name: LogImage() for name in swarm.machines}
        self.disk_losses = DiskLosses(losses or rng, swarm.disk_loss, self.disks)
        self.checks = Checks(self.disks, new_machine(swarm.voters[0]).state, frozenset(swarm.voters))
        self.steps = 0
        self.healing = False
        self._tokens = 0

    def can_do_without(self, dead: Collection[NodeId]) -> bool:
        """Tell whether the others decide, whichever of the configurations in any log comes to be in force."""
        alive = set(self.disks).difference(dead)
        logs = (*self.disks.values(), *self.checks.asked.values())
        return all(are_majority(alive, self.checks.members.by(log)) for log in logs)

    def new_token(self) -> int:
        """Return a number that no read had before."""
        self._tokens += 1
        return self._tokens
