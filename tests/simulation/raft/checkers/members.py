"""Who decides by a log, and by what is committed: worked out anew, for the product's account is doubted."""

import json

from envelope.types import NodeId
from metadata.raft.proposals import PROPOSAL_ID_BYTES
from metadata.raft.state import Entry
from tests.simulation.raft.disk import LogImage

Sides = tuple[frozenset[NodeId], ...]
"""A decision takes a majority of each: the voters, and during a change those of before."""


class Members:
    """The configurations that were committed, from the founders on."""

    def __init__(self, founders: frozenset[NodeId]) -> None:
        self._committed: list[tuple[int, Sides]] = [(0, (founders,))]

    def committed(self, entry: Entry) -> None:
        """The next entry is committed."""
        sides = _sides_in(entry)
        if sides is not None:
            self._committed.append((entry.index, sides))

    def by(self, log: LogImage) -> Sides:
        """Return who decides by the last configuration in ``log``."""
        found = (_sides_in(entry) for entry in reversed(log.entries))
        behind = next((sides for sides in found if sides is not None), None)
        return behind or self._at(log.snapshot.index)

    @property
    def certain(self) -> frozenset[NodeId]:
        """Those of whom a majority has all that is committed: voters of the last committed configuration."""
        return self._committed[-1][1][0]

    def _at(self, index: int) -> Sides:
        return next(sides for first, sides in reversed(self._committed) if first <= index)


def are_majority(some: set[NodeId], sides: Sides) -> bool:
    """Tell whether more than half of each side is among ``some``."""
    return all(2 * len(some & side) > len(side) for side in sides)


def _sides_in(entry: Entry) -> Sides | None:
    if not entry.payload.startswith(bytes(PROPOSAL_ID_BYTES)):
        return None
    fields = json.loads(entry.payload[PROPOSAL_ID_BYTES:])
    sides = (frozenset(fields["voters"]), frozenset(fields["outgoing"]))
    return tuple(side for side in sides if side)
