"""One seed's run: a phase in which everything goes wrong, then one in which everything is owned again."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from tests.simulation.groups.client import Client
from tests.simulation.groups.coordinator_node import CoordinatorNode
from tests.simulation.groups.faults import Faults
from tests.simulation.groups.process import Process
from tests.simulation.groups.swarm import draw
from tests.simulation.groups.world import World
from tests.simulation.outcome import Case, Outcome, Patience, run_case
from tests.simulation.trace import Trace

SAFETY_STEPS_MAX: Final = 1_500
"""Events given to coordinators before healing: many short runs find more than a few long ones."""


class _Run(Case):
    def __init__(self, seed: int, trace: Trace) -> None:
        rng = Random(seed)
        self._world = world = World(rng, draw(rng), trace)
        swarm = world.swarm
        patience = Patience(swarm.healing_max, steps_max=40_000, look_every=swarm.heartbeat // 4)
        super().__init__(world.timeline, swarm.safety_end, SAFETY_STEPS_MAX, patience)
        if trace.on:
            trace.line(0, "----", f"seed {seed}: {swarm}")
        self._processes: dict[str, Process] = {}
        self._node = CoordinatorNode(world)
        for name in swarm.processes:
            self._processes[name] = process = Process(world, name, name)
            twin = f"{name}'"
            self._processes[twin] = Process(world, twin, name)
            world.timeline.after(world.delay(swarm.heartbeat), process.start)
        self.faults = Faults(world, self._node, self._processes)

    @property
    def steps(self) -> int:
        """How many events machines were given."""
        return self._world.steps

    @property
    def committed(self) -> int:
        """How many generations there were."""
        durable = self._world.checks.durable
        return 0 if durable is None else durable.generation

    @property
    def answered(self) -> int:
        """How many commits were allowed."""
        return self._world.trace.counts["commitallowed"]

    def begin_healing(self) -> None:
        """Let nothing go wrong from now on."""
        self._world.healing = True

    def is_settled(self) -> bool:
        """Tell whether each partition is read by one client, which has committed for it, and all is quiet."""
        world, state = self._world, self._world.checks.durable
        living = list(self._living())
        if state is None or not self._node.rests or not all(client.rests for client in living):
            return False
        asked = {client.client: client.streams for client in living}
        if asked != {member.client: member.streams for member in state.members.values()}:
            return False
        reads = [partition for client in living for partition in client.reads]
        acked = {partition for client in living for partition in client.acked & client.reads.keys()}
        streams = frozenset(name for client in living for name in client.streams)
        return sorted(reads) == sorted(world.wanted(streams)) and acked == set(reads)

    def text(self) -> str:
        """Return what the group and its clients are now."""
        clients = (
            f"{one.client}={one.member_id} {'' if one.rests else 'restless '}{len(one.reads)}"
            for one in self._living()
        )
        return f"{self._node}; {', '.join(clients)}; {self._world.partitions}"

    def _living(self) -> Iterator[Client]:
        for process in self._processes.values():
            yield from (client for client in process.clients if not client.stopped)


def run(seed: int, write: Callable[[str], object] | None = None) -> Outcome:
    """Run one seed; ``write`` takes the lines of its trace."""
    return run_case(seed, lambda trace: _Run(seed, trace), write)
