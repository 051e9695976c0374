"""Voters and majorities."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar

from envelope.types import NodeId

OrderedT = TypeVar("OrderedT", bound=int)


@dataclass(frozen=True, slots=True)
class VoterGroup:
    """All voters, as one of them sees them."""

    node_id: NodeId
    peers: tuple[NodeId, ...]
    """The others, in the order of their names."""

    @property
    def voters(self) -> tuple[NodeId, ...]:
        """All voters."""
        return (self.node_id, *self.peers)


def majority(voters: int) -> int:
    """Return how many of ``voters`` (at least 1) are more than half."""
    assert voters >= 1, "nobody is no majority"
    return voters // 2 + 1


def reached_by_majority(values: Iterable[OrderedT]) -> OrderedT:
    """Return the highest value that a majority has reached; one value a voter."""
    ordered = sorted(values, reverse=True)
    return ordered[majority(len(ordered)) - 1]


def is_majority(some: Collection[NodeId], voters: Collection[NodeId]) -> bool:
    """Return whether ``some``, all of them voters, are more than half."""
    return len(some) >= majority(len(voters))
