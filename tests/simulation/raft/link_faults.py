"""What goes wrong between the voters: partitions of every form, and clogs."""

from collections.abc import Sequence

from envelope.types import NodeId
from tests.simulation.network import Link
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
        outside = [name for name in self._names if name not in inside]
        there = [(one, other) for one in inside for other in outside]
        self._cut(kind, there + [(other, one) for one, other in there])

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

    def _all_links(self) -> Sequence[Link]:
        return [(one, other) for one in self._names for other in self._names if one != other]

    def cut_one_way(self) -> None:
        links = self._all_links()
        if links:
            self._cut("one_way", self._world.rng.sample(links, self._world.rng.randint(1, len(links))))

    def cut_to_ring(self) -> None:
        """Everybody reaches a majority, and no two the same one: their neighbours on a ring."""
        names = list(self._names)
        self._world.rng.shuffle(names)
        reach = len(names) // 4
        place = {name: number for number, name in enumerate(names)}

        def apart(one: NodeId, other: NodeId) -> int:
            steps = abs(place[one] - place[other])
            return min(steps, len(names) - steps)

        self._cut(
            "ring", [link for link in self._all_links() if apart(NodeId(link[0]), NodeId(link[1])) > reach]
        )

    def cut_to_bridge(self) -> None:
        """Two halves that both reach one voter, and not each other."""
        names = list(self._names)
        self._world.rng.shuffle(names)
        rest = names[1:]
        one, other = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        links = [(a, b) for a in one for b in other]
        self._cut("bridge", links + [(b, a) for a, b in links])

    def clog(self) -> None:
        links = self._all_links()
        for link in self._world.rng.sample(links, min(len(links), self._world.rng.randint(1, 3))):
            self._note("clog", f"{link[0]}>{link[1]}")
            self._world.network.clog(link)
            self._world.timeline.after(self.moment(), self._world.network.unclog, link)
