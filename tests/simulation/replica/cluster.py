"""One seed's run: a phase in which everything goes wrong, then one in which everything must converge."""

from collections.abc import Callable
from random import Random
from typing import Final

from envelope.types import NodeId
from tests.simulation.outcome import Case, Outcome, Patience, run_case
from tests.simulation.replica.clients import Clients
from tests.simulation.replica.faults import Faults
from tests.simulation.replica.node import SimulatedNode
from tests.simulation.replica.service_world import ServiceWorld
from tests.simulation.replica.swarm import (
    LEASE,
    draw,
    with_damage,
    with_dedupe_windows,
    with_lost_logs,
    with_promises,
    with_read_replicas,
    with_unclean_elections,
)
from tests.simulation.trace import Trace

SAFETY_STEPS_MAX: Final = 1_500
"""Events given to machines before healing: many short runs find more than a few long ones."""
_PATIENCE: Final = Patience(60 * LEASE, steps_max=40_000, look_every=LEASE // 10)
_RECORDED_SEEDS: Final = 10_000
"""Below it seeds keep the clusters in which deliberate bugs were found."""

_WINDOWED_SEEDS: Final = 10_000_000
"""Below it seeds keep the clusters in which everything else was found."""


class _Run(Case):
    def __init__(self, seed: int, trace: Trace) -> None:
        rng = Random(seed)
        frugal = seed >= _RECORDED_SEEDS and seed % 3 == 0
        swarm = draw(rng, frugal=frugal)
        if seed >= _RECORDED_SEEDS:
            swarm = with_promises(swarm, Random(f"promises {seed}"))
            swarm = with_read_replicas(swarm, Random(f"readers {seed}"))
            swarm = with_unclean_elections(swarm, Random(f"unclean {seed}"))
            swarm = with_damage(swarm, Random(f"damage {seed}"))
            swarm = with_lost_logs(swarm, Random(f"lost {seed}"))
        if seed >= _WINDOWED_SEEDS:
            swarm = with_dedupe_windows(swarm, Random(f"windows {seed}"))
        self._world = world = ServiceWorld(rng, swarm, trace)
        super().__init__(world.timeline, world.swarm.safety_end, SAFETY_STEPS_MAX, _PATIENCE)
        if trace.on:
            trace.line(0, "----", f"seed {seed}: {world.swarm}")
        nodes: dict[NodeId, SimulatedNode] = {}
        for name in world.swarm.nodes:
            nodes[name] = SimulatedNode(world, name, self.died)
        self._clients = Clients(world, nodes)
        self.faults = self._faults = Faults(world, nodes, self._clients.publisher_names)

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
        self._world.healing = True

    def is_settled(self) -> bool:
        """Tell whether all that live serve."""
        return self._clients.ending.is_settled(self._faults.left_dead)

    def text(self) -> str:
        """Return what every stream and replica is now."""
        return self._clients.ending.text()

    def check_the_end(self) -> None:
        """Check that all that was promised is there."""
        self._clients.ending.check(self._faults.left_dead)


def run(seed: int, write: Callable[[str], object] | None = None) -> Outcome:
    """Run one seed; ``write`` takes the lines of its trace."""
    return run_case(seed, lambda trace: _Run(seed, trace), write)
