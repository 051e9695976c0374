"""A leader while nothing changes: it commits a minimum of integers.

`Leader` is the definition, and handles whatever comes by `handle`. An event that leaves it with a lease,
without a proposal, and with an ISR in which nobody lags, begins a steady state, until the next such event. In
between a follower's fetch or a grown log of its own cannot change who is in sync: only what is committed, and
who is served. Here that is written out, as every group needs it. The simulator runs a second `Leader` without
a steady state beside each leader, and compares after every step.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from envelope.types import LeaderEpoch, MonotonicNs, NodeId, Offset
from jetstream.replica.leader_events import Action, Event, FetchArrived, LeaderLogSynced, ServeFollower
from jetstream.replica.progress import FollowerProgress
from jetstream.replica.reconcile import LogState
from jetstream.replica.role_events import AdvanceHighWatermark
from jetstream.replica.settings import NEVER, ReplicaSettings
from jetstream.replica.wire import FetchMessage
from metadata.lease import Lease

UNSTEADY: Final = MonotonicNs(0)


class SteadyLeader:
    """Handles what comes with every group; `handle` is for what only the machine can judge.

    Attributes:
        leader_epoch: the reign; the log's last epoch as well.
        high_watermark: first offset that is not committed.
        log: the leader's own; its ends are changed in place.
    """

    def __init__(
        self,
        leader_epoch: LeaderEpoch,
        high_watermark: Offset,
        log: LogState,
        lease: Lease,
        settings: ReplicaSettings,
    ) -> None:
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        self.log = log
        self._lease = lease
        self._settings = settings
        self._followers: Mapping[NodeId, FollowerProgress] = {}
        """All, with read replicas and those that may come to be in sync."""
        self._known: Mapping[NodeId, FollowerProgress] = {}
        """Those whose fetches cannot change who is in sync."""
        self._in_sync: tuple[FollowerProgress, ...] = ()
        """Followers; one that was not heard in this reign has nothing on disk."""
        self._steady_until = UNSTEADY
        """Nobody in sync lags before; it and the two above are of a steady state."""
        self._acted_at = NEVER
        """When the last event was handled, if there was a lease then."""

    def handle(self, event: Event, now: MonotonicNs) -> Sequence[Action]:
        """Take in one event; return what the shell must do, in that order."""
        raise NotImplementedError

    def fetched(self, follower: NodeId, fetch: FetchMessage, now: MonotonicNs) -> Sequence[Action]:
        """Handle a `FetchArrived`."""
        log = self.log
        if (
            follower not in self._known
            or now >= self._steady_until
            or now >= self._lease.until
            or fetch.node_epoch != self._known[follower].node_epoch
            or not fetch.leader_epoch == fetch.last_epoch == self.leader_epoch
            or not log.log_start_offset <= fetch.log_end <= log.log_end_offset
        ):
            return self.handle(FetchArrived(follower, fetch), now)
        self._known[follower].fetched(fetch, log.log_end_offset, now)
        return self._advance_and_serve(now)

    def log_synced(self, synced_end: Offset, log_end: Offset, now: MonotonicNs) -> Sequence[Action]:
        """Handle a `LeaderLogSynced`."""
        log, followers = self.log, self._followers
        if now >= self._steady_until or now >= self._lease.until:
            return self.handle(LeaderLogSynced(synced_end, log_end), now)
        assert log.synced_end <= synced_end <= log_end, f"L1: {synced_end} of {log_end} after {log}"
        assert log_end >= log.log_end_offset, f"L1: {log_end} after {log}"
        if log_end > log.log_end_offset:
            for follower in followers:
                followers[follower].leader_appends(log.log_end_offset, now)
        log.log_end_offset, log.synced_end = log_end, synced_end
        return self._advance_and_serve(now)

    def _advance_and_serve(self, now: MonotonicNs) -> list[Action]:
        self._acted_at = now
        actions: list[Action] = []
        log, followers, high_watermark = self.log, self._followers, self.high_watermark
        log_end, end = log.log_end_offset, log.synced_end
        for member in self._in_sync:
            if member.synced_end <= high_watermark:
                break
            end = min(end, member.synced_end)
        else:
            if end > high_watermark:
                self.high_watermark = high_watermark = end
                actions.append(AdvanceHighWatermark(end))
        for follower in followers:
            progress = followers[follower]
            fetch = progress.parked
            if fetch is not None and (
                fetch.log_end < log_end
                or progress.start_sent != log.log_start_offset
                or (
                    fetch.high_watermark < high_watermark
                    and now >= progress.parked_since + self._settings.heartbeat_interval_ns
                )
            ):
                progress.serve(log)
                serve = ServeFollower(follower, fetch.last_epoch, fetch.log_end, log_end, high_watermark)
                actions.append(serve)
        return actions
