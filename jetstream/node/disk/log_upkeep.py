"""The upkeep of a log: checkpoints when it falls quiet, notes, retention, truncation, settings.

The methods that touch the disk run on the disk thread; the questions are asked on the loop.
"""

from collections.abc import Callable
from typing import Final

from envelope.errors import DiskFull, JetstreamError, StreamOffline
from envelope.types import MonotonicNs, Offset, SyncMode, TimestampUs
from jetstream.log.log import Log
from jetstream.log.rewriting.replacement import RewrittenSegment
from jetstream.log.rewriting.rewrite_plan import is_waiting
from jetstream.log.segments.segment import Segment
from jetstream.log.state.compaction_state import CompactionState
from jetstream.node.disk.history_file import PublisherStateFile
from jetstream.node.disk.open_log import log_config
from jetstream.node.runtime.clock import Clock
from metadata.stream_config import StreamConfig

CHECKPOINT_QUIET_NS: Final = 1_000_000_000
"""A log without an append for so long gets its synced end on record (docs/guarantees.md says why)."""


class Upkeep:
    """Looks after one log."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        high_watermark: Callable[[], Offset],
        note: Callable[[], PublisherStateFile | None] = lambda: None,
    ) -> None:
        """Without a ``note``, which may be replaced, nothing is noted of the log's records."""
        self._log = log
        self._note = note
        self._clock = clock
        self._high_watermark = high_watermark
        self._unsaved = False
        self._last_append = MonotonicNs(0)
        self.is_tiered = False
        """Whether the log's rules are those of a stream with a tier; changes with them, on their thread."""
        self.tier_end: Callable[[], Offset | None] = lambda: None
        """Where the object store ends, if there is a tier. It only grows."""

    def appended(self) -> None:
        """Note an append; its end is not on record yet."""
        self._unsaved = True
        self._last_append = self._clock.monotonic()

    def checkpoint_due(self, now: MonotonicNs) -> bool:
        """Whether the log has fallen quiet and its synced end is not on record."""
        return self._unsaved and self._log.failed is None and now - self._last_append >= CHECKPOINT_QUIET_NS

    def note_due(self) -> bool:
        """Whether it should be put on record what is known of all records, also of those that are gone."""
        note = self._note()
        if note is None or self._log.failed is not None:
            return False
        is_due = note.has_waiting and note.is_due(self._settled_end())
        return is_due or note.is_held_due(self._log.reader.last_timestamp)

    def _settled_end(self) -> Offset:
        # What is not committed may still be cut back, and then the note would speak of what never was.
        return min(self._log.writer.durable_end, self._high_watermark())

    def retention_due(self) -> bool:
        """Whether any retention rule is set."""
        rules = self._log.writer.config
        limits = (rules.retention_age_us, rules.retention_bytes, rules.retention_messages)
        return self._log.failed is None and any(limit is not None for limit in limits)

    def checkpoint(self) -> None:
        """Sync and put the synced end on record."""
        self._unsaved = False  # before, so that an append that comes meanwhile is not forgotten
        try:
            self._log.writer.sync()
            self._log.note_committed(self._high_watermark())
            self._log.checkpoint()
        except JetstreamError:
            self._unsaved = True
            raise

    def write_note(self) -> None:
        """Put on record what is known of all records.

        Raises:
            As `PublisherStateFile.write`.
            StreamOffline: the log has failed or is closed since the note was due.
        """
        note = self._note()
        assert note is not None, "it was due"
        if (failed := self._log.failed) is not None:
            raise StreamOffline(f"nothing is noted of {self._log.directory}: {failed}") from failed
        if note.is_due(self._settled_end()):
            note.write()
        note.write_held(self._log.reader.last_timestamp)

    def apply_retention(self, now: TimestampUs | None = None) -> None:
        """Drop the segments that retention no longer keeps; if there is a tier, only what is there.

        ``now``: the time to go by; None: the clock's.
        """
        now, high_watermark = self._clock.wall() if now is None else now, self._high_watermark()
        # As the rules that are in force say: the catalogue may have switched the tier, and they follow later.
        end = (self.tier_end() or Offset(0)) if self.is_tiered else None
        self._remove(
            lambda about_to: self._log.apply_retention(now, high_watermark, about_to, droppable_end=end)
        )

    def truncate_before(self, offset: Offset) -> None:
        """Let the log begin at ``offset``, durably; `OffsetOutOfRange` beyond the high watermark."""
        high_watermark = self._high_watermark()
        self._remove(lambda about_to: self._log.truncate_before(offset, high_watermark, about_to))

    def compaction_due(self) -> bool:
        """Whether the log is one that is compacted, and can be."""
        return self._log.writer.config.compaction is not None and self._log.failed is None

    def note_compaction(self, before: CompactionState, after: CompactionState) -> CompactionState:
        """Put on record how far the log is compacted; return what is.

        Raises:
            StreamOffline: since it was ``before``, the log was cut or begun anew.
        """
        if self._log.compaction is not before:
            raise StreamOffline("the log was cut while it was compacted")
        if after != before:
            self._log.note_compaction(after)
        return self._log.compaction

    def rewrite_due(self, looked_at_end: Offset) -> bool:
        """Whether there are cold segments above that whose small batches are to be merged."""
        log = self._log
        after_us = log.writer.config.rewrite_after_us
        if after_us is None or log.failed is not None:
            return False
        cold_end = TimestampUs(self._clock.wall() - after_us)
        return is_waiting(log.reader.segments, looked_at_end, cold_end)

    def take_rewritten(self, rewritten: RewrittenSegment) -> bool:
        """Put a segment with merged batches in its place; False: it has none any more."""
        was_replaced = self._log.replace_segment(rewritten)
        if was_replaced:
            self.pass_rewritten(rewritten.new)
        return was_replaced

    def pass_rewritten(self, segment: Segment) -> None:
        """Put on record that the sealed rewrite is done with all to the end of a segment that is there."""
        log = self._log
        if segment in log.reader.segments and segment.sealed and segment.next > log.rewritten_end:
            log.note_rewritten(segment.next)

    def replace_segment(self, before: CompactionState, rewritten: RewrittenSegment) -> bool:
        """Put a compacted segment in its place; False: it has none any more, or the log was cut since."""
        was_replaced = False

        def removal(about_to: Callable[[], None]) -> None:
            nonlocal was_replaced
            was_replaced = self._log.replace_segment(rewritten, about_to, since=before)

        self._remove(removal)
        return was_replaced

    def reconfigure(self, config: StreamConfig) -> None:
        """Give the log its part of a changed configuration.

        Records committed without a sync are synced before ``sync: always`` begins to count only synced ones.
        """
        if config.sync is SyncMode.ALWAYS and self._log.failed is None:
            self._log.writer.sync()
        self._log.writer.config, self.is_tiered = log_config(config), config.tier

    def _remove(self, removal: Callable[[Callable[[], None]], None]) -> None:
        """Remove records; what is known of them is put on record before they go."""
        found_no_space = False

        def about_to() -> None:
            nonlocal found_no_space
            try:
                self._note_for_removal()
            except DiskFull:
                found_no_space = True  # The removal makes it.

        removal(about_to)
        if found_no_space:
            self._note_for_removal()

    def _note_for_removal(self) -> None:
        note = self._note()
        if note is not None:
            note.write_before_removal(self._log)
