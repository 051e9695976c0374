"""Times of the controller, in nanoseconds of the monotonic clock."""

from dataclasses import dataclass
from typing import Final

_MS: Final = 1_000_000

VOTER_HEARD_NS: Final = 2000 * _MS
"""A voter that the metadata leader has heard within that is alive; longer than a lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Checked against each other when made: what does not fit is the caller's bug."""

    lease_ns: int = 1500 * _MS
    """How long a node that was heard counts as alive, and may act as a leader.

    It is also how long a dead leader that nobody misses keeps its streams, so nodes should be heard several
    times in it. A leader that froze, was replaced and goes on may still answer with what it knew for what is
    left of it, though it commits nothing: so not much longer than the silence after which it is replaced.
    """

    report_valid_ns: int = 3000 * _MS
    """How long a follower's report that its leader is silent counts; it repeats it as long as that is so."""

    accused_ns: int = 30_000 * _MS
    """How long a leader that was replaced for its silence is not elected because another is silent.

    Two nodes that cannot reach each other would otherwise take turns.
    """

    retry_interval_ns: int = 1000 * _MS
    """How long to wait for the outcome of an election before it is proposed again; it is safe to repeat."""

    preferred_settle_ns: int = 10_000 * _MS
    """How long a stream must be whole, with nothing of it changing, before the first of its replicas is
    elected because it is the preferred leader."""

    preferred_pause_ns: int = 1000 * _MS
    """How long between two such elections: each interrupts a stream for a moment."""

    voter_replace_after_ns: int = 60_000 * _MS
    """How long the metadata leader must not have heard a voter before another node takes its place.

    A voter that restarts, or whose machine does, comes back with all that it has: no reason to send the whole
    catalogue to another. One that is known to have lost its disk is replaced at once.
    """

    def __post_init__(self) -> None:
        assert 0 < self.retry_interval_ns <= self.lease_ns, "a lost proposal would outlive a lease"
        assert 0 < self.report_valid_ns <= self.accused_ns, (
            "an accused leader could be elected by old reports"
        )
