"""What goes wrong between nodes, the metadata service and the bus."""

from collections.abc import Sequence

from envelope.types import NodeId
from tests.simulation.network import Link
from tests.simulation.partitions import all_links, both_ways, one_way
from tests.simulation.replica.messages import METADATA
from tests.simulation.replica.swarm import LEASE
from tests.simulation.replica.world import World


class LinkFaults:
    """Cuts and clogs links, and joins them again after a `moment`."""

    def __init__(self, world: World, nodes: Sequence[NodeId]) -> None:
        self._world, self._nodes = world, nodes
        self._held: list[Link] = []

    def moment(self) -> int:
        """Return how long a fault of this cluster lasts, from a third to three times its typical time."""
        return int(self._world.swarm.fault_length * 10 ** self._world.rng.uniform(-0.5, 0.5))

    def isolate(self, kind: str, inside: Sequence[NodeId]) -> None:
        """Cut these off from all other nodes, in both directions, and perhaps from the metadata service."""
        outside: list[str] = [name for name in self._nodes if name not in inside]
        if self._world.rng.random() < 0.5:
            outside.append(METADATA)
        self._cut(kind, both_ways([(one, other) for one in inside for other in outside]))

    def cut_metadata(self, kind: str, inside: Sequence[NodeId]) -> None:
        """Cut these off from the metadata service, in one direction or both."""
        links = [(name, METADATA) for name in inside]
        back = [(METADATA, name) for name in inside]
        self._cut(kind, self._world.rng.choice((links, back, links + back)))

    def cut_one_way(self) -> None:
        """Cut any links between nodes, each in one direction."""
        self._cut("one_way", one_way(self._world.rng, self._nodes))

    def cut_bus(self, nodes: Sequence[NodeId], publishers: Sequence[str]) -> None:
        """Cut nodes off from publishers, in one direction or both."""
        rng, network = self._world.rng, self._world.bus.network
        there = [(publisher, name) for publisher in publishers for name in nodes]
        back = [(name, publisher) for publisher, name in there]
        links = rng.choice((there, back, there + back))
        self._world.fault("cut_bus", " ".join(f"{source}>{target}" for source, target in links))
        network.block(*links)
        self._world.timeline.after(self.moment(), network.unblock, *links)

    def clog(self) -> None:
        """Keep what is sent over a few links until later."""
        links = self._links()
        for link in self._world.rng.sample(links, min(len(links), self._world.rng.randint(1, 3))):
            self._world.fault("clog", f"{link[0]}>{link[1]}")
            self._world.network.clog(link)
            self._world.timeline.after(self.moment(), self._world.network.unclog, link)

    def hold_back_any(self, share: float) -> None:
        """Clog each link between nodes with this probability, until `let_go`."""
        self.hold_back([link for link in self._links() if self._world.rng.random() < share])

    def hold_back(self, links: Sequence[Link]) -> None:
        """Clog these links until `let_go`."""
        for link in links:
            self._held.append(link)
            self._world.network.clog(link)

    def let_go(self, after: int) -> None:
        """Unclog what is held back, one link after the other from then on."""
        world = self._world
        for link in self._held:
            world.timeline.after(after + world.delay(LEASE // 8), world.network.unclog, link)
        self._held.clear()

    def _links(self) -> Sequence[Link]:
        return all_links(self._nodes)

    def _cut(self, kind: str, links: Sequence[Link]) -> None:
        if links:
            self._world.fault(kind, " ".join(f"{source}>{target}" for source, target in links))
            self._world.network.block(*links)
            self._world.timeline.after(self.moment(), self._world.network.unblock, *links)
