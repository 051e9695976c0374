"""The follower of one stream on one node: keeps a log the beginning of the leader's.

Theory of operation. A fetch tells the leader where this log ends, by epoch and offset, and what of it is
durable. The answer is for exactly that log: it continues it, or says where the two histories part. So an
answer is taken only if it is of the present reign and this log is still what the fetch said; a late or
repeated one is not. The first answer of every reign is thereby a reconciliation, even if the leader is the
one of the reign before.

A fetch asks, and is answered once there is something to tell, however late; if the log was synced meanwhile,
another acknowledges that and asks for nothing. When the connection breaks, is there again, or the answer was
of no use, the follower asks anew.

The machine runs ahead of its disk: what it asked to be appended counts as the log's end, so that the next
batches are on their way while these are written and synced. Only ``synced_end`` is what the disk has
reported. A cut is waited for: what the disk reports of appends before it must not be taken for what comes
after.

A follower's own high watermark is behind the leader's, so it is no reason to cut anything (KIP-101). But a
leader that was in sync when it was elected has everything below it. A leader without it has lost its log, and
is not obeyed: this log may be the last that has these records.

Compaction removes tombstones. A log that has not got past one of them may hold the record that it deleted,
and would keep it for ever if it went on with a log that has neither. So below the place up to which either
log may lack tombstones, a follower only copies from a leader whose log may lack them up to the very same
place, as that does from which it began to copy; from another leader it copies anew.

Sources: KIP-101, KIP-279, KIP-320; Kafka's ``AbstractFetcherThread``.
"""

from collections import deque
from dataclasses import replace
from itertools import pairwise
from typing import Final, assert_never

from envelope.types import LeaderEpoch, MonotonicNs, NodeEpoch, NodeId, Offset, TimestampUs
from jetstream.log.state.epochs import NO_EPOCH
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
    LogSynced,
    LogWritten,
    ReportLost,
    ResetLog,
    Truncate,
)
from jetstream.replica.reconcile import EpochEnd, LogState, cut_point
from jetstream.replica.role_events import AdvanceHighWatermark, LogStartMoved, Tick
from jetstream.replica.settings import NEVER, ReplicaSettings
from jetstream.replica.wire import (
    BatchesMessage,
    DivergingMessage,
    FetchMessage,
    RefusedMessage,
    StartOverMessage,
)

APPENDS_IN_FLIGHT_MAX: Final = 2
"""Appends that are not written yet; with one, network and disk would wait for each other."""

_DEFAULT_SETTINGS: Final = ReplicaSettings()
_GO_ON: Final = frozenset((FetchMessage, BatchesMessage))
_UNTIMED: Final = TimestampUs(0)
"""When an epoch began is the log's business; reconciliation compares epochs and offsets."""


class Follower:
    """See the module.

    Invariants:
        H1: what is appended begins at the log's end, under epochs that never decrease and are none but the
            leader's and those before.
        H2: synced_end <= log_end, and nothing that was cut counts as synced.
        H3: the high watermark never decreases, but when what was committed is reported as lost, or when the
            log is copied anew because tombstones are missing.
        H4: nothing is cut below what both histories are known to share.
            Held by test_a_log_is_not_cut_inside_an_epoch_that_both_know_and_share.
        H5: while the log is being cut nothing is asked for and nothing appended; a cut changes the log.
        H6: what is known to be committed is cut only for a leader that may lack it.

    Attributes:
        wake_at: when to give it a `Tick`, ns of the clock that ``now`` is of; `NEVER` while nothing is to be
            done by time alone. May change with every event.
    """

    def __init__(
        self,
        node_id: NodeId,
        node_epoch: NodeEpoch,
        log: LogState,
        high_watermark: Offset,
        settings: ReplicaSettings = _DEFAULT_SETTINGS,
    ) -> None:
        """Begin with a log to which nothing is being written; knows of no leader yet.

        The node must have registered this start, and know of every reign up to that.
        """
        assert high_watermark <= log.log_end_offset, f"H3: {high_watermark} > {log.log_end_offset}"
        self.leader: NodeId | None = None
        self.leader_epoch = NO_EPOCH
        self.high_watermark = high_watermark
        self._node_id = node_id
        self._node_epoch = node_epoch
        self._settings = settings
        self._log = replace(log)  # its ends are changed in place
        self._written_end = log.log_end_offset
        self._unwritten: deque[Offset] = deque()
        self._cut_from: tuple[LeaderEpoch, Offset, Offset] | None = None
        self._leaders_high_watermark = high_watermark
        self.wake_at = NEVER
        self._may_lack_committed = False
        """Whether the present leader may."""
        self._distrusts = False
        """The present leader has lost what it must have: nothing is asked of it."""
        self._owes_fetch = False
        """What comes next is asked for once the disk has done what is under way."""
        self._asks_when_synced = False
        """What comes next is asked for with the acknowledgement of what is being synced."""

    @property
    def is_settled(self) -> bool:
        """Whether the log is as `log` says: nothing is being written or cut. Only then may the node lead."""
        return self._cut_from is None and not self._unwritten

    @property
    def log(self) -> LogState:
        """The log, as it will be after the appends that were asked for."""
        return self._log

    def stored(self, log_end: Offset, synced_end: Offset, now: MonotonicNs) -> tuple[Action, ...]:
        """Handle a `LogWritten` and the `LogSynced` behind it: one fetch tells the leader of both."""
        log, unwritten = self._log, self._unwritten
        while unwritten and unwritten[0] <= log_end:
            unwritten.popleft()
        self._written_end = max(self._written_end, log_end)
        actions = self._advance() if self._leaders_high_watermark > self.high_watermark else ()
        is_synced = synced_end > log.synced_end
        if is_synced:
            log.synced_end = synced_end
        if is_synced or self._owes_fetch:
            fetch = self._fetch(now, asks=self._owes_fetch or self._asks_when_synced)
            actions = (*actions, *fetch)
        assert log.synced_end <= log.log_end_offset, f"H2: {self}"
        return actions

    def handle(self, event: Event, now: MonotonicNs) -> tuple[Action, ...]:
        """Take in one event; return what the shell must do, in that order."""
        high_watermark = self.high_watermark
        match event:
            case LeaderAssigned():
                actions = self._reign(event, now)
            case BatchesMessage():
                actions = self.batches(event, now)
            case DivergingMessage() | StartOverMessage():
                actions = self._part(event, now)
            case LogWritten() | LogSynced() | LogStartMoved() | LogCut() | CutRefused() | AppendsUndone():
                actions = self._reported(event, now)
            case RefusedMessage(leader_epoch):
                actions = self._wait(now) if leader_epoch == self.leader_epoch else ()
            case LeaderDisconnected():
                actions = self._wait(now)
            case LeaderConnected():
                actions = self._fetch(now)
            case Tick():
                actions = self._fetch(now) if now >= self.wake_at else ()
            case _:
                assert_never(event)
        self._check(high_watermark, actions)
        return actions

    def _check(self, high_watermark: Offset, actions: tuple[Action, ...]) -> None:
        """Assert what holds after every event."""
        assert self._log.synced_end <= self._log.log_end_offset, f"H2: {self}"
        if self._cut_from is None:
            is_back = self.high_watermark < high_watermark
            assert not is_back, f"H3: back from {high_watermark} without a cut: {self}"
        else:
            rests = not self._unwritten and _GO_ON.isdisjoint(map(type, actions))
            assert rests, f"H5: {actions} while the log is cut: {self}"

    def __str__(self) -> str:
        """Return one line for logs."""
        log = self._log
        return (
            f"follower of {self.leader} e{self.leader_epoch} hw={self.high_watermark} "
            f"synced={log.synced_end} written={self._written_end} end={log.log_end_offset} "
            f"last=e{log.epochs.last}" + ("" if self._cut_from is None else " cutting")
        )

    # --- whom to follow -----------------------------------------------------------------------------------

    def _reign(self, reign: LeaderAssigned, now: MonotonicNs) -> tuple[Action, ...]:
        ended = reign.leader is None and reign.leader_epoch == self.leader_epoch
        if reign.leader_epoch <= self.leader_epoch and not ended:
            return ()
        # Who leads follows nobody; its log goes on without this machine.
        self.leader = None if reign.leader == self._node_id else reign.leader
        self.leader_epoch = reign.leader_epoch
        self._may_lack_committed, self._distrusts = reign.may_lack_committed, False
        self._leaders_high_watermark = self.high_watermark
        self.wake_at, self._owes_fetch = NEVER, False
        return self._fetch(now)

    def _fetch(self, now: MonotonicNs, *, asks: bool = True) -> tuple[Action, ...]:
        """Ask for what comes next, unless an answer could not be used now; then it is asked for later."""
        if self.leader is None or self._distrusts:
            return ()
        self._owes_fetch = self._cut_from is not None or len(self._unwritten) >= APPENDS_IN_FLIGHT_MAX
        if self._owes_fetch:
            self.wake_at = NEVER
            return ()
        if asks:
            self._asks_when_synced = False
            self.wake_at = MonotonicNs(now + self._settings.fetch_timeout_ns)
        log = self._log
        fetch = FetchMessage(
            node_epoch=self._node_epoch,
            leader_epoch=self.leader_epoch,
            last_epoch=log.epochs.last,
            log_end=log.log_end_offset,
            synced_end=log.synced_end,
            high_watermark=self.high_watermark,
            asks=asks,
        )
        return (fetch,)

    def _wait(self, now: MonotonicNs) -> tuple[Action, ...]:
        """Ask anew later, whatever was asked for before."""
        if self.leader is not None and not self._distrusts:
            self.wake_at, self._owes_fetch = MonotonicNs(now + self._settings.retry_interval_ns), False
        return ()

    # --- answers ------------------------------------------------------------------------------------------

    def _is_for_this_log(self, leader_epoch: LeaderEpoch, last_epoch: LeaderEpoch, log_end: Offset) -> bool:
        """Return whether an answer is of this reign and about the log as it is now."""
        is_cutting = self._cut_from is not None
        if self.leader is None or self._distrusts or is_cutting or leader_epoch != self.leader_epoch:
            return False
        return (last_epoch, log_end) == (self._log.epochs.last, self._log.log_end_offset)

    def batches(self, answer: BatchesMessage, now: MonotonicNs) -> tuple[Action, ...]:
        """Handle a `BatchesMessage`."""
        log = self._log
        if not self._is_for_this_log(answer.leader_epoch, answer.last_epoch, answer.base):
            return ()
        if not _continues(answer):
            return self._wait(now)
        if answer.purged_end != log.purged_end and answer.base < max(answer.purged_end, log.purged_end):
            # The leader's log, or this one, may lack tombstones from here on that the other has.
            self.high_watermark = min(self.high_watermark, answer.log_start_offset)
            self._leaders_high_watermark = self.high_watermark
            cut = self._cut(ResetLog(answer.log_start_offset, answer.purged_end, answer.note or None))
            self._check(self.high_watermark, cut)
            return cut
        # The leader has found this log to be the beginning of its own: what it says is committed is so here.
        self._leaders_high_watermark = max(self._leaders_high_watermark, answer.high_watermark)
        count = answer.next - answer.base
        is_alone = answer.high_watermark == answer.base  # all that went before is committed
        self._asks_when_synced = count > 0 and (is_alone or count < self._settings.ask_ahead_records_min)
        actions: tuple[Action, ...] = ()
        if count:
            epochs = log.epochs
            for epoch, start in answer.epochs:
                if epoch > epochs.last:
                    epochs = epochs.begun(epoch, start, _UNTIMED)
            assert answer.base == log.log_end_offset < answer.next, (
                f"H1: [{answer.base}, {answer.next}) {self}"
            )
            assert log.epochs.last <= epochs.last <= self.leader_epoch, f"H1: {epochs.last} {self}"
            log.epochs, log.log_end_offset = epochs, answer.next
            self._unwritten.append(answer.next)
            actions = (answer,)
        if self._leaders_high_watermark > self.high_watermark:
            actions = (*actions, *self._advance())
        return actions if self._asks_when_synced else (*actions, *self._fetch(now))

    def _part(self, answer: DivergingMessage | StartOverMessage, now: MonotonicNs) -> tuple[Action, ...]:
        """Cut the log back to what it shares with the leader's, as far as the answer tells."""
        if not self._is_for_this_log(answer.leader_epoch, answer.last_epoch, answer.log_end):
            return ()
        log = self._log
        if isinstance(answer, StartOverMessage):
            # Also an empty note: this log's own may speak of what no other log has.
            return self._cut(ResetLog(answer.log_start_offset, note=answer.note))
        end = cut_point(log, EpochEnd(answer.epoch, answer.end))
        if end is None:
            # Nothing that is here is the leader's. What lay before the start is no part of this log any more,
            # and to go back behind it would take back what was acknowledged.
            return self._cut(ResetLog(log.log_start_offset))
        if end == log.log_end_offset and answer.epoch >= log.epochs.last:
            return self._wait(now)  # no divergence at all: nothing a leader of ours answers
        assert log.log_start_offset <= end <= log.log_end_offset, f"H4: cut at {end}: {self}"
        is_boundary = end in (log.log_end_offset, answer.end, *(begun.start for begun in log.epochs.starts))
        assert is_boundary, f"H4: cut at {end}, inside an epoch: {self}"
        return self._cut(Truncate(end))

    def _cut(self, cut: Truncate | ResetLog) -> tuple[Action, ...]:
        end = cut.end if isinstance(cut, Truncate) else cut.offset
        if end < self.high_watermark and not self._may_lack_committed:
            self._distrusts, self.wake_at = True, NEVER
            return (Distrust(end, self.high_watermark),)
        self._cut_from = _identity(self._log)
        self._unwritten.clear()
        lost: tuple[Action, ...] = ()
        if end < self.high_watermark:
            assert self._may_lack_committed, f"H6: {cut} for a leader that has it: {self}"
            lost = (ReportLost(end, self.high_watermark),)
            self.high_watermark = self._leaders_high_watermark = end
        return (*lost, cut)

    def _advance(self) -> tuple[Action, ...]:
        high_watermark = min(self._leaders_high_watermark, self._written_end)
        if high_watermark <= self.high_watermark:
            return ()
        self.high_watermark = high_watermark
        return (AdvanceHighWatermark(high_watermark),)

    # --- the log ------------------------------------------------------------------------------------------

    def _reported(
        self,
        event: LogWritten | LogSynced | LogStartMoved | LogCut | CutRefused | AppendsUndone,
        now: MonotonicNs,
    ) -> tuple[Action, ...]:
        match event:
            case LogCut(log):
                assert self._cut_from is not None, f"H5: cut without being asked to: {self}"
                # With the same end and last epoch the same answer would come again, for ever.
                assert self._cut_from != _identity(log), f"H5: not cut: {log}"
                self._cut_from = None
                self._adopt(log)  # whatever was reported of the appends before is void
                return self._fetch(now)
            case CutRefused(log):
                assert self._cut_from is not None, f"H5: not cut without being asked to: {self}"
                self._cut_from = None
                self._adopt(log)
                return self._wait(now)  # who is asked then says again where the histories part
            case LogWritten(log_end):
                return self.stored(log_end, self._log.synced_end, now)
            case LogSynced(synced_end):
                return self.stored(self._written_end, synced_end, now)
            case AppendsUndone(log):
                self._adopt(log)
                return self._wait(now)
            case LogStartMoved(log_start_offset):
                if self._cut_from is None:
                    self._log.log_start_offset = log_start_offset
                return ()

    def _adopt(self, log: LogState) -> None:
        self._log, self._written_end = replace(log), log.log_end_offset
        self._unwritten.clear()


def _identity(log: LogState) -> tuple[LeaderEpoch, Offset, Offset]:
    """Return what decides which answer a fetch of the log gets, and what becomes of that."""
    return log.epochs.last, log.log_end_offset, log.purged_end


def _continues(answer: BatchesMessage) -> bool:
    """Return whether the batches can follow a log that ends at their base under ``last_epoch``."""
    begins = answer.epochs
    if not begins or answer.next == answer.base:
        return not begins and answer.next == answer.base
    (first_epoch, first), (last_epoch, last) = begins[0], begins[-1]
    if first != answer.base or last >= answer.next:
        return False
    if first_epoch < answer.last_epoch or last_epoch > answer.leader_epoch:
        return False
    for (epoch, start), (next_epoch, next_start) in pairwise(begins):
        if epoch >= next_epoch or start >= next_start:
            return False
    return True
