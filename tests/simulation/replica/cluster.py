"""One seed's run: a phase in which everything goes wrong, then one in which everything must converge."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from envelope.types import NodeId
from metadata.catalog.tables import Stream
from tests.simulation.replica.faults import Faults
from tests.simulation.replica.node import SimulatedNode
from tests.simulation.replica.publisher import Publisher
from tests.simulation.replica.reader import Reader
from tests.simulation.replica.swarm import LEASE, draw
from tests.simulation.replica.world import World
from tests.simulation.trace import Trace
from tests.simulation.violation import Violation

SAFETY_STEPS_MAX: Final = 1_500
"""Events given to machines before healing: many short runs find more than a few long ones."""
_HEALING_MAX: Final = 60 * LEASE
_HEALING_STEPS_MAX: Final = 40_000
_BROKEN: Final = (Violation, AssertionError, LookupError, TypeError, ValueError, AttributeError)
"""What a checker, or an invariant of the product, raises; and what a bug in the product may."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    problem: str | None
    steps: int
    committed: int
    acked: int
    healing_ns: int
    counts: Counter[str]


_RECORDED_SEEDS: Final = 10_000
"""Below it seeds keep the clusters in which deliberate bugs were found."""


class _Run:
    def __init__(self, seed: int, trace: Trace) -> None:
        rng = Random(seed)
        frugal = seed >= _RECORDED_SEEDS and seed % 3 == 0
        self.world = world = World(rng, draw(rng, frugal=frugal), trace)
        if trace.on:
            trace.line(0, "----", f"seed {seed}: {world.swarm}")
        self.nodes: dict[NodeId, SimulatedNode] = {}
        for name in world.swarm.nodes:
            self.nodes[name] = SimulatedNode(world, name, self._died)
        world.connections.nodes = self.nodes
        world.checks.leases.left = lambda name: self.nodes[name].lease_left()
        for node in self.nodes.values():
            node.start()
        shapes = world.swarm.streams
        self.publishers = [
            Publisher(world, f"p{number}", shapes[number % len(shapes)])
            for number in range(max(world.swarm.publishers, len(shapes)))
        ]
        self.readers = [
            Reader(world, shapes[number % len(shapes)], self.nodes) for number in range(world.swarm.readers)
        ]
        names = [f"p{number}" for number in range(len(self.publishers))]
        self.faults = Faults(world, self.nodes, names)
        self.healing_ns = 0

    def _died(self, name: NodeId) -> None:
        self.faults.died(name)

    def endure(self) -> None:
        """Run the phase of faults."""
        world = self.world
        while world.steps < SAFETY_STEPS_MAX and world.timeline.take_next(world.swarm.safety_end):
            pass

    def converge(self) -> None:
        """Heal, and wait until all that live agree and every publisher is answered; then with all."""
        world = self.world
        begun_at = world.timeline.now
        world.healing = True
        self.faults.heal()
        self._wait_until_settled()
        self.healing_ns = world.timeline.now - begun_at
        self.faults.revive()
        self._wait_until_settled()
        self._check_the_end()

    def _wait_until_settled(self) -> None:
        timeline, steps = self.world.timeline, self.world.steps
        deadline = timeline.now + _HEALING_MAX
        while not self._is_settled():
            late = not timeline.take_next(min(deadline, timeline.now + LEASE // 10))
            if (timeline.now >= deadline and late) or self.world.steps > steps + _HEALING_STEPS_MAX:
                raise Violation(f"not converged: {self._state()}")

    def _is_settled(self) -> bool:
        streams = self.world.metadata.catalog.streams()
        return all(self._is_lost(stream) or self._is_whole(stream) for stream in streams)

    def _is_lost(self, stream: Stream) -> bool:
        """Tell whether nobody may lead: the last members of the ISR stay dead, or have lost their disks."""
        return not any(
            member.node_id not in self.faults.left_dead
            and self.nodes[member.node_id].directory == member.directory
            for member in stream.isr
        )

    def _is_whole(self, stream: Stream) -> bool:
        left_dead = self.faults.left_dead
        living = [self.nodes[name] for name in stream.replicas if name not in left_dead]
        if len(living) < stream.config.insync_minimum:
            return True
        if stream.leader is None or set(stream.isr_nodes) != {node.name for node in living}:
            return False
        if stream.target is not None and left_dead.isdisjoint(stream.target):
            return False
        if not all(publisher.done for publisher in self.publishers if publisher.stream == stream.name):
            return False
        lives = [node.life for node in living if node.life is not None]
        if not all(stream.name in life.replicas for life in lives):
            return False
        replicas = [life.replicas[stream.name] for life in lives]
        end = self.nodes[stream.leader].images[stream.name].log_end
        return all(
            replica.watermark.offset == replica.image.log_end == replica.image.durable_end == end
            for replica in replicas
        )

    def _check_the_end(self) -> None:
        checks = self.world.checks
        for stream in self.world.metadata.catalog.streams():
            committed = checks.committed[stream.name]
            for reader in self.readers:
                if reader.stream == stream.name:
                    reader.check(committed)
            self.world.trace.counts["refusal_unclear"] += checks.publishing[stream.name].check_refusals()
            if self._is_lost(stream) or len(stream.isr) < stream.config.insync_minimum:
                self.world.trace.counts["stream_lost"] += 1
                continue
            for member in stream.isr_nodes:
                image = self.nodes[member].images[stream.name]
                if image.log_end != committed.end or not committed.is_in(image, committed.end):
                    raise Violation(
                        f"{member} ends with {stream.name} to {image.log_end}; committed is {committed.end}"
                    )
            for value, offset in checks.publishing[stream.name].acked.items():
                if committed.records[offset][1] != value:
                    raise Violation(f"{value} was acked at {offset}: there is {committed.records[offset]}")

    def _state(self) -> str:
        parts = [
            f"{stream.name}: leader {stream.leader} e{stream.leader_epoch} isr {stream.isr_nodes}"
            for stream in self.world.metadata.catalog.streams()
        ]
        for node in self.nodes.values():
            for replica in node.life.replicas.values() if node.life else ():
                machine = replica.reign.leader if replica.reign else replica.follower
                parts.append(f"{replica.title} {machine} to {replica.image.log_end}")
        waiting = [publisher for publisher in self.publishers if not publisher.done]
        return "; ".join(parts) + f"; {len(waiting)} publishers wait"


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
    committed = sum(committed.end for committed in case.world.checks.committed.values())
    acked = sum(publisher.acked for publisher in case.publishers)
    return Outcome(seed, problem, case.world.steps, committed, acked, case.healing_ns, trace.counts)
