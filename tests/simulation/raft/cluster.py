"""One seed's run: a phase in which everything goes wrong, then one in which everything must converge."""

from collections.abc import Callable
from random import Random
from typing import Final

from envelope.types import NodeId
from tests.simulation.clock import DriftingClock
from tests.simulation.outcome import Case, Outcome, Patience, run_case
from tests.simulation.raft.client import Client
from tests.simulation.raft.faults import Faults
from tests.simulation.raft.member_changes import MemberChanges
from tests.simulation.raft.swarm import ELECTION_TIMEOUT, draw, with_losses_or_strangers
from tests.simulation.raft.voter import Voter, group_text, is_one_group
from tests.simulation.raft.world import World
from tests.simulation.trace import Trace

SAFETY_STEPS_MAX: Final = 600
"""Events given to voters before healing: many short runs find more than a few long ones."""
_PATIENCE: Final = Patience(100 * ELECTION_TIMEOUT, steps_max=20_000)


class _Run(Case):
    def __init__(self, seed: int, trace: Trace) -> None:
        rng = Random(seed)
        losses = Random(f"disks of {seed}")
        swarm = with_losses_or_strangers(draw(rng), losses)
        self._world = world = World(rng, swarm, trace, losses=losses)
        super().__init__(world.timeline, world.swarm.safety_end, SAFETY_STEPS_MAX, _PATIENCE)
        if trace.on:
            trace.line(0, "----", f"seed {seed}: {world.swarm}")
        self._voters: dict[NodeId, Voter] = {}
        for name in swarm.machines:
            clock = DriftingClock(rng.randint(0, 10**12), rng.randint(-1, 1) * world.swarm.drift_ppm)
            self._voters[name] = Voter(world, name, self.died, clock)
            self._voters[name].start()
        self._clients = [
            Client(world, f"c{number}", self._voters) for number in range(1, world.swarm.clients + 1)
        ]
        if swarm.strangers:
            MemberChanges(world, self._voters, Random(f"members of {seed}"))
        self.faults = self._faults = Faults(world, self._voters)

    @property
    def steps(self) -> int:
        """How many events voters were given."""
        return self._world.steps

    @property
    def committed(self) -> int:
        """The highest index that was committed."""
        return self._world.checks.commits.commit

    @property
    def answered(self) -> int:
        """How many proposals and reads were answered."""
        return sum(client.answered for client in self._clients)

    def begin_healing(self) -> None:
        """Let nothing go wrong from now on."""
        self._world.healing = True

    def is_settled(self) -> bool:
        """Tell whether all that live agree, and every client is answered."""
        return all(client.done for client in self._clients) and is_one_group(
            self._voters.values(), self._faults.left_dead
        )

    def text(self) -> str:
        """Return what every voter is now, and which clients wait."""
        clients = [f"c{number}" for number, client in enumerate(self._clients, 1) if not client.done]
        return f"{group_text(self._voters.values())}; unanswered: {clients}"


def run(seed: int, write: Callable[[str], object] | None = None) -> Outcome:
    """Run one seed; ``write`` takes the lines of its trace."""
    return run_case(seed, lambda trace: _Run(seed, trace), write)
