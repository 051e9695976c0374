"""What the parts of one run share."""

from random import Random

from consumer_groups.coordinator_events import Answer, ConnectionId, Event
from consumer_groups.partitions import Partition, StreamPartitions
from envelope.types import StreamName
from tests.simulation.groups.checks import Checks
from tests.simulation.groups.swarm import Swarm
from tests.simulation.network import Network
from tests.simulation.timeline import Timeline
from tests.simulation.trace import Trace

COORDINATOR = "coordinator"
Message = Event | Answer


class World:
    """One run's time, chance, network, checkers and streams."""

    def __init__(self, rng: Random, swarm: Swarm, trace: Trace) -> None:
        self.rng, self.swarm, self.trace = rng, swarm, trace
        self.timeline = Timeline()
        self.network: Network[Message] = Network(self.timeline, rng, swarm.weather)
        self.partitions = {name: rng.randint(0, swarm.partitions_max) for name in swarm.streams}
        self.checks = Checks(self.timeline, self.partitions)
        self.steps = 0
        self.healing = False

    @property
    def now(self) -> int:
        return self.timeline.now

    def delay(self, mean: int) -> int:
        """Return a time of that mean, at most twice as long, at least 1 ns."""
        return int(2 * self.rng.random() * mean) + 1

    def existing(self) -> tuple[StreamPartitions, ...]:
        """Return the streams that exist."""
        return tuple(StreamPartitions(name, count) for name, count in self.partitions.items())

    def wanted(self, streams: frozenset[StreamName]) -> set[Partition]:
        """Return all partitions that exist of these streams."""
        return {Partition(name, number) for name in streams for number in range(self.partitions.get(name, 0))}

    def note(self, who: str, what: str) -> None:
        """Write a line of the trace; ask ``trace.on`` before composing it."""
        self.trace.line(self.now, who, what)

    def fault(self, kind: str, what: str) -> None:
        """Count a fault of ``kind`` and write it."""
        self.trace.fault(self.now, f"{kind} {what}", kind)


def process_of(connection: ConnectionId) -> str:
    """Return the process whose connection it is: ``p1#3`` is of the third life of ``p1``."""
    return connection.partition("#")[0]
