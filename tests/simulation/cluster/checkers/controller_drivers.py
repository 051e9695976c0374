"""One leader in every epoch of a stream; and nobody is replaced as dead while its lease is valid.

The second is judged when a controller decides, and only of what comes of it: one that is not the newest any
more may wish for anything. It does not hold for a controller whose clock has jumped.
"""

from typing import TYPE_CHECKING, Final

from envelope.types import LeaderEpoch, NodeId, StreamName
from metadata.catalog.commands import ChangeLeader
from metadata.catalog.events import Events, LeaderChanged
from metadata.raft.messages.node_messages import LeaseAsked, NodeUnheardReport, StopAnnounced
from metadata.raft.proposals import ProposalId
from tests.simulation.replica.metadata_service import is_wanted
from tests.simulation.replica.swarm import LEASE
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

_LONG_AGO: Final = -(2**62)


class Reigns:
    """Who was elected to lead a stream in which epoch."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[StreamName, LeaderEpoch], NodeId] = {}
        self._newest: dict[StreamName, LeaderEpoch] = {}

    def applied(self, events: Events) -> None:
        """The catalogue has applied a command.

        Raises:
            Violation: an epoch has two leaders, or a newer one was there before.
        """
        for event in events:
            if isinstance(event, LeaderChanged):
                stream = event.stream
                newest = self._newest.setdefault(stream.name, stream.leader_epoch)
                if stream.leader_epoch < newest:
                    raise Violation(f"{stream.name} goes back from epoch {newest} to {stream.leader_epoch}")
                self._newest[stream.name] = stream.leader_epoch
                if stream.leader is not None:
                    self._led(stream.name, stream.leader_epoch, stream.leader)

    def _led(self, stream: StreamName, epoch: LeaderEpoch, leader: NodeId) -> None:
        known = self._leaders.setdefault((stream, epoch), leader)
        if known != leader:
            raise Violation(f"epoch {epoch} of {stream} is given to {known} and to {leader}")


class ControllerDrivers:
    """What controllers are told and want."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._reigns = Reigns()
        self._unheard_at: dict[NodeId, int] = {}
        self._jumps: dict[NodeId, int] = {}
        self._wrong: dict[ProposalId, str] = {}
        """What is wrong with a decision, if anything comes of it."""

    def applied(self, events: Events, proposal_id: ProposalId | None) -> None:
        """The catalogue has applied a command.

        Raises:
            Violation: an election that nothing called for.
        """
        self._reigns.applied(events)
        wrong = None if proposal_id is None else self._wrong.get(proposal_id)
        if wrong is not None and isinstance(events[0], LeaderChanged):
            raise Violation(wrong)

    def told(self, message: LeaseAsked | NodeUnheardReport | StopAnnounced) -> None:
        """A metadata leader hears something that may be a reason to replace a living leader."""
        if isinstance(message, NodeUnheardReport):
            self._unheard_at[message.node] = self._world.timeline.now
        elif isinstance(message, StopAnnounced):
            self._world.replicas.checks.leases.stopping(message.source)

    def begun(self, name: NodeId) -> None:
        """There is a controller at ``name``."""
        self._jumps[name] = self._world.nodes[name].jumps

    def proposes(self, proposal_id: ProposalId, wrong: str | None) -> None:
        """A controller's decision is proposed; ``wrong`` is what `judge` said of it."""
        if wrong is not None:
            self._wrong[proposal_id] = wrong

    def judge(self, name: NodeId, command: ChangeLeader) -> str | None:
        """Return what is wrong with an election that the controller at ``name`` decides on now."""
        world = self._world
        node, member = world.nodes[name], world.nodes[name].member
        row = member.catalog.stream(command.stream) if member is not None else None
        if row is None or row.leader is None or row.leader_epoch != command.expected_leader_epoch:
            return None
        valid = world.swarm.controller.report_valid_ns + LEASE
        was_reported = world.timeline.now - self._unheard_at.get(row.leader, _LONG_AGO) < valid
        is_move = world.swarm.replica.moves and is_wanted(row, command.leader)
        if node.jumps != self._jumps.get(name) or was_reported or is_move:
            return None
        try:
            world.replicas.checks.leases.replaced(row)
        except Violation as violation:
            return str(violation)
        return None
