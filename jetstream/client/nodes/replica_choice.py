"""The node that a reader asks, and how long it stays there: decided from what is known, nothing else.

A reader that is behind reads from any replica in sync, or any read replica, so that catching up costs the
leader little. A reader that has caught up goes to the leader: the others get a new high watermark a moment
later. While the leader is away another replica serves what it knows, and the reader looks again soon. Where
several would do, the nearest one is asked (KIP-392).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, NamedTuple

ReadFrom = Literal["auto", "leader", "any"]
"""``auto``: catch up anywhere, then the leader; ``leader``: nobody else; ``any``: no leader is needed."""

LOOK_AGAIN_MS: Final = 1_000
"""How long a reader that wants the leader waits at another node before it looks for the leader again."""


class Purpose(Enum):
    """The purpose of a reader's request."""

    OFFSETS = "where the stream begins and ends"
    CATCH_UP = "records that are known to be there"
    TAIL = "records that come"


@dataclass(frozen=True, slots=True)
class StreamReplicas:
    """Where a stream is, as one node knows it."""

    incarnation: str
    leader: str | None
    """None: nobody leads it now."""
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    read_replicas: tuple[str, ...] = ()
    racks: Mapping[str, str | None] = field(default_factory=dict)
    """Where nodes stand; of those that were not told nothing is known."""

    @property
    def holders(self) -> tuple[str, ...]:
        """All nodes that have it."""
        return self.replicas + self.read_replicas


class Locality(NamedTuple):
    """The node and the rack of a reader, as far as they are set."""

    node: str | None = None
    """The node that it is next to."""
    rack: str | None = None

    def nearest(self, nodes: Sequence[str], racks: Mapping[str, str | None]) -> Sequence[str]:
        """Return those of ``nodes`` that are nearest; all of them if none is near."""
        if self.node is not None and self.node in nodes:
            return [self.node]
        if self.rack is None:
            return nodes
        return [node for node in nodes if racks.get(node) == self.rack] or nodes


@dataclass(frozen=True, slots=True)
class ReadPreference:
    """The replicas that an application prefers to read from."""

    read_from: ReadFrom = "auto"
    locality: Locality = field(default_factory=Locality)


@dataclass(frozen=True, slots=True)
class RouteStep:
    """A node to ask."""

    node: str
    leaves: bool = False
    """Once caught up the reader leaves a node that does not lead."""
    wait_ms_max: int | None = None
    """How long a fetch waits there for records; None: as long as the reader likes."""


def choose(
    known: StreamReplicas, purpose: Purpose, preference: ReadPreference, shunned: Collection[str], turn: int
) -> RouteStep | None:
    """Return the node to ask; None if that is the leader and there is none.

    Args:
        known: where the stream is.
        purpose: of the request.
        preference: the application's.
        shunned: nodes that have failed a moment ago.
        turn: any number; readers with different ones are spread over replicas that are equally near, one with
            the same stays.
    """
    if preference.read_from == "any":
        return _step(_one_of(known, preference.locality, shunned, turn))
    if preference.read_from == "leader" or purpose is Purpose.OFFSETS:
        return _step(known.leader, leaves=True)
    if purpose is Purpose.CATCH_UP:
        node, wait_ms_max = _one_of(known, preference.locality, shunned, turn), 0
    elif known.leader is not None and known.leader not in shunned:
        node, wait_ms_max = known.leader, None
    else:
        node, wait_ms_max = _one_of(known, preference.locality, shunned, turn), LOOK_AGAIN_MS
    return _step(node, leaves=True, wait_ms_max=None if node == known.leader else wait_ms_max)


def _step(node: str | None, *, leaves: bool = False, wait_ms_max: int | None = None) -> RouteStep | None:
    return None if node is None else RouteStep(node, leaves, wait_ms_max)


def _one_of(known: StreamReplicas, locality: Locality, shunned: Collection[str], turn: int) -> str | None:
    """Return one in sync or a read replica, rather than that another one, rather than one that has failed."""
    well = [node for node in (*known.isr, *known.read_replicas) if node not in shunned]
    lagging = [node for node in known.replicas if node not in shunned]
    nodes = locality.nearest(well or lagging or known.holders, known.racks)
    return nodes[turn % len(nodes)] if nodes else None
