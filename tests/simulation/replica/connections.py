"""Connections between nodes that lose nothing without breaking, and tell both ends when they do."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from envelope.types import NodeId
from tests.simulation.network import Link
from tests.simulation.replica.swarm import LEASE

if TYPE_CHECKING:
    from tests.simulation.replica.world import World

_REDIAL = LEASE // 20


class End(Protocol):
    """A node, as far as its connections go."""

    @property
    def alive(self) -> bool:
        """Whether its process exists."""

    def peer_lost(self, peer: NodeId, *, refused: bool) -> None:
        """Tell it that a connection broke; ``refused``: nobody is there any more."""

    def peer_found(self, peer: NodeId) -> None:
        """Tell it that there is a connection again."""


class Connections:
    """Breaks and makes connections in clusters that have reliable ones; elsewhere messages just get lost."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._broken: set[frozenset[NodeId]] = set()
        self.nodes: Mapping[NodeId, End] = {}
        if world.swarm.reliable:
            world.network.lost = self._lost

    def break_off(self, one: NodeId, other: NodeId) -> None:
        """Lose what is under way between two nodes."""
        world, pair = self._world, frozenset((one, other))
        world.network.break_off(one, other)
        if not world.swarm.reliable or pair in self._broken:
            return
        self._broken.add(pair)
        world.network.block((one, other), (other, one))
        world.timeline.after(world.delay(_REDIAL), self._tell_broken, one, other)
        world.timeline.after(2 * _REDIAL + world.delay(_REDIAL), self._redial, one, other)

    def ended(self, name: NodeId) -> None:
        """A process has ended, and with it its connections."""
        if self._world.swarm.reliable:
            for other in self.nodes:
                if other != name:
                    self.break_off(name, other)

    def _lost(self, link: Link) -> None:
        one, other = NodeId(link[0]), NodeId(link[1])
        if one in self.nodes and other in self.nodes:
            self.break_off(one, other)

    def _tell_broken(self, one: NodeId, other: NodeId) -> None:
        for node, peer in ((one, other), (other, one)):
            self.nodes[node].peer_lost(peer, refused=not self.nodes[peer].alive)

    def _redial(self, one: NodeId, other: NodeId) -> None:
        world, links = self._world, ((one, other), (other, one))
        world.network.unblock(*links)
        reachable = not any(world.network.is_blocked(link) for link in links)
        if not (reachable and self.nodes[one].alive and self.nodes[other].alive):
            world.network.block(*links)
            world.timeline.after(world.delay(_REDIAL) + 1, self._redial, one, other)
            return
        self._broken.remove(frozenset((one, other)))
        world.trace.counts["reconnected"] += 1
        self.nodes[one].peer_found(other)
        self.nodes[other].peer_found(one)
