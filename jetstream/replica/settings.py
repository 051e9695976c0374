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
    """How long a leader keeps a fetch that there is nothing for; then it is served empty.

    So an idle follower learns a new high watermark within this time.
    """

    retry_interval_ns: int = 750 * _MS
    """How long until a fetch that was not answered, or a proposal whose outcome is not known, is repeated.

    Both are safe to repeat. Above the heartbeat interval, or every fetch of an idle stream would be repeated.
    """

    def __post_init__(self) -> None:
        assert self.heartbeat_interval_ns > 0, "a heartbeat takes time"
        assert self.heartbeat_interval_ns < self.retry_interval_ns, "a parked fetch looks lost"
        assert self.retry_interval_ns < self.replica_lag_max_ns, "one lost fetch would look like a lag"
