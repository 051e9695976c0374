"""One seed's run: a phase in which everything goes wrong, then one in which everything must converge."""

from collections.abc import Callable
from random import Random
from typing import Final

from tests.simulation.cluster.checkers.voters import Voters
from tests.simulation.cluster.faults import Faults
from tests.simulation.cluster.node import ClusterNode
from tests.simulation.cluster.operator import Operator, VoterNumbers
from tests.simulation.cluster.swarm import draw, with_lost_logs
from tests.simulation.cluster.world import World
from tests.simulation.outcome import Case, Outcome, Patience, run_case
from tests.simulation.raft.member_changes import MemberChanges
from tests.simulation.raft.voter import group_text, is_one_group
from tests.simulation.replica.clients import Clients
from tests.simulation.replica.swarm import LEASE
from tests.simulation.trace import Trace

SAFETY_STEPS_MAX: Final = 3_000
"""Events given to machines before healing."""
_CHOSEN_VOTERS: Final = 0.5
"""Share of the clusters in which controllers choose the voters; in each other one chance does."""
_PATIENCE: Final = Patience(100 * LEASE, steps_max=100_000, look_every=LEASE // 10)


class _Run(Case):
    def __init__(self, seed: int, trace: Trace) -> None:
        rng = Random(seed)
        self._world = world = World(rng, with_lost_logs(draw(rng), Random(f"lost {seed}")), trace)
        super().__init__(world.timeline, world.swarm.replica.safety_end, SAFETY_STEPS_MAX, _PATIENCE)
        if trace.on:
            trace.line(0, "----", f"seed {seed}: {world.swarm}")
        for name in world.swarm.nodes:
            world.nodes[name] = ClusterNode(world, name, self.died)
        operator, members = Operator(world), Random(f"members of {seed}")
        if Random(f"chosen {seed}").random() < _CHOSEN_VOTERS:
            world.chosen_voters = Voters(world)
            VoterNumbers(world, operator, members)
        else:
            MemberChanges(world.raft, world.voters, members, keep_all=True)
        self._clients = Clients(world.replicas, world.nodes)
        self.faults = self._faults = Faults(world, operator, self._clients.publisher_names)

    @property
    def steps(self) -> int:
        """How many events machines were given."""
        return self._world.steps

    @property
    def committed(self) -> int:
        """How many records were committed."""
        return self._clients.committed

    @property
    def answered(self) -> int:
        """How many values were acked."""
        return self._clients.acked

    def begin_healing(self) -> None:
        """Let nothing go wrong from now on."""
        self._world.heal()

    def is_settled(self) -> bool:
        """Tell whether there are all streams, one metadata group, and all that live serve."""
        world, left_dead = self._world, self._faults.left_dead
        return (
            world.replicas.checks.catalog.count_streams() == len(world.swarm.replica.streams)
            and is_one_group(world.voters.values(), left_dead)
            and (world.chosen_voters is None or world.chosen_voters.are_as_wanted(left_dead))
            and self._clients.ending.is_settled(left_dead)
        )

    def text(self) -> str:
        """Return what every voter, stream and replica is now."""
        return f"{group_text(self._world.voters.values())}; {self._clients.ending.text()}"

    def check_the_end(self) -> None:
        """Check that all that was promised is there."""
        self._clients.ending.check(self._faults.left_dead)


def run(seed: int, write: Callable[[str], object] | None = None) -> Outcome:
    """Run one seed; ``write`` takes the lines of its trace."""
    return run_case(seed, lambda trace: _Run(seed, trace), write)
