"""The decider of what is asked of whom to repair a log: one damaged part, and one peer, after the other.

Whoever is in sync has all that is committed, whoever leads, and nearly all of the rest. It gives what it has,
committed or not: the same offset and the same epoch mean the same record, so who has asked can tell whether
it is what was there.

Who could not help is asked again after a while: it may have been away, or be repaired itself by then.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from envelope.types import MonotonicNs, NodeId, Offset
from metadata.catalog.tables import Stream

RETRY_NS: Final = 2_000_000_000
"""A peer that could not help with a damaged part is asked for it again after so long."""


class Attempt(NamedTuple):
    """What to ask, and whom."""

    base: Offset
    next: Offset
    peer: NodeId


class RepairSearch:
    """Of one stream."""

    def __init__(self) -> None:
        self._failed: dict[Attempt, MonotonicNs] = {}

    def next(
        self, damaged: Sequence[tuple[Offset, Offset]], peers: Sequence[NodeId], now: MonotonicNs
    ) -> Attempt | None:
        """Return the first attempt that is due; None if none is.

        Args:
            damaged: what can be put back, lowest first.
            peers: who has it, the best one first.
            now: any clock that does not go back.
        """
        attempts = [Attempt(*part, peer) for part in damaged for peer in peers]
        self._failed = {each: at for each, at in self._failed.items() if each in set(attempts)}
        return next((each for each in attempts if self._is_due(each, now)), None)

    def failed(self, attempt: Attempt, now: MonotonicNs) -> bool:
        """Take in that it was of no use; tell whether that is news."""
        is_news = attempt not in self._failed
        self._failed[attempt] = now
        return is_news

    def _is_due(self, attempt: Attempt, now: MonotonicNs) -> bool:
        at = self._failed.get(attempt)
        return at is None or now - at >= RETRY_NS


def peers_of(row: Stream, node: NodeId, can_be_asked: Callable[[NodeId], bool]) -> list[NodeId]:
    """Return whom ``node`` may ask now: who has all that is committed, the leader first."""
    others = (peer for peer in row.isr_nodes if peer != node)
    return sorted(filter(can_be_asked, others), key=lambda peer: (peer != row.leader, peer))
