"""What a leader remembers of its followers' lags, against what it would find if it looked at each of them."""

from envelope.types import MonotonicNs
from jetstream.replica.leader import Leader
from jetstream.replica.settings import NEVER


def check_lags(leader: Leader, now: MonotonicNs) -> None:
    """Assert L6: until the time that is remembered no member of the ISR lags, if all do nothing."""
    log_end, lag_max_ns = leader.log.log_end_offset, leader._settings.replica_lag_max_ns
    members = (leader._followers[node] for node in leader.isr.committed if node in leader._followers)
    lagging_at = min((member.lags_from(log_end, lag_max_ns) for member in members), default=NEVER)
    remembered = leader._keeps_up_until
    assert remembered <= max(now, lagging_at), (
        f"L6: until {remembered}, but one lags at {lagging_at}: {leader}"
    )
