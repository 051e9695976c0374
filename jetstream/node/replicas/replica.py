"""A stream's replica on this node, through all its reigns: opened, led or followed, closed.

Each step is done when it returns; `jetstream.node.replicas.replica_controller` says which is next.

`decline_leadership` leaves a reign to another replica in sync.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from envelope.errors import DiskFull, JetstreamError, StreamLost, StreamOffline
from envelope.types import Incarnation, LeaderEpoch, Offset, StreamName
from jetstream.fetch.planner import StreamView
from jetstream.ingest.publishers.dedupe import window_us
from jetstream.log.log import Log
from jetstream.log.reader import FileRange
from jetstream.log.state.epochs import NO_EPOCH
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.disk.open_log import begin_at_tier, begin_reign, needs_tier
from jetstream.node.disk.stream_files import StreamFiles
from jetstream.node.nats.gaps import Gap
from jetstream.node.replicas.context import (
    ClusterServices,
    NodeServices,
    ReplicaContext,
    SyncTimer,
    log_state,
)
from jetstream.node.replicas.followed_stream import FollowingStream
from jetstream.node.replicas.leadership import LeadershipCheck
from jetstream.node.replicas.led_stream import LeadingStream
from jetstream.node.tiers.tiered_stream import Readable, TieredStream
from jetstream.replica.desired_role import RoleStatus
from jetstream.replica.leader import Leader, sole_replica
from jetstream.replica.leader_events import Appointment
from metadata.api.responses import GapKind
from metadata.catalog.commands import ChangeLeader
from metadata.catalog.tables import Stream
from metadata.stream_config import StreamConfig

_log = logging.getLogger(__name__)


async def decline_leadership(row: Stream, error: JetstreamError, cluster: ClusterServices) -> DiskFull | None:
    """Leave a reign that could not begin to another; return what it waits for if nobody can have it.

    A disk that is full will not stay so; of any other error it is not known whether trying again can help.
    """
    is_left = await _elect_another(row, cluster)
    return error if isinstance(error, DiskFull) and not is_left else None


async def _elect_another(row: Stream, cluster: ClusterServices) -> bool:
    """Elect another replica in sync, the first that is not lost and that the catalogue accepts.

    Returns:
        Whether there was one.
    """
    for node in row.isr_nodes:
        if node == cluster.node_id or cluster.sessions.is_lost(node):
            continue
        command = ChangeLeader(
            stream=row.name,
            incarnation=row.incarnation,
            leader=node,
            node_epoch=cluster.epoch_of(node),
            expected_leader_epoch=row.leader_epoch,
        )
        try:
            (await cluster.propose(command)).answer()
        except JetstreamError as error:
            _log.warning("not handed over stream=%s to=%s error=%s", row.name, node, error)
        else:
            return True
    return False


class StreamReplica:
    """Made as soon as the catalogue gives the node a replica.

    Attributes:
        config: in force here.
        incarnation: which life of the name it is.
        leading: while this node leads; None while it does not.
        following: while it does not, and the log is open.
        problem: why it does not serve at all; None once it does.
        retry_reason: why the reign that is given to this node has not begun, if nobody else can lead; to be
            made None when it is time to try again.
        tiered: what is known here of it in the object store.
        confirm_leadership: see `ReadableStream.confirm_leadership`.
    """

    def __init__(
        self,
        row: Stream,
        services: NodeServices,
        files: StreamFiles,
        reign_begun: Callable[[LeadingStream], None],
    ) -> None:
        """Do nothing yet.

        Args:
            row: the catalogue's.
            services: what it needs of its node.
            files: where its log lies.
            reign_begun: called whenever this node begins to lead.
        """
        self.config: StreamConfig = row.config
        self.incarnation: Incarnation = row.incarnation
        self.leading: LeadingStream | None = None
        self.following: FollowingStream | None = None
        self.problem: JetstreamError | None = StreamOffline("it is being recovered")
        self._services = services
        self._files = files
        self._reign_begun = reign_begun
        self._sync_timer = SyncTimer(services)
        self._context: ReplicaContext | None = None
        self._does_not_open = False
        self._declined_epoch = NO_EPOCH
        self.retry_reason: JetstreamError | None = None
        self.tiered = TieredStream(row, services.tier, services.cluster.node_id, services.cluster.propose)
        self.confirm_leadership = LeadershipCheck(
            row.incarnation, self.name, lambda: self.leader_epoch, services
        )

    # --- what others see -------------------------------------------------------------------------

    @property
    def name(self) -> StreamName:
        """The stream's name."""
        return StreamName(self.config.name)

    @property
    def context(self) -> ReplicaContext:
        """Its parts on disk; only once it is open and without a problem."""
        assert self._context is not None, f"{self.name} is not open"
        return self._context

    @property
    def is_open(self) -> bool:
        """Whether its log is open."""
        return self._context is not None

    @property
    def log(self) -> Log:
        """The log."""
        return self.context.log

    @property
    def readable(self) -> Readable:
        """Its readable records: those in the log, and those in the object store."""
        return self.tiered.view(self.log.reader, leads=self.leads)

    def view(self) -> StreamView[FileRange]:
        """Return the stream as readers see it, now."""
        role, leads = self.leading or self.following, self.leads
        assert role is not None, f"{self.name} is not open"
        index = self.tiered.view(self.context.opened.log.reader, leads=leads)
        return StreamView(Incarnation(self.incarnation), role.high_watermark, index, role.leader_epoch, leads)

    @property
    def high_watermark(self) -> Offset:
        """First offset that is not known here to be committed."""
        role = self.leading or self.following
        return role.high_watermark if role is not None else Offset(0)

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The newest reign that is known here."""
        role = self.leading or self.following
        return role.leader_epoch if role is not None else NO_EPOCH

    @property
    def leads(self) -> bool:
        """Whether this node leads it now, by its lease."""
        return self.leading is not None and self.leading.driver.holds_leadership

    @property
    def has_committed_own_epoch(self) -> bool:
        """Whether nothing at or above the high watermark has been acked by an earlier leader."""
        return self.leading is not None and self.leading.driver.has_committed_own_epoch

    @property
    def health_error(self) -> JetstreamError | None:
        """Why it does not take, or does not serve, what it should; None if it does."""
        if self.problem is not None:
            return self.problem
        if self.leading is not None:
            return self.log.failed or self.leading.problem
        return self.log.failed or self.retry_reason or (self.following.problem if self.following else None)

    def subscribe(self, callback: Callable[[Offset], None]) -> Callable[[], None]:
        """Call ``callback`` with every new high watermark; returns the way to stop that."""
        return self.context.watch(callback)

    def standing(self) -> RoleStatus:
        """Return what it does now."""
        role = self.leading or self.following
        return RoleStatus(
            is_open=self.is_open or self._does_not_open or self.retry_reason is not None,
            config=self.config,
            leads=self.leading is not None,
            leader=self.following.leader if self.following is not None else None,
            leader_epoch=role.leader_epoch if role is not None else NO_EPOCH,
            declined_epoch=self._declined_epoch,
            is_damaged=self._context is not None and self._context.log.failed is not None,
            is_refused=isinstance(self.problem, StreamLost),
            awaits_retry=self.retry_reason is not None,
        )

    # --- the steps ---------------------------------------------------------------------------------

    async def open(self, row: Stream) -> None:
        """Open the log and follow nobody; on failure `problem` says why, and `retry_reason` for now."""
        try:
            opened = await self._services.disk.call(partial(self._files.open, row))
        except JetstreamError as error:
            _log.error("stream not opened stream=%s error=%r runbook=RB-01", self.name, error)
            self.problem = StreamOffline(error.description)
            self.retry_reason = error if isinstance(error, DiskFull) else None
            self._does_not_open = self.retry_reason is None
            return
        upkeep = Upkeep(opened.log, self._services.clock, lambda: self.high_watermark, lambda: opened.note)
        upkeep.is_tiered, upkeep.tier_end = row.config.tier, lambda: self.tiered.border
        self._context = ReplicaContext(self.config, self.incarnation, opened, upkeep)
        known = max(opened.log.log_start_offset, opened.log.writer.committed)
        self.following = FollowingStream(self._context, known, self._services)
        self.problem = None
        self._sync_timer.follow(self.config, opened.log)

    async def repair(self) -> None:
        """Begin again with an empty log; the leader has everything."""
        following, context = self.following, self.context
        assert following is not None, "who leads does not repair"
        following.follow(None, following.leader_epoch)
        await following.settled()
        _log.error("replica copied anew stream=%s: its log was damaged: %s", self.name, context.log.failed)
        try:
            await self._services.disk.call(partial(context.log.close, clean=False))
            await self._services.disk.call(partial(self._files.remove, self.name, self.incarnation))
        except JetstreamError as error:
            _log.error("replica not repaired stream=%s error=%r runbook=RB-01", self.name, error)
            self.problem = StreamOffline(error.description)
        self._context = self.following = None

    async def reconfigure(self, config: StreamConfig) -> None:
        """Put a changed configuration in force."""
        before, self.config = self.config, config
        if self._context is None:
            return
        self._context.config = config
        if self.leading is not None and (before.subject, before.group) != (config.subject, config.group):
            await self.leading.resubscribe(before)
        try:
            await self._services.disk.call(
                partial(_reconfigure_log, self._context, follows=self.leading is None)
            )
        except JetstreamError as error:
            _log.error("configuration not in force stream=%s error=%r runbook=RB-01", self.name, error)
        self._sync_timer.follow(config, self.log)
        if self.leading is not None:
            self.leading.reconfigure()

    async def resign(self) -> None:
        """Stop to lead, and follow nobody."""
        leading = self.leading
        assert leading is not None, "only who leads resigns"
        leading.depose(leading.leader_epoch)
        await leading.resign()
        opened = self.context.opened
        if opened.log.failed is None:
            with suppress(JetstreamError):  # of a disk that will refuse the next append as well
                await self._services.disk.call(self.context.settle)
        self.leading = None
        high_watermark = min(leading.high_watermark, opened.log.log_end_offset)
        self.following = FollowingStream(self.context, high_watermark, self._services)
        _log.info("reign ended stream=%s leader_epoch=%d", self.name, leading.leader_epoch)

    async def take_over(self, row: Stream, newest: Callable[[], Stream | None]) -> None:
        """Begin the reign in ``row``, once nothing is being written any more.

        Args:
            row: the catalogue's.
            newest: what it says later of this reign; None if it says so no more. Replicas may come and go
                meanwhile, or another reign begin.
        """
        following, context = self.following, self.context
        assert following is not None, "who does not lead follows"
        following.follow(self._services.cluster.node_id, row.leader_epoch)
        await following.settled()
        now = self._services.clock.wall()
        # A damaged log of which there is no other copy is read all the same.
        can_begin = context.log.failed is None or len(row.holders) > 1
        is_unclean = row.is_unclean_from(context.log.reader.last_epoch)
        if can_begin:
            try:
                if needs_tier(context.log, row.tier, is_unclean=is_unclean):
                    await _begin_at_tier(context, row, self._services)
                await self._services.disk.call(partial(begin_reign, context.opened, row.leader_epoch, now))
            except JetstreamError as error:
                _log.error("reign not begun stream=%s error=%r runbook=RB-01", self.name, error)
                self.following = _followed_anew(following, context, self._services)
                self.retry_reason = await decline_leadership(row, error, self._services.cluster)
                self._declined_epoch = row.leader_epoch if self.retry_reason is None else self._declined_epoch
                return
        if (current := newest()) is None:
            self.following = _followed_anew(following, context, self._services)
            return
        if can_begin and not self._services.cluster.is_alone:
            leader = _leader_of(context, current, _known_committed(following, context), self._services)
        else:
            monotonic = self._services.clock.monotonic()
            leader = sole_replica(
                row.leader_epoch, context.log.log_end_offset, context.log.writer.synced_end, monotonic
            )
        context.opened.history.lead_from(leader.high_watermark, now)
        self.following = None
        leading = self.leading = LeadingStream(context, leader, self._services)
        leading.begin()
        leading.row_changed(current)  # what has changed meanwhile: whether messages are taken, above all
        self._reign_begun(leading)
        await leading.attach()
        if row.leader_epoch > 1:
            until = self._services.clock.wall()
            since = min(max(context.log.reader.last_timestamp, row.created), until)
            kind = GapKind.UNCLEAN_ELECTION if is_unclean else GapKind.RESTART
            context.gaps.add(Gap(kind, since, until))
        _log.info("reign begun stream=%s %s", self.name, leader)
        if is_unclean:
            _log_unclean(context, row.leader_epoch)

    async def end(self) -> bool:
        """Leave the subject, finish what was received, close the log; for good.

        Returns:
            Whether all that it has written is on disk.
        """
        self._sync_timer.stop()
        if self._context is None:
            return True
        if self.leading is not None:
            await self.leading.detach()
            await self.leading.drained()
            self.leading.driver.end(self.leading.leader_epoch)
        elif self.following is not None:
            self.following.follow(None, self.leader_epoch)
            await self.following.settled()
        log = self._context.log
        log.note_committed(self.high_watermark)
        is_well = log.failed is None
        try:
            await self._services.disk.call(log.close)
        except JetstreamError as error:
            _log.error("log not closed cleanly stream=%s error=%r runbook=RB-01", self.name, error)
            return False
        return is_well


async def _begin_at_tier(context: ReplicaContext, row: Stream, services: NodeServices) -> None:
    assert row.tier is not None, "it needs what is there"
    text = "log begins anew where the object store ends stream=%s offset=%d log_end_offset=%d"
    _log.warning(text, context.name, row.tier.end, context.log.log_end_offset)
    await services.disk.call(partial(begin_at_tier, context.opened, row.tier))


def _known_committed(following: FollowingStream, context: ReplicaContext) -> Offset:
    """Return what a follower knew to be committed, as the log is now.

    One that has just begun where the object store ends is committed up to there. A leader that was
    elected uncleanly may have known of more, which is lost.
    """
    return max(min(following.high_watermark, context.log.log_end_offset), context.log.log_start_offset)


def _followed_anew(
    before: FollowingStream, context: ReplicaContext, services: NodeServices
) -> FollowingStream:
    """Go on as ``before`` behind a reign that came to nothing, with the log as it is now."""
    following = FollowingStream(context, _known_committed(before, context), services)
    following.follow(before.leader, before.leader_epoch)
    return following


def _log_unclean(context: ReplicaContext, leader_epoch: LeaderEpoch) -> None:
    context.counts["unclean_elections"] += 1
    _log.error(
        "leads without having been in sync stream=%s leader_epoch=%d: acked records from "
        "offset=%d on may be lost runbook=RB-10",
        context.name,
        leader_epoch,
        context.log.reader.epochs.starts[-1].start,
    )


def _leader_of(
    context: ReplicaContext, row: Stream, high_watermark: Offset, services: NodeServices
) -> Leader:
    cluster, now = services.cluster, services.clock.monotonic()
    appointment = Appointment(
        node_id=cluster.node_id,
        node_epoch=cluster.node_epoch,
        leader_epoch=row.leader_epoch,
        replicas=row.replicas,
        isr=row.isr_nodes,
        isr_version=row.isr_version,
        min_insync_replicas=row.config.insync_minimum,
        read_replicas=row.read_replicas,
    )
    return Leader(
        appointment=appointment,
        log=log_state(context.log),
        high_watermark=high_watermark,
        now=now,
        lease=cluster.lease,
        settings=cluster.settings,
    )


def _reconfigure_log(context: ReplicaContext, *, follows: bool) -> None:
    """Run on the disk thread, which owns the publishers' state of a follower's log."""
    context.upkeep.reconfigure(context.config)
    context.opened.note.resize(window_us(context.config.session_window))
    if follows:
        context.opened.reconfigure(context.config)
