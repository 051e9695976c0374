"""Whoever commands a cluster: creates its streams, and moves them and their leaders about."""

from collections.abc import Callable
from random import Random
from typing import Final

from metadata.catalog.commands import CancelReassignment, ChangeLeader, Command, ReassignReplicas, SetVoters
from metadata.catalog.tables import Stream
from tests.simulation.cluster.member import Member
from tests.simulation.cluster.world import World
from tests.simulation.replica.metadata_service import is_registered
from tests.simulation.replica.swarm import LEASE, StreamShape
from tests.support.catalogs import create

_VOTERS: Final = ((3,), (3,), (1, 3), (1, 3, 5, None))
"""Numbers of voters that an operator wants in one cluster or another."""


class Operator:
    """Asks any node that lives; what is asked may be lost with it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._create()

    def elect(self) -> None:
        """Elect any member of an ISR, or another replica, which the catalogue is to refuse."""
        rng = self._world.rng
        stream, catalog = self._stream(), self._world.replicas.checks.catalog
        in_sync = [member.node_id for member in stream.isr if is_registered(catalog, member)]
        elected = rng.choice(in_sync if in_sync and rng.random() < 0.9 else stream.replicas)
        row = catalog.node(elected)
        assert row is not None, f"{elected} is registered"
        self._ask(ChangeLeader(stream.name, stream.incarnation, elected, row.node_epoch, stream.leader_epoch))

    def reassign(self) -> None:
        """Move a stream to any nodes, or take a move back."""
        rng, stream = self._world.rng, self._stream()
        if stream.target is not None and rng.random() < 0.4:
            self._ask(CancelReassignment(stream.name, stream.incarnation))
            return
        nodes = self._world.swarm.nodes
        target = tuple(rng.sample(nodes, rng.randint(1, len(nodes))))
        self._ask(ReassignReplicas(stream.name, stream.incarnation, target))

    def want_voters(self, number: int | None) -> None:
        """Want so many voters of the metadata log."""
        self._ask(SetVoters(number))

    def _create(self) -> None:
        """Create every stream, until all are there."""
        world = self._world
        catalog = world.replicas.checks.catalog
        missing = [shape for shape in world.swarm.replica.streams if catalog.stream(shape.name) is None]
        for shape in missing:
            if all(catalog.node(name) is not None for name in shape.replicas):
                self._ask(_creation(shape))
        if missing:
            world.timeline.after(LEASE // 4, self._create)

    def _stream(self) -> Stream:
        return self._world.rng.choice(self._world.replicas.checks.catalog.streams())

    def _ask(self, command: Command) -> None:
        world = self._world
        members: list[tuple[Member, Callable[[Callable[[], None]], None]]] = [
            (node.member, node.hold) for node in world.nodes.values() if node.member is not None
        ]
        if not members:
            return
        member, hold = world.rng.choice(members)
        if world.trace.on:
            world.replicas.note("oper", str(command))
        hold(lambda: member.ask(command))


class VoterNumbers:
    """Has the operator want another number of voters, now and then, until the world heals."""

    def __init__(self, world: World, operator: Operator, rng: Random) -> None:
        """Begin at once; all chance is ``rng``."""
        self._world, self._operator, self._rng = world, operator, rng
        self._numbers = rng.choice(_VOTERS)
        self._interval = int(LEASE * 10 ** rng.uniform(-0.7, 0.5))
        self._plan()

    def _plan(self) -> None:
        self._world.timeline.after(int(2 * self._rng.random() * self._interval), self._want)

    def _want(self) -> None:
        if not self._world.healing:
            self._operator.want_voters(self._rng.choice(self._numbers))
            self._plan()


def _creation(shape: StreamShape) -> Command:
    minimum = shape.min_insync_replicas
    return create(shape.name, nodes=shape.replicas, begun=False, min_insync_replicas=minimum)
