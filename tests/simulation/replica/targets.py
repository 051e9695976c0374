"""Whom a fault may strike."""

from collections.abc import Iterable, Mapping

from envelope.types import NodeId
from metadata.catalog.tables import Stream
from tests.simulation.replica.checkers.damages import has_intact
from tests.simulation.replica.node import SimulatedNode
from tests.simulation.replica.reading import damaged_batches
from tests.simulation.replica.world import World


class Targets:
    """Draws nodes and streams of one cluster."""

    def __init__(self, world: World, nodes: Mapping[NodeId, SimulatedNode]) -> None:
        self._world, self.nodes = world, nodes

    def some(self, count: int = 1) -> list[SimulatedNode]:
        """Return any nodes."""
        return self._world.rng.sample(list(self.nodes.values()), count)

    def stream(self) -> Stream:
        """Return any stream, as the catalogue has it."""
        return self._world.rng.choice(self._world.checks.catalog.streams())

    def leaders(self) -> list[SimulatedNode]:
        """Return the nodes that believe they lead some stream."""
        name = self.stream().name
        return [node for node in self.nodes.values() if node.leads(name)]

    def members(self) -> list[SimulatedNode]:
        """Return the ISR of some stream."""
        return [self.nodes[name] for name in self.stream().isr_nodes]

    def is_spare(self, node: SimulatedNode) -> bool:
        """Tell whether every stream has another member in its ISR whose disk is there.

        And whether somebody else has intact what is damaged at another replica. A stream that is still to be
        created needs all its nodes.
        """
        streams, shapes = self._world.checks.catalog.streams(), self._world.swarm.streams
        missing = {shape.name for shape in shapes} - {stream.name for stream in streams}
        if any(shape.name in missing and node.name in shape.replicas for shape in shapes):
            return False
        for stream in streams:
            others = [
                member
                for member in stream.isr
                if member.node_id != node.name
                and self.nodes[member.node_id].directory == member.directory
                and stream.name in self.nodes[member.node_id].images
            ]
            if node.name in stream.replicas and (not others or self._has_alone(node, stream)):
                return False
        return True

    def _has_alone(self, node: SimulatedNode, stream: Stream) -> bool:
        """Tell whether nobody else has intact what is damaged at another replica."""
        replicas = [self.nodes[name] for name in stream.replicas if name != node.name]
        others = [other.images[stream.name] for other in replicas if stream.name in other.images]
        return any(
            not any(has_intact(other, batch) for other in others)
            for image in others
            for batch in damaged_batches(image)
        )


def names(nodes: Iterable[SimulatedNode]) -> list[NodeId]:
    """Return the names of nodes."""
    return [node.name for node in nodes]
