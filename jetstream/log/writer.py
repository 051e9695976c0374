"""The writing half of a log: appends and syncs, by one writer.

Theory of operation: `append_group` sets the flags that only the writer knows (does the batch begin a segment,
were all bytes before it synced), seals the batches and writes them with one call; `append_sealed` writes a
leader's batches unchanged. `sync` makes everything appended durable at once, which group commit shares. All
methods are for the one disk thread.

A full disk refuses one append: the part that was written is cut off again, durably, so that the refusal is
definite. Any other error of the disk, and any failed sync, fails the log: nothing more is appended until it
is opened anew, which begins with recovery. A sync is never tried again.

Source: Rebello et al., "Can Applications Recover from fsync Failures?" (ATC'20); Kafka's ``UnifiedLog``.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from envelope.errors import CorruptDataError, DiskFull, JetstreamError, StorageError, StreamOffline
from envelope.types import NO_OFFSET, LeaderEpoch, Offset, SyncMode, TimestampUs
from jetstream.log.disk.port import Disk
from jetstream.log.format.batch import BatchFlags, BatchHeader, SealedBatch, UnsealedBatch
from jetstream.log.format.txid_column import last_txid_in
from jetstream.log.reader import LogReader, segment_at
from jetstream.log.recovery import Recovery
from jetstream.log.segments.log_config import LogConfig
from jetstream.log.segments.scan import FOLLOWED_GROUPS_MAX
from jetstream.log.segments.segment import Segment, newest_timestamp
from jetstream.log.segments.segment_writer import SegmentWriter, Written, left_of, remove
from jetstream.log.state.checkpoint import Checkpoint, DurabilityMarkers

_NO_FLAGS: Final = BatchFlags(0)
_FIRST_FLAGS: Final = {
    (True, True): BatchFlags.ROLL | BatchFlags.GROUP_START,
    (True, False): BatchFlags.ROLL,
    (False, True): BatchFlags.GROUP_START,
    (False, False): _NO_FLAGS,
}
"""Of a leader's batches that are written together the first one's, by whether it begins a segment, and
whether all before it is synced."""

_common: Final = int.__and__
"""Of two sets of flags; their own "&" and "in" are Python, and this runs for every batch that is followed."""


class _Writing:
    """The block in which something is written to a log.

    It refuses to begin if the log has failed, and fails it on any error of the disk but a full one.
    """

    __slots__ = ("_writer",)

    def __init__(self, writer: "LogWriter") -> None:
        self._writer = writer

    def __enter__(self) -> None:
        if self._writer.failed is not None:
            raise self._writer.refusal() from self._writer.failed

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, StorageError):
            self._writer.fail(error)


class LogWriter:
    """Appends to one log and syncs it.

    Attributes:
        config: may be replaced at any time.
        failed: why nothing more can be appended; None if it can.
        durable_end: offset after the last batch that is known to be synced.
        committed: offset below which records are known to be committed, for the next checkpoint.
        tail: writes the active segment.
        writing: the block in which something is written.
        markers: writes the checkpoint and the epochs.

    Invariants:
        L3: durable_end <= log_end_offset.
        L4: an appended batch begins at log_end_offset and carries last_epoch.
        L5: timestamps never decrease from batch to batch within a segment. An operator may have let the
            stream's time fall; the first batch behind that begins a segment.
        L7: of a leader's groups, a follower has at most `FOLLOWED_GROUPS_MAX` written and not synced.
    """

    __slots__ = (
        "_disk",
        "_followed_groups",
        "_reader",
        "committed",
        "config",
        "durable_end",
        "failed",
        "markers",
        "tail",
        "writing",
    )

    def __init__(self, disk: Disk, reader: LogReader, config: LogConfig, recovery: Recovery) -> None:
        """Go on at the end that ``recovery`` found; every change is published in ``reader``."""
        self._disk = disk
        self._reader = reader
        directory = reader.directory
        self.tail = SegmentWriter(disk, directory, recovery.segments[-1], recovery.file)
        self.markers = DurabilityMarkers(disk, directory, recovery.checkpoint, followed=recovery.followed)
        self.writing = _Writing(self)
        self._followed_groups = 0
        self.config = config
        self.durable_end = recovery.log_end_offset
        recorded = recovery.checkpoint.committed if recovery.checkpoint is not None else NO_OFFSET
        self.committed = min(recorded, recovery.log_end_offset)
        self.failed: JetstreamError | None = None
        if not recovery.end_certain:
            self.failed = CorruptDataError(
                f"the end of {directory} is damaged: {recovery.report.problems[-1]}"
            )

    # --- appending --------------------------------------------------------------------------------

    def begin_epoch(self, epoch: LeaderEpoch, now: TimestampUs, *, followed: bool = False) -> None:
        """Record that ``epoch`` begins at the log's end, led by this node or followed; durable on return.

        Raises:
            StorageError: the epoch is not above `last_epoch`, or the disk refused and the log has failed.
            DiskFull: the epoch has not begun.
        """
        reader = self._reader
        if epoch <= reader.last_epoch:
            raise StorageError(f"epoch {epoch} is not above epoch {reader.last_epoch} of {reader.directory}")
        self.sync()
        epochs = reader.epochs.begun(epoch, reader.log_end_offset, now)
        with self.writing:
            self.markers.write_epochs(epochs, followed=followed)
        reader.epochs = epochs

    def only_writes(self, batches: Sequence[UnsealedBatch], now: TimestampUs) -> bool:
        """Return whether `append_group` would write once at most: sync nothing, begin or replace no file."""
        tail, is_clean = self.tail, self.markers.says_clean
        goes_on = tail.file is not None and tail.segment.next != tail.segment.base
        return goes_on and not is_clean and not tail.roll_due(batches, now, self.config)

    def only_writes_sealed(self, batches: Sequence[SealedBatch]) -> bool:
        """As `only_writes`, of `append_sealed`."""
        groups, last_epoch = self._followed_groups, self._reader.epochs.last
        for header, _ in batches:
            if _common(header.flags, BatchFlags.ROLL) or header.leader_epoch != last_epoch:
                return False
            groups += _common(header.flags, BatchFlags.GROUP_START) > 0
        markers, tail, segment = self.markers, self.tail, self.tail.segment
        is_short = groups <= FOLLOWED_GROUPS_MAX and markers.followed and not markers.says_clean
        return is_short and tail.file is not None and not segment.sealed and segment.next != segment.base

    def append_group(self, batches: Sequence[UnsealedBatch], now: TimestampUs) -> None:
        """Write batches that follow each other with one call, all or none; not durable before `sync`.

        Raises:
            DiskFull: nothing was stored; the log goes on.
            StorageError, FsyncFailed: the log has failed; whether the batches are stored is unknown.
            StreamOffline: the log had failed before.
        """
        first, reader, tail = batches[0], self._reader, self.tail
        if self.failed is not None:
            raise self.refusal() from self.failed
        try:
            end, epoch = reader.log_end_offset, reader.epochs.last
            assert first.base == end, f"L4: a batch at {first.base}, the log ends at {end}"
            assert first.leader_epoch == epoch, f"L4: a batch of epoch {first.leader_epoch}, not {epoch}"
            if tail.roll_due(batches, now, self.config):
                self.roll()
            time, begins_segment = tail.segment.max_timestamp, tail.segment.next == tail.segment.base
            assert first.max_timestamp >= time or begins_segment, (
                f"L5: a batch from {first.max_timestamp}, the last from {time}"
            )
            tail.begun_at = tail.begun_at or now
            if self.markers.says_clean:
                self.markers.forget_clean_close()
            assert not self.markers.says_clean, f"W1: {reader.directory} is on record as closed"
            flags, written = _FIRST_FLAGS[begins_segment, self.durable_end == end], list[Written]()
            for batch in batches:
                written.append((batch, batch.seal(flags), batch.last_txid))
                flags = _NO_FLAGS
            tail.write(written)
        except StorageError as error:
            self.fail(error)
            raise
        reader.log_end_offset = batches[-1].next
        assert self.durable_end < reader.log_end_offset, f"L3: durable before a sync: {self.durable_end}"

    def append_sealed(self, batches: Sequence[SealedBatch], now: TimestampUs) -> None:
        """Write a leader's batches unchanged, rolling where the leader rolled; not durable before `sync`.

        All are checked to follow before anything is written. Each epoch that begins in them is on record,
        durably, before its first batch. An empty log that begins inside the first batch takes it whole.

        Recovery still distinguishes a torn end from corruption, though ``GROUP_START`` is about the leader's
        disk: ``followed`` is on record before the first batch, and so few of the leader's groups are written
        before a sync that enough flagged batches behind a place prove that it had been synced
        (`SegmentScan.proven_end`).

        Args:
            batches: of `verified_batches`, the first one at the log's end; perhaps none.
            now: wall clock.

        Raises:
            CorruptDataError: a batch does not follow the one before it; nothing was stored.
            DiskFull: the log goes on; it has the batches before the segment, epoch or group that did not fit,
                nearly always none.
            StorageError, FsyncFailed: the log has failed; whether the batches are stored is unknown.
            StreamOffline: the log had failed before.
        """
        if not batches:
            return
        end = self._reader.log_end_offset
        if batches[0][0].base < end and self._begins_inside(batches[0][0]):
            end = batches[0][0].base
        runs = _runs(batches, end, self._reader)
        if self.failed is not None:
            raise self.refusal() from self.failed
        for run, groups in runs:
            self._append_run(run, groups, now)

    def _append_run(self, run: Sequence[SealedBatch], groups: int, now: TimestampUs) -> None:
        """Write batches of one epoch and one segment, which begin so many groups."""
        first, reader = run[0][0], self._reader
        if first.leader_epoch > reader.epochs.last:
            self.begin_epoch(first.leader_epoch, now, followed=True)
        if self._followed_groups + groups > FOLLOWED_GROUPS_MAX:
            self.sync()
        try:
            if not self.markers.followed:
                self.markers.write_epochs(reader.epochs, followed=True)
            if self.markers.says_clean:
                self.markers.forget_clean_close()
            assert not self.markers.says_clean, f"W1: {reader.directory} is on record as closed"
            if first.base < reader.log_end_offset:  # the log begins inside of it
                self._begin_inside(run[0])
                run = run[1:]
            if run:
                self._roll_as_leader(run[0][0])
                written: list[Written] = []
                for header, frame in run:
                    written.append((header, frame, last_txid_in(frame)))
                self.tail.write(written)
                self._followed_groups += groups
                reader.log_end_offset = run[-1][0].next
        except StorageError as error:
            self.fail(error)
            raise
        assert self._followed_groups <= FOLLOWED_GROUPS_MAX, f"L7: {self._followed_groups} groups"

    def _begins_inside(self, first: BatchHeader) -> bool:
        """Return whether the log is empty and begins inside that batch: its leader's was truncated there."""
        reader = self._reader
        is_empty = reader.log_start_offset == reader.log_end_offset and len(reader.segments) == 1
        return is_empty and self.tail.is_empty and first.base < reader.log_end_offset < first.next

    def _begin_inside(self, batch: SealedBatch) -> None:
        """Put that batch into a segment of its own base, durably, in place of the empty one.

        The empty one goes last: until then an opening removes the new one as a leftover from below the start.

        Source: Kafka's ``UnexpectedAppendOffsetException``.
        """
        empty, directory, (header, frame) = self.tail, self._reader.directory, batch
        segment = Segment(self._disk, directory, header.base)
        file = self._disk.create(segment.path)
        tail = SegmentWriter(self._disk, directory, segment, file)
        try:
            tail.write([(header, frame, last_txid_in(frame))])
            file.sync()
            self._disk.sync_dir(directory)
        except JetstreamError as error:
            tail.close()
            if isinstance(error, DiskFull):
                remove(self._disk, segment)
            raise
        self.tail = tail
        empty.close()
        remove(self._disk, empty.segment)
        self._disk.sync_dir(directory)
        self._reader.segments = (segment,)
        self._reader.log_end_offset = header.next
        self.mark_synced()

    def _roll_as_leader(self, first: BatchHeader) -> None:
        """Begin a segment if the leader did; otherwise go on in the active one, even if it was sealed."""
        segment = self.tail.segment
        is_empty = segment.next == segment.base
        if not _common(first.flags, BatchFlags.ROLL) and segment.next == first.base:
            if is_empty and len(self._reader.segments) > 1:
                # Begun by an earlier leader, and its first batch never came: the segment before it goes on.
                self.cut(first.base)
            if self.tail.segment.sealed:
                self.tail.unseal()
        elif segment.sealed or not is_empty:
            self.roll()

    def cut(self, offset: Offset, about_to: Callable[[], None] = lambda: None) -> None:
        """Cut all batches from ``offset`` on; returns when that is durable.

        The checkpoint steps back first: a crash in between must not read as damage. ``about_to`` is called
        before anything is cut; if it, or the checkpoint, raises `DiskFull`, nothing was cut.
        """
        segments = self._reader.segments
        left = left_of(segments, offset)
        file = self._disk.open(left[-1].path)
        try:
            self.markers.write_checkpoint(self.checkpoint_at(offset, left))
            about_to()
        except JetstreamError:
            file.close()
            raise
        # In this order: a read that is planned meanwhile finds the rest, and no end beyond it.
        self.durable_end = min(self.durable_end, offset)
        assert left[-1].base <= offset <= self._reader.log_end_offset, f"L2: cut at {offset}"
        assert offset >= self._reader.log_start_offset, f"L1: cut at {offset}, below the start"
        self._reader.log_end_offset = offset
        self._reader.segments = left
        self.tail.cut(segments, left, file)

    # --- durability -------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """Whether something was appended that is not known to be synced."""
        return self.durable_end < self._reader.log_end_offset

    @property
    def synced_end(self) -> Offset:
        """Offset below which records count as stored: `durable_end`, or the end unless ``sync: always``."""
        return self.durable_end if self.config.sync is SyncMode.ALWAYS else self._reader.log_end_offset

    def sync(self) -> None:
        """Return after fdatasync of everything appended.

        Raises:
            FsyncFailed: the log has failed; batches appended since the last sync may be lost.
            StreamOffline: the log had failed before.
        """
        end = self._reader.log_end_offset
        if self.durable_end < end:
            if self.failed is not None:
                raise self.refusal() from self.failed
            file = self.tail.file
            assert file is not None, "a log that has not failed takes appends"
            try:
                file.sync()
            except StorageError as error:
                self.fail(error)
                raise
            self.durable_end, self._followed_groups = end, 0

    def mark_synced(self) -> None:
        """Record that everything appended so far is durable, by a sync of this file or of the disk."""
        self.durable_end = self._reader.log_end_offset
        self._followed_groups = 0

    def fail(self, error: JetstreamError) -> None:
        """Append nothing more: a sync that covered this log has failed."""
        if self.failed is None:
            self.failed = error

    def refusal(self) -> StreamOffline:
        """Return why nothing is written to a log that has failed."""
        return StreamOffline(f"nothing can be written to {self._reader.directory}: {self.failed}")

    @property
    def may_lack_writes(self) -> bool:
        """Whether a write or a sync has failed; a log that was only closed lacks nothing."""
        return self.failed is not None and not isinstance(self.failed, StreamOffline)

    # --- inside -----------------------------------------------------------------------------------

    def roll(self) -> None:
        """Seal the active segment, unless that is done already, and begin the next one.

        The checkpoint names the new one: if its file vanishes, the next opening misses it.
        """
        if not self.tail.segment.sealed:
            self.tail.seal()
            self.mark_synced()
        sealed = self.tail.segment
        reader = self._reader
        assert sealed.next <= reader.log_end_offset, f"L2: {sealed.next} is behind {reader.log_end_offset}"
        reader.segments = (*reader.segments, self.tail.start(reader.log_end_offset))
        reader.indexes.count(sealed)
        if sealed.next <= reader.log_start_offset:  # truncated while it was being written
            reader.segments = reader.segments[-1:]
            remove(self._disk, sealed)
            self._disk.sync_dir(reader.directory)
        self.markers.write_checkpoint(self.checkpoint_at(reader.log_end_offset, reader.segments))

    def checkpoint_at(self, synced_end: Offset, segments: tuple[Segment, ...]) -> Checkpoint:
        """Return the checkpoint of a log of these segments that is known to be durable to ``synced_end``."""
        reader = self._reader
        segment = segment_at(segments, synced_end)
        return Checkpoint(
            log_start_offset=reader.log_start_offset,
            synced_end=synced_end,
            segment_base=segment.base,
            synced_position=reader.indexes.of(segment).end_below(synced_end),
            last_epoch=reader.last_epoch,
            clean=False,
            committed=min(self.committed, synced_end),
        )


def _runs(
    batches: Sequence[SealedBatch], end: Offset, reader: LogReader
) -> list[tuple[Sequence[SealedBatch], int]]:
    """Split batches, which follow ``end``, where a segment or an epoch begins, or where groups are too many.

    Returns:
        The runs, each with how many groups it begins: at most `FOLLOWED_GROUPS_MAX`.

    Raises:
        CorruptDataError: a batch does not follow the one before it.
    """
    epoch, time = reader.epochs.last, newest_timestamp(reader.segments)
    runs: list[tuple[Sequence[SealedBatch], int]] = []
    start, groups = 0, 0
    for row, (header, _) in enumerate(batches):
        rolls = _common(header.flags, BatchFlags.ROLL) > 0
        is_earlier = header.max_timestamp < time and not rolls
        if header.base != end or header.leader_epoch < epoch or is_earlier:
            found = f"{header.base} of epoch {header.leader_epoch} from {header.max_timestamp}"
            raise CorruptDataError(f"batch {found} does not follow offset {end} of epoch {epoch} from {time}")
        begins_group = _common(header.flags, BatchFlags.GROUP_START) > 0
        begins_run = rolls or header.leader_epoch > epoch or groups + begins_group > FOLLOWED_GROUPS_MAX
        if row > start and begins_run:
            runs.append((batches[start:row], groups))
            start, groups = row, 0
        groups += begins_group
        end, epoch, time = header.next, header.leader_epoch, header.max_timestamp
    runs.append((batches[start:], groups))
    return runs
