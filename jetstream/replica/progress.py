"""The progress of one follower, as its leader knows it during one reign."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from envelope.types import NO_OFFSET, MonotonicNs, NodeEpoch, NodeId, Offset
from envelope.values import value
from jetstream.replica.reconcile import LogState
from jetstream.replica.settings import NEVER
from jetstream.replica.wire import FetchMessage

_NEVER_HEARD = NodeEpoch(0)
_LONG_AGO = MonotonicNs(0)


@value(frozen=True, slots=True)
class FollowerState:
    """The state of a follower as its leader knows it; None before its first fetch in this reign.

    Attributes:
        log_end: after what it has asked for and was sent.
        synced_end: what it has on disk ends here.
        high_watermark: as far as it knows.
        in_sync: the catalogue has it in the ISR.
        away_since: it is dead, or was not heard of in this reign, and had everything at that time at the
            latest; None if it is there.
        lags_since: the latest time at which it is known to have had everything on disk; None: it has now.
    """

    node: NodeId
    log_end: Offset | None
    synced_end: Offset | None
    high_watermark: Offset | None
    in_sync: bool
    away_since: MonotonicNs | None = field(default=None, compare=False)
    lags_since: MonotonicNs | None = field(default=None, compare=False)


def min_synced_end(
    synced_end: Offset, followers: Iterable[FollowerState], now: MonotonicNs, away_max_ns: int
) -> Offset:
    """Return an offset below which every replica has everything on disk; the leader has below ``synced_end``.

    One that has been away for ``away_max_ns`` is not waited for: it copies the log anew if it misses any.
    """
    end = synced_end
    for follower in followers:
        if follower.away_since is None or now - follower.away_since < away_max_ns:
            end = min(end, NO_OFFSET if follower.synced_end is None else follower.synced_end)
    return end


@dataclass(slots=True)
class FollowerProgress:
    """See the module. Nothing that was learnt in an earlier reign or of an earlier start counts.

    Invariants:
        P1: the newest fetch is answered, and once.
        P2: a follower does not lag again from a time at which it had caught up since.
    """

    caught_up_at: MonotonicNs
    """The latest time at which it is known to have had, durably, all that the leader then had."""
    node_epoch: NodeEpoch = _NEVER_HEARD
    heard: bool = False
    """Its log is the beginning of the leader's: a fetch of this start and this reign has shown it."""
    synced_end: Offset = NO_OFFSET
    """What it has acknowledged; this and the next two are of meaning only if ``heard``."""
    log_end: Offset = NO_OFFSET
    high_watermark: Offset = NO_OFFSET
    lost: bool = False
    """Its process is said to be dead, and nothing was heard of it since."""
    parked: FetchMessage | None = None
    """Its newest fetch, not answered yet; an older one is never answered."""
    parked_since: MonotonicNs = _LONG_AGO
    start_sent: Offset | None = None
    """Where the leader's log begins, as it was last told; None: it was sent nothing that counts."""
    was_answered: bool = False
    """It has taken in an answer that was given to who might join, and so what that says of records that are
    gone; whoever has only copied what is left of a log does not know that."""
    _served_end: Offset | None = None
    """Batches were sent to it when its log ended there, and it has not fetched from elsewhere since."""
    _marked_end: Offset | None = None
    """Where the leader's log ended at `_marked_at`; None: it had all of it since."""
    _marked_at: MonotonicNs = _LONG_AGO

    def begin_anew(self, node_epoch: NodeEpoch, log_end: Offset, now: MonotonicNs) -> None:
        """Forget what an earlier start of the node has acknowledged: its disk may be another.

        How long it lags is not forgotten, or a node that starts again and again would hold up every commit.
        """
        self.leader_appends(log_end, now)
        self.node_epoch, self.heard, self.synced_end = node_epoch, False, NO_OFFSET
        self.parked = self._served_end = self._marked_end = None
        self.owe_answer()

    def owe_answer(self) -> None:
        """Answer it once more before it joins those in sync: what it was sent before was for another role."""
        self.start_sent, self.was_answered = None, False

    def fetched(self, fetch: FetchMessage, log_end: Offset, now: MonotonicNs) -> None:
        """Take in how far its log is durable, where the leader's ends at ``log_end``, and keep what it asks.

        A follower also fetches when it has synced, to acknowledge; it may be waiting for batches then, whose
        answer is on the way.

        Kafka compares with the leader's end at the previous fetch. Here fetches also come between a write and
        its sync, so an end is remembered until it is reached: otherwise a steady stream looked like a lag. It
        may look twice as long as it is.
        """
        assert now >= self.caught_up_at, f"P2: {now} is before {self.caught_up_at}"
        self.heard, self.lost = True, False
        # It asks again when it has taken in the answer; what only acknowledges may have crossed it.
        self.was_answered |= fetch.asks and self.start_sent is not None
        self.log_end, self.high_watermark = fetch.log_end, fetch.high_watermark
        if self.synced_end < fetch.synced_end <= fetch.log_end:
            self.synced_end = fetch.synced_end
        elif self.synced_end < fetch.log_end < fetch.synced_end:
            self.synced_end = fetch.log_end  # it has no more on disk than it has, whatever it says
        if self.synced_end >= log_end:
            self.caught_up_at, self._marked_end = now, None
        else:
            if self._marked_end is not None and self.synced_end >= self._marked_end:
                self.caught_up_at, self._marked_end = max(self.caught_up_at, self._marked_at), None
            if self._marked_end is None:
                self._marked_end, self._marked_at = log_end, now
        if fetch.asks or self._served_end != fetch.log_end:
            self.parked, self.parked_since = fetch, now
            self._served_end = None

    def heartbeat(self, high_watermark: Offset, interval_ns: int) -> MonotonicNs:
        """Return when it is to be told of the high watermark, if there is nothing else to tell."""
        if self.parked is None or self.parked.high_watermark >= high_watermark:
            return NEVER
        return MonotonicNs(self.parked_since + interval_ns)

    def serve(self, leader: LogState) -> None:
        """Note that the parked fetch is answered from the leader's log."""
        assert self.parked is not None, "P1: only who asks is answered"
        log_end = self.parked.log_end
        self._served_end = log_end if log_end < leader.log_end_offset else None
        self.parked, self.start_sent = None, leader.log_start_offset

    def leader_appends(self, log_end: Offset, now: MonotonicNs) -> None:
        """Note that the leader's log, which ended at ``log_end`` until now, has grown."""
        if self.heard and self.synced_end >= log_end and now > self.caught_up_at:
            self.caught_up_at = now

    def has_all(self, log_end: Offset) -> bool:
        """Return whether it has, durably, all that the leader has."""
        return self.heard and self.synced_end >= log_end

    def may_join(self, end: Offset) -> bool:
        """Return whether it has all below ``end``, and what is known of records that are gone.

        An answer has brought it that: see `FollowerResponses.serve`.
        """
        return self.heard and self.synced_end >= end and self.was_answered

    def lags_from(self, log_end: Offset, lag_max_ns: int) -> MonotonicNs:
        """Return from when on it lacks something for too long to be in sync, if it does nothing."""
        if self.lost:
            return self.caught_up_at
        return NEVER if self.has_all(log_end) else MonotonicNs(self.caught_up_at + lag_max_ns)

    def keeps_up_until(self, log_end: Offset, lag_max_ns: int, now: MonotonicNs) -> MonotonicNs:
        """Return a time before which it does not lag, whatever it and the leader do, unless it is lost.

        One that has everything now has caught up when the leader's log grows next, at the earliest now.
        """
        lags_from = self.lags_from(log_end, lag_max_ns)
        return MonotonicNs(now + lag_max_ns) if lags_from == NEVER else lags_from

    def state(self, node: NodeId, log_end: Offset, *, in_sync: bool) -> FollowerState:
        """Return what can be told of it, where the leader's log ends at ``log_end``."""
        return FollowerState(
            node=node,
            log_end=self.log_end if self.heard else None,
            synced_end=self.synced_end if self.heard else None,
            high_watermark=self.high_watermark if self.heard else None,
            in_sync=in_sync,
            away_since=self.caught_up_at if self.lost or not self.heard else None,
            lags_since=None if self.has_all(log_end) else self.caught_up_at,
        )


def followers_at(
    nodes: Iterable[NodeId], known: Mapping[NodeId, FollowerProgress], now: MonotonicNs
) -> dict[NodeId, FollowerProgress]:
    """Return what is known of each follower; of one that is new, that it may begin to lag now."""
    return {node: known.get(node) or FollowerProgress(now) for node in nodes}
