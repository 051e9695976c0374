"""The log of one stream: segments, and the one writer's half of them.

Theory of operation: `append` decides what only the writer knows (does the batch begin a segment, were all
bytes before it synced), seals the batch and writes it with one call. `sync` makes everything appended
durable at once, which is what group commit shares. All methods of this class are for the one disk thread;
what `ReadableLog` offers is for any.

A full disk refuses one append: the part that was written is cut off again, durably, so that the refusal is
definite. Any other error of the disk, and any failed sync, fails the log: nothing more is appended until it
is opened anew, which begins with recovery. A sync is never tried again.

Source: Rebello et al., "Can Applications Recover from fsync Failures?" (ATC'20); Kafka's ``UnifiedLog``.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from envelope.errors import (
    CorruptDataError,
    DiskFull,
    JetstreamError,
    OffsetOutOfRange,
    StorageError,
    StreamOffline,
)
from envelope.types import FilePosition, LeaderEpoch, Offset, SyncMode, TimestampUs
from jetstream.log.batch import BatchFlags, Buffer, UnsealedBatch, verify
from jetstream.log.checkpoint import Checkpoint
from jetstream.log.disk import Disk, parent_of
from jetstream.log.index_file import remove_index
from jetstream.log.log_config import LogConfig
from jetstream.log.ranges import above, below
from jetstream.log.readable_log import FileRange, Location, ReadableLog
from jetstream.log.recovery import Recovery, RecoveryReport, Verify
from jetstream.log.retention import retained_start
from jetstream.log.segment import Segment
from jetstream.log.segment_writer import SegmentWriter, remove
from jetstream.log.witnesses import Witnesses

__all__ = ["FileRange", "Location", "Log", "LogConfig", "RecoveryReport", "Segment"]

_DELETED_SUFFIX = ".deleted"


class Log(ReadableLog):
    """One stream's log, opened for appending.

    Attributes:
        config: may be replaced at any time.
        recovery: what opening found and did.
        durable_end: offset after the last batch that is known to be synced.

    Invariants:
        L3: durable_end <= log_end_offset.
        L4: an appended batch begins at log_end_offset and carries last_epoch.
        L5: timestamps never decrease from batch to batch.
    """

    __slots__ = ("_disk", "_witnesses", "_writer", "config", "durable_end", "recovery")

    def __init__(self, disk: Disk, directory: str, config: LogConfig, recovery: Recovery) -> None:
        """Take over what ``recovery`` found; use `open`."""
        super().__init__(directory, recovery.segments)
        self._disk = disk
        self._writer = SegmentWriter(disk, directory, recovery.segments[-1], recovery.file)
        self._witnesses = Witnesses(disk, directory, recovery.checkpoint)
        self.config = config
        self.recovery = recovery.report
        self.log_start_offset = recovery.log_start_offset
        self.log_end_offset = recovery.log_end_offset
        self.durable_end = recovery.log_end_offset
        self.corrupt_ranges = recovery.corrupt_ranges
        self.epochs = recovery.epochs
        if not recovery.end_certain:
            self.failed = CorruptDataError(
                f"the end of {directory} is damaged: {recovery.report.problems[-1]}"
            )

    @classmethod
    def open(
        cls, disk: Disk, directory: str, config: LogConfig, now: TimestampUs, verify: Verify = "tail"
    ) -> "Log":
        """Open a log, creating it if it is missing; returns when all it holds is durable.

        Damage does not fail the opening: see `corrupt_ranges`, `failed` and `recovery`.

        Args:
            disk: where ``directory`` lies.
            directory: of this log alone.
            config: settings.
            now: wall clock.
            verify: "tail" reads batches written since the last index, "full" all.

        Raises:
            StorageError, FsyncFailed, DiskFull: the disk refused.
            Unsupported: the log was written by a newer version.
        """
        recovery = Recovery(disk, directory, now, verify)
        recovery.run()
        return cls(disk, directory, config, recovery)

    @staticmethod
    def delete(disk: Disk, directory: str) -> None:
        """Remove a closed log; returns when it is gone for good. A missing one is no error.

        The directory is renamed first: after a crash the log is there whole, or not at all.
        """
        deleted = directory + _DELETED_SUFFIX
        if disk.exists(directory):
            if disk.exists(deleted):
                disk.remove_tree(deleted)
            disk.rename(directory, deleted)
            disk.sync_dir(parent_of(directory))
        if disk.exists(deleted):
            disk.remove_tree(deleted)
            disk.sync_dir(parent_of(directory))

    # --- appending --------------------------------------------------------------------------------

    def begin_epoch(self, epoch: LeaderEpoch, now: TimestampUs) -> None:
        """Record that ``epoch`` begins at the log's end; returns when that is durable.

        Raises:
            StorageError: the epoch is not above `last_epoch`, or the disk refused and the log has failed.
            DiskFull: the epoch has not begun.
        """
        if epoch <= self.last_epoch:
            raise StorageError(f"epoch {epoch} is not above epoch {self.last_epoch} of {self.directory}")
        self.sync()
        epochs = self.epochs.begun(epoch, self.log_end_offset, now)
        with self._writing():
            self._witnesses.write_epochs(epochs)
        self.epochs = epochs

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
            self._writer.write(list(zip(batches, frames, strict=True)))
        self.log_end_offset = batches[-1].next

    def append_sealed(self, frame: Buffer, now: TimestampUs) -> None:
        """Write a leader's batch unchanged, rolling where the leader rolled; not durable before `sync`.

        Raises:
            CorruptDataError: the frame is damaged, or does not follow this log's end or epoch.
            DiskFull, StorageError, FsyncFailed, StreamOffline: as `append`.
        """
        header = verify(frame)
        if header.base != self.log_end_offset or header.leader_epoch < self.last_epoch:
            raise CorruptDataError(
                f"batch {header.base} of epoch {header.leader_epoch} does not follow "
                f"offset {self.log_end_offset} of epoch {self.last_epoch}"
            )
        if header.leader_epoch > self.last_epoch:
            self.begin_epoch(header.leader_epoch, now)
        with self._writing():
            if BatchFlags.ROLL in header.flags and not self._writer.is_empty:
                self._roll()
            self._witnesses.forget_clean_close()
            self._writer.write([(header, frame)])
        self.log_end_offset = header.next

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

    def fail(self, error: JetstreamError) -> None:
        """Append nothing more: a sync that covered this log has failed."""
        if self.failed is None:
            self.failed = error

    def checkpoint(self, *, clean: bool = False) -> None:
        """Write down what is known to be durable, and the active segment's index; does not sync the log.

        ``clean`` says that nothing will be written after it: `close` does.

        Raises:
            DiskFull: the older checkpoint is still in place.
            StorageError, FsyncFailed, StreamOffline: the log has failed.
        """
        with self._writing():
            for segment in self._segments:
                if segment.index_doubtful:
                    remove_index(self._disk, segment.index_path)
            segment, index = self._segment_with(self.durable_end)
            segment.save_index(index.find(self.durable_end))
            checkpoint = self._checkpoint_at(self.durable_end)
            self._witnesses.write_checkpoint(replace(checkpoint, clean=clean))

    def close(self, clean: bool = True) -> None:
        """Sync, write a clean checkpoint, and close; a failed log, or with ``clean`` off, is only closed.

        Readers keep the segments they hold; there are no new ones.

        Raises:
            DiskFull, StorageError, FsyncFailed: the log is closed, but not cleanly.
        """
        try:
            if clean and self.failed is None:
                self.sync()
                self.checkpoint(clean=True)
        finally:
            self.fail(StreamOffline(f"the log {self.directory} is closed"))
            for segment in self._segments:
                segment.retire()
            self._writer.close()

    # --- removing ---------------------------------------------------------------------------------

    def truncate_before(
        self, offset: Offset, high_watermark: Offset, about_to: Callable[[], None] = lambda: None
    ) -> None:
        """Make ``offset`` the log's start; returns when that is durable. Below the start: does nothing.

        Segments that lie wholly below it are removed, readers keep what they hold. ``about_to`` is called
        first if anything will be removed; if it raises, nothing is.

        Raises:
            OffsetOutOfRange: ``offset`` is above ``high_watermark``.
            DiskFull: nothing was removed.
            StorageError, FsyncFailed, StreamOffline: the log has failed.
        """
        assert high_watermark <= self.log_end_offset, f"{high_watermark} > {self.log_end_offset}"
        if offset > high_watermark:
            raise OffsetOutOfRange(
                f"cannot truncate before {offset}: the high watermark is {high_watermark}",
                offset=offset,
                high_watermark=high_watermark,
            )
        if offset <= self.log_start_offset:
            return
        about_to()
        if offset > self.durable_end:
            self.sync()
        gone = [segment for segment in self._segments[:-1] if segment.next <= offset]
        with self._writing():
            for segment in gone:
                # They are derived, and first: even a full disk has space for the checkpoint then.
                remove_index(self._disk, segment.index_path)
            checkpoint = self._checkpoint_at(self.durable_end)
            self._witnesses.write_checkpoint(replace(checkpoint, log_start_offset=offset))
            self.log_start_offset = offset
            self._segments = self._segments[len(gone) :]
            self.epochs = self.epochs.pruned(offset)
            self.corrupt_ranges = above(self.corrupt_ranges, offset)
            for segment in gone:
                remove(self._disk, segment)
            self._disk.sync_dir(self.directory)

    def apply_retention(
        self, now: TimestampUs, high_watermark: Offset, about_to: Callable[[], None] = lambda: None
    ) -> None:
        """Remove the oldest whole segments that the configuration no longer keeps.

        Only committed ones; the active one is sealed first if all it holds is too old. ``about_to``: as
        `truncate_before`.

        Raises:
            As `truncate_before`.
        """
        with self._writing():
            if self._writer.expired(now, self.config) and self.log_end_offset <= high_watermark:
                # On a full disk the older segments still go; this one follows when there is space.
                with contextlib.suppress(DiskFull):
                    self._roll()
            start = retained_start(self._segments, high_watermark, now, self.config)
        if start > self.log_start_offset:
            self.truncate_before(start, high_watermark, about_to)

    def truncate_to(self, offset: Offset) -> None:
        """Cut the log back to ``offset``, the base of a batch; returns when that is durable.

        For a follower whose leader never had the rest; no reader may be looking at what is cut.

        Raises:
            OffsetOutOfRange: below the log start, above the log end, or inside a batch.
            DiskFull: nothing was cut.
            StorageError, FsyncFailed, StreamOffline: the log has failed.
        """
        if offset == self.log_end_offset:
            return
        if self.locate(offset).entry.base != offset:
            raise OffsetOutOfRange(f"the log cannot be cut inside a batch, at {offset}", offset=offset)
        self.sync()
        with self._writing():
            # The witnesses of synced bytes step back first: a crash in between must not read as damage.
            self._witnesses.write_checkpoint(self._checkpoint_at(offset))
            epochs = self.epochs.cut(offset)
            self._witnesses.write_epochs(epochs)
            self.epochs = epochs
            self._segments = self._writer.cut(self._segments, offset)
        self.durable_end = self.log_end_offset = offset
        self.corrupt_ranges = below(self.corrupt_ranges, offset)

    # --- inside -----------------------------------------------------------------------------------

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
        self._indexes.count(sealed)

    def _checkpoint_at(self, synced_end: Offset) -> Checkpoint:
        """Return the checkpoint of a log that is known to be durable up to ``synced_end``."""
        segment, index = self._segment_with(synced_end)
        row = index.find(synced_end)
        # The schema message counts as synced with the first batch, not before.
        position = index[row - 1].end if row > 0 else FilePosition(0)
        return Checkpoint(
            log_start_offset=self.log_start_offset,
            synced_end=synced_end,
            segment_base=segment.base,
            synced_position=position,
            last_epoch=self.last_epoch,
            clean=False,
        )
