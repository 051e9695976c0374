"""One seed's run: a phase in which everything goes wrong, then one in which everything is owned again."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from consumer_groups.assignment.partitions import GroupName
from tests.simulation.groups.client import Client
from tests.simulation.groups.coordinators import Coordinators
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
        self._coordinators = Coordinators(world)
        for number, name in enumerate(swarm.processes):
            group = swarm.groups[number % len(swarm.groups)]
            self._processes[name] = process = Process(world, name, group, name)
            twin = f"{name}'"
            self._processes[twin] = Process(world, twin, group, name)
            world.timeline.after(world.delay(swarm.heartbeat), process.start)
        self.faults = Faults(world, self._coordinators, self._processes)

    @property
    def steps(self) -> int:
        """How many events machines were given."""
        return self._world.steps

    @property
    def committed(self) -> int:
        """How many writes there were."""
        return len(self._world.log.entries)

    @property
    def answered(self) -> int:
        """How many commits were answered."""
        return self._world.trace.counts["said_cursorscommitted"]

    def begin_healing(self) -> None:
        """Let nothing go wrong from now on."""
        self._world.healing = True

    def is_settled(self) -> bool:
        """Tell whether each partition is read to its end by one member, which has committed that."""
        return self._coordinators.rests and all(map(self._is_settled, self._world.swarm.groups))

    def _is_settled(self, group: GroupName) -> bool:
        world, state = self._world, self._world.checks[group].durable
        living = list(self._living(group))
        if state is None or not all(client.rests for client in living):
            return not living
        asked = {client.client: client.streams for client in living}
        if asked != {member.client: member.streams for member in state.members.values()}:
            return False
        reads = [claim.partition for client in living for claim in client.readings.claims()]
        acked = {partition for client in living for partition in client.acked if partition in client.readings}
        wanted = world.streams.wanted(frozenset(name for client in living for name in client.streams))
        if sorted(reads) != sorted(wanted) or acked != wanted:
            return False
        delivered = world.cursor_checks[group].delivered_end
        return all(delivered(partition) == world.streams.ends[partition] for partition in wanted)

    def text(self) -> str:
        """Return what the groups and their clients are now."""
        clients = (
            f"{one.client}={one.member_id} {'' if one.rests else 'restless '}"
            f"{len(one.readings.ready())}/{len(one.readings)}, {len(one.acked)} acked"
            for group in self._world.swarm.groups
            for one in self._living(group)
        )
        return f"{self._coordinators}; {'; '.join(clients)}; {self._world.streams.counts}"

    def _living(self, group: GroupName) -> Iterator[Client]:
        for process in self._processes.values():
            if process.group == group:
                yield from (client for client in process.clients if not client.stopped)


def run(seed: int, write: Callable[[str], object] | None = None) -> Outcome:
    """Run one seed; ``write`` takes the lines of its trace."""
    return run_case(seed, lambda trace: _Run(seed, trace), write)
