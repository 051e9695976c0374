"""Times of the replication machines, in nanoseconds of the monotonic clock."""

from dataclasses import dataclass
from typing import Final

from envelope.types import MonotonicNs

_MS: Final = 1_000_000

NEVER: Final = MonotonicNs(2**63 - 1)
"""A time that does not come."""


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Checked against each other when made: what does not fit is the caller's bug."""

    replica_lag_max_ns: int = 2000 * _MS
    """How long a member of the ISR may lack what the leader has before an ISR without it is proposed.

    Meanwhile it holds up every commit; too short, and a pause of a healthy follower costs the stream a copy.
    Source: Kafka's ``replica.lag.time.max.ms``, there 30 s.
    """

    heartbeat_interval_ns: int = 250 * _MS
    """How long a leader keeps a fetch that there is no batch for, if the follower does not know its high
    watermark; then it is served empty.

    So an idle follower learns of the last commit within this time, and is left alone after that.
    """

    retry_interval_ns: int = 750 * _MS
    """How long until what went wrong is tried again: a fetch that was refused, whose connection broke or
    whose answer could not be used, and a proposal that was refused. One whose outcome is not known is
    repeated after it, then after twice as long, up to 16 times as long.
    """

    fetch_timeout_ns: int = 30_000 * _MS
    """How long until a fetch that was not answered is taken for lost, and repeated.

    A connection loses nothing without breaking, so this only guards against our own mistakes, and is what an
    idle stream costs: one fetch in this time. Above the heartbeat interval, or no fetch would be kept for
    that long.
    """

    ask_ahead_records_min: int = 0
    """A follower asks for what comes next as soon as it has received so many records, while it writes and
    syncs them; after fewer it asks when it acknowledges them, as after any that came alone: all before them
    was committed when they were sent.

    Asking ahead keeps network and disk busy at once; but after a single record, or while nothing else is
    under way, there is seldom another yet, and every message costs both nodes more than the record does.
    """

    def __post_init__(self) -> None:
        assert self.heartbeat_interval_ns > 0, "a heartbeat takes time"
        assert self.heartbeat_interval_ns < self.fetch_timeout_ns, "a parked fetch looks lost"
        assert self.retry_interval_ns < self.replica_lag_max_ns, "one refused fetch would look like a lag"
