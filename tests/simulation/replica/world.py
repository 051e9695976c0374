"""What the parts of one run share."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.network import Network, Weather
from tests.simulation.replica.bus import Bus
from tests.simulation.replica.checks import Checks
from tests.simulation.replica.connections import Connections
from tests.simulation.replica.link import Link
from tests.simulation.replica.log_ids import WallClock
from tests.simulation.replica.messages import Message
from tests.simulation.replica.swarm import Swarm
from tests.simulation.timeline import Timeline
from tests.simulation.trace import Trace

if TYPE_CHECKING:
    from tests.simulation.replica.life import Life


class World:
    """One run's time, chance, network, bus and checkers; ``new_link`` joins a life to the metadata group."""

    def __init__(
        self,
        rng: Random,
        swarm: Swarm,
        trace: Trace,
        new_link: "Callable[[Life], Link]",
        timeline: Timeline | None = None,
    ) -> None:
        self.rng, self.swarm, self.trace, self.new_link = rng, swarm, trace, new_link
        self.timeline = timeline or Timeline()
        self.wall_clock = WallClock(self.timeline)
        self.steps = 0
        self.healing = False
        self.network: Network[Message] = Network(self.timeline, rng, swarm.weather)
        self.connections = Connections(self)
        bus_weather = Weather(swarm.bus_delay, loss=swarm.bus_loss, in_order=True)
        self.bus = Bus(Network(self.timeline, rng, bus_weather))
        self.checks = Checks(swarm)

    def delay(self, mean: int) -> int:
        """Return a time of that mean, at most twice as long."""
        return int(2 * self.rng.random() * mean)

    def note(self, who: str, what: str) -> None:
        """Write a line of the trace; ask ``trace.on`` before composing it."""
        self.trace.line(self.timeline.now, who, what)

    def fault(self, kind: str, what: str) -> None:
        """Count a fault of ``kind`` and write it."""
        self.trace.fault(self.timeline.now, f"{kind} {what}", kind)
