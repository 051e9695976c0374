"""Moves of replicas that empty a node, or even out the load.

Pure plans: of a stream that is being moved already, its target counts. A plan moves as little as it
can: a replica is exchanged for another, and the others of its stream stay where they are. Read replicas count
and move like replicas.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from envelope.errors import InvalidConfig
from envelope.types import NodeId, StreamName
from metadata.catalog.tables import Stream
from metadata.placement import PlacementCandidate, best_beside

Racks = Mapping[NodeId, str | None]


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """Other replicas for one stream, or the same in another order; the first is the preferred leader."""

    stream: StreamName
    before: tuple[NodeId, ...]
    after: tuple[NodeId, ...]
    read_before: tuple[NodeId, ...] = ()
    read_after: tuple[NodeId, ...] = ()


def planned(stream: Stream) -> tuple[NodeId, ...]:
    """Return the replicas that a stream has, or is to have."""
    return stream.replicas if stream.target is None else stream.target


def emptied(node: NodeId, streams: Iterable[Stream], racks: Racks) -> list[PlannedMove]:
    """Return the moves after which ``node`` holds nothing.

    Args:
        node: to be emptied.
        streams: all of the cluster, by name.
        racks: of every node that can take a replica; ``node`` may be among them.

    Raises:
        InvalidConfig: a stream has as many replicas as there are nodes besides.
    """
    rows = list(streams)
    held = Counter(holder for row in rows for holder in (*planned(row), *row.read_replicas))
    leaders = Counter(planned(row)[0] for row in rows)
    moves = []
    for row in rows:
        before, read_before = planned(row), row.read_replicas
        if node not in (*before, *read_before):
            continue
        # A replica that is about to leave a stream that is being moved cannot become a read replica yet.
        taken = {*before, *read_before, *(row.replicas if node in read_before else ())}
        others = [
            PlacementCandidate(name, rack, held[name], leaders[name])
            for name, rack in racks.items()
            if name not in taken
        ]
        if not others:
            raise InvalidConfig(
                f"stream {row.name!r} is on {len(before) + len(read_before)} nodes, and there is no other "
                f"living node for what {node!r} has of it",
                stream=row.name,
                node_id=node,
            )
        beside = before if node in before else (*before, *read_before)
        new = best_beside(
            [PlacementCandidate(name, racks.get(name)) for name in beside if name != node], others
        )
        after, read_after = _exchanged(before, node, new), _exchanged(read_before, node, new)
        held[new] += 1
        leaders[after[0]] += after[0] == new
        moves.append(PlannedMove(row.name, before, after, read_before, read_after))
    return moves


def _exchanged(nodes: tuple[NodeId, ...], old: NodeId, new: NodeId) -> tuple[NodeId, ...]:
    return tuple(new if node == old else node for node in nodes)


def evened_out(streams: Iterable[Stream], racks: Racks) -> list[PlannedMove]:
    """Return the moves after which the nodes of ``racks`` have, as far as possible, equally much.

    First replicas, then preferred leaders: the loads of two nodes differ by one at most, unless every move
    that would even them out put replicas of one stream into fewer racks, or together. Streams that are being
    moved are counted and left alone.

    Args:
        streams: all of the cluster, by name.
        racks: of every node that can take a replica.
    """
    rows = list(streams)
    plan = {row.name: _Plan(list(planned(row)), list(row.read_replicas)) for row in rows}
    movable = [row.name for row in rows if row.target is None]
    _even_out_replicas(plan, movable, racks)
    _even_out_leaders(plan, movable, racks)
    moves = (
        PlannedMove(
            row.name, planned(row), tuple(after.replicas), row.read_replicas, tuple(after.read_replicas)
        )
        for row, after in ((row, plan[row.name]) for row in rows)
    )
    return [move for move in moves if (move.before, move.read_before) != (move.after, move.read_after)]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The planned replicas of one stream."""

    replicas: list[NodeId]
    read_replicas: list[NodeId]

    @property
    def holders(self) -> list[NodeId]:
        return self.replicas + self.read_replicas

    def exchange(self, old: NodeId, new: NodeId) -> None:
        part = self.replicas if old in self.replicas else self.read_replicas
        part[part.index(old)] = new


def _even_out_replicas(plan: dict[StreamName, _Plan], movable: Sequence[StreamName], racks: Racks) -> None:
    held = Counter(node for after in plan.values() for node in after.holders)
    on: dict[NodeId, dict[StreamName, None]] = {node: {} for node in racks}
    for name in movable:
        for node in plan[name].holders:
            if node in on:
                on[node][name] = None
    while (found := _uneven_replica(plan, on, held, racks)) is not None:
        name, heavy, light = found
        plan[name].exchange(heavy, light)
        held[heavy] -= 1
        held[light] += 1
        del on[heavy][name]
        on[light][name] = None


def _uneven_replica(
    plan: Mapping[StreamName, _Plan],
    on: Mapping[NodeId, Mapping[StreamName, None]],
    held: Mapping[NodeId, int],
    racks: Racks,
) -> tuple[StreamName, NodeId, NodeId] | None:
    """Return a replica to move from one node to another that has at least two less."""
    for heavy, light in _uneven_pairs(held, racks):
        for name in on[heavy]:
            if light not in plan[name].holders and _spreads_as_well(plan[name], heavy, light, racks):
                return name, heavy, light
    return None


def _even_out_leaders(plan: dict[StreamName, _Plan], movable: Sequence[StreamName], racks: Racks) -> None:
    leads = Counter(after.replicas[0] for after in plan.values())
    while True:
        found = next(
            (
                (name, heavy, light)
                for heavy, light in _uneven_pairs(leads, racks)
                for name in movable
                if plan[name].replicas[0] == heavy and light in plan[name].replicas
            ),
            None,
        )
        if found is None:
            return
        name, heavy, light = found
        plan[name].replicas.remove(light)
        plan[name].replicas.insert(0, light)
        leads[heavy] -= 1
        leads[light] += 1


def _uneven_pairs(load: Mapping[NodeId, int], racks: Racks) -> Iterable[tuple[NodeId, NodeId]]:
    """Yield pairs of nodes of which the first has at least two more, the worst first."""
    rising = sorted(racks, key=lambda node: (load[node], node))
    for heavy in reversed(rising):
        for light in rising:
            if load[heavy] - load[light] < 2:
                break
            yield heavy, light


def _spreads_as_well(plan: _Plan, old: NodeId, new: NodeId, racks: Racks) -> bool:
    """Return whether neither the replicas nor all holders come into fewer racks."""
    return all(
        _spread((new if node == old else node for node in nodes), racks) >= _spread(nodes, racks)
        for nodes in (plan.replicas, plan.holders)
    )


def _spread(replicas: Iterable[NodeId], racks: Racks) -> int:
    """Return in how many racks the replicas are; a node without one is its own."""
    return len({(racks.get(node) is None, racks.get(node) or node) for node in replicas})
