"""The decider of what is asked of whom to repair a log: one damaged part, and one peer, after the other.

A replica in sync has all that is committed, no matter which one leads, and nearly all of the rest. It gives
what it has, committed or not: the same offset and the same epoch mean the same record, so the replica under
repair can tell whether it is what was there.

A peer that could not help is asked again after a while: it may have been away, or be repaired itself by then.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from envelope.types import MonotonicNs, NodeId, Offset
from metadata.catalog.tables import Stream

RETRY_NS: Final = 2_000_000_000
"""A peer that could not help with a damaged part is asked for it again after so long."""


class Attempt(NamedTuple):
    """A range to ask for, and the peer to ask."""

    base: Offset
    next: Offset
    peer: NodeId


class RepairSearch:
    """Of one stream, for as long as its log has damage."""

    def __init__(self) -> None:
        self._failed: dict[Attempt, MonotonicNs] = {}

    def due(self, base: Offset, end: Offset, peers: Sequence[NodeId], now: MonotonicNs) -> list[Attempt]:
        """Return what may be tried now to put back ``[base, end)``.

        Args:
            base: first offset of a damaged part.
            end: offset after it.
            peers: who has it, the best one first; so are the attempts.
            now: any clock that does not go back.
        """
        attempts = [Attempt(base, end, peer) for peer in peers]
        return [attempt for attempt in attempts if self._is_due(attempt, now)]

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
