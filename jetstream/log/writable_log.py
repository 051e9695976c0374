"""The growing half of a log: what its one writer appends and makes durable.

Theory of operation: `append` decides what only the writer knows (does the batch begin a segment, were all
bytes before it synced), seals the batch and writes it with one call; `append_sealed` writes what a leader has
decided. `sync` makes everything appended durable at once, which is what group commit shares. All methods of
this class are for the one disk thread; what `ReadableLog` offers is for any.

A full disk refuses one append: the part that was written is cut off again, durably, so that the refusal is
definite. Any other error of the disk, and any failed sync, fails the log: nothing more is appended until it
is opened anew, which begins with recovery. A sync is never tried again.

Source: Rebello et al., "Can Applications Recover from fsync Failures?" (ATC'20); Kafka's ``UnifiedLog``.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from envelope.errors import CorruptDataError, DiskFull, JetstreamError, StorageError, StreamOffline
from envelope.types import NO_OFFSET, LeaderEpoch, Offset, SyncMode, TimestampUs
from jetstream.log.disk.port import Disk
from jetstream.log.format.batch import BatchFlags, BatchHeader, SealedBatch, UnsealedBatch
from jetstream.log.format.txid_column import last_txid_in
from jetstream.log.readable_log import ReadableLog
from jetstream.log.recovery import Recovery
from jetstream.log.segments.log_config import LogConfig
from jetstream.log.segments.scan import FOLLOWED_GROUPS_MAX
from jetstream.log.segments.segment import Segment
from jetstream.log.segments.segment_writer import SegmentWriter, Written, left_of, remove
from jetstream.log.state.checkpoint import DurabilityMarkers


class WritableLog(ReadableLog):
    """One stream's log, as it grows.

    Attributes:
        config: may be replaced at any time.
        compaction: how far the log is compacted, as it is on record; another object after every cut.
        rewritten_end: below it all segments have been looked at by the sealed rewrite.
        recovery: what opening found and did.
        durable_end: offset after the last batch that is known to be synced.
        committed: offset below which records are known to be committed, as the next checkpoint will say.

    Invariants:
        L3: durable_end <= log_end_offset.
        L4: an appended batch begins at log_end_offset and carries last_epoch.
        L5: timestamps never decrease from batch to batch.
        L7: of a leader's groups, a follower has at most FOLLOWED_GROUPS_MAX written and not synced.
    """

    __slots__ = (
        "_disk",
        "_followed_groups",
        "_witnesses",
        "_writer",
        "committed",
        "compaction",
        "config",
        "durable_end",
        "recovery",
        "rewritten_end",
    )

    def __init__(self, disk: Disk, directory: str, config: LogConfig, recovery: Recovery) -> None:
        """Take over what ``recovery`` found; use `Log.open`."""
        super().__init__(directory, recovery.segments)
        self._disk = disk
        self._writer = SegmentWriter(disk, directory, recovery.segments[-1], recovery.file)
        self._witnesses = DurabilityMarkers(disk, directory, recovery.checkpoint, followed=recovery.followed)
        self._followed_groups = 0
        self.config = config
        self.compaction = recovery.compaction
        self.rewritten_end = recovery.rewritten_end
        self.recovery = recovery.report
        self.log_start_offset = recovery.log_start_offset
        self.log_end_offset = recovery.log_end_offset
        self.durable_end = recovery.log_end_offset
        found = recovery.checkpoint.committed if recovery.checkpoint is not None else NO_OFFSET
        self.committed = min(found, recovery.log_end_offset)
        self.corrupt_ranges = recovery.corrupt_ranges
        self.epochs = recovery.epochs
        if not recovery.end_certain:
            self.failed = CorruptDataError(
                f"the end of {directory} is damaged: {recovery.report.problems[-1]}"
            )

    # --- appending --------------------------------------------------------------------------------

    def begin_epoch(self, epoch: LeaderEpoch, now: TimestampUs) -> None:
        """Record that this node leads ``epoch`` from the log's end on; returns when that is durable.

        Raises:
            StorageError: the epoch is not above `last_epoch`, or the disk refused and the log has failed.
            DiskFull: the epoch has not begun.
        """
        if epoch <= self.last_epoch:
            raise StorageError(f"epoch {epoch} is not above epoch {self.last_epoch} of {self.directory}")
        self._begin_epoch(epoch, now, followed=False)

    def append(self, batch: UnsealedBatch, now: TimestampUs) -> None:
        """Write one batch at the log's end; not durable before `sync`.

        Raises:
            DiskFull: nothing was stored; the log goes on.
            StorageError, FsyncFailed: the log has failed; whether the batch is stored is unknown.
            StreamOffline: the log had failed before.
        """
        self.append_group((batch,), now)

    def append_group(self, batches: Sequence[UnsealedBatch], now: TimestampUs) -> None:
        """Write batches that follow each other with one call, all or none; otherwise as `append`."""
        first = batches[0]
        with self._writing():
            end, epoch, time = self.log_end_offset, self.last_epoch, self.last_timestamp
            assert first.base == end, f"L4: a batch at {first.base}, the log ends at {end}"
            assert first.leader_epoch == epoch, f"L4: a batch of epoch {first.leader_epoch}, not {epoch}"
            assert first.max_timestamp >= time, (
                f"L5: a batch from {first.max_timestamp}, the last from {time}"
            )
            if self._writer.roll_due(sum(batch.size for batch in batches), now, self.config):
                self._roll()
            self._witnesses.forget_clean_close()
            flags = self._writer.first_flags() | (BatchFlags(0) if self.dirty else BatchFlags.GROUP_START)
            frames = [first.seal(flags), *(batch.seal(BatchFlags(0)) for batch in batches[1:])]
            self._writer.write(
                [(batch, frame, batch.last_txid) for batch, frame in zip(batches, frames, strict=True)]
            )
        self.log_end_offset = batches[-1].next

    def append_sealed(self, batches: Sequence[SealedBatch], now: TimestampUs) -> None:
        """Write a leader's batches unchanged, rolling where the leader rolled; not durable before `sync`.

        All are checked to follow before anything is written. Each epoch that begins in them is on record,
        durably, before its first batch. An empty log that begins inside the first batch takes it whole.

        Recovery still tells a torn end from corruption, though ``GROUP_START`` speaks of the leader's disk:
        that the log is a follower's is on record before the first batch, and of its leader's groups so few
        are written before a sync that enough flagged batches behind a place prove it to have been synced
        (`SegmentScan.proven_end`).

        Args:
            batches: of `verified_batches`, the first one at the log's end; may be none.
            now: wall clock.

        Raises:
            CorruptDataError: a batch does not follow what is before it; nothing was stored.
            DiskFull: the log goes on; it has the batches before the segment, epoch or group that did not fit,
                nearly always none.
            StorageError, FsyncFailed: the log has failed; whether the batches are stored is unknown.
            StreamOffline: the log had failed before.
        """
        self._check_follows(batches)
        for run in _runs(batches):
            self._append_run(run, now)

    def _check_follows(self, batches: Sequence[SealedBatch]) -> None:
        end, epoch, time = self.log_end_offset, self.last_epoch, self.last_timestamp
        if batches and self._begins_inside(batches[0][0]):
            end = batches[0][0].base
        for header, _ in batches:
            if header.base != end or header.leader_epoch < epoch or header.max_timestamp < time:
                found = f"{header.base} of epoch {header.leader_epoch} from {header.max_timestamp}"
                raise CorruptDataError(
                    f"batch {found} does not follow offset {end} of epoch {epoch} from {time}"
                )
            end, epoch, time = header.next, header.leader_epoch, header.max_timestamp

    def _append_run(self, run: Sequence[SealedBatch], now: TimestampUs) -> None:
        """Write batches of one epoch and one segment, which begin at most `FOLLOWED_GROUPS_MAX` groups."""
        first = run[0][0]
        if first.leader_epoch > self.last_epoch:
            self._begin_epoch(first.leader_epoch, now, followed=True)
        groups = sum(BatchFlags.GROUP_START in header.flags for header, _ in run)
        if self._followed_groups + groups > FOLLOWED_GROUPS_MAX:
            self.sync()
        with self._writing():
            if not self._witnesses.followed:
                self._witnesses.write_epochs(self.epochs, followed=True)
            self._witnesses.forget_clean_close()
            if self._begins_inside(first):
                self._begin_inside(run[0])
                run = run[1:]
            if run:
                self._roll_as_leader(run[0][0])
                self._writer.write(_with_txids(run))
                self._followed_groups += groups
                self.log_end_offset = run[-1][0].next
        assert self._followed_groups <= FOLLOWED_GROUPS_MAX, f"L7: {self._followed_groups} groups"

    def _begins_inside(self, first: BatchHeader) -> bool:
        """Tell whether the log is empty and begins inside that batch: its leader's was truncated there."""
        is_empty = self.log_start_offset == self.log_end_offset and len(self._segments) == 1
        return is_empty and self._writer.is_empty and first.base < self.log_end_offset < first.next

    def _begin_inside(self, batch: SealedBatch) -> None:
        """Put that batch into a segment of its own base, durably, in place of the empty one.

        The empty one goes last: before, an opening takes the new one for a leftover from below the start.

        Source: Kafka's ``UnexpectedAppendOffsetException``.
        """
        empty, header = self._writer, batch[0]
        segment = Segment(self._disk, self.directory, header.base)
        writer = SegmentWriter(self._disk, self.directory, segment, self._disk.create(segment.path))
        try:
            writer.write(_with_txids([batch]))
            writer.file.sync()
            self._disk.sync_dir(self.directory)
        except JetstreamError as error:
            writer.close()
            if isinstance(error, DiskFull):
                remove(self._disk, segment)
            raise
        self._writer = writer
        empty.close()
        remove(self._disk, empty.segment)
        self._disk.sync_dir(self.directory)
        self._segments = (segment,)
        self.log_end_offset = header.next
        self.mark_synced()

    def _roll_as_leader(self, first: BatchHeader) -> None:
        """Begin a segment if the leader did; otherwise go on in the active one, even if it was sealed."""
        segment = self._writer.segment
        if BatchFlags.ROLL not in first.flags and segment.next == first.base:
            if self._writer.is_empty and len(self._segments) > 1:
                # Begun by whoever led before, and its first batch never came: the segment before it goes on.
                self._cut(first.base)
            self._writer.unseal()
        elif segment.sealed or not self._writer.is_empty:
            self._roll()

    def _cut(self, offset: Offset, about_to: Callable[[], None] = lambda: None) -> None:
        """Cut all batches from ``offset`` on; returns when that is durable.

        What needs room comes first, ``about_to`` last of that: if it raises `DiskFull`, nothing was cut.
        """
        segments = self._segments
        left = left_of(segments, offset)
        file = self._disk.open(left[-1].path)
        try:
            about_to()
        except JetstreamError:
            file.close()
            raise
        # In this order: whoever plans a read meanwhile finds what is left, and no end beyond it.
        self.durable_end = min(self.durable_end, offset)
        self.log_end_offset = offset
        self._segments = left
        self._writer.cut(segments, left, file)

    # --- durability -------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """Whether something was appended that is not known to be synced."""
        return self.durable_end < self.log_end_offset

    @property
    def synced_end(self) -> Offset:
        """Offset below which records count as stored: `durable_end`, or the end unless ``sync: always``."""
        return self.durable_end if self.config.sync is SyncMode.ALWAYS else self.log_end_offset

    def sync(self) -> None:
        """Return after fdatasync of everything appended.

        Raises:
            FsyncFailed: the log has failed; what was appended since the last sync may be lost.
            StreamOffline: the log had failed before.
        """
        if self.dirty:
            with self._writing():
                self._writer.file.sync()
            self.mark_synced()

    def mark_synced(self) -> None:
        """Take note that everything appended so far is durable, by a sync of this file or of the disk."""
        self.durable_end = self.log_end_offset
        self._followed_groups = 0

    def fail(self, error: JetstreamError) -> None:
        """Append nothing more: a sync that covered this log has failed."""
        if self.failed is None:
            self.failed = error

    @property
    def may_lack_writes(self) -> bool:
        """Whether a write or a sync has failed; a log that has only been closed has all that it was given."""
        return self.failed is not None and not isinstance(self.failed, StreamOffline)

    # --- inside -----------------------------------------------------------------------------------

    def _begin_epoch(self, epoch: LeaderEpoch, now: TimestampUs, *, followed: bool) -> None:
        self.sync()
        epochs = self.epochs.begun(epoch, self.log_end_offset, now)
        with self._writing():
            self._witnesses.write_epochs(epochs, followed=followed)
        self.epochs = epochs

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Refuse if the log has failed, and fail it on any error of the disk but a full one."""
        if self.failed is not None:
            raise StreamOffline(f"nothing can be written to {self.directory}: {self.failed}") from self.failed
        try:
            yield
        except StorageError as error:
            self.fail(error)
            raise

    def _roll(self) -> None:
        """Seal the active segment, unless that is done already, and begin the next one."""
        if not self._writer.segment.sealed:
            self._writer.seal()
            self.mark_synced()
        sealed = self._writer.segment
        self._segments = (*self._segments, self._writer.start(self.log_end_offset))
        self.indexes.count(sealed)
        if sealed.next <= self.log_start_offset:  # truncated while it was being written
            self._segments = self._segments[-1:]
            remove(self._disk, sealed)
            self._disk.sync_dir(self.directory)


def note_committed(log: WritableLog, high_watermark: Offset) -> None:
    """Take note that records below are committed; on record with the next checkpoint."""
    log.committed = max(log.committed, min(high_watermark, log.log_end_offset))


def _with_txids(batches: Sequence[SealedBatch]) -> list[Written]:
    return [(header, frame, last_txid_in(frame)) for header, frame in batches]


def _runs(batches: Sequence[SealedBatch]) -> Iterator[Sequence[SealedBatch]]:
    """Split where a segment or an epoch begins, and where a run would begin too many groups."""
    run: list[SealedBatch] = []
    groups = 0
    for header, frame in batches:
        begins_group = BatchFlags.GROUP_START in header.flags
        begins_epoch = bool(run) and header.leader_epoch > run[-1][0].leader_epoch
        rolls = BatchFlags.ROLL in header.flags
        if run and (rolls or begins_epoch or groups + begins_group > FOLLOWED_GROUPS_MAX):
            yield run
            run, groups = [], 0
        run.append((header, frame))
        groups += begins_group
    if run:
        yield run
