"""Everybody around the nodes of a cluster: publishers, readers, and who judges the end."""

from collections.abc import Mapping

from envelope.types import NodeId
from tests.simulation.replica.ending import Ending
from tests.simulation.replica.node import SimulatedNode
from tests.simulation.replica.publisher import Publisher
from tests.simulation.replica.reader import Reader
from tests.simulation.replica.world import World


class Clients:
    """Those of one run; they begin once all ``nodes`` have been started here."""

    def __init__(self, world: World, nodes: Mapping[NodeId, SimulatedNode]) -> None:
        self._world = world
        world.connections.nodes = nodes
        world.checks.leases.left = lambda name: nodes[name].lease_left()
        world.checks.elections.left = world.checks.leases.left
        for node in nodes.values():
            node.start()
        shapes = world.swarm.streams
        self._publishers = [
            Publisher(world, f"p{number}", shapes[number % len(shapes)])
            for number in range(max(world.swarm.publishers, len(shapes)))
        ]
        readers = [
            Reader(world, f"r{number}", shapes[number % len(shapes)], nodes)
            for number in range(world.swarm.readers)
        ]
        self.publisher_names = [f"p{number}" for number in range(len(self._publishers))]
        self.ending = Ending(world, nodes, self._publishers, readers)

    @property
    def committed(self) -> int:
        """How many records were committed."""
        return sum(truths.newest.end for truths in self._world.checks.truths.values())

    @property
    def acked(self) -> int:
        """How many values were acked."""
        return sum(publisher.acked for publisher in self._publishers)
