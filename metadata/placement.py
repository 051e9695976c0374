"""Where a stream's replicas go, and which of them leads.

One stream after the other, each where least is: first the rack with the fewest replicas of this stream, then
the node with the fewest of all streams. So the replicas of a stream are in as many racks as there are, and
nodes of equal racks end with loads that differ by one at most.

The first replica is the preferred leader: of the chosen nodes the one that leads least.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envelope.errors import InvalidConfig
from envelope.types import NodeId
from metadata.catalog.tables import Stream


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that can take a replica, and what it has already."""

    node_id: NodeId
    rack: str | None = None
    """What fails together; None is a rack of its own."""
    replicas: int = 0
    leaders: int = 0
    """Streams that prefer it as their leader, whoever leads them now."""


def place(candidates: Sequence[Candidate], replicas: int) -> tuple[NodeId, ...]:
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
    chosen: list[Candidate] = []
    in_rack: Counter[tuple[bool, str]] = Counter()
    for _ in range(replicas):
        best = min(left, key=lambda candidate: (in_rack[_rack(candidate)], candidate.replicas))
        left.remove(best)
        chosen.append(best)
        in_rack[_rack(best)] += 1
    leader = min(chosen, key=lambda candidate: (candidate.leaders, candidate.replicas))
    return (leader.node_id, *(candidate.node_id for candidate in chosen if candidate is not leader))


def best_beside(kept: Iterable[Candidate], others: Sequence[Candidate]) -> NodeId:
    """Return which of ``others`` takes a replica best, beside those that a stream keeps."""
    in_rack = Counter(_rack(candidate) for candidate in kept)
    left = sorted(others, key=lambda candidate: candidate.node_id)
    return min(left, key=lambda candidate: (in_rack[_rack(candidate)], candidate.replicas)).node_id


def loads(streams: Iterable[Stream]) -> tuple[Counter[NodeId], Counter[NodeId]]:
    """Return how many replicas, and how many preferred leaders, each node has."""
    replicas: Counter[NodeId] = Counter()
    leaders: Counter[NodeId] = Counter()
    for stream in streams:
        replicas.update(stream.replicas)
        leaders[stream.replicas[0]] += 1
    return replicas, leaders


def _rack(candidate: Candidate) -> tuple[bool, str]:
    """Return what names its rack; a node without one is told from a rack of the same name."""
    return (True, candidate.node_id) if candidate.rack is None else (False, candidate.rack)
