"""The log of one stream: a reader, a writer, and the work that concerns both.

`LogReader` plans reads and `LogWriter` appends. `Log` opens and closes, removes records (from the start by
retention and truncation, from the end for a follower whose leader never had them), replaces rewritten
segments, and repairs.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from envelope.errors import DiskFull, JetstreamError, OffsetOutOfRange, StorageError, StreamOffline
from envelope.types import Offset, TimestampUs
from jetstream.log.disk.port import Disk, parent_of
from jetstream.log.disk.state_file import write_state
from jetstream.log.format.batch import SealedBatch
from jetstream.log.reader import FileRange, Location, LogReader, segment_at
from jetstream.log.recovery import Recovery, RecoveryReport, Verify
from jetstream.log.rewriting.repair import Hole, check_fits, entries_of, holes, publish, put_back
from jetstream.log.rewriting.replacement import RewrittenSegment
from jetstream.log.segments.corrupt_ranges import above, below
from jetstream.log.segments.index_file import remove_index
from jetstream.log.segments.log_config import LogConfig
from jetstream.log.segments.retention import is_ahead, retained_start
from jetstream.log.segments.segment import PlanAgain, Segment
from jetstream.log.segments.segment_writer import SegmentWriter, remove
from jetstream.log.state.checkpoint import DurabilityMarkers
from jetstream.log.state.compaction_state import COMPACTION_FILE, CompactionState
from jetstream.log.state.epochs import EpochHistory
from jetstream.log.state.reset import begin_reset, finish_reset
from jetstream.log.state.rewrite_state import write_rewritten_end
from jetstream.log.writer import LogWriter

__all__ = ["FileRange", "Location", "Log", "LogConfig", "RecoveryReport", "Segment"]

_DELETED_SUFFIX = ".deleted"
_NOTHING = Offset(0)


class Log:
    """A stream's log, opened for appending; all methods are for the one disk thread.

    Attributes:
        directory: path on the log's disk.
        reader: for any thread.
        writer: for the disk thread.
        compaction: the recorded progress of compaction; another object after every cut.
        rewritten_end: below it all segments have been looked at by the sealed rewrite.
        recovery: the report of the opening.
        found_until: timestamp of the newest batch that the opening found; 0: there was none.
    """

    __slots__ = (
        "_disk",
        "compaction",
        "directory",
        "found_until",
        "reader",
        "recovery",
        "rewritten_end",
        "writer",
    )

    def __init__(self, disk: Disk, directory: str, config: LogConfig, recovery: Recovery) -> None:
        self._disk = disk
        self.directory = directory
        self.reader = reader = LogReader(directory, recovery.segments)
        self.found_until = reader.last_timestamp
        reader.log_start_offset = recovery.log_start_offset
        reader.log_end_offset = recovery.log_end_offset
        reader.corrupt_ranges = recovery.corrupt_ranges
        reader.epochs = recovery.epochs
        self.writer = LogWriter(disk, reader, config, recovery)
        self.compaction = recovery.compaction
        self.rewritten_end = recovery.rewritten_end
        self.recovery = recovery.report

    @classmethod
    def open(
        cls, disk: Disk, directory: str, config: LogConfig, now: TimestampUs, verify: Verify = "tail"
    ) -> "Log":
        """Open a log, creating it if it is missing; returns when all it holds is durable.

        Damage does not fail the opening: see `LogReader.corrupt_ranges`, `failed` and `recovery`.

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

    @property
    def log_start_offset(self) -> Offset:
        """First kept offset."""
        return self.reader.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Next offset to be written."""
        return self.reader.log_end_offset

    @property
    def failed(self) -> JetstreamError | None:
        """Why nothing more can be appended; None if it can."""
        return self.writer.failed

    def note_committed(self, high_watermark: Offset) -> None:
        """Record, with the next checkpoint, that the records below are committed."""
        self.writer.committed = max(self.writer.committed, min(high_watermark, self.log_end_offset))

    def checkpoint(self, *, clean: bool = False) -> None:
        """Write the checkpoint of the durable end, and the active segment's index; does not sync the log.

        ``clean``, for `close`: nothing will be written after it.

        Raises:
            DiskFull: the older checkpoint is still in place.
            StorageError, FsyncFailed, StreamOffline: the log has failed.
        """
        reader, writer = self.reader, self.writer
        with writer.writing:
            for segment in reader.segments:
                if segment.index_doubtful:
                    remove_index(self._disk, segment.index_path)
            segment = segment_at(reader.segments, writer.durable_end)
            segment.save_index(reader.indexes.of(segment).find(writer.durable_end))
            checkpoint = writer.checkpoint_at(writer.durable_end, reader.segments)
            writer.markers.write_checkpoint(replace(checkpoint, clean=clean))

    def close(self, clean: bool = True) -> None:
        """Sync, write a clean checkpoint, and close; a failed log, or with ``clean`` off, is only closed.

        Readers keep the segments they hold; there are no new ones.

        Raises:
            DiskFull, StorageError, FsyncFailed: the log is closed, but not cleanly.
        """
        try:
            if clean and self.failed is None:
                self.writer.sync()
                self.checkpoint(clean=True)
        finally:
            self.writer.fail(StreamOffline(f"the log {self.directory} is closed"))
            for segment in self.reader.segments:
                segment.retire()
            self.writer.tail.close()

    # --- removing ---------------------------------------------------------------------------------

    def truncate_before(
        self, offset: Offset, high_watermark: Offset, about_to: Callable[[], None] = lambda: None
    ) -> None:
        """Make ``offset`` the log's start, unless that is above it; returns when that is durable.

        Segments that lie wholly below it are removed, a follower's active one when it rolls; readers keep
        the segments they hold. If much of the active one lies below, a new one begins, so that this can go
        with the next truncation. ``about_to`` is called before a removal; if it raises, nothing is removed.

        Raises:
            OffsetOutOfRange: ``offset`` is above ``high_watermark``.
            DiskFull: nothing was removed.
            StorageError, FsyncFailed, StreamOffline: the log has failed.
        """
        reader, writer = self.reader, self.writer
        assert high_watermark <= reader.log_end_offset, f"L1: {high_watermark} > {reader.log_end_offset}"
        if offset > high_watermark:
            raise OffsetOutOfRange(
                f"cannot truncate before {offset}: the high watermark is {high_watermark}",
                offset=offset,
                high_watermark=high_watermark,
            )
        leads = writer.failed is None and not writer.markers.followed
        is_held_up = leads and writer.tail.holds_up(offset, writer.config)
        if offset <= reader.log_start_offset:
            if not is_held_up:
                return
            offset = reader.log_start_offset  # a full disk may have had no space for the next segment
        about_to()
        if offset > writer.durable_end:
            writer.sync()
        with writer.writing:
            for segment in reader.segments:
                if segment.next <= offset:
                    # They are derived, and first: even a full disk has space for the rest then.
                    remove_index(self._disk, segment.index_path)
            if is_held_up:
                self._begin_segment()
            gone = [segment for segment in reader.segments[:-1] if segment.next <= offset]
            checkpoint = writer.checkpoint_at(writer.durable_end, reader.segments)
            writer.markers.write_checkpoint(replace(checkpoint, log_start_offset=offset))
            reader.log_start_offset = offset
            reader.segments = reader.segments[len(gone) :]
            reader.epochs = reader.epochs.pruned(offset)
            reader.corrupt_ranges = above(reader.corrupt_ranges, offset)
            for segment in gone:
                remove(self._disk, segment)
            self._disk.sync_dir(reader.directory)

    def apply_retention(
        self,
        now: TimestampUs,
        high_watermark: Offset,
        about_to: Callable[[], None] = lambda: None,
        *,
        droppable_end: Offset | None = None,
    ) -> None:
        """Remove the oldest whole segments that the configuration no longer keeps.

        Only committed ones, and only below ``droppable_end`` if that is given; the active one is sealed first
        if all its records are too old, or if it is more than is to be kept: then it goes once what follows is
        enough. ``about_to``: as `truncate_before`.

        Raises:
            As `truncate_before`.
        """
        config = self.writer.config
        with contextlib.suppress(StorageError):  # their timestamps are an upper bound as well
            for segment in self.reader.segments:
                is_known = segment.sealed and segment.written_at is not None
                if is_ahead(segment.max_timestamp, now) and not is_known:
                    with segment.leased() as file:
                        segment.written_at = file.modified_at()
        with self.writer.writing:
            tail = self.writer.tail
            expired = tail.expired(now, config) and self.log_end_offset <= high_watermark
            if expired or tail.is_overfull(config):
                self._begin_segment()
            end = high_watermark if droppable_end is None else min(high_watermark, droppable_end)
            start = retained_start(self.reader.segments, end, now, config)
        if start > self.log_start_offset:
            self.truncate_before(start, high_watermark, about_to)

    def _begin_segment(self) -> None:
        """Seal the active segment, so that it can be removed; a follower rolls where its leader does."""
        if not self.writer.markers.followed:
            # On a full disk the older segments still go; this one follows when there is space.
            with contextlib.suppress(DiskFull):
                self.writer.roll()

    def truncate_to(self, offset: Offset) -> None:
        """Cut the log at the last batch boundary not above ``offset``; returns when that is durable.

        Epochs that begin at the new end or above go with it, even if no batch does: they are in no history
        but this one. For a follower whose leader never had the rest; no reader may use the cut batches.
        After a crash the log has all of it, or some of the batches that were to be cut, or none.

        Raises:
            OffsetOutOfRange: above the log end, or the boundary is below the log start; nothing was cut.
            CorruptDataError: ``offset`` lies inside a corrupt range; nothing was cut.
            DiskFull: nothing was cut.
            StorageError, FsyncFailed, StreamOffline: the log has failed.
        """
        reader, writer, log_end_offset = self.reader, self.writer, self.log_end_offset
        if offset != log_end_offset:
            offset = reader.boundary_below(offset)
        epochs = reader.epochs.cut(offset)
        if offset == log_end_offset and epochs.starts == reader.epochs.starts:
            return
        writer.sync()
        writer.committed = min(writer.committed, offset)

        def step_back() -> None:
            writer.markers.write_epochs(epochs, followed=writer.markers.followed)
            reader.epochs = epochs

        with writer.writing:
            if offset < log_end_offset:
                writer.cut(offset, step_back)
            else:
                writer.markers.write_checkpoint(writer.checkpoint_at(offset, reader.segments))
                step_back()
        reader.corrupt_ranges = below(reader.corrupt_ranges, offset)
        was, self.compaction = self.compaction, self.compaction.cut(offset)
        if self.compaction != was:
            self.note_compaction(self.compaction)
        self.note_rewritten(min(self.rewritten_end, offset))

    def reset_to(self, offset: Offset, purged_end: Offset = _NOTHING) -> None:
        """Remove everything and begin an empty log without epochs at ``offset``; durable on return.

        For a follower without a common history; ``purged_end`` is that of the log it will copy. After a
        crash the old log is there whole, or the new one. Readers keep the segments they hold.

        Raises:
            DiskFull: nothing has changed.
            StorageError, FsyncFailed, StreamOffline: the log has failed; the next opening finds either.
        """
        reader, writer, directory = self.reader, self.writer, self.directory
        with writer.writing:
            begin_reset(self._disk, directory, offset, purged_end)
            writer.tail.close()
            for segment in reader.segments:
                segment.retire()
            try:
                checkpoint = finish_reset(self._disk, directory)
                segment = Segment(self._disk, directory, offset)
                file = self._disk.open(segment.path)
            except DiskFull as error:
                raise StorageError(f"{directory} does not begin anew: {error.description}") from error
        writer.tail = SegmentWriter(self._disk, directory, segment, file)
        writer.markers = DurabilityMarkers(self._disk, directory, checkpoint, followed=False)
        reader.epochs = EpochHistory()
        self.compaction = CompactionState(purged_end=purged_end)
        self.rewritten_end = writer.committed = _NOTHING
        # In this order: a read that is planned meanwhile finds nothing, in the old log or the new.
        if offset > reader.log_end_offset:
            reader.log_start_offset = offset
        reader.log_end_offset = offset
        reader.log_start_offset = offset
        reader.segments = (segment,)
        writer.mark_synced()
        reader.corrupt_ranges = ()

    # --- writing anew -----------------------------------------------------------------------------

    def note_compaction(self, state: CompactionState) -> None:
        """Record the progress of compaction; returns when that is durable.

        Raises:
            DiskFull: the older record is still in place.
            StorageError, FsyncFailed, StreamOffline: the log has failed.
        """
        with self.writer.writing:
            write_state(self._disk, f"{self.directory}/{COMPACTION_FILE}", state.encode())
        self.compaction = state

    def note_rewritten(self, end: Offset) -> None:
        """Record the end of the sealed rewrite, durably; raises as `note_compaction`."""
        if end != self.rewritten_end:
            with self.writer.writing:
                write_rewritten_end(self._disk, self.directory, end)
            self.rewritten_end = end

    def replace_segment(
        self,
        rewritten: RewrittenSegment,
        about_to: Callable[[], None] = lambda: None,
        *,
        since: CompactionState | None = None,
    ) -> bool:
        """Put a rewritten segment in its place; returns when that is durable.

        After a crash the old file is there whole, or the new one. Readers keep the file that they hold.

        Args:
            rewritten: written and synced.
            about_to: as `truncate_before`.
            since: compaction's recorded state from before it read the log. The record that superseded one
                of the old segment may have been cut off since. None: the new segment has all records.

        Returns:
            False: the old segment is not there any more as it was, or the log was cut since; the new one is
                removed.

        Raises:
            DiskFull: the old segment is still in place; the new one is removed.
            StorageError, FsyncFailed, StreamOffline: the log has failed; the next opening finds either.
        """
        old, new = rewritten.old, rewritten.new
        temporary = new.temporary_path
        assert temporary is not None, "it has no place yet"
        was_cut = since is not None and since is not self.compaction
        if was_cut or old not in self.reader.segments or not old.sealed:
            rewritten.discard(self._disk)
            return False
        try:
            about_to()
            if rewritten.records:  # the rest of the batches may be small
                self.note_rewritten(min(self.rewritten_end, old.base))
        except DiskFull:
            rewritten.discard(self._disk)
            raise
        with self.writer.writing:
            # First, and durably: the old entries must not be taken for those of the new file.
            remove_index(self._disk, old.index_path)
            self._disk.sync_dir(self.directory)
            segments = self.reader.segments
            # Found at its temporary path at once, so that a read that is planned meanwhile works.
            self.reader.segments = tuple(new if segment is old else segment for segment in segments)
            old.retire(is_replaced=True)
            try:
                self._disk.rename(temporary, new.path)
            except DiskFull:
                old.come_back()
                self.reader.segments = segments
                new.retire(is_replaced=True)  # reads that were planned on it are planned again
                rewritten.discard(self._disk)
                raise
            new.temporary_path = None
            self._disk.sync_dir(self.directory)
            assert new.index is not None, "it was written a moment ago"
            new.save_index(len(new.index))
        self.reader.indexes.count(new)
        return True

    # --- repair -----------------------------------------------------------------------------------

    def holes(self) -> Iterator[Hole]:
        """Yield the damaged parts that can be put back, in order; none in a log that has failed.

        Raises:
            StorageError: the disk refused to show an index.
        """
        if self.failed is not None:
            return
        segments = self.reader.segments
        bounds = (*(segment.base for segment in segments[1:]), self.log_end_offset)
        for start, stop in self.reader.corrupt_ranges:
            for segment, following in zip(segments, bounds, strict=True):
                if segment.base < stop and start < following:
                    yield from holes(segment, following, self.reader.indexes.of(segment), (start, stop))

    def fill(self, hole: Hole, batches: Sequence[SealedBatch]) -> None:
        """Put the batches of a hole back; returns when they are durable and were read back from the medium.

        Until then reads of it are refused, as before. After a crash it is damaged still, or repaired.

        Args:
            hole: of `holes`.
            batches: of another replica, from `verified_batches`.

        Raises:
            CorruptDataError: they are not the batches of the hole; nothing was written.
            PlanAgain: the log has changed since the hole was found; nothing was written.
            DiskFull: it is damaged still.
            StorageError, FsyncFailed: the same; if it is in the active segment, the log has failed.
            StreamOffline: the log had failed before.
        """
        segment = hole.segment
        if self.failed is not None:
            raise StreamOffline(f"nothing can be written to {self.directory}: {self.failed}")
        if segment not in self.reader.segments or hole not in self.holes():
            raise PlanAgain(f"[{hole.base}, {hole.next}) of {self.directory} is not damaged as it was")
        check_fits(hole, self.reader.indexes.of(segment), self.reader.epochs, batches)
        if segment is self.writer.tail.segment:
            with self.writer.writing:
                file = self.writer.tail.file
                assert file is not None, "the log takes appends"
                segment.size = put_back(file, hole, batches)
        else:
            with contextlib.closing(self._disk.open(segment.path)) as file:
                segment.size = put_back(file, hole, batches)
        if not hole.rows:
            publish(hole, entries_of(hole, batches))
        self.reader.corrupt.repaired(hole.base, hole.next)
