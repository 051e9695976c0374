"""A stream that another node leads: fetches → disk → acknowledgements.

It decides nothing: `Follower` says what to ask for and what to cut, `Log` stores.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import assert_never

from envelope.errors import DiskFull, JetstreamError, StreamLost
from envelope.types import NO_OFFSET, LeaderEpoch, NodeId, Offset
from jetstream.node.disk.appends import FollowerAppend
from jetstream.node.disk.history_file import NOTHING_NOTED, decode_note
from jetstream.node.replicas.lost_records import LostRecords
from jetstream.node.replicas.parts import NodeServices, ReplicaContext, log_state
from jetstream.replica.follower import Follower
from jetstream.replica.follower_events import (
    Action,
    AppendBatches,
    AppendsUndone,
    CutRefused,
    Distrust,
    Event,
    FetchFromLeader,
    LeaderAssigned,
    LeaderConnected,
    LeaderDisconnected,
    LogCut,
    LogSynced,
    LogWritten,
    ReportLost,
    ResetLog,
    Truncate,
)
from jetstream.replica.role_events import AdvanceHighWatermark, LogStartMoved, Tick
from jetstream.replica.wire import Answer, BatchesMessage, RefusedMessage
from metadata.catalog.tables import Stream

_log = logging.getLogger(__name__)


class FollowingStream:
    """Follows the leader, until `settled` before this node leads itself.

    Attributes:
        passed_by_all: a leader has said that every replica has on disk what lies below.
        failed: why it asks for nothing any more; None while it does.
        problem: the same, or why it asks the present leader for nothing.
    """

    def __init__(self, parts: ReplicaContext, high_watermark: Offset, services: NodeServices) -> None:
        """Begin with a log to which nothing is being written."""
        cluster = services.cluster
        self._parts = parts
        self._services = services
        self._follower = Follower(
            cluster.node_id, cluster.node_epoch, log_state(parts.log), high_watermark, cluster.settings
        )
        self.passed_by_all = NO_OFFSET
        self._lost = LostRecords(parts, cluster.node_id)
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
        self._tell(LeaderAssigned(leader, leader_epoch, may_lack))

    async def settled(self) -> None:
        """Return when the log is written to no more; this node is to lead."""
        while not self._follower.is_settled and self.failed is None:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled

    def connected(self) -> None:
        """Handle that the leader can be reached (again)."""
        self._tell(LeaderConnected())

    def disconnected(self) -> None:
        """Handle that answers will not come."""
        self._tell(LeaderDisconnected())

    def answered(self, message: Answer) -> None:
        """Handle the leader's answer."""
        if isinstance(message, BatchesMessage):
            self._batches(message)
            return
        if isinstance(message, RefusedMessage):
            _log.info("fetch refused stream=%s reason=%s", self._parts.name, message.reason)
        self._tell(message)

    def _batches(self, batches: BatchesMessage) -> None:
        if batches.note and not batches.body:
            # The machine asks for more only when that is on disk, and so joins those in sync only then.
            self._append(batches, lambda: self._tell(batches))
        else:
            self._tell(batches)
        self.passed_by_all = max(self.passed_by_all, batches.purged_end)
        self._drop_before(batches.log_start_offset)

    def _drop_before(self, log_start_offset: Offset) -> None:
        """Let the log begin where the leader's does, as far as it is known to be committed here."""
        before = min(log_start_offset, self.high_watermark)
        if before > self._parts.log.log_start_offset and self._parts.log.failed is None:
            # Where there is no space for it, the next answer asks for it again.
            self._on_disk(lambda: self._parts.upkeep.truncate_before(before), lambda: LogStartMoved(before))

    # --- the machine -------------------------------------------------------------------------------

    def _tell(self, *events: Event) -> None:
        for event in events:
            for action in self._follower.handle(event, self._services.clock.monotonic()):
                self._do(action)
        self._services.cluster.timers.at(self._tick, self._follower.wake_at)
        if self._settled is not None and not self._settled.done() and self._follower.is_settled:
            self._settled.set_result(None)

    def _tick(self) -> None:
        self._tell(Tick())

    def _do(self, action: Action) -> None:
        name = self._parts.name
        match action:
            case FetchFromLeader():
                self._fetch(action)
            case AppendBatches(batches):
                log, end = self._parts.log, batches.next
                self._append(
                    batches, lambda: self._tell(LogWritten(end), LogSynced(min(log.writer.synced_end, end)))
                )
            case AdvanceHighWatermark(high_watermark):
                self._parts.opened.hear(high_watermark, self._services.clock.wall())
                self._parts.watchers.tell(high_watermark)
            case Truncate(end):
                _log.info("cutting the log back stream=%s end=%d %s", name, end, self._follower)
                self._lost.cut(end)
                self._cut(partial(_truncate, self._parts, end))
            case ResetLog(offset, purged_end, note):
                _log.warning("beginning the log anew stream=%s offset=%d %s", name, offset, self._follower)
                if not purged_end:  # otherwise the leader has what goes, as far as it is not deleted
                    self._lost.cut(offset)
                self._cut(partial(_begin_anew, self._parts, offset, purged_end, note))
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

    def _fetch(self, action: FetchFromLeader) -> None:
        if self.failed is not None:
            return
        name, incarnation = self._parts.name, self._parts.incarnation
        if not self._services.cluster.sessions.fetch(action.leader, name, incarnation, action.fetch):
            self._follower.handle(LeaderDisconnected(), self._services.clock.monotonic())

    # --- the disk ----------------------------------------------------------------------------------

    def _append(self, message: BatchesMessage, then: Callable[[], None]) -> None:
        """Put the message's note in force, and append its batches."""
        append = FollowerAppend(
            opened=self._parts.opened,
            data=message.body,
            now=self._services.clock.wall(),
            high_watermark=self.high_watermark,
            committed=message.high_watermark,
            note=message.note,
        )
        self._services.disk.append([append], lambda: self._appended(append, then))

    def _appended(self, append: FollowerAppend, then: Callable[[], None]) -> None:
        error, log = append.error, self._parts.log
        if error is None:
            self._parts.upkeep.appended()
            then()
        elif log.failed is not None:
            self._fail(error)
        else:
            level = logging.WARNING if isinstance(error, DiskFull) else logging.ERROR
            _log.log(level, "append refused stream=%s error=%s", self._parts.name, error)
            self._tell(AppendsUndone(log_state(log)))

    def _cut(self, work: Callable[[], None]) -> None:
        log = self._parts.log
        self._on_disk(work, lambda: LogCut(log_state(log)), lambda: self._tell(CutRefused(log_state(log))))

    def _on_disk(
        self, work: Callable[[], None], then: Callable[[], Event], refused: Callable[[], None] = lambda: None
    ) -> None:
        """Change the log between two appends, and notify the machine; on a full disk `refused`."""

        def done(worked: "asyncio.Future[None]") -> None:
            error = worked.exception()
            if error is None:
                self._tell(then())
            elif isinstance(error, DiskFull) and self._parts.log.failed is None:
                _log.warning("cut waits for space stream=%s error=%s", self._parts.name, error)
                refused()
            elif isinstance(error, JetstreamError):
                self._fail(error)
            else:
                self._services.crash.report(error)

        self._services.disk.call(work).add_done_callback(done)

    def _fail(self, error: JetstreamError) -> None:
        """Ask for nothing any more: this replica leaves the ISR, and the others go on without it."""
        _log.error("replica offline stream=%s error=%r runbook=RB-01", self._parts.name, error)
        self.failed = self.problem = error
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)


def _truncate(parts: ReplicaContext, end: Offset) -> None:
    """Cut the log back; on the disk thread."""
    log_end_offset = parts.log.log_end_offset
    try:
        parts.log.truncate_to(end)
    except DiskFull:
        if parts.log.log_end_offset != log_end_offset:  # only what is on record of it lacks something
            parts.settle()
        raise
    parts.settle()


def _begin_anew(parts: ReplicaContext, offset: Offset, purged_end: Offset, note: bytes | None) -> None:
    """Begin with an empty log, and the leader's note, if there is one; on the disk thread."""
    noted = None if note is None else decode_note(note) if note else NOTHING_NOTED
    parts.opened.begin_anew(offset, noted, lambda: parts.log.reset_to(offset, purged_end))
