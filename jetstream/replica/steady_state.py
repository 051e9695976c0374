"""The part of a leader that every group needs: while nothing changes, it commits a minimum of integers.

`Leader` is the definition. It hands out a `SteadyState` after each event that leaves it with a lease, without
a proposal, and with an ISR in which nobody lags, and takes it back before the next event. In
between a follower's fetch or a grown log of its own cannot change who is in sync: only what is committed, and
who is served. The two share the progress of the followers and the ends of the log, so taking it back costs
nothing. The simulator runs a second `Leader` without it beside each leader, and compares after every step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from envelope.types import LeaderEpoch, MonotonicNs, NodeId, Offset
from jetstream.replica.leader_events import Action, ServeFollower
from jetstream.replica.progress import FollowerProgress
from jetstream.replica.reconcile import LogState
from jetstream.replica.role_events import AdvanceHighWatermark
from jetstream.replica.wire import FetchMessage
from metadata.lease import Lease

Actions: TypeAlias = list[Action]


@dataclass(slots=True, eq=False)
class SteadyState:
    """Handles what comes with every group; None is the answer to what only the machine can judge.

    Attributes:
        leader_epoch: the reign; the log's last epoch as well.
        high_watermark: moves with what is committed.
        log: the leader's own.
        followers: all, with read replicas and those that may come to be in sync.
        known: those whose fetches cannot change who is in sync.
        in_sync: the followers in the ISR; one that was not heard in this reign has nothing on disk.
        lease: of the node.
        until: nobody in sync lags before.
        heartbeat_interval_ns: `ReplicaSettings.heartbeat_interval_ns`.
    """

    leader_epoch: LeaderEpoch
    high_watermark: Offset
    log: LogState
    followers: Mapping[NodeId, FollowerProgress]
    known: Mapping[NodeId, FollowerProgress]
    in_sync: tuple[FollowerProgress, ...]
    lease: Lease
    until: MonotonicNs
    heartbeat_interval_ns: int

    def fetched(self, follower: NodeId, fetch: FetchMessage, now: MonotonicNs) -> Actions | None:
        """Record what a follower acknowledges and asks for; return the actions of `Leader.handle`."""
        progress, log = self.known.get(follower), self.log
        if (
            progress is None
            or now >= self.until
            or now >= self.lease.until
            or fetch.node_epoch != progress.node_epoch
            or not fetch.leader_epoch == fetch.last_epoch == self.leader_epoch
            or not log.log_start_offset <= fetch.log_end <= log.log_end_offset
        ):
            return None
        progress.acknowledge(fetch, log.log_end_offset, now)
        progress.park(fetch, now)
        return self._advance_and_serve(now)

    def log_synced(self, synced_end: Offset, log_end: Offset, now: MonotonicNs) -> Actions | None:
        """Record where the leader's own log ends; return the actions of `Leader.handle`."""
        log = self.log
        if now >= self.until or now >= self.lease.until:
            return None
        assert log.synced_end <= synced_end <= log_end, f"L1: {synced_end} of {log_end} after {log}"
        if log_end > log.log_end_offset:
            for progress in self.followers.values():
                progress.leader_appends(log.log_end_offset, now)
        assert log_end >= log.log_end_offset, f"L1: {log_end} after {log}"
        log.log_end_offset, log.synced_end = log_end, synced_end
        return self._advance_and_serve(now)

    def _advance_and_serve(self, now: MonotonicNs) -> Actions:
        actions: Actions = []
        log = self.log
        end = log.synced_end
        for member in self.in_sync:
            end = min(end, member.synced_end)
        if end > self.high_watermark:
            self.high_watermark = end
            actions.append(AdvanceHighWatermark(end))
        high_watermark, log_end = self.high_watermark, log.log_end_offset
        for follower, progress in self.followers.items():
            fetch = progress.parked
            if fetch is not None and (
                fetch.log_end < log_end
                or progress.start_sent != log.log_start_offset
                or (
                    fetch.high_watermark < high_watermark
                    and now >= progress.parked_since + self.heartbeat_interval_ns
                )
            ):
                progress.serve(log)
                serve = ServeFollower(follower, fetch.last_epoch, fetch.log_end, log_end, high_watermark)
                actions.append(serve)
        return actions
