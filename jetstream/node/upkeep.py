"""What a log needs besides appends: checkpoints when it falls quiet, notes, retention, truncation, settings.

The methods that touch the disk run on the disk thread; the questions are asked on the loop.
"""

from collections.abc import Callable, Sequence
from typing import Final

from envelope.errors import DiskFull, JetstreamError
from envelope.types import Offset, SyncMode, TimestampUs
from jetstream.log.batch import UnsealedBatch
from jetstream.log.log import Log
from jetstream.node.clock import Clock
from jetstream.node.last_txid import TxidNote
from jetstream.node.recovery import log_config
from metadata.stream_config import StreamConfig

CHECKPOINT_QUIET_US: Final = 1_000_000
"""A log without an append for so long gets its synced end on record (docs/guarantees.md says why)."""


class Upkeep:
    """Looks after one log."""

    def __init__(
        self, log: Log, clock: Clock, high_watermark: Callable[[], Offset], txid: TxidNote | None = None
    ) -> None:
        """Without ``txid``, which may be replaced, nothing is noted of the log's transaction ids."""
        self._log = log
        self.txid = txid
        self._clock = clock
        self._high_watermark = high_watermark
        self._unsaved = False
        self._last_append = TimestampUs(0)

    def appended(self, now: TimestampUs, batches: Sequence[UnsealedBatch] = ()) -> None:
        """Note an append of ``batches``; its end is not on record yet."""
        self._unsaved = True
        self._last_append = now
        if self.txid is not None:
            self.txid.appended(batches)

    def checkpoint_due(self, now: TimestampUs) -> bool:
        """Whether the log has fallen quiet and its synced end is not on record."""
        return self._unsaved and self._log.failed is None and now - self._last_append >= CHECKPOINT_QUIET_US

    def txid_note_due(self) -> bool:
        """Whether it should be put on record which transaction id was the last."""
        if self.txid is None or self._log.failed is not None:
            return False
        # What is not committed may still be cut back, and then the note would speak of what never was.
        return self.txid.is_due(min(self._log.durable_end, self._high_watermark()))

    def retention_due(self) -> bool:
        """Whether any retention rule is set."""
        rules = self._log.config
        limits = (rules.retention_age_us, rules.retention_bytes, rules.retention_messages)
        return self._log.failed is None and any(limit is not None for limit in limits)

    def checkpoint(self) -> None:
        """Sync and put the synced end on record."""
        self._unsaved = False  # before, so that an append that comes meanwhile is not forgotten
        try:
            self._log.sync()
            self._log.checkpoint()
        except JetstreamError:
            self._unsaved = True
            raise

    def note_txid(self) -> None:
        """Put on record which transaction id was the last."""
        assert self.txid is not None, "it was due"
        self.txid.write()

    def apply_retention(self) -> None:
        """Drop the segments that retention no longer keeps."""
        now, high_watermark = self._clock.wall(), self._high_watermark()
        self._remove(lambda about_to: self._log.apply_retention(now, high_watermark, about_to))

    def truncate_before(self, offset: Offset) -> None:
        """Let the log begin at ``offset``, durably; `OffsetOutOfRange` beyond the high watermark."""
        high_watermark = self._high_watermark()
        self._remove(lambda about_to: self._log.truncate_before(offset, high_watermark, about_to))

    def reconfigure(self, config: StreamConfig) -> None:
        """Give the log its part of a changed configuration.

        What was committed without a sync is synced before ``sync: always`` begins to count only what is.
        """
        if config.sync is SyncMode.ALWAYS and self._log.failed is None:
            self._log.sync()
        self._log.config = log_config(config)

    def _remove(self, removal: Callable[[Callable[[], None]], None]) -> None:
        """Remove records; which transaction id was the last is put on record before its record goes."""
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
        if self.txid is not None:
            self.txid.write_before_removal(self._log)
