"""One reader: reads a stream in order from any replica, up to what that replica says is committed."""

from collections.abc import Mapping

from envelope.types import NodeId, Offset, StreamName
from tests.simulation.replica.checkers.damages import check_served
from tests.simulation.replica.checkers.truths import Truths
from tests.simulation.replica.node import SimulatedNode
from tests.simulation.replica.reading import readable_end
from tests.simulation.replica.swarm import StreamShape
from tests.simulation.replica.world import World
from tests.simulation.violation import Violation


class Reader:
    """Remembers what it saw: it must be there in the end."""

    def __init__(
        self, world: World, name: str, shape: StreamShape, nodes: Mapping[NodeId, SimulatedNode]
    ) -> None:
        self._world, self._name, self._shape, self._nodes = world, name, shape, nodes
        self._cursor = Offset(0)
        self._seen: list[tuple[Offset, str]] = []
        world.timeline.after(self._think(), self._read)

    @property
    def stream(self) -> StreamName:
        """Name of the stream it reads."""
        return self._shape.name

    def check(self, truths: Truths) -> None:
        """Compare what was seen with what is committed, or was before it was lost."""
        for offset, value in self._seen:
            if not truths.was_committed(offset, value):
                raise Violation(f"a reader saw {value} at {offset} of {self._shape.name}, which is not there")

    def _read(self) -> None:
        self._world.timeline.after(self._think(), self._read)
        node = self._nodes[self._place()]
        if node.life is None or node.paused or self._shape.name not in node.life.replicas:
            return
        replica = node.life.replicas[self._shape.name]
        high_watermark, image = replica.watermark.offset, replica.image
        start = max(self._cursor, image.log_start)
        end = readable_end(image, start, high_watermark)
        check_served(replica.title, image, start, end)
        records = image.records(start, end)
        if end > start and len(records) != end - start:
            raise Violation(f"{replica.title} cannot serve {start} to {end}: {len(records)} are there")
        seen = [(Offset(start + row), value) for row, (_, value) in enumerate(records)]
        self._seen.extend(seen)
        if records:
            self._world.checks.histories[self._shape.name].poll(self._name, seen)
            self._world.trace.counts["read"] += 1
            is_apart = replica.row is not None and node.name in replica.row.read_replicas
            self._world.trace.counts["read_at_reader"] += is_apart
            self._cursor = end

    def _place(self) -> NodeId:
        """Return a node that has the stream; where read replicas come and go one of them, or any node."""
        world, shape = self._world, self._shape
        if not shape.read_replicas:
            return world.rng.choice(shape.replicas)
        row = world.checks.catalog.stream(shape.name)
        present = row.read_replicas if row is not None else ()
        return world.rng.choice(present if present and world.rng.random() < 0.5 else world.swarm.nodes)

    def _think(self) -> int:
        return self._world.delay(self._world.swarm.think_mean) + 1
