"""What the parts of one run share."""

from random import Random

from tests.simulation.network import Network, Weather
from tests.simulation.replica.bus import Bus
from tests.simulation.replica.checks import Checks
from tests.simulation.replica.connections import Connections
from tests.simulation.replica.messages import Message
from tests.simulation.replica.metadata_service import MetadataService
from tests.simulation.replica.swarm import Swarm
from tests.simulation.timeline import Timeline
from tests.simulation.trace import Trace


class World:
    """One run's time, chance, network, bus, catalogue and checkers."""

    def __init__(self, rng: Random, swarm: Swarm, trace: Trace) -> None:
        self.rng, self.swarm, self.trace = rng, swarm, trace
        self.timeline = Timeline()
        self.steps = 0
        self.healing = False
        self.network: Network[Message] = Network(self.timeline, rng, swarm.weather)
        self.connections = Connections(self)
        bus_weather = Weather(swarm.bus_delay, loss=swarm.bus_loss, in_order=True)
        self.bus = Bus(Network(self.timeline, rng, bus_weather))
        self.checks = Checks(swarm)
        self.metadata = MetadataService(self)

    def delay(self, mean: int) -> int:
        """Return a time of that mean, at most twice as long."""
        return int(2 * self.rng.random() * mean)

    def note(self, who: str, what: str) -> None:
        """Write a line of the trace; ask ``trace.on`` before composing it."""
        self.trace.line(self.timeline.now, who, what)

    def fault(self, kind: str, what: str) -> None:
        """Count a fault of ``kind`` and write it."""
        self.trace.fault(self.timeline.now, f"{kind} {what}", kind)
