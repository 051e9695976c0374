"""Which replicas move to other nodes when a node is to be emptied, or the load to be evened out.

Pure plans: of a stream that is being moved already, what it is moved to counts. A plan moves as little as it
can: a replica is exchanged for another, and the others of its stream stay where they are.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from envelope.errors import InvalidConfig
from envelope.types import NodeId, StreamName
from metadata.catalog.tables import Stream
from metadata.placement import Candidate, best_beside

Racks = Mapping[NodeId, str | None]


@dataclass(frozen=True, slots=True)
class Move:
    """Other replicas for one stream, or the same in another order; the first is the preferred leader."""

    stream: StreamName
    before: tuple[NodeId, ...]
    after: tuple[NodeId, ...]


def planned(stream: Stream) -> tuple[NodeId, ...]:
    """Return the replicas that a stream has, or is to have."""
    return stream.replicas if stream.target is None else stream.target


def emptied(node: NodeId, streams: Iterable[Stream], racks: Racks) -> list[Move]:
    """Return the moves after which ``node`` holds nothing.

    Args:
        node: to be emptied.
        streams: all of the cluster, by name.
        racks: of every node that can take a replica; ``node`` may be among them.

    Raises:
        InvalidConfig: a stream has as many replicas as there are nodes besides.
    """
    rows = list(streams)
    replicas = Counter(holder for row in rows for holder in planned(row))
    leaders = Counter(planned(row)[0] for row in rows)
    moves = []
    for row in rows:
        before = planned(row)
        if node not in before:
            continue
        others = [
            Candidate(name, rack, replicas[name], leaders[name])
            for name, rack in racks.items()
            if name != node and name not in before
        ]
        if not others:
            raise InvalidConfig(
                f"stream {row.name!r} has {len(before)} replicas, and there is no other living node for the "
                f"one on {node!r}",
                stream=row.name,
                node_id=node,
            )
        kept = [Candidate(name, racks.get(name)) for name in before if name != node]
        new = best_beside(kept, others)
        after = tuple(new if name == node else name for name in before)
        replicas[new] += 1
        leaders[after[0]] += after[0] == new
        moves.append(Move(row.name, before, after))
    return moves


def evened_out(streams: Iterable[Stream], racks: Racks) -> list[Move]:
    """Return the moves after which the nodes of ``racks`` have, as far as possible, equally much.

    First replicas, then preferred leaders: the loads of two nodes differ by one at most, unless every move
    that would even them out put replicas of one stream into fewer racks, or together. Streams that are being
    moved are counted and left alone.

    Args:
        streams: all of the cluster, by name.
        racks: of every node that can take a replica.
    """
    rows = list(streams)
    plan = {row.name: list(planned(row)) for row in rows}
    movable = [row.name for row in rows if row.target is None]
    _even_out_replicas(plan, movable, racks)
    _even_out_leaders(plan, movable, racks)
    return [
        Move(row.name, planned(row), tuple(plan[row.name]))
        for row in rows
        if tuple(plan[row.name]) != planned(row)
    ]


def _even_out_replicas(
    plan: dict[StreamName, list[NodeId]], movable: Sequence[StreamName], racks: Racks
) -> None:
    held = Counter(node for replicas in plan.values() for node in replicas)
    on: dict[NodeId, dict[StreamName, None]] = {node: {} for node in racks}
    for name in movable:
        for node in plan[name]:
            if node in on:
                on[node][name] = None
    while (found := _uneven_replica(plan, on, held, racks)) is not None:
        name, heavy, light = found
        plan[name][plan[name].index(heavy)] = light
        held[heavy] -= 1
        held[light] += 1
        del on[heavy][name]
        on[light][name] = None


def _uneven_replica(
    plan: Mapping[StreamName, list[NodeId]],
    on: Mapping[NodeId, Mapping[StreamName, None]],
    held: Mapping[NodeId, int],
    racks: Racks,
) -> tuple[StreamName, NodeId, NodeId] | None:
    """Return a replica to move from one node to another that has at least two less."""
    for heavy, light in _uneven_pairs(held, racks):
        for name in on[heavy]:
            after = [light if node == heavy else node for node in plan[name]]
            if light not in plan[name] and _spread(after, racks) >= _spread(plan[name], racks):
                return name, heavy, light
    return None


def _even_out_leaders(
    plan: dict[StreamName, list[NodeId]], movable: Sequence[StreamName], racks: Racks
) -> None:
    leads = Counter(replicas[0] for replicas in plan.values())
    while True:
        found = next(
            (
                (name, heavy, light)
                for heavy, light in _uneven_pairs(leads, racks)
                for name in movable
                if plan[name][0] == heavy and light in plan[name]
            ),
            None,
        )
        if found is None:
            return
        name, heavy, light = found
        plan[name].remove(light)
        plan[name].insert(0, light)
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


def _spread(replicas: Iterable[NodeId], racks: Racks) -> int:
    """Return in how many racks the replicas are; a node without one is its own."""
    return len({(racks.get(node) is None, racks.get(node) or node) for node in replicas})
