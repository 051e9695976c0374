"""One seed's run: a phase in which everything goes wrong, then one in which everything must converge."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from envelope.types import NodeId
from tests.simulation.raft.client import Client
from tests.simulation.raft.faults import Faults
from tests.simulation.raft.swarm import ELECTION_TIMEOUT, draw
from tests.simulation.raft.voter import Voter
from tests.simulation.raft.world import World
from tests.simulation.trace import Trace
from tests.simulation.violation import Violation

SAFETY_STEPS_MAX: Final = 600
"""Events given to voters before healing: many short runs find more than a few long ones."""
_HEALING_MAX: Final = 100 * ELECTION_TIMEOUT
_HEALING_STEPS_MAX: Final = 20_000
_BROKEN: Final = (Violation, AssertionError, LookupError, TypeError, ValueError, AttributeError)
"""What a checker, or an invariant of the product, raises; and what a bug in the product may."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    problem: str | None
    steps: int
    answered: int
    commit: int
    healing_ns: int
    counts: Counter[str]


class _Run:
    def __init__(self, seed: int, trace: Trace) -> None:
        rng = Random(seed)
        self.world = world = World(rng, draw(rng), trace)
        if trace.on:
            trace.line(0, "----", f"seed {seed}: {world.swarm}")
        self.voters: dict[NodeId, Voter] = {}
        for name in world.swarm.voters:
            self.voters[name] = Voter(world, name, self._died)
        self.clients = [
            Client(world, f"c{number}", self.voters) for number in range(1, world.swarm.clients + 1)
        ]
        self.faults = Faults(world, self.voters)
        self.healing_ns = 0

    def _died(self, name: NodeId) -> None:
        self.faults.died(name)

    def endure(self) -> None:
        """Run the phase of faults."""
        world = self.world
        while world.steps < SAFETY_STEPS_MAX and world.timeline.take_next(world.swarm.safety_end):
            pass

    def converge(self) -> None:
        """Heal, and wait until all that live agree and every client is answered; then with all."""
        begun_at = self.world.timeline.now
        self.world.healing = True
        self.faults.heal()
        self._wait_until_settled()
        self.healing_ns = self.world.timeline.now - begun_at
        self.faults.revive()
        self._wait_until_settled()

    def _wait_until_settled(self) -> None:
        timeline, steps = self.world.timeline, self.world.steps
        deadline = timeline.now + _HEALING_MAX
        while not self._is_settled():
            late = not timeline.take_next(deadline)
            if late or self.world.steps > steps + _HEALING_STEPS_MAX:
                raise Violation(f"not converged: {self._state()}")

    def _is_settled(self) -> bool:
        if not all(client.done for client in self.clients):
            return False
        leaders = [voter for voter in self.voters.values() if voter.leading]
        if len(leaders) != 1:
            return False
        leader = leaders[0].life
        assert leader is not None, "a leader is alive"
        lives = [voter.life for voter in self.voters.values() if voter.life is not None]
        return len(lives) == len(self.voters) - self.faults.left_dead and all(
            life.raft.leader == leader.name and life.applied == leader.raft.last_index for life in lives
        )

    def _state(self) -> str:
        voters = [f"{voter.name}: {voter.life and voter.life.raft}" for voter in self.voters.values()]
        clients = [f"c{number}" for number, client in enumerate(self.clients, 1) if not client.done]
        return "; ".join(voters) + f"; unanswered: {clients}"


def run(seed: int, write: Callable[[str], object] | None = None) -> Outcome:
    """Run one seed; ``write`` takes the lines of its trace."""
    trace = Trace(write)
    case: _Run | None = None
    problem = None
    try:
        case = _Run(seed, trace)
        case.endure()
        case.converge()
    except _BROKEN as error:
        problem = f"{type(error).__name__}: {error}"
        if case is not None and trace.on:
            trace.line(case.world.timeline.now, "!!!!", problem)
    if case is None:
        return Outcome(seed, problem, 0, 0, 0, 0, trace.counts)
    answered = sum(client.answered for client in case.clients)
    commit = case.world.checks.commits.commit
    return Outcome(seed, problem, case.world.steps, answered, commit, case.healing_ns, trace.counts)
