"""One stream that another node leads: fetches → disk → acknowledgements.

It decides nothing: `Follower` says what to ask for and what to cut, `Log` stores.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, assert_never

from envelope.errors import DiskFull, JetstreamError
from envelope.types import LeaderEpoch, NodeId, Offset
from jetstream.log.log import Log
from jetstream.node.disk_thread import FollowerAppend
from jetstream.node.lost_records import LostRecords
from jetstream.node.replica_parts import ReplicaParts, StreamServices, log_state
from jetstream.replica.follower import Follower
from jetstream.replica.follower_events import (
    Action,
    AdvanceHighWatermark,
    Append,
    AppendRefused,
    Batches,
    Connected,
    Disconnected,
    DivergingAnswer,
    EpochBegins,
    Event,
    Fetch,
    LogCut,
    LogStartMoved,
    Refused,
    Reign,
    ReportLost,
    Reset,
    StartOverAnswer,
    Synced,
    Tick,
    Truncate,
    Written,
)
from jetstream.replica.wire import (
    Answer,
    BatchesMessage,
    DivergingMessage,
    FetchMessage,
    RefusedMessage,
    StartOverMessage,
)

_log = logging.getLogger(__name__)

_NO_HANDLE: Final = 0
"""The session gives a stream its handle."""


class FollowingStream:
    """Follows whoever leads, until `settled` before this node leads itself."""

    def __init__(self, parts: ReplicaParts, high_watermark: Offset, services: StreamServices) -> None:
        """Begin with a log to which nothing is being written."""
        cluster = services.cluster
        self._parts = parts
        self._services = services
        self._follower = Follower(
            cluster.node_id, cluster.node_epoch, log_state(parts.log), high_watermark, cluster.settings
        )
        self._body = b""
        self._lost = LostRecords(parts, cluster.node_id)
        self._settled: asyncio.Future[None] | None = None
        self._failed: JetstreamError | None = None

    @property
    def high_watermark(self) -> Offset:
        """First offset that is not known to be committed."""
        return self._follower.high_watermark

    @property
    def leader(self) -> NodeId | None:
        """Whom it follows."""
        return self._follower.leader

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The newest reign it knows of."""
        return self._follower.leader_epoch

    # --- what happens ------------------------------------------------------------------------------

    def follow(self, leader: NodeId | None, leader_epoch: LeaderEpoch) -> None:
        """Follow a leader; nobody, if it is none or this node itself."""
        self._tell(Reign(leader, leader_epoch))

    async def settled(self) -> None:
        """Return when the log is written to no more; whoever leads is to be this node."""
        while not self._follower.is_settled and self._failed is None:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled

    def connected(self) -> None:
        """Learn that the leader can be reached (again)."""
        self._tell(Connected())

    def disconnected(self) -> None:
        """Learn that answers will not come."""
        self._tell(Disconnected())

    def answered(self, message: Answer) -> None:
        """Take in the leader's answer."""
        match message:
            case BatchesMessage():
                self._batches(message)
            case DivergingMessage(_, leader_epoch, last_epoch, log_end, epoch, end):
                self._tell(DivergingAnswer(leader_epoch, last_epoch, log_end, epoch, end))
            case StartOverMessage(_, leader_epoch, last_epoch, log_end, log_start_offset):
                self._tell(StartOverAnswer(leader_epoch, last_epoch, log_end, log_start_offset))
            case RefusedMessage(_, leader_epoch, reason):
                _log.info("fetch refused stream=%s reason=%s", self._parts.name, reason)
                self._tell(Refused(leader_epoch))
            case _:
                assert_never(message)

    def _batches(self, message: BatchesMessage) -> None:
        self._body = message.body
        epochs = tuple(EpochBegins(epoch, start) for epoch, start in message.epochs)
        self._tell(
            Batches(
                message.leader_epoch,
                message.last_epoch,
                message.base,
                message.next,
                epochs,
                message.high_watermark,
            )
        )
        self._body = b""
        self._drop_before(message.log_start_offset)

    def _drop_before(self, log_start_offset: Offset) -> None:
        """Let the log begin where the leader's does, as far as it is known to be committed here."""
        before = min(log_start_offset, self.high_watermark)
        if before > self._parts.log.log_start_offset and self._parts.log.failed is None:
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
            case Fetch():
                self._fetch(action)
            case Append(batches):
                self._append(batches)
            case AdvanceHighWatermark(high_watermark):
                self._parts.watchers.tell(high_watermark)
            case Truncate(end):
                _log.info("cutting the log back stream=%s end=%d %s", name, end, self._follower)
                self._lost.cut(end)
                self._cut(lambda log: log.truncate_to(end))
            case Reset(offset):
                _log.warning("beginning the log anew stream=%s offset=%d %s", name, offset, self._follower)
                self._lost.cut(offset)
                self._cut(lambda log: log.reset_to(offset))
            case ReportLost(start, end):
                self._lost.committed(start, end)
            case _:
                assert_never(action)

    def _fetch(self, fetch: Fetch) -> None:
        if self._failed is not None:
            return
        message = FetchMessage(
            _NO_HANDLE,
            fetch.node_epoch,
            fetch.leader_epoch,
            fetch.last_epoch,
            fetch.log_end,
            fetch.synced_end,
            fetch.high_watermark,
            fetch.asks,
        )
        parts = self._parts
        if not self._services.cluster.sessions.fetch(fetch.leader, parts.name, parts.incarnation, message):
            self._follower.handle(Disconnected(), self._services.clock.monotonic())

    # --- the disk ----------------------------------------------------------------------------------

    def _append(self, batches: Batches) -> None:
        append = FollowerAppend(self._parts.opened, self._body, self._services.clock.wall())
        self._services.disk.append([append], lambda: self._appended(append, batches.next))

    def _appended(self, append: FollowerAppend, end: Offset) -> None:
        error, log = append.error, self._parts.log
        if error is None:
            self._parts.upkeep.appended(append.now)
            self._tell(Written(end), Synced(min(log.synced_end, end)))
        elif log.failed is not None:
            self._fail(error)
        else:
            level = logging.WARNING if isinstance(error, DiskFull) else logging.ERROR
            _log.log(level, "append refused stream=%s error=%s", self._parts.name, error)
            self._tell(AppendRefused(log_state(log)))

    def _cut(self, cut: Callable[[Log], None]) -> None:
        parts = self._parts

        def work() -> None:
            cut(parts.log)
            parts.relearn()

        self._on_disk(work, lambda: LogCut(log_state(parts.log)))

    def _on_disk(self, work: Callable[[], None], then: Callable[[], Event]) -> None:
        """Do something to the log between two appends, and tell the machine."""

        def done(worked: "asyncio.Future[None]") -> None:
            error = worked.exception()
            if error is None:
                self._tell(then())
            elif isinstance(error, JetstreamError):
                self._fail(error)
            else:
                self._services.crash.report(error)

        self._services.disk.call(work).add_done_callback(done)

    def _fail(self, error: JetstreamError) -> None:
        """Ask for nothing any more: this replica leaves the ISR, and the others go on without it."""
        _log.error("replica offline stream=%s error=%r runbook=RB-01", self._parts.name, error)
        self._failed = error
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
