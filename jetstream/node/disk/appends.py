"""The appends of streams: a leader's group, and the batches a follower got of its leader.

Each is written by the disk thread, or by the event loop where that is only a short write (`DiskThread`).

`DiskCommit` writes, syncs and counts the appends that are handed over together.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from envelope.errors import DiskFull, JetstreamError
from envelope.types import NO_OFFSET, Buffer, Offset, SyncMode, TimestampUs
from jetstream.ingest.publishers.history import TxidMark
from jetstream.log.format.batch import SealedBatch, UnsealedBatch, verified_batches
from jetstream.log.inline_commits import InlineCommitPolicy
from jetstream.log.log import Log
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.history_file import PublisherStateFile, decode_note
from jetstream.node.disk.open_log import OpenedLog


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
            refused. None: no other replica awaits it.
        stored: called once, never beside other work on the log, when the outcome is that the batches are
            stored.
        note: of the log; what it must say before they are stored, it says.
        base: offset of the first record.
        end: offset after the last record.
        records: how many it has.
        size: bytes to be written.
        txid: of the last record that has one.
        written_at: by `time.perf_counter`, once it is written.
    """

    __slots__ = (
        "base",
        "batches",
        "end",
        "error",
        "log",
        "note",
        "now",
        "records",
        "size",
        "stored",
        "txid",
        "written",
        "written_at",
    )

    def __init__(
        self,
        log: Log,
        batches: Sequence[UnsealedBatch],
        now: TimestampUs,
        *,
        written: Callable[[], None] | None = None,
        stored: Callable[[], None] | None = None,
        note: PublisherStateFile | None = None,
    ) -> None:
        self.log = log
        self.batches = batches
        self.now = now
        self.error: JetstreamError | None = None
        self.written = written
        self.stored = stored
        self.note = note
        self.base = batches[0].base
        self.end = batches[-1].next
        self.records = self.end - self.base
        self.size = 0
        self.txid: TxidMark | None = None
        self.written_at = 0.0
        for batch in batches:
            self.size += batch.size
            if batch.last_txid is not None:
                self.txid = TxidMark(batch.leader_epoch, batch.base, batch.last_txid)

    def only_writes(self) -> bool:
        """Return whether `write` will be one write and nothing else that a disk is asked for."""
        if self.note is not None and self.note.must_hold(self.batches[-1].max_timestamp) is not None:
            return False
        return self.log.writer.only_writes(self.batches, self.now)

    def write(self, *, only_writes: bool = False) -> None:
        """Write to the log; never beside other work on it. ``only_writes`` has just been asked, and is so."""
        if self.base != self.log.reader.log_end_offset:
            raise _refused_behind(self.log)
        if not only_writes:
            self.hold()
        self.log.writer.append_group(self.batches, self.now)
        self.written_at = time.perf_counter()

    def hold(self) -> None:
        """Note from where on message ids must be known, if the batches make that necessary."""
        held = None if self.note is None else self.note.must_hold(self.batches[-1].max_timestamp)
        if self.note is not None and held is not None:
            _hold(self.log, self.note, held)


class FollowerAppend:
    """A leader's batches on their way to a follower's disk.

    Attributes:
        opened: the log; it replays the batches once the outcome is reported.
        log: where to.
        data: whole batches, as `verified_batches` takes them.
        now: wall clock.
        high_watermark: below it nothing will be cut.
        committed: the leader's high watermark when it sent them.
        error: as `GroupAppend.error`, and `CorruptDataError` if the batches are damaged or do not follow the
            log; nothing was stored then. With `DiskFull` the log may have the first of the batches.
        note: the leader's, of committed records of which some may be gone; empty if there is none.
        written: as `GroupAppend.written`; the leader awaits it even if nobody is called.
        batches: what is in ``data``, once it is verified; not all of them are stored if ``error`` is set.
        size: bytes to be written.
        records: how many were written.
    """

    __slots__ = (
        "batches",
        "committed",
        "data",
        "error",
        "high_watermark",
        "log",
        "note",
        "now",
        "opened",
        "records",
        "size",
        "written",
    )

    def __init__(
        self,
        opened: OpenedLog,
        data: Buffer,
        now: TimestampUs,
        *,
        high_watermark: Offset = NO_OFFSET,
        committed: Offset = NO_OFFSET,
        note: bytes = b"",
    ) -> None:
        self.opened = opened
        self.log = opened.log
        self.data = data
        self.now = now
        self.high_watermark = high_watermark
        self.committed = committed
        self.note = note
        self.error: JetstreamError | None = None
        self.written: Callable[[], None] | None = None
        self.batches: Sequence[SealedBatch] = ()
        self.size = len(data)
        self.records = 0

    def only_writes(self) -> bool:
        """See `GroupAppend.only_writes`."""
        try:
            self.batches = verified_batches(self.data)
        except JetstreamError:
            return False  # `write` raises the reason
        opened = self.opened
        if self.note or opened.is_stale or opened.must_hold(self.batches, self.committed) is not None:
            return False
        return self.log.writer.only_writes_sealed(self.batches)

    def write(self, *, only_writes: bool = False) -> None:
        """See `GroupAppend.write`."""
        if self.opened.is_stale:
            self.opened.refresh()
        reader = self.log.reader
        log_end_offset = reader.log_end_offset
        self.batches = self.batches or verified_batches(self.data)
        if self.batches and self.batches[0][0].base > log_end_offset:
            raise _refused_behind(self.log)
        if self.note:
            self.opened.take_note(decode_note(self.note))
        if not only_writes:
            self.hold()
        try:
            self.log.writer.append_sealed(self.batches, self.now)
        finally:
            self.records = reader.log_end_offset - log_end_offset

    def hold(self) -> None:
        """See `GroupAppend.hold`."""
        held = self.opened.must_hold(self.batches, self.committed)
        if held is not None:
            _hold(self.log, self.opened.note, held)

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
        fates = self.opened.fates
        if fates.observed:
            fates.apply_observed(history.end)
        assert fates.uncommitted >= history.high_watermark, f"{fates.uncommitted} of {history.high_watermark}"
        high_watermark = min(self.high_watermark, history.end)
        if high_watermark > history.high_watermark:  # otherwise it is known
            history.committed(high_watermark, self.now)
        # What was committed when it came has been so since its timestamps.
        committed = min(self.committed, history.end)
        if committed > history.high_watermark:
            history.committed(committed, history.last_timestamp)


AnyAppend = GroupAppend | FollowerAppend


def _hold(log: Log, note: PublisherStateFile, held: Offset) -> None:
    """Note from where on message ids must be known, as what is to be stored makes necessary."""
    if log.failed is not None:
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
        logs: set[Log] = set()
        size = to_sync = 0
        is_followed = syncs_unheard = False
        for append in appends:
            logs.add(append.log)
            size += append.size
            is_followed = is_followed or append.written is not None or isinstance(append, FollowerAppend)
            if append.log.writer.config.sync is SyncMode.ALWAYS:
                to_sync += 1
                syncs_unheard = syncs_unheard or append.written is None
        progress = CommitProgress.WRITTEN if to_sync and is_followed else CommitProgress.ALL
        # Of a log's second append is known what it will be when the first is written. Where the thread is
        # woken for a sync in any case, nobody has it sooner.
        if len(logs) < len(appends) or (progress is CommitProgress.WRITTEN and syncs_unheard):
            return CommitProgress.NOTHING
        synced_here = to_sync if progress is CommitProgress.ALL else 0
        sync_seconds = self._scheduler.expected_seconds(synced_here) if synced_here else 0.0
        if not self._inline_commits.allows(
            len(appends), size, begun, is_followed=is_followed, sync_seconds=sync_seconds
        ):
            return CommitProgress.NOTHING
        for append in appends:
            if not append.only_writes():
                return CommitProgress.NOTHING
        for callback in self.write(appends, only_writes=True):
            callback()
        if progress is CommitProgress.ALL:
            self.finish(appends)
        failed = False
        for append in appends:
            failed = failed or append.error is not None
        self._inline_commits.took(time.perf_counter() - begun, begun, failed=failed)
        return progress

    def write(self, appends: Sequence[AnyAppend], *, only_writes: bool = False) -> list[Callable[[], None]]:
        """Write all, and return the callbacks for that; ``only_writes``: of each it is known to be so."""
        begun = time.perf_counter()
        callbacks: list[Callable[[], None]] = []
        for append in appends:
            try:
                append.write(only_writes=only_writes)
            except JetstreamError as error:
                append.error = error
            else:
                if append.written is not None:
                    callbacks.append(append.written)
        self.counters.write_seconds += time.perf_counter() - begun
        return callbacks

    def finish(self, appends: Sequence[AnyAppend]) -> None:
        """Do the rest behind `write`; all outcomes are known then."""
        counters = self.counters
        logs: dict[Log, None] = {}
        for append in appends:
            if append.error is None and append.log.writer.config.sync is SyncMode.ALWAYS:
                logs[append.log] = None
        failures: Mapping[Log, JetstreamError | None] = {}
        if logs:
            begun = time.perf_counter()
            failures = self._scheduler.sync(logs.keys())
            counters.sync_seconds += time.perf_counter() - begun
        counters.commits += 1
        for append in appends:
            if append.error is None:
                append.error = failures.get(append.log)
            if append.error is not None:
                counters.failed_groups += 1
            else:
                counters.groups += 1
                counters.records += append.records
            if isinstance(append, GroupAppend):
                if append.stored is not None and append.error is None:
                    append.stored()
            elif append.records and (self.unreplayed or not append.skip()):
                self.unreplayed.append(append)  # to be replayed a little later, as that takes time

    def replay(self) -> None:
        """Replay the stored batches of followers."""
        for append in self.unreplayed:
            append.replay()
        self.unreplayed.clear()
