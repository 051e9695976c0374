"""What goes wrong between nodes: all they say, or Raft, replication or messages to controller drivers."""

from collections.abc import Sequence
from typing import Final

from tests.simulation.cluster.world import World
from tests.simulation.network import Link, Network
from tests.simulation.partitions import all_links, around, both_ways, bridge, one_way, ring

_METADATA: Final = ["raft", "saying"]
"""What goes over the connections of the metadata group."""


class LinkFaults:
    """Cuts and clogs links, and joins them again after a `moment`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kinds: dict[str, Network[object]] = {}
        for name, network in (
            ("raft", world.raft.network),
            ("saying", world.saying),
            ("replication", world.replicas.network),
        ):
            self._kinds[name] = network  # type: ignore[assignment]  # what they carry does not matter here

    def moment(self) -> int:
        """Return how long a fault of this cluster lasts, from a third to three times its typical time."""
        return int(self._world.swarm.replica.fault_length * 10 ** self._world.rng.uniform(-0.5, 0.5))

    def isolate(self, kind: str, inside: Sequence[str]) -> None:
        """Cut these off from all other nodes, in both directions."""
        self._cut(kind, around(inside, self._world.swarm.nodes))

    def isolate_from_metadata(self, inside: Sequence[str], length: int) -> None:
        """Cut off all that these say to others as members of the metadata group, for so long."""
        self._cut_kinds(_METADATA, around(inside, self._world.swarm.nodes), length)

    def cut_one_way(self) -> None:
        """Cut any links, each in one direction."""
        self._cut("one_way", one_way(self._world.rng, self._world.swarm.nodes))

    def cut_to_ring(self) -> None:
        """Let everybody reach a majority, and no two the same one."""
        self._cut("ring", ring(self._world.rng, self._world.swarm.nodes))

    def cut_to_bridge(self) -> None:
        """Make two halves that both reach one node, and not each other."""
        self._cut("bridge", bridge(self._world.rng, self._world.swarm.nodes))

    def clog(self) -> None:
        """Keep what is sent over a few links until later."""
        world, links = self._world, all_links(self._world.swarm.nodes)
        for link in world.rng.sample(links, min(len(links), world.rng.randint(1, 3))):
            names = self._struck()
            world.replicas.fault("clog", f"{link[0]}>{link[1]} of {' '.join(names)}")
            for name in names:
                self._kinds[name].clog(link)
                world.timeline.after(self.moment(), self._kinds[name].unclog, link)

    def cut_bus(self, nodes: Sequence[str], publishers: Sequence[str]) -> None:
        """Cut nodes off from publishers alone, in one direction or both."""
        rng, network = self._world.rng, self._world.replicas.bus.network
        there = [(publisher, name) for publisher in publishers for name in nodes]
        back = [(name, publisher) for publisher, name in there]
        links = rng.choice((there, back, both_ways(there)))
        self._world.replicas.fault("cut_bus", " ".join(nodes))
        network.block(*links)
        self._world.timeline.after(self.moment(), network.unblock, *links)

    def _struck(self) -> list[str]:
        """Return which kinds of traffic a fault concerns: all at once, one connection's, or one alone."""
        rng = self._world.rng
        if rng.random() < self._world.swarm.together:
            return list(self._kinds)
        return rng.choice((_METADATA, *([name] for name in self._kinds)))

    def _cut(self, kind: str, links: Sequence[Link]) -> None:
        if not links:
            return
        names = self._struck()
        text = " ".join(f"{source}>{target}" for source, target in links)
        self._world.replicas.fault(kind, f"{text} of {' '.join(names)}")
        self._cut_kinds(names, links, self.moment())

    def _cut_kinds(self, names: Sequence[str], links: Sequence[Link], length: int) -> None:
        whole = {1: f"cut_{names[0]}_alone", len(_METADATA): "cut_metadata"}.get(len(names), "cut_all")
        self._world.trace.counts[whole] += 1
        for name in names:
            self._kinds[name].block(*links)
            self._world.timeline.after(length, self._kinds[name].unblock, *links)
