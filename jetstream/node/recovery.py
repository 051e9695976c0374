"""From a stream's directory to everything its task begins with; runs on the disk thread.

The log recovers itself (`Log.open`). What the sequencer must remember of it, message ids above all, is read
back from the stored batches of one dedupe window, so that a restart answers a retry as the process before
would have; the last transaction id however old it is (`TxidNote`). A follower takes in what it appends, so
that it can lead at once.
"""

import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

import pyarrow as pa

from envelope.errors import CorruptDataError
from envelope.limits import DEDUPE_IDS_MAX, MIB
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.ingest.dedupe import DedupeWindow, window_us
from jetstream.ingest.history import History
from jetstream.log.batch import SealedBatch, decode, iter_frames, last_txid, records_of
from jetstream.log.disk import Disk
from jetstream.log.log import Log, LogConfig
from jetstream.log.plain_batch import is_plain
from jetstream.log.recovery import Verify
from jetstream.node.last_txid import TxidNote
from metadata.stream_config import StreamConfig

_log = logging.getLogger(__name__)

_READ_BYTES: Final = 4 * MIB


class OpenedLog:
    """A recovered log, and its past as far as it decides about new messages; for the disk thread.

    Whoever leads takes `history` over and changes it; when the reign has ended, `relearn`.

    Attributes:
        log: itself.
        history: what a sequencer must know; its high watermark is the caller's to set.
        txid: keeps the note of the last transaction id.
    """

    def __init__(self, disk: Disk, log: Log, dedupe_window: timedelta) -> None:
        """Read back what must be remembered of ``log``; raises as `relearn`."""
        self.log = log
        self._disk = disk
        self.history, self.txid = self._read_back(window_us(dedupe_window))
        self._learnt_end = log.log_end_offset

    def pass_over(self, batches: Sequence[SealedBatch]) -> bool:
        """Take batches in as `absorb` does, if they are all plain; say False, and do nothing, if not.

        Nearly all are, and to decode one costs as much as to store it.
        """
        if not all(is_plain(frame) for _, frame in batches):
            return False
        for header, frame in self._stored(batches):
            self.history.pass_over(header.max_timestamp)
            self.txid.absorbed(header.next, None, len(frame))
        return True

    def absorb(self, batches: Sequence[SealedBatch]) -> None:
        """Take in what of ``batches``, which were given to `Log.append_sealed`, has been stored.

        Batches that are intact but no Arrow of ours fail the log: no reader could read on behind them. A log
        that has failed learns nothing.
        """
        try:
            for header, frame in self._stored(batches):
                records = records_of(header, frame)
                self.history.absorb(records)
                self.txid.absorbed(header.next, last_txid(records), len(frame))
        except CorruptDataError as error:
            _log.error("unreadable batch directory=%s error=%s runbook=RB-01", self.log.directory, error)
            self.log.fail(error)

    def _stored(self, batches: Sequence[SealedBatch]) -> Iterator[SealedBatch]:
        """Yield those of ``batches`` that are stored and were not taken in before."""
        for header, frame in batches:
            if self.log.failed is None and self._learnt_end < header.next <= self.log.log_end_offset:
                yield header, frame
                self._learnt_end = header.next

    def relearn(self) -> None:
        """Read back what must be remembered, as the log was cut, or was written by whoever led.

        Raises:
            StorageError: the disk refused.
        """
        self.history, self.txid = self._read_back(self.history.dedupe.window_us)
        self._learnt_end = self.log.log_end_offset

    def _read_back(self, dedupe_window_us: int) -> tuple[History, TxidNote]:
        log = self.log
        history = History(DedupeWindow(dedupe_window_us, DEDUPE_IDS_MAX), last_timestamp=log.last_timestamp)
        start = _start_of_history(log, TimestampUs(max(0, log.last_timestamp - dedupe_window_us)))
        for records in _records(log, start):
            history.absorb(records)
        txid = TxidNote.recovered(self._disk, log.directory, log, start, history.last_txid)
        history.last_txid = txid.latest.txid
        return history, txid


def log_config(config: StreamConfig) -> LogConfig:
    """Return the part of a stream's configuration that its log obeys, in the log's units."""
    retention = config.retention
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_age_us=_microseconds(config.segment_age),
        sync=config.sync,
        retention_age_us=_microseconds(retention.age),
        retention_bytes=retention.bytes,
        retention_messages=retention.messages,
    )


def open_log(disk: Disk, directory: str, config: StreamConfig, now: TimestampUs, verify: Verify) -> OpenedLog:
    """Recover the log in ``directory``, and read back what must be remembered; no epoch begins.

    A log whose end is damaged is opened for reading only (`Log.failed`).

    Raises:
        StorageError, DiskFull: the disk refused.
    """
    log = Log.open(disk, directory, log_config(config), now, verify)
    for problem in log.recovery.problems:
        if log.failed is None and not log.corrupt_ranges:  # a torn group that was cut, a file derived anew
            _log.warning("log recovered directory=%s finding=%s", directory, problem)
        else:
            _log.error("log damaged directory=%s problem=%s runbook=RB-01", directory, problem)
    return OpenedLog(disk, log, config.dedupe_window)


def begin_reign(opened: OpenedLog, leader_epoch: LeaderEpoch, now: TimestampUs) -> None:
    """Begin ``leader_epoch`` at the log's end, durably.

    Raises:
        StorageError, FsyncFailed: the log has seen this epoch or a later one, or the disk refused.
        DiskFull: the epoch has not begun.
        StreamOffline: the log has failed, or its end is damaged.
    """
    opened.log.begin_epoch(leader_epoch, now)


def _start_of_history(log: Log, window_start: TimestampUs) -> Offset:
    """Return where to read from: the window's start, but at least the last record."""
    last = Offset(max(log.log_start_offset, log.log_end_offset - 1))
    try:
        return min(last, log.offset_for_timestamp(window_start))
    except CorruptDataError as error:
        _log.error("dedupe window begins in damage directory=%s error=%s runbook=RB-01", log.directory, error)
        return log.log_start_offset


def _records(log: Log, start: Offset) -> Iterator[pa.RecordBatch]:
    """Yield the stored batches from ``start`` on, leaving out what is damaged."""
    offset = start
    while offset < log.log_end_offset:
        try:
            data = log.read(offset, _READ_BYTES, log.log_end_offset)
        except CorruptDataError as error:
            beyond = _end_of_damage(log, offset)
            if beyond is not None:
                # The error's own words name the range; its records cannot be remembered, only passed over.
                _log.error(
                    "message ids lost to damage directory=%s error=%s runbook=RB-01", log.directory, error
                )
                offset = beyond
            # Otherwise it was found further on just now: the next read ends before it.
            continue
        for frame in iter_frames(data):
            header, records = decode(frame)
            yield records
            offset = header.next


def _end_of_damage(log: Log, offset: Offset) -> Offset | None:
    return next((end for start, end in log.corrupt_ranges if start <= offset < end), None)


def _microseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else window_us(duration)
