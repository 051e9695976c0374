"""Where a stream's replicas go, and which of them leads.

One stream after the other, each where least is: first the rack with the fewest replicas of this stream, then
the node with the fewest of all streams. So the replicas of a stream are in as many racks as there are, and
nodes of equal racks end with loads that differ by one at most.

The first replica is the preferred leader: of the chosen nodes the one that leads least. Read replicas come
after the replicas, by the same rule. Partitions of one stream are spread among themselves first: also where a
node has less than others, it gets no more of them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
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
    held, led = loads(siblings)
    nodes = [
        replace(node, siblings=held[node.node_id], sibling_leaders=led[node.node_id]) for node in candidates
    ]
    placed = []
    for config in configs:
        one = place_stream(nodes, config.replicas, config.read_replicas)
        nodes = [_with_one_more(node, one) for node in nodes]
        placed.append(one)
    return placed


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
    return min(left, key=lambda candidate: (in_rack[_rack(candidate)], candidate.replicas)).node_id


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
    known = {candidate.node_id: candidate for candidate in candidates}
    chosen = sorted(present, key=lambda node: node not in known)[:count]
    while len(chosen) < count:
        taken = {*replicas, *present, *chosen}
        others = [candidate for candidate in candidates if candidate.node_id not in taken]
        if not others:
            raise InvalidConfig(
                f"read_replicas: {count} wanted, {len(chosen)} nodes to hold them", field="read_replicas"
            )
        beside = (known.get(node, PlacementCandidate(node)) for node in (*replicas, *chosen))
        chosen.append(best_beside(beside, others))
    return tuple(chosen)


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
