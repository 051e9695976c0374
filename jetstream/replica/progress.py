"""What a leader knows of one follower during its reign."""

from dataclasses import dataclass

from envelope.types import NO_OFFSET, LeaderEpoch, MonotonicNs, NodeEpoch, Offset

_NEVER_HEARD = NodeEpoch(0)


@dataclass(frozen=True, slots=True)
class ParkedFetch:
    """The newest fetch of a follower, not answered yet; an older one is never answered."""

    last_epoch: LeaderEpoch
    log_end: Offset
    since: MonotonicNs


@dataclass(frozen=True, slots=True)
class _Served:
    """Batches were sent to a follower whose log ended there."""

    log_end: Offset
    at: MonotonicNs


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where the leader's log ended at a time."""

    log_end: Offset
    at: MonotonicNs


@dataclass(slots=True)
class Progress:
    """See the module. Nothing that was learnt in an earlier reign or of an earlier start counts."""

    caught_up_at: MonotonicNs
    """The latest time at which it is known to have had, durably, all that the leader then had."""
    node_epoch: NodeEpoch = _NEVER_HEARD
    heard: bool = False
    """Its log is the beginning of the leader's: a fetch of this start and this reign has shown it."""
    synced_end: Offset = NO_OFFSET
    """What it has acknowledged; of meaning only if ``heard``."""
    lost: bool = False
    """Its process is said to be dead, and nothing was heard of it since."""
    parked: ParkedFetch | None = None
    _served: _Served | None = None
    _mark: _Mark | None = None

    def begin_anew(self, node_epoch: NodeEpoch, log_end: Offset, now: MonotonicNs) -> None:
        """Forget what an earlier start of the node has acknowledged: its disk may be another.

        How long it lags is not forgotten, or a node that starts again and again would hold up every commit.
        """
        self.leader_appends(log_end, now)
        self.node_epoch, self.heard, self.synced_end = node_epoch, False, NO_OFFSET
        self.parked = self._served = self._mark = None

    def acknowledge(self, synced_end: Offset, log_end: Offset, now: MonotonicNs) -> None:
        """Take in how far its log is durable; the leader's ends at ``log_end``.

        Kafka compares with the leader's end at the previous fetch. Here fetches also come between a write and
        its sync, so an end is remembered until it is reached: otherwise a steady stream looked like a lag. It
        may look twice as long as it is.
        """
        self.heard, self.lost = True, False
        self.synced_end = max(self.synced_end, synced_end)
        if self.synced_end >= log_end:
            self.caught_up_at, self._mark = now, None
            return
        if self._mark is not None and self.synced_end >= self._mark.log_end:
            self.caught_up_at, self._mark = max(self.caught_up_at, self._mark.at), None
        if self._mark is None:
            self._mark = _Mark(log_end, now)

    def park(self, fetch: ParkedFetch, repeat_after_ns: int) -> None:
        """Keep a fetch until it is answered, unless its answer is on the way.

        A follower also fetches when it has synced, to acknowledge; it may be waiting for batches then.
        """
        served = self._served
        is_served = served is not None and served.log_end == fetch.log_end
        if served is None or not is_served or fetch.since >= served.at + repeat_after_ns:
            self.parked, self._served = fetch, None

    def serve(self, log_end: Offset, now: MonotonicNs) -> ParkedFetch | None:
        """Take the parked fetch to answer it, from a log that ends at ``log_end``."""
        parked, self.parked = self.parked, None
        if parked is not None and parked.log_end < log_end:
            self._served = _Served(parked.log_end, now)
        return parked

    def leader_appends(self, log_end: Offset, now: MonotonicNs) -> None:
        """Note that the leader's log, which ended at ``log_end`` until now, has grown."""
        if self.has_all(log_end):
            self.caught_up_at = max(self.caught_up_at, now)

    def has_all(self, log_end: Offset) -> bool:
        """Tell whether it has, durably, all that the leader has."""
        return self.heard and self.synced_end >= log_end

    def lags(self, log_end: Offset, lag_max_ns: int, now: MonotonicNs) -> bool:
        """Tell whether it has lacked something for too long to be in sync."""
        return self.lost or (not self.has_all(log_end) and now >= self.caught_up_at + lag_max_ns)
