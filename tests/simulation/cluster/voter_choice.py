"""The members of the metadata group as the product's controller chooses them.

Every node needs the log here, as none observes it: a node without a vote is a learner of the simulated group
at all times, and the controller is shown those alone that it has asked for. It is shown names with disks, of
which the group knows only the node: no metadata log is lost in these clusters.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from envelope.types import NodeId
from metadata.members import member_name, node_of
from metadata.raft.configuration import Configuration, QuorumState
from metadata.raft.events import ChangeMembers

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World


class VoterChoice:
    """One life's view of the members, and what its controller makes of them."""

    def __init__(self, world: "World", name: NodeId) -> None:
        self._world, self._voter = world, world.voters[name]
        self._catalog = world.machines[name].catalog
        self._asked_for: set[NodeId] = set()
        """Learners that this life has asked for."""

    def quorum(self) -> QuorumState | None:
        """Return what the controller is shown; None if this voter does not lead."""
        quorum = None if self._voter.life is None else self._voter.life.raft.quorum
        if quorum is None:
            return None
        members = quorum.configuration
        return QuorumState(
            leader=self._member(quorum.leader),
            configuration=Configuration(
                self._members(members.voters),
                self._members(members.outgoing),
                self._members(name for name in members.learners if name in self._asked_for),
            ),
            is_changing=quorum.is_changing,
            is_first=quorum.is_first,
            heard_at={self._member(name): at for name, at in quorum.heard_at.items()},
        )

    def change(self, change: ChangeMembers) -> None:
        """Have the group change; it may refuse."""
        voters = set(map(node_of, change.voters))
        self._asked_for = set(map(node_of, change.learners))
        learners = set(self._world.swarm.nodes) - voters
        self._voter.change(tuple(sorted(voters)), tuple(sorted(learners)), self._answered, is_late_too=True)

    def _answered(self, count: int | None, leader: NodeId | None) -> None:
        if count is not None:
            self._world.trace.counts["voters_chosen"] += 1

    def _members(self, names: Iterable[NodeId]) -> tuple[NodeId, ...]:
        return tuple(map(self._member, names))

    def _member(self, name: NodeId) -> NodeId:
        row = self._catalog.node(name)
        return name if row is None else member_name(name, row.directory)
