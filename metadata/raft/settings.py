"""The times and limits of a voter. All voters of a group should have the same."""

from dataclasses import dataclass
from typing import Final

from envelope.limits import MIB
from envelope.types import MonotonicNs

_MS: Final = 1_000_000

NEVER: Final = MonotonicNs(2**63 - 1)
"""A time that does not come."""

HEARTBEATS_PER_ELECTION_TIMEOUT_MIN: Final = 3
"""Fewer, and two lost messages look like a dead leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """Checked against each other when made: what does not fit is the caller's bug."""

    election_timeout_ns: int = 500 * _MS
    """Silence of the leader after which a voter, in up to twice this time, asks for an election.

    It is also how long a voter that has heard of a leader helps nobody to depose it, how long a leader goes
    on without hearing from a majority, and how long it waits for a transfer or the answer to a snapshot. To
    be many times what a message takes there and back; a stall that is longer costs a needless election, never
    an entry.
    """

    heartbeat_interval_ns: int = 100 * _MS
    """How often an idle leader sends heartbeats; at most a third of the election timeout.

    A lost append is found, and an idle follower learns a commit it was not told of, within this time.
    """

    append_bytes_max: int = MIB
    """Most bytes of entries in one message, so that it holds up no heartbeat; a larger entry goes alone."""

    appends_in_flight_max: int = 64
    """Most append messages on the way to one follower, so that a stalled one does not fill our memory.

    Together with ``append_bytes_max`` this bounds what is sent ahead of the answers: their product should
    exceed what the network carries in the time of one round trip.
    """

    entries_in_flight_max: int = 8192
    """Most entries that are appended and not committed; beyond it proposals are refused as overload."""

    def __post_init__(self) -> None:
        assert self.heartbeat_interval_ns > 0, "a heartbeat takes time"
        assert self.election_timeout_ns >= (
            HEARTBEATS_PER_ELECTION_TIMEOUT_MIN * self.heartbeat_interval_ns
        ), f"an election timeout of {self.election_timeout_ns} ns is too short for the heartbeats"
        assert self.append_bytes_max > 0, "a message must hold an entry"
        assert self.appends_in_flight_max > 0, "nothing could be sent"
        assert self.entries_in_flight_max > 0, "nothing could be proposed"
