"""Where a stream's replicas go, and which of them leads.

One stream after the other, each where least is: first the rack with the fewest replicas of this stream, then
the node with the fewest of all streams. So the replicas of a stream are in as many racks as there are, and
nodes of equal racks end with loads that differ by one at most. More replicas of a stream that is there are
placed by the same rule, beside those that it has.

The first replica is the preferred leader: of the chosen nodes the one that leads least. Read replicas come
after the replicas, by the same rule. Partitions of one stream are spread among themselves first: also where a
node has less than others, it gets no more of them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from envelope.errors import InvalidConfig
from envelope.types import NodeId
from metadata.catalog.tables import Stream
from metadata.stream_config import StreamConfig


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """A node that can take a replica, and its load."""

    node_id: NodeId
    rack: str | None = None
    """What fails together; None is a rack of its own."""
    replicas: int = 0
    leaders: int = 0
    """Streams of which it is the preferred leader, whatever node leads them now."""
    siblings: int = 0
    """Of the replicas, those of partitions of the very stream that a partition is placed for."""
    sibling_leaders: int = 0
    """Of the leaders, the same."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a stream is to be."""

    replicas: tuple[NodeId, ...]
    """The first is the preferred leader."""
    read_replicas: tuple[NodeId, ...]


def place_stream(candidates: Sequence[PlacementCandidate], replicas: int, read_replicas: int) -> Placed:
    """Return the nodes for a new stream; see `place` and `read_replicas_beside`."""
    chosen = place(candidates, replicas)
    return Placed(chosen, read_replicas_beside(candidates, chosen, (), read_replicas))


def place_partitions(
    candidates: Sequence[PlacementCandidate], siblings: Iterable[Stream], configs: Sequence[StreamConfig]
) -> list[Placed]:
    """Return the nodes for new partitions of one stream.

    Args:
        candidates: nodes that can take one now.
        siblings: the partitions that there are.
        configs: of the new ones.

    Raises:
        InvalidConfig: there are fewer nodes than replicas.
    """
    nodes = beside_siblings(candidates, siblings)
    placed = []
    for config in configs:
        one = place_stream(nodes, config.replicas, config.read_replicas)
        nodes = [_with_one_more(node, one) for node in nodes]
        placed.append(one)
    return placed


def beside_siblings(
    candidates: Iterable[PlacementCandidate], siblings: Iterable[Stream]
) -> list[PlacementCandidate]:
    """Return the candidates with what they have of these partitions of one stream."""
    held, led = loads(siblings)
    return [
        replace(node, siblings=held[node.node_id], sibling_leaders=led[node.node_id]) for node in candidates
    ]


def _with_one_more(node: PlacementCandidate, placed: Placed) -> PlacementCandidate:
    """Return a node as it is with a partition that was placed, if that is on it."""
    held = int(node.node_id in (*placed.replicas, *placed.read_replicas))
    led = int(node.node_id == placed.replicas[0])
    return replace(
        node,
        replicas=node.replicas + held,
        leaders=node.leaders + led,
        siblings=node.siblings + held,
        sibling_leaders=node.sibling_leaders + led,
    )


def place(candidates: Sequence[PlacementCandidate], replicas: int) -> tuple[NodeId, ...]:
    """Return the nodes for a stream's replicas, the preferred leader first; equal input gives equal output.

    Raises:
        InvalidConfig: there are fewer nodes than replicas.
    """
    assert replicas >= 1, "a stream has a replica"
    if len(candidates) < replicas:
        raise InvalidConfig(
            f"replicas: {replicas} wanted, {len(candidates)} nodes to hold them", field="replicas"
        )
    left = sorted(candidates, key=lambda candidate: candidate.node_id)
    chosen: list[PlacementCandidate] = []
    in_rack: Counter[tuple[bool, str]] = Counter()
    for _ in range(replicas):
        best = min(
            left, key=lambda candidate: (in_rack[_rack(candidate)], candidate.siblings, candidate.replicas)
        )
        left.remove(best)
        chosen.append(best)
        in_rack[_rack(best)] += 1
    leader = min(
        chosen, key=lambda candidate: (candidate.sibling_leaders, candidate.leaders, candidate.replicas)
    )
    return (leader.node_id, *(candidate.node_id for candidate in chosen if candidate is not leader))


def best_beside(kept: Iterable[PlacementCandidate], others: Sequence[PlacementCandidate]) -> NodeId:
    """Return which of ``others`` takes a replica best, beside those that a stream keeps."""
    in_rack = Counter(_rack(candidate) for candidate in kept)
    left = sorted(others, key=lambda candidate: candidate.node_id)
    return min(
        left, key=lambda candidate: (in_rack[_rack(candidate)], candidate.siblings, candidate.replicas)
    ).node_id


def place_changes(
    candidates: Sequence[PlacementCandidate], stream: Stream, replicas: int | None, read_replicas: int | None
) -> tuple[tuple[NodeId, ...] | None, tuple[NodeId, ...] | None]:
    """Return the nodes for other numbers of replicas and of read replicas of a stream that is there.

    A node with a read replica becomes a replica only if fewer read replicas are wanted.

    Args:
        candidates: nodes that can take one now.
        stream: as it is; it is not being moved if ``replicas`` is given.
        replicas: how many there are to be; None: those that there are stay, and None is returned.
        read_replicas: the same of read replicas.

    Raises:
        InvalidConfig: there are too few nodes.
    """
    present = stream.read_replicas
    kept = present if read_replicas is None else _kept_read_replicas(candidates, present, read_replicas)
    target = None if replicas is None else resized(candidates, stream, replicas, kept)
    if read_replicas is None:
        return target, None
    holders = tuple(dict.fromkeys((*stream.replicas, *(stream.target or ()), *(target or ()))))
    staying = tuple(node for node in present if node not in holders)
    return target, read_replicas_beside(candidates, holders, staying, read_replicas)


def resized(
    candidates: Sequence[PlacementCandidate], stream: Stream, count: int, taken: Collection[NodeId]
) -> tuple[NodeId, ...]:
    """Return the nodes for so many replicas of a stream that has fewer or more, the preferred leader first.

    Those that it has keep their order. If there are to be fewer, the leader stays, then those in sync, then
    those that are alive; of equal ones those that leave the replicas in the most racks, then those on nodes
    that have least.

    Args:
        candidates: nodes that can take one now; a node that is not among them is not alive.
        stream: as it is, and not being moved.
        count: how many there are to be.
        taken: other nodes that cannot be one.

    Raises:
        InvalidConfig: there are fewer nodes than that.
    """
    chosen = list(stream.settled_replicas)
    known = {candidate.node_id: candidate for candidate in candidates}
    while len(chosen) > count:
        in_rack = Counter(_rack(known.get(node, PlacementCandidate(node))) for node in chosen)
        leaves = max(reversed(chosen), key=lambda node: _dispensability(node, stream, known, in_rack))
        chosen.remove(leaves)
    return _filled(candidates, chosen, count, beside=(), taken=taken, field="replicas")


def _dispensability(
    node: NodeId,
    stream: Stream,
    known: Mapping[NodeId, PlacementCandidate],
    in_rack: Mapping[tuple[bool, str], int],
) -> tuple[bool, bool, bool, int, int]:
    """Return how well a stream can do without its replica on a node: the largest goes first."""
    candidate = known.get(node, PlacementCandidate(node))
    return (
        node != stream.leader,
        node not in stream.isr_nodes,
        node not in known,
        in_rack[_rack(candidate)],
        candidate.replicas,
    )


def read_replicas_beside(
    candidates: Sequence[PlacementCandidate],
    replicas: Sequence[NodeId],
    present: Sequence[NodeId],
    count: int,
) -> tuple[NodeId, ...]:
    """Return the nodes for so many read replicas: those of ``present`` that are candidates stay first.

    Args:
        candidates: nodes that can take one now; a node that is not among them is not alive.
        replicas: nodes that cannot be one.
        present: the read replicas that there are.
        count: how many there are to be.

    Raises:
        InvalidConfig: there are fewer nodes than that.
    """
    chosen = _kept_read_replicas(candidates, present, count)
    return _filled(candidates, chosen, count, beside=replicas, taken=present, field="read_replicas")


def _kept_read_replicas(
    candidates: Iterable[PlacementCandidate], present: Sequence[NodeId], count: int
) -> list[NodeId]:
    """Return so many of the present read replicas, living ones first."""
    alive = {candidate.node_id for candidate in candidates}
    return sorted(present, key=lambda node: node not in alive)[:count]


def _filled(
    candidates: Sequence[PlacementCandidate],
    chosen: Iterable[NodeId],
    count: int,
    *,
    beside: Sequence[NodeId],
    taken: Collection[NodeId],
    field: str,
) -> tuple[NodeId, ...]:
    """Return the chosen nodes, and behind them others until there are so many.

    Args:
        candidates: nodes that can be chosen.
        chosen: nodes that are already.
        count: how many there are to be.
        beside: nodes that have the stream, too, and cannot be chosen.
        taken: other nodes that cannot be chosen.
        field: the setting that says how many.

    Raises:
        InvalidConfig: there are fewer nodes than that.
    """
    known = {candidate.node_id: candidate for candidate in candidates}
    nodes = list(chosen)
    while len(nodes) < count:
        others = [node for name, node in known.items() if name not in {*beside, *taken, *nodes}]
        if not others:
            raise InvalidConfig(f"{field}: {count} wanted, {len(nodes)} nodes to hold them", field=field)
        nodes.append(
            best_beside((known.get(node, PlacementCandidate(node)) for node in (*beside, *nodes)), others)
        )
    return tuple(nodes)


def loads(streams: Iterable[Stream]) -> tuple[Counter[NodeId], Counter[NodeId]]:
    """Return how many replicas of any kind, and how many preferred leaders, each node has."""
    replicas: Counter[NodeId] = Counter()
    leaders: Counter[NodeId] = Counter()
    for stream in streams:
        replicas.update(stream.holders)
        leaders[stream.replicas[0]] += 1
    return replicas, leaders


def _rack(candidate: PlacementCandidate) -> tuple[bool, str]:
    """Return what names its rack; a node without a rack differs from a rack of the same name."""
    return (True, candidate.node_id) if candidate.rack is None else (False, candidate.rack)
