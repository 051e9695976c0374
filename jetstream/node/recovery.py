"""From a stream's directory to everything its task begins with; runs on the disk thread.

The log recovers itself (`Log.open`). What the sequencer must remember of it, message ids above all, is read
back from the stored batches of one dedupe window, so that a restart answers a retry as the process before
would have; the last transaction id however old it is (`TxidNote`).
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pyarrow as pa

from envelope.errors import CorruptDataError
from envelope.limits import DEDUPE_IDS_MAX, MIB
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.ingest.dedupe import DedupeWindow, window_us
from jetstream.ingest.history import History
from jetstream.log.batch import decode, iter_frames
from jetstream.log.disk import Disk
from jetstream.log.log import Log, LogConfig
from jetstream.log.recovery import Verify
from jetstream.node.last_txid import TxidNote
from metadata.stream_config import StreamConfig

_log = logging.getLogger(__name__)

_READ_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """A recovered log under its new epoch, and its past as far as it decides about new messages."""

    log: Log
    leader_epoch: LeaderEpoch
    history: History
    txid: TxidNote


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


def open_stream(
    disk: Disk,
    directory: str,
    config: StreamConfig,
    leader_epoch: LeaderEpoch,
    now: TimestampUs,
    verify: Verify,
) -> OpenedStream:
    """Recover the log in ``directory``, begin ``leader_epoch`` durably, read back what must be remembered.

    A log whose end is damaged is opened for reading only (`Log.failed`); no epoch begins in it.

    Raises:
        StorageError, DiskFull: the disk refused, or the log has seen this epoch or a later one.
    """
    log = Log.open(disk, directory, log_config(config), now, verify)
    for problem in log.recovery.problems:
        if log.failed is None and not log.corrupt_ranges:  # a torn group that was cut, a file derived anew
            _log.warning("log recovered directory=%s finding=%s", directory, problem)
        else:
            _log.error("log damaged directory=%s problem=%s runbook=RB-01", directory, problem)
    if log.failed is None:
        log.begin_epoch(leader_epoch, now)
    history = History(
        DedupeWindow(window_us(config.dedupe_window), DEDUPE_IDS_MAX),
        high_watermark=log.log_end_offset,
        last_timestamp=log.last_timestamp,
    )
    window_start = TimestampUs(max(0, log.last_timestamp - window_us(config.dedupe_window)))
    start = _start_of_history(log, window_start)
    for records in _records(log, start):
        history.absorb(records)
    txid = TxidNote.recovered(disk, directory, log, start, history.last_txid)
    history.last_txid = txid.latest.txid
    return OpenedStream(log, leader_epoch, history, txid)


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
