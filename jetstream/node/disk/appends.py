"""The appends of streams: a leader's group, and the batches a follower got of its leader.

Each is written by the disk thread, or by the event loop where that is only a short write (`DiskThread`).

`DiskCommit` writes, syncs and counts the appends that are handed over together.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from envelope.errors import DiskFull, JetstreamError
from envelope.types import NO_OFFSET, Buffer, Offset, SyncMode, TimestampUs
from jetstream.log.format.batch import SealedBatch, UnsealedBatch, verified_batches
from jetstream.log.inline_commits import InlineCommitPolicy
from jetstream.log.log import Log
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.history_file import PublisherStateFile, decode_note
from jetstream.node.disk.open_log import OpenedLog


@dataclass(slots=True, eq=False)
class GroupAppend:
    """A stream's group on its way to the disk.

    Attributes:
        log: where to.
        batches: to be appended all or none and, where the log's mode is ``always``, synced.
        now: wall clock.
        error: the outcome, once there is one: None if the batches are as durable as the mode promises,
            `DiskFull` if they were undone, `StreamOffline` if the log had failed before and nothing was
            tried, any other error if the outcome is unknown and the log has failed for good.
        written: called on the loop once the batches are written, before they are synced; not if they are
            refused.
        stored: called once, never beside other work on the log, when the outcome is that the batches are
            stored.
        note: of the log; what it must say before they are stored, it says.
    """

    log: Log
    batches: Sequence[UnsealedBatch]
    now: TimestampUs
    error: JetstreamError | None = None
    written: Callable[[], None] | None = None
    stored: Callable[[], None] | None = None
    note: PublisherStateFile | None = None

    @property
    def base(self) -> Offset:
        """Offset of the first record."""
        return self.batches[0].base

    @property
    def end(self) -> Offset:
        """Offset after the last record."""
        return self.batches[-1].next

    @property
    def records(self) -> int:
        """How many records it has."""
        return self.end - self.base

    @property
    def size(self) -> int:
        """Bytes to be written."""
        return sum(batch.size for batch in self.batches)

    @property
    def is_followed(self) -> bool:
        """Whether other replicas await it."""
        return self.written is not None

    def only_writes(self) -> bool:
        """Return whether `write` will be one write and nothing else that a disk is asked for."""
        return self._must_hold() is None and self.log.writer.only_writes(self.batches, self.now)

    def write(self) -> None:
        """Write to the log; never beside other work on it."""
        if self.base != self.log.log_end_offset:
            raise _refused_behind(self.log)
        self.hold()
        self.log.writer.append_group(self.batches, self.now)

    def hold(self) -> None:
        """Note from where on message ids must be known, if the batches make that necessary."""
        if self.note is not None:
            _hold(self.log, self.note, self._must_hold())

    def _must_hold(self) -> Offset | None:
        return None if self.note is None else self.note.must_hold(self.batches[-1].max_timestamp)


@dataclass(slots=True, eq=False)
class FollowerAppend:
    """A leader's batches on their way to a follower's disk.

    Attributes:
        opened: the log; it replays the batches once the outcome is reported.
        data: whole batches, as `verified_batches` takes them.
        now: wall clock.
        high_watermark: below it nothing will be cut.
        committed: the leader's high watermark when it sent them.
        error: as `GroupAppend.error`, and `CorruptDataError` if the batches are damaged or do not follow the
            log; nothing was stored then. With `DiskFull` the log may have the first of the batches.
        note: the leader's, of committed records of which some may be gone; empty if there is none.
        written: as `GroupAppend.written`.
        batches: what is in ``data``, once it is verified; not all of them are stored if ``error`` is set.
        records: how many were written.
    """

    opened: OpenedLog
    data: Buffer
    now: TimestampUs
    high_watermark: Offset = NO_OFFSET
    committed: Offset = NO_OFFSET
    note: bytes = b""
    error: JetstreamError | None = None
    written: Callable[[], None] | None = None
    batches: Sequence[SealedBatch] = ()
    records: int = 0

    @property
    def log(self) -> Log:
        """Where to."""
        return self.opened.log

    @property
    def size(self) -> int:
        """Bytes to be written."""
        return len(self.data)

    @property
    def is_followed(self) -> bool:
        """See `GroupAppend.is_followed`: its leader does."""
        return True

    def only_writes(self) -> bool:
        """See `GroupAppend.only_writes`."""
        try:
            self.batches = verified_batches(self.data)
        except JetstreamError:
            return False  # `write` raises the reason
        if self.note or self.opened.is_stale or self._must_hold() is not None:
            return False
        return self.log.writer.only_writes_sealed(self.batches)

    def write(self) -> None:
        """Write to the log; never beside other work on it."""
        self.opened.refresh()
        log_end_offset = self.log.log_end_offset
        self.batches = self.batches or verified_batches(self.data)
        if self.batches and self.batches[0][0].base > log_end_offset:
            raise _refused_behind(self.log)
        if self.note:
            self.opened.take_note(decode_note(self.note))
        self.hold()
        try:
            self.log.writer.append_sealed(self.batches, self.now)
        finally:
            self.records = self.log.log_end_offset - log_end_offset

    def hold(self) -> None:
        """See `GroupAppend.hold`."""
        _hold(self.log, self.opened.note, self._must_hold())

    def _must_hold(self) -> Offset | None:
        return self.opened.must_hold(self.batches, self.committed)

    def replay(self) -> None:
        """Replay the stored batches to the publishers' state of the log."""
        self.opened.replay_batches(self.batches)
        self._replay_committed()

    def skip(self) -> bool:
        """Do as `replay` if that takes no time; return False, and do nothing, if it does."""
        is_done = self.opened.skip(self.batches)
        if is_done:
            self._replay_committed()
        return is_done

    def _replay_committed(self) -> None:
        history = self.opened.history
        self.opened.apply_observed()
        history.committed(min(self.high_watermark, history.end), self.now)
        # What was committed when it came has been so since its timestamps.
        history.committed(min(self.committed, history.end), history.last_timestamp)


AnyAppend = GroupAppend | FollowerAppend


def _hold(log: Log, note: PublisherStateFile, held: Offset | None) -> None:
    if held is None or log.failed is not None:
        return
    try:
        note.hold(held)
    except DiskFull:
        raise
    except JetstreamError as error:
        log.writer.fail(error)
        raise


def _refused_behind(log: Log) -> JetstreamError:
    """Return why nothing is appended behind what is not there."""
    return log.failed or DiskFull("the group before this one was refused")


@dataclass(slots=True)
class DiskCounters:
    """Counts since the node started; read on any thread."""

    commits: int = 0
    groups: int = 0
    records: int = 0
    failed_groups: int = 0
    write_seconds: float = 0.0
    sync_seconds: float = 0.0


class CommitProgress(Enum):
    """How much of a commit is done."""

    NOTHING = auto()
    WRITTEN = auto()
    """`DiskCommit.finish` is still to come."""
    ALL = auto()


class DiskCommit:
    """The steps of a commit, all of them for one thread at a time (`DiskThread` chooses it).

    Attributes:
        counters: what was done.
        unreplayed: appends of followers that are stored, and kept in memory until they are replayed.
    """

    def __init__(self, scheduler: SyncScheduler, inline_commits: InlineCommitPolicy) -> None:
        self.counters = DiskCounters()
        self.unreplayed: list[FollowerAppend] = []
        self._scheduler = scheduler
        self._inline_commits = inline_commits

    def commit_shortly(self, appends: Sequence[AnyAppend]) -> CommitProgress:
        """Write, and perhaps sync, the appends on the event loop if that is short; notify their followers."""
        begun = time.perf_counter()
        extent = self._short_extent(appends, begun)
        if extent is not CommitProgress.NOTHING:
            for callback in self.write(appends):
                callback()
            if extent is CommitProgress.ALL:
                self.finish(appends)
            failed = any(append.error is not None for append in appends)
            self._inline_commits.took(time.perf_counter() - begun, begun, failed=failed)
        return extent

    def _short_extent(self, appends: Sequence[AnyAppend], now: float) -> CommitProgress:
        logs = to_sync(appends)
        is_followed = any(append.is_followed for append in appends)
        extent = CommitProgress.WRITTEN if logs and is_followed else CommitProgress.ALL
        sync_seconds = self._scheduler.expected_seconds(len(logs)) if extent is CommitProgress.ALL else 0.0
        sizes = [append.size for append in appends]
        if not self._inline_commits.allows(sizes, now, is_followed=is_followed, sync_seconds=sync_seconds):
            return CommitProgress.NOTHING
        if extent is CommitProgress.WRITTEN and any(a.written is None for a in appends if a.log in logs):
            return (
                CommitProgress.NOTHING
            )  # the thread is woken for the sync in any case, and nobody has it sooner
        if len({append.log for append in appends}) < len(appends):
            return CommitProgress.NOTHING  # what the second will be is known when the first is written
        return extent if all(append.only_writes() for append in appends) else CommitProgress.NOTHING

    def write(self, appends: Sequence[AnyAppend]) -> list[Callable[[], None]]:
        """Write all, and return the callbacks for that."""
        begun = time.perf_counter()
        for append in appends:
            try:
                append.write()
            except JetstreamError as error:
                append.error = error
        self.counters.write_seconds += time.perf_counter() - begun
        written = [append.written for append in appends if append.error is None]
        return [callback for callback in written if callback is not None]

    def finish(self, appends: Sequence[AnyAppend]) -> None:
        """Do the rest behind `write`; all outcomes are known then."""
        logs = to_sync(appends)
        if logs:
            self._sync(appends, logs)
        self._count(appends)
        self._replay_or_keep(appends)

    def replay(self) -> None:
        """Replay the stored batches of followers."""
        for append in self.unreplayed:
            append.replay()
        self.unreplayed.clear()

    def _sync(self, appends: Sequence[AnyAppend], logs: Sequence[Log]) -> None:
        begun = time.perf_counter()
        failures = self._scheduler.sync(logs)
        for append in appends:
            if append.error is None:
                append.error = failures.get(append.log)
        self.counters.sync_seconds += time.perf_counter() - begun

    def _count(self, appends: Sequence[AnyAppend]) -> None:
        self.counters.commits += 1
        for append in appends:
            if append.error is None:
                self.counters.groups += 1
                self.counters.records += append.records
            else:
                self.counters.failed_groups += 1

    def _replay_or_keep(self, appends: Sequence[AnyAppend]) -> None:
        """Replay the stored batches of followers if that takes no time; otherwise a little later."""
        for append in appends:
            if isinstance(append, GroupAppend) and append.stored is not None and append.error is None:
                append.stored()
            if not isinstance(append, FollowerAppend) or not append.records:
                continue
            if self.unreplayed or not append.skip():
                self.unreplayed.append(append)


def to_sync(appends: Sequence[AnyAppend]) -> list[Log]:
    """Return the logs that are to be synced before the outcome of an append is reported, each once."""
    written = (append.log for append in appends if append.error is None)
    return list(dict.fromkeys(log for log in written if log.writer.config.sync is SyncMode.ALWAYS))
