"""A world whose metadata group is a service: always one, linearizable, and never wrong."""

from random import Random

from tests.simulation.replica.metadata_service import MetadataService
from tests.simulation.replica.service_link import ServiceLink
from tests.simulation.replica.swarm import Swarm
from tests.simulation.replica.world import World
from tests.simulation.trace import Trace


class ServiceWorld(World):
    """A `World` with the service."""

    def __init__(self, rng: Random, swarm: Swarm, trace: Trace) -> None:
        super().__init__(rng, swarm, trace, lambda life: ServiceLink(self, life))
        self.metadata = MetadataService(self)
