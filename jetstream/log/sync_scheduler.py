"""A sync for many logs: group commit across the streams of a disk.

A sync of one file costs a journal commit, however little there is to write; a sync of the whole file system
costs one for all files together, but also writes all other dirty bytes. So few logs are synced one by
one, and many at once, unless that has lately been dearer: a neighbour that copies gigabytes onto the same
file system makes it wait for them (numbers in ADR 0002).
"""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from envelope.errors import FsyncFailed, JetstreamError
from jetstream.log.disk.port import Disk
from jetstream.log.log import Log

SYNC_ALL_LOGS_MIN: Final = 4
"""Fewer dirty logs are synced one by one: little is gained by awaiting a neighbour's bytes as well."""

_FIRST_GUESS_SECONDS: Final = 0.000_2
_WEIGHT: Final = 0.25
"""Weight of the newest duration in the running estimates."""

_FORGETTING: Final = 0.99
"""A dear sync of the disk is tried again when it has been passed over so often that it seems cheap."""


class SyncScheduler:
    """Syncs the logs of one disk, on the disk thread."""

    __slots__ = ("_all_seconds", "_clock", "_disk", "_file_seconds")

    def __init__(self, disk: Disk, clock: Callable[[], float] = time.perf_counter) -> None:
        """Serve the logs on ``disk``; ``clock`` measures the syncs, in seconds."""
        self._disk = disk
        self._clock = clock
        self._file_seconds = _FIRST_GUESS_SECONDS
        self._all_seconds = _FIRST_GUESS_SECONDS

    def sync(self, logs: Collection[Log]) -> dict[Log, JetstreamError | None]:
        """Sync all dirty ``logs``; return for each log None if it is durable, or why it has failed.

        After an error the log is failed. An error of a sync of the whole disk fails every log it covered:
        which of them lost bytes cannot be known.
        """
        dirty: list[Log] = []
        for log in logs:
            writer = log.writer
            if writer.durable_end < log.reader.log_end_offset and writer.failed is None:
                dirty.append(log)
        if len(dirty) < SYNC_ALL_LOGS_MIN or not self._prefers_all(len(dirty)) or not self._sync_all(dirty):
            started = self._clock()
            for log in dirty:
                try:
                    log.writer.sync()
                except FsyncFailed:
                    continue  # the log keeps the error as its `failed`, from where it is reported
            if dirty:
                mean = (self._clock() - started) / len(dirty)
                self._file_seconds += _WEIGHT * (mean - self._file_seconds)
        outcomes: dict[Log, JetstreamError | None] = {}
        for log in logs:
            is_dirty = log.writer.durable_end < log.reader.log_end_offset
            outcomes[log] = log.writer.failed if is_dirty else None
        return outcomes

    def expected_seconds(self, count: int) -> float:
        """Return the expected seconds of a sync of so many logs, one by one."""
        return count * self._file_seconds

    def _prefers_all(self, count: int) -> bool:
        if self._all_seconds <= count * self._file_seconds:
            return True
        self._all_seconds *= _FORGETTING
        return False

    def _sync_all(self, dirty: Sequence[Log]) -> bool:
        """Return whether the disk has synced all logs, or failed them; False: it cannot say."""
        started = self._clock()
        try:
            if not self._disk.sync_all():
                return False
        except FsyncFailed as error:
            for log in dirty:
                log.writer.fail(error)
        else:
            for log in dirty:
                log.writer.mark_synced()
        self._all_seconds += _WEIGHT * (self._clock() - started - self._all_seconds)
        return True
