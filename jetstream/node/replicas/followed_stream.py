"""A stream that another node leads: fetches → disk → acknowledgements.

It decides nothing: `Follower` says what to ask for and what to cut, `Log` stores.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

from envelope.errors import DiskFull, JetstreamError, StreamLost
from envelope.types import NO_OFFSET, LeaderEpoch, NodeId, Offset
from jetstream.node.disk.appends import FollowerAppend
from jetstream.node.disk.history_file import NOTHING_NOTED, decode_note
from jetstream.node.replicas.context import NodeServices, ReplicaContext, log_state
from jetstream.node.replicas.lost_records import LostRecords
from jetstream.replica.follower import Follower
from jetstream.replica.follower_events import (
    Action,
    AppendsUndone,
    CutRefused,
    Distrust,
    Event,
    LeaderAssigned,
    LeaderConnected,
    LeaderDisconnected,
    LogCut,
    ReportLost,
    ResetLog,
    Truncate,
)
from jetstream.replica.role_events import AdvanceHighWatermark, LogStartMoved, Tick
from jetstream.replica.wire import Answer, BatchesMessage, FetchMessage, RefusedMessage
from metadata.catalog.tables import Stream

_log = logging.getLogger(__name__)


class FollowingStream:
    """Follows the leader, until `settled` before this node leads itself.

    Attributes:
        min_synced_end: a leader has said that every replica has on disk what lies below.
        failed: why it asks for nothing any more; None while it does.
        problem: the same, or why it asks the present leader for nothing.
    """

    def __init__(self, context: ReplicaContext, high_watermark: Offset, services: NodeServices) -> None:
        """Begin with a log to which nothing is being written."""
        cluster = services.cluster
        self._context = context
        self._name = context.name
        self._services = services
        self._follower = Follower(
            cluster.node_id, cluster.node_epoch, log_state(context.log), high_watermark, cluster.settings
        )
        self.min_synced_end = NO_OFFSET
        self._lost = LostRecords(context, cluster.node_id)
        self._settled: asyncio.Future[None] | None = None
        self.failed: JetstreamError | None = None
        self.problem: JetstreamError | None = None

    @property
    def high_watermark(self) -> Offset:
        """First offset that is not known to be committed."""
        return self._follower.high_watermark

    @property
    def leader(self) -> NodeId | None:
        """The node that it follows."""
        return self._follower.leader

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The newest reign it knows of."""
        return self._follower.leader_epoch

    # --- what happens ------------------------------------------------------------------------------

    def follow(self, leader: NodeId | None, leader_epoch: LeaderEpoch, row: Stream | None = None) -> None:
        """Follow the leader of ``row``; none if there is none or it is this node."""
        self.problem = self.failed
        may_lack = row is not None and row.may_lack_committed(self._follower.log.epochs.last)
        self._handle(LeaderAssigned(leader, leader_epoch, may_lack))

    async def settled(self) -> None:
        """Return when the log is written to no more; this node is to lead."""
        while not self._follower.is_settled and self.failed is None:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled

    def connected(self) -> None:
        """Handle that the leader can be reached (again)."""
        self._handle(LeaderConnected())

    def disconnected(self) -> None:
        """Handle that answers will not come."""
        self._handle(LeaderDisconnected())

    def answered(self, peer: NodeId, message: Answer) -> None:
        """Handle an answer, if it is the leader's."""
        follower = self._follower
        if peer != follower.leader:
            return
        match message:
            case BatchesMessage():
                if message.note and not message.body:
                    # The machine asks for more, and so joins those in sync, only when that is on disk.
                    self._append(message)
                else:
                    self._perform(follower.batches(message, self._services.clock.monotonic()))
                self.min_synced_end = max(self.min_synced_end, message.purged_end)
                if message.log_start_offset > self._context.opened.log.reader.log_start_offset:
                    self._drop_before(message.log_start_offset)
            case _:
                if isinstance(message, RefusedMessage):
                    _log.info("fetch refused stream=%s reason=%s", self._name, message.reason)
                self._handle(message)

    def _drop_before(self, log_start_offset: Offset) -> None:
        """Let the log begin where the leader's does, as far as it is known to be committed here."""
        before = min(log_start_offset, self.high_watermark)
        if before > self._context.log.log_start_offset and self._context.log.failed is None:
            # Where there is no space for it, the next answer asks for it again.
            self._on_disk(lambda: self._context.upkeep.truncate_before(before), lambda: LogStartMoved(before))

    # --- the machine -------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        self._perform(self._follower.handle(event, self._services.clock.monotonic()))

    def _perform(self, actions: Sequence[Action]) -> None:
        services, leader = self._services, self._follower.leader
        for action in actions:
            match action:
                case FetchMessage():
                    assert leader is not None, "who follows nobody asks nobody"
                    life = self._name, self._context.incarnation
                    if self.failed is None and not services.cluster.sessions.fetch(leader, *life, action):
                        self._follower.handle(LeaderDisconnected(), services.clock.monotonic())
                case BatchesMessage():
                    self._append(action)
                case AdvanceHighWatermark(high_watermark):
                    self._context.opened.fates.observe(high_watermark, services.clock.wall())
                    for watcher in tuple(self._context.watchers):
                        watcher(high_watermark)
                case _:
                    self._part_from_leader(action)
        if self._tick not in services.cluster.timers.to_ask:
            services.cluster.timers.changed(self._tick, self._follower)
        if self._settled is not None and not self._settled.done() and self._follower.is_settled:
            self._settled.set_result(None)

    def _tick(self) -> None:
        self._handle(Tick())

    def _part_from_leader(self, action: Truncate | ResetLog | ReportLost | Distrust) -> None:
        name = self._name
        match action:
            case Truncate(end):
                _log.info("cutting the log back stream=%s end=%d %s", name, end, self._follower)
                self._lost.cut(end)
                self._cut(partial(_truncate, self._context, end))
            case ResetLog(offset, purged_end, note):
                _log.warning("beginning the log anew stream=%s offset=%d %s", name, offset, self._follower)
                if not purged_end:  # otherwise the leader has what goes, as far as it is not deleted
                    self._lost.cut(offset)
                self._cut(partial(_begin_anew, self._context, offset, purged_end, note))
            case ReportLost(start, end):
                self._lost.committed(start, end)
            case Distrust(start, end):
                text = (
                    f"{self.leader} leads and lacks committed records from {start} to {end}: nothing is cut"
                )
                _log.error("leader distrusted stream=%s: %s runbook=RB-13", name, text)
                self.problem = StreamLost(text)
            case _:
                assert_never(action)

    # --- the disk ----------------------------------------------------------------------------------

    def _append(self, message: BatchesMessage) -> None:
        """Put the message's note in force, and append its batches."""
        append = FollowerAppend(
            opened=self._context.opened,
            data=message.body,
            now=self._services.clock.wall(),
            high_watermark=self._follower.high_watermark,
            committed=message.high_watermark,
            note=message.note,
        )
        self._services.disk.append([append], partial(self._appended, append, message))

    def _appended(self, append: FollowerAppend, message: BatchesMessage) -> None:
        """Handle that the batches are as durable as the stream's mode promises, or why they are not."""
        error, log, now = append.error, self._context.opened.log, self._services.clock.monotonic()
        if error is None:
            self._context.upkeep.appended()
            if message.body:
                synced_end = min(log.writer.synced_end, message.next)
                self._perform(self._follower.stored(message.next, synced_end, now))
            else:
                self._perform(self._follower.batches(message, now))
        elif log.failed is not None:
            self._fail(error)
        else:
            level = logging.WARNING if isinstance(error, DiskFull) else logging.ERROR
            _log.log(level, "append refused stream=%s error=%s", self._name, error)
            self._handle(AppendsUndone(log_state(log)))

    def _cut(self, work: Callable[[], None]) -> None:
        log = self._context.log
        self._on_disk(work, lambda: LogCut(log_state(log)), lambda: self._handle(CutRefused(log_state(log))))

    def _on_disk(
        self, work: Callable[[], None], then: Callable[[], Event], refused: Callable[[], None] = lambda: None
    ) -> None:
        """Change the log between two appends, and notify the machine; on a full disk `refused`."""

        def done(worked: "asyncio.Future[None]") -> None:
            error = worked.exception()
            if error is None:
                self._handle(then())
            elif isinstance(error, DiskFull) and self._context.log.failed is None:
                _log.warning("cut waits for space stream=%s error=%s", self._name, error)
                refused()
            elif isinstance(error, JetstreamError):
                self._fail(error)
            else:
                self._services.crash.report(error)

        self._services.disk.call(work).add_done_callback(done)

    def _fail(self, error: JetstreamError) -> None:
        """Ask for nothing any more: this replica leaves the ISR, and the others go on without it."""
        _log.error("replica offline stream=%s error=%r runbook=RB-01", self._name, error)
        self.failed = self.problem = error
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)


def _truncate(context: ReplicaContext, end: Offset) -> None:
    """Cut the log back; on the disk thread."""
    log_end_offset = context.log.log_end_offset
    try:
        context.log.truncate_to(end)
    except DiskFull:
        if context.log.log_end_offset != log_end_offset:  # only what is on record of it lacks something
            context.settle()
        raise
    context.settle()


def _begin_anew(context: ReplicaContext, offset: Offset, purged_end: Offset, note: bytes | None) -> None:
    """Begin with an empty log, and the leader's note, if there is one; on the disk thread."""
    noted = None if note is None else decode_note(note) if note else NOTHING_NOTED
    context.opened.begin_anew(offset, noted, lambda: context.log.reset_to(offset, purged_end))
