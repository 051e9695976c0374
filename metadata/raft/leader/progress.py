"""Progress of one follower as its leader knows it, and what may be sent to it now.

    PROBE      where the logs agree is not known: one append, then one for each answered heartbeat
        -> REPLICATE  an append was acknowledged
        -> SNAPSHOT   what the follower lacks is no longer in the log
    REPLICATE  appends are sent ahead of their answers, up to a window
        -> PROBE      an append was rejected, or the connection broke
        -> SNAPSHOT   as above
    SNAPSHOT   a snapshot is on its way, nothing else is sent
        -> REPLICATE  it was acknowledged
        -> PROBE      no answer came in time, or the connection broke

Source: etcd-io/raft, tracker/progress.go.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from envelope.types import LogIndex, MonotonicNs

_NOTHING: Final = LogIndex(0)
_LONG_AGO: Final = MonotonicNs(0)


class ProgressState(StrEnum):
    """See the module."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True, kw_only=True)
class PeerProgress:
    """See the module.

    Invariant:
        R6: 0 <= match < next.
    """

    next: LogIndex
    """The entry to be sent next."""
    heard_at: MonotonicNs
    """When it last answered in this term."""
    match: LogIndex = _NOTHING
    """Up to here its log is known to be the leader's, and durable."""
    state: ProgressState = ProgressState.PROBE
    acked_round: int = 0
    """Last round of heartbeats that it has answered."""
    commit_sent: LogIndex = _NOTHING
    """The commit index that was sent to it, if nothing was lost."""
    left_at: LogIndex | None = None
    """The commit index by which it is no member any more; None: it is one."""
    snapshot_sent_at: MonotonicNs = _LONG_AGO
    """When a snapshot was last sent to it."""
    _snapshot_index: LogIndex = _NOTHING
    _probe_sent: bool = False
    _in_flight: deque[LogIndex] = field(default_factory=deque)
    """Last index of every append under way; in REPLICATE only."""

    def may_send(self, in_flight_max: int) -> bool:
        """Return whether an append with entries may be sent."""
        match self.state:
            case ProgressState.PROBE:
                return not self._probe_sent
            case ProgressState.REPLICATE:
                return len(self._in_flight) < in_flight_max
            case ProgressState.SNAPSHOT:
                return False

    @property
    def is_idle(self) -> bool:
        """Whether it follows and everything sent to it was acknowledged."""
        return self.state is ProgressState.REPLICATE and not self._in_flight

    def sent(self, last: LogIndex, commit: LogIndex) -> None:
        """Record that an append with entries up to ``last``, none if that is before ``next``, was sent."""
        self.commit_sent = max(self.commit_sent, min(commit, last))
        if self.state is ProgressState.PROBE:
            self._probe_sent = True
        elif last >= self.next:
            self._in_flight.append(last)
            self.next = LogIndex(last + 1)
        self._check()

    def sent_snapshot(self, index: LogIndex, now: MonotonicNs) -> None:
        """Record that the snapshot of ``index`` was sent."""
        self.state = ProgressState.SNAPSHOT
        self._in_flight.clear()
        self._snapshot_index, self.snapshot_sent_at = index, now
        assert index > self.match, f"R6: snapshot {index} of what it has: {self}"

    def acknowledged(self, match: LogIndex) -> None:
        """Record that the follower has the leader's log up to ``match``; a late answer changes nothing."""
        self.match = max(self.match, match)
        self.next = max(self.next, LogIndex(self.match + 1))
        while self._in_flight and self._in_flight[0] <= self.match:
            self._in_flight.popleft()
        if self.state is ProgressState.PROBE or (
            self.state is ProgressState.SNAPSHOT and self.match >= self._snapshot_index
        ):
            self.state = ProgressState.REPLICATE
            self.next = LogIndex(self.match + 1)
        self._check()

    def rejected(self, previous: LogIndex, agreement: LogIndex) -> None:
        """Go back after the append that followed ``previous`` was rejected.

        The logs agree up to ``agreement`` at most. The answer to an earlier append is late and ignored.
        """
        if self.state is ProgressState.REPLICATE and previous > self.match:
            self.probe()
        elif self.state is ProgressState.PROBE and previous == self.next - 1:
            self.next = max(LogIndex(self.match + 1), min(previous, LogIndex(agreement + 1)))
            self._probe_sent = False
        self._check()

    def probe(self) -> None:
        """Begin again behind ``match``: messages under way may be lost."""
        self.state = ProgressState.PROBE
        self.next = LogIndex(self.match + 1)
        self._in_flight.clear()
        self._probe_sent = False

    def probe_again(self) -> None:
        """Allow one more append while probing."""
        self._probe_sent = False

    def _check(self) -> None:
        assert 0 <= self.match < self.next, f"R6: {self}"
