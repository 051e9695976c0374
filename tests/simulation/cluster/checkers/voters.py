"""The voters that a controller chooses: as many as are wanted, learners first, and none is given up that is
heard; and in the end no dead one has a vote that a living node could have.

A choice is judged by what its controller is shown, but for who is heard: that is recorded here.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from envelope.types import NodeId
from metadata.members import node_of
from metadata.raft.configuration import QuorumState
from metadata.raft.events import ChangeMembers
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World


class Voters:
    """Every choice of a controller, and where they lead to."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def chosen(self, name: NodeId, quorum: QuorumState, change: ChangeMembers, wanted: int | None) -> None:
        """Judge what the controller at ``name`` wants, by the number in its own catalogue.

        Raises:
            Violation: the group must not have these voters.
        """
        before, after = set(quorum.configuration.voters), set(change.voters)
        what = f"{name} makes {sorted(after)} of {quorum.configuration}"
        if not after - before <= set(quorum.configuration.learners):
            raise Violation(f"{what}: a voter that was no learner")
        if quorum.leader not in after:
            raise Violation(f"{what}: without the leader")
        if after != before and len(after) % 2 == 0:
            raise Violation(f"{what}: an even number of voters")
        fewest = len(before) if wanted is None else min(wanted, len(before))
        if len(after) < fewest - (fewest % 2 == 0):
            raise Violation(f"{what}: fewer voters, though {wanted} are wanted")
        if after != before:
            kind = (
                "fewer" if len(after) < len(before) else "more" if len(after) > len(before) else "exchanged"
            )
            self._world.trace.counts[f"{kind}_voters"] += 1
        if len(after) >= len(before):
            for voter in sorted(before - after):
                self._check_given_up(name, node_of(voter), what)

    def _check_given_up(self, name: NodeId, voter: NodeId, what: str) -> None:
        """Raise if a voter is replaced that was heard; half of the time is left to clocks that differ."""
        world = self._world
        heard_at = world.raft.checks.heard.get((name, voter))
        silence = world.swarm.controller.voter_replace_after_ns // 2
        is_heard = heard_at is not None and world.timeline.now - heard_at < silence
        if is_heard and not world.nodes[name].jumps:
            raise Violation(f"{what}: {voter} is given up as dead, and was heard")

    def are_as_wanted(self, dead: Collection[NodeId]) -> bool:
        """Tell whether nothing is left to change, where only ``dead`` are dead and nothing goes wrong."""
        world = self._world
        leader = next(voter.life for voter in world.voters.values() if voter.leading)
        assert leader is not None, "a leader is alive"
        voters = set(leader.raft.configuration.voters)
        living = set(world.swarm.nodes).difference(dead)
        wanted = world.replicas.checks.catalog.cluster.voters_wanted
        number = max(3, len(voters)) if wanted is None else wanted
        is_full = len(voters) == number or (len(voters) < number and len(living) < len(voters) + 2)
        return len(voters) % 2 == 1 and is_full and (voters <= living or living <= voters)
