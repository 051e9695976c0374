"""What goes wrong between the voters: partitions of every form, and clogs."""

from collections.abc import Sequence

from envelope.types import NodeId
from tests.simulation.network import Link
from tests.simulation.partitions import all_links, around, bridge, one_way, ring
from tests.simulation.raft.world import World


class LinkFaults:
    """Cuts and clogs links, and joins them again after a `moment`."""

    def __init__(self, world: World, names: Sequence[NodeId]) -> None:
        self._world, self._names = world, names

    def moment(self) -> int:
        """Return how long a fault of this world lasts, from a third to three times its typical time."""
        return int(self._world.swarm.fault_length * 10 ** self._world.rng.uniform(-0.5, 0.5))

    def isolate(self, kind: str, inside: Sequence[NodeId]) -> None:
        """Cut ``inside`` off from everybody else, in both directions."""
        self._cut(kind, around(inside, self._names))

    def _note(self, kind: str, text: str) -> None:
        self._world.trace.fault(self._world.timeline.now, f"{kind} {text}", kind)

    def _cut(self, kind: str, links: Sequence[Link]) -> None:
        if not links:
            return
        self._note(kind, " ".join(f"{source}>{target}" for source, target in links))
        self._world.network.block(*links)
        self._world.timeline.after(self.moment(), self._join, links)

    def _join(self, links: Sequence[Link]) -> None:
        self._note("joined", " ".join(f"{source}>{target}" for source, target in links))
        self._world.network.unblock(*links)

    def cut_one_way(self) -> None:
        self._cut("one_way", one_way(self._world.rng, self._names))

    def cut_to_ring(self) -> None:
        """Everybody reaches a majority, and no two the same one."""
        self._cut("ring", ring(self._world.rng, self._names))

    def cut_to_bridge(self) -> None:
        """Two halves that both reach one voter, and not each other."""
        self._cut("bridge", bridge(self._world.rng, self._names))

    def clog(self) -> None:
        links = all_links(self._names)
        for link in self._world.rng.sample(links, min(len(links), self._world.rng.randint(1, 3))):
            self._note("clog", f"{link[0]}>{link[1]}")
            self._world.network.clog(link)
            self._world.timeline.after(self.moment(), self._world.network.unclog, link)
