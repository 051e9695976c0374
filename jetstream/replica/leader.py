"""The leader of one stream during one reign: what is committed, who is in sync, what followers are served.

Theory of operation. Followers fetch; a fetch says what the follower has on disk, and that is its
acknowledgement. Records that every member of the ISR has on disk are committed. The rest keeps that true when
nodes fail:

    - A member that does not keep up is proposed out of the ISR, a replica that has caught up is proposed in.
      The catalogue decides. Until the decision is known, commits wait for everybody who may be in.
    - An ISR smaller than ``min_insync_replicas`` commits nothing, so it is not proposed: it would only take
      from the stream nodes that have all its committed records and could lead it.
    - Only fetches of this reign count, and only if the follower's log is the beginning of the leader's.
    - Without a lease the leader says nothing, as another may lead by now. Nothing wrong could be committed
      then either, but what it says might be old.

A fetch for which there is nothing stays unanswered: a stream in which nothing happens costs nothing.

Sources: Kafka's replication protocol (high watermark as minimum over the ISR; KIP-101, 279, 320, 497, 903,
966).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import assert_never

from envelope.types import LeaderEpoch, MonotonicNs, NodeEpoch, NodeId, Offset, TimestampUs
from jetstream.log.state.epochs import EpochHistory, EpochStart
from jetstream.replica.isr import InSyncReplicas
from jetstream.replica.leader_events import (
    Action,
    AnswerFollower,
    Appointment,
    Deposed,
    Event,
    FetchArrived,
    FollowerLost,
    IsrRefused,
    LeaderLogSynced,
    LeaseRenewed,
    MinimumChanged,
    ReplicasChanged,
    ServeFollower,
)
from jetstream.replica.progress import FollowerProgress, FollowerState, followers_at
from jetstream.replica.reconcile import EpochEnd, Follows, LogState, StartsOver, compare
from jetstream.replica.role_events import AdvanceHighWatermark, LogStartMoved, Tick
from jetstream.replica.settings import NEVER, ReplicaSettings
from jetstream.replica.steady_state import UNSTEADY, SteadyLeader
from jetstream.replica.wire import (
    DivergingMessage,
    FetchMessage,
    FetchRefusal,
    RefusedMessage,
    StartOverMessage,
)
from metadata.catalog.commands import NodeAtEpoch
from metadata.lease import Lease, unlimited

DEFAULT_SETTINGS = ReplicaSettings()
_SOLE = NodeId("sole")


class Leader(SteadyLeader):
    """Decides which records are committed during one reign.

    Invariants:
        L1: what is newly committed ends at or below the synced end of every member of the maximal ISR, the
            leader included.
        L2: the high watermark never decreases.
        L3: nothing is committed while the committed ISR is smaller than ``min_insync_replicas``.
        L4: nothing leaves without a valid lease, or once deposed, but refusals; the epoch is on record
            before.
        L5: at most one proposal of an ISR is out; the leader is in it, and only replicas are.
        L6: before ``_keeps_up_until`` no member of the ISR lags; none is looked at until then.
            Held by test_what_is_committed_stays_and_the_replicas_agree_in_the_end.

    Attributes:
        deposed: this reign is over.
        replicas: who is in sync or may come to be, this node included: no read replica.
        is_replicated: somebody follows.
        takes_followers: somebody may follow, now or later; then it is told of changes of the catalogue.
    """

    def __init__(
        self,
        appointment: Appointment,
        log: LogState,
        high_watermark: Offset,
        now: MonotonicNs,
        lease: Lease,
        settings: ReplicaSettings = DEFAULT_SETTINGS,
    ) -> None:
        """Begin the reign.

        Args:
            appointment: what the catalogue says.
            log: the leader's own; its last epoch is this reign's, durably, and begins at its end.
            high_watermark: what was known to be committed; may be behind.
            now: the time.
            lease: the node's own, renewed by others; `unlimited` where nobody else can be elected.
            settings: times.
        """
        last = log.epochs.starts[-1]
        assert (last.epoch, last.start) == (appointment.leader_epoch, log.log_end_offset), f"L4: {last}"
        assert appointment.node_id in appointment.isr, f"L5: {appointment}"
        assert high_watermark <= log.log_end_offset, f"L1: {high_watermark} > {log.log_end_offset}"
        own = replace(log)  # its ends are changed in place
        super().__init__(appointment.leader_epoch, high_watermark, own, lease, settings)
        self.isr = InSyncReplicas(appointment.isr, appointment.isr_version)
        self._appointment = appointment
        self.replicas = frozenset(appointment.replicas)
        self._minimum = appointment.min_insync_replicas
        self._epoch_start = log.log_end_offset
        self.deposed = False
        self._keeps_up_until = now
        self.takes_followers = appointment.node_id != _SOLE
        self._followers = followers_at(appointment.others, {}, now)
        self.is_replicated = bool(self._followers)

    @property
    def lacks_replicas(self) -> bool:
        """Whether too few replicas are in sync for anything to be committed."""
        return len(self.isr.committed) < self._minimum

    @property
    def has_committed_own_epoch(self) -> bool:
        """Whether the high watermark has reached all that earlier reigns may have committed.

        Until then it may be below what they acked: the election brought only what one follower knew of it.
        """
        return not self.is_replicated or self.high_watermark >= self._epoch_start

    def holds_leadership(self, now: MonotonicNs) -> bool:
        """Return whether the node may answer anybody about this stream as its leader."""
        return not self.deposed and now < self._lease.until

    def follower_states(self) -> tuple[FollowerState, ...]:
        """Return what is known of each follower, in the order of the replicas."""
        committed, log_end = self.isr.committed, self.log.log_end_offset
        return tuple(
            progress.state(node, log_end, in_sync=node in committed)
            for node, progress in self._followers.items()
        )

    @property
    def wake_at(self) -> MonotonicNs:
        """When to give it a `Tick`, ns of the clock that ``now`` is of; may change with every event.

        `NEVER` while nothing is to be done by time alone. Not remembered: a busy leader has a thousand events
        until somebody asks.
        """
        if self._acted_at == NEVER or not self._followers:
            return NEVER  # time alone brings no lease
        log_end, settings = self.log.log_end_offset, self._settings
        members = _members(self.isr, self._followers)
        lagging_at = min(
            (one.lags_from(log_end, settings.replica_lag_max_ns) for one in members), default=NEVER
        )
        heartbeats = [
            progress.heartbeat(self.high_watermark, settings.heartbeat_interval_ns)
            for progress in self._followers.values()
        ]
        times = (lagging_at, self.isr.due_at(settings.retry_interval_ns), *heartbeats)
        # What is past waits for something else.
        return min((when for when in times if when > self._acted_at), default=NEVER)

    def handle(self, event: Event, now: MonotonicNs) -> tuple[Action, ...]:
        """Take in one event; return what the shell must do, in that order."""
        self._steady_until = UNSTEADY
        if self.deposed:
            if not isinstance(event, FetchArrived):
                return ()
            return (AnswerFollower(event.follower, _refused(event.fetch, FetchRefusal.DEPOSED)),)
        answers: tuple[AnswerFollower, ...] = ()
        high_watermark = self.high_watermark
        match event:
            case Deposed(leader_epoch):
                self.deposed = leader_epoch >= self.leader_epoch
            case FetchArrived(follower, fetch):
                answer = self._fetched(follower, fetch, now)
                answers = () if answer is None else (AnswerFollower(follower, answer),)
            case ReplicasChanged():
                self._change_replicas(event, now)
            case MinimumChanged(min_insync_replicas):
                self._minimum = min_insync_replicas
            case _:
                self._note(event, now)
        if not self.holds_leadership(now):
            self._acted_at = NEVER
            assert all(isinstance(one.answer, RefusedMessage) for one in answers), f"L4: {answers} {self}"
            assert self.high_watermark == high_watermark, f"L4: committed after {high_watermark}: {self}"
            return answers
        actions = [*answers, *self._advance()]
        assert self.high_watermark >= high_watermark, f"L2: back from {high_watermark}: {self}"
        self._acted_at = now
        if self._followers:
            actions += self._serve(now)
            actions += self._propose(now)
        self._begin_steady_state(now)
        return tuple(actions)

    def __str__(self) -> str:
        """Return one line for logs: epoch, high watermark, log and ISR."""
        members = ",".join(sorted(self.isr.committed))
        proposed = "" if self.isr.proposal is None else f" maximal={','.join(sorted(self.isr.maximal))}"
        return (
            f"leader e{self.leader_epoch} hw={self.high_watermark} synced={self.log.synced_end} "
            f"end={self.log.log_end_offset} isr={members} v{self.isr.version}{proposed}"
        )

    # --- events -------------------------------------------------------------------------------------------

    def _note(self, event: Event, now: MonotonicNs) -> None:
        match event:
            case LeaderLogSynced(synced_end, log_end):
                log = self.log
                assert synced_end >= log.synced_end, (
                    f"L1: {synced_end} < {log.synced_end}: a leader never loses what it has"
                )
                assert log_end >= max(log.log_end_offset, synced_end), f"L1: {log_end} {synced_end}, {self}"
                if log_end > log.log_end_offset:
                    for progress in self._followers.values():
                        progress.leader_appends(log.log_end_offset, now)
                log.log_end_offset, log.synced_end = log_end, synced_end
            case LogStartMoved(log_start_offset):
                assert log_start_offset <= self.log.log_end_offset, f"{log_start_offset} beyond {self}"
                self.log.log_start_offset = log_start_offset
            case IsrRefused():
                self.isr.refuse(event, MonotonicNs(now + self._settings.retry_interval_ns))
            case FollowerLost(follower):
                if follower in self._followers:
                    self._followers[follower].lost = True
                    self._keeps_up_until = now
            case LeaseRenewed():
                # It could not serve, or this process stood still: the silence says nothing about followers.
                for progress in self._followers.values():
                    progress.caught_up_at = now
            case _:
                assert isinstance(event, Tick), f"no event of a leader: {event}"

    def _change_replicas(self, changed: ReplicasChanged, now: MonotonicNs) -> None:
        # Together, or one that goes would be proposed once more in between.
        self.isr.commit(changed.isr, changed.isr_version)
        assert self._appointment.node_id in self.isr.committed, f"L5: {changed} {self}"
        assert self.isr.maximal <= set(changed.replicas), f"L5: {changed} {self}"
        self._appointment = replace(
            self._appointment, replicas=changed.replicas, read_replicas=changed.read_replicas
        )
        for node in set(changed.replicas) - self.replicas:
            if node in self._followers:  # until now a read replica
                self._followers[node].owe_answer()
        self.replicas = frozenset(changed.replicas)
        self._followers = followers_at(self._appointment.others, self._followers, now)
        self.is_replicated = bool(self._followers)
        self._keeps_up_until = now

    def _fetched(
        self, follower: NodeId, fetch: FetchMessage, now: MonotonicNs
    ) -> DivergingMessage | StartOverMessage | RefusedMessage | None:
        """Return what is to be answered at once; None if the fetch is parked."""
        progress, log = self._followers.get(follower), self.log
        reason = _refusal(fetch, self.leader_epoch, progress)
        if reason is not None:
            return _refused(fetch, reason)
        assert progress is not None, f"{follower} is unknown, and is not refused: {self}"
        if fetch.node_epoch > progress.node_epoch:
            progress.begin_anew(fetch.node_epoch, log.log_end_offset, now)
        where = compare(log, fetch.last_epoch, fetch.log_end)
        if isinstance(where, Follows):
            progress.fetched(fetch, log.log_end_offset, now)
            return None
        progress.parked = None
        if not self.holds_leadership(now):
            return _refused(fetch, FetchRefusal.NO_LEASE)
        return _parting(fetch, where, log.log_start_offset)

    # --- what follows from any event ----------------------------------------------------------------------

    def _advance(self) -> tuple[Action, ...]:
        committable = self._committable()
        if committable <= self.high_watermark:
            return ()
        assert not self.lacks_replicas, f"L3: {committable} with less than {self._minimum}: {self}"
        assert committable <= self.log.synced_end, f"L1: {committable} {self}"
        others = self.isr.maximal - {self._appointment.node_id}
        assert all(self._followers[node].has_all(committable) for node in others), f"L1: {committable} {self}"
        self.high_watermark = committable
        return (AdvanceHighWatermark(committable),)

    def _committable(self) -> Offset:
        """Return the end of what all of the maximal ISR have on disk; the present one if that is unknown."""
        if self.lacks_replicas:
            return self.high_watermark
        end = self.log.synced_end
        for node in self.isr.maximal:
            if node == self._appointment.node_id:
                continue
            progress = self._followers[node]
            if not progress.heard:
                return self.high_watermark
            end = min(end, progress.synced_end)
        return end

    def _serve(self, now: MonotonicNs) -> Iterator[Action]:
        """Answer the fetches that there is something for."""
        log, interval_ns = self.log, self._settings.heartbeat_interval_ns
        for follower, progress in self._followers.items():
            fetch = progress.parked
            if fetch is None:
                continue
            if fetch.log_end < log.log_start_offset:
                progress.serve(log)
                yield AnswerFollower(follower, _parting(fetch, StartsOver(), log.log_start_offset))
            elif (
                fetch.log_end < log.log_end_offset
                or progress.start_sent != log.log_start_offset
                or now >= progress.heartbeat(self.high_watermark, interval_ns)
            ):
                progress.serve(log)
                limit = log.log_end_offset
                yield ServeFollower(follower, fetch.last_epoch, fetch.log_end, limit, self.high_watermark)

    def _begin_steady_state(self, now: MonotonicNs) -> None:
        """Let fetches and appends change nothing but ends from now on, if that is so.

        Nothing was to be proposed now, and only time or a replica outside the ISR can change that.
        """
        isr = self.isr
        if isr.proposal is not None or now < isr.propose_after or self.lacks_replicas:
            return
        outside = self.replicas - isr.committed
        self._known = {node: one for node, one in self._followers.items() if node not in outside}
        self._in_sync = tuple(one for node, one in self._known.items() if node in isr.committed)
        self._steady_until = self._keeps_up_until if self._followers else NEVER

    # --- the ISR ------------------------------------------------------------------------------------------

    def _propose(self, now: MonotonicNs) -> Iterator[Action]:
        proposal = self.isr.proposal
        if proposal is not None:
            if now >= self.isr.due_at(self._settings.retry_interval_ns):
                proposal.sent_again(now)
                yield proposal.as_action(self.leader_epoch)
            return
        if now < self.isr.propose_after:
            return
        if now >= self._keeps_up_until:
            log_end, lag_max_ns = self.log.log_end_offset, self._settings.replica_lag_max_ns
            in_sync = _members(self.isr, self._followers)
            times = (progress.keeps_up_until(log_end, lag_max_ns, now) for progress in in_sync)
            self._keeps_up_until = min(times, default=NEVER)
        if now < self._keeps_up_until and len(self.isr.committed) == len(self._appointment.replicas):
            return  # all are in sync, as nearly always: nobody joins, nobody leaves
        wanted = self._wanted(now)
        members = None if wanted == self.isr.committed else _named(wanted, self._appointment, self._followers)
        if members is not None:
            assert members[0].node_id == self._appointment.node_id, f"L5: {members} {self}"
            assert wanted <= self.replicas, f"L5: {members} {self}"
            yield self.isr.propose(members, now).as_action(self.leader_epoch)

    def _wanted(self, now: MonotonicNs) -> frozenset[NodeId]:
        """Return the ISR as it should be now."""
        lag_max_ns, log_end = self._settings.replica_lag_max_ns, self.log.log_end_offset
        committed = self.isr.committed
        lagging = {
            node
            for node, progress in self._followers.items()
            if now >= progress.lags_from(log_end, lag_max_ns)
        }
        # Also what this leader does not know to be committed.
        needed = max(self.high_watermark, self._epoch_start)
        joining = {
            node
            for node in self._appointment.replicas
            if node not in committed and node not in lagging and self._followers[node].may_join(needed)
        }
        wanted = (committed - lagging) | joining
        return wanted if len(wanted) >= self._minimum else committed | joining


def sole_replica(leader_epoch: LeaderEpoch, log_end: Offset, synced_end: Offset, now: MonotonicNs) -> Leader:
    """Return the leader of a stream that has no other replica; its reign begins at ``log_end``.

    Its log is committed as far as it is on disk. It needs neither lease nor name, as nobody else can be
    elected; nor the log's own history, which only followers are compared with: a log whose end
    is damaged takes no new epoch.
    """
    appointment = Appointment(
        _SOLE, NodeEpoch(1), leader_epoch, (_SOLE,), (_SOLE,), isr_version=1, min_insync_replicas=1
    )
    reign = EpochHistory((EpochStart(leader_epoch, log_end, TimestampUs(0)),))
    return Leader(appointment, LogState(reign, log_end, log_end, synced_end), synced_end, now, unlimited())


def _members(isr: InSyncReplicas, followers: Mapping[NodeId, FollowerProgress]) -> Iterator[FollowerProgress]:
    """Return the followers that are in the ISR."""
    return (followers[node] for node in isr.committed if node in followers)


def _named(
    nodes: frozenset[NodeId], appointment: Appointment, followers: Mapping[NodeId, FollowerProgress]
) -> tuple[NodeAtEpoch, ...] | None:
    """Name each node by its start that was heard of; None if one was not heard of in this reign."""
    members = [NodeAtEpoch(appointment.node_id, appointment.node_epoch)]
    for node in sorted(nodes - {appointment.node_id}):
        progress = followers[node]
        if not progress.heard:
            return None
        members.append(NodeAtEpoch(node, progress.node_epoch))
    return tuple(members)


def _refusal(
    fetch: FetchMessage, leader_epoch: LeaderEpoch, progress: FollowerProgress | None
) -> FetchRefusal | None:
    if fetch.leader_epoch != leader_epoch:
        return FetchRefusal.OTHER_LEADER_EPOCH
    if progress is None:
        return FetchRefusal.UNKNOWN_REPLICA
    return FetchRefusal.OLD_NODE_EPOCH if fetch.node_epoch < progress.node_epoch else None


def _refused(fetch: FetchMessage, reason: FetchRefusal) -> RefusedMessage:
    return RefusedMessage(fetch.leader_epoch, reason)


def _parting(
    fetch: FetchMessage, where: StartsOver | EpochEnd, log_start: Offset
) -> DivergingMessage | StartOverMessage:
    """Return the answer to a fetch whose log is no beginning of the leader's."""
    match where:
        case EpochEnd(epoch, end):
            return DivergingMessage(fetch.leader_epoch, fetch.last_epoch, fetch.log_end, epoch, end)
        case StartsOver():
            return StartOverMessage(fetch.leader_epoch, fetch.last_epoch, fetch.log_end, log_start)
        case _:
            assert_never(where)
