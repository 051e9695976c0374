"""Builders of records, batches and logs for tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from envelope.types import LeaderEpoch, TimestampUs
from jetstream.log.disk.port import Disk
from jetstream.log.format.batch import UnsealedBatch, decode, encode, iter_frames
from jetstream.log.format.schema import SCHEMA
from jetstream.log.log import Log, LogConfig

NOW = TimestampUs(1_700_000_000_000_000)
EPOCH = LeaderEpoch(1)
DIRECTORY = "orders"

Headers = Sequence[tuple[str | None, bytes | None]]


@dataclass(frozen=True, slots=True)
class Record:
    """One record without its offset."""

    value: bytes | None = b"value"
    subject: str = "orders.new"
    key: bytes | None = None
    headers: Headers | None = None
    txid: int | None = None
    timestamp: int = NOW


def records_batch(records: Sequence[Record], base: int = 0) -> pa.RecordBatch:
    """Return records as Arrow, with dense offsets from ``base``."""
    rows = [
        {
            "offset": base + row,
            "timestamp": record.timestamp,
            "subject": record.subject,
            "key": record.key,
            "headers": None
            if record.headers is None
            else [{"key": key, "value": value} for key, value in record.headers],
            "txid": record.txid,
            "value": record.value,
        }
        for row, record in enumerate(records)
    ]
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def values_batch(values: Sequence[bytes], base: int = 0, timestamp: int = NOW) -> pa.RecordBatch:
    """Return records that differ by value only."""
    return records_batch([Record(value=value, timestamp=timestamp) for value in values], base)


def batch_for(log: Log, values: Sequence[bytes], timestamp: int | None = None) -> UnsealedBatch:
    """Return a batch that continues ``log``, from `NOW` or from the time of its last one."""
    if timestamp is None:
        timestamp = max(NOW, log.reader.last_timestamp)
    records = values_batch(values, log.log_end_offset, timestamp)
    return encode(records, log.log_end_offset, log.reader.last_epoch)


def append(log: Log, values: Sequence[bytes], timestamp: int | None = None) -> None:
    """Append one batch to ``log``; not synced."""
    batch = batch_for(log, values, timestamp)
    log.writer.append_group((batch,), batch.max_timestamp)


def opened(disk: Disk, config: LogConfig | None = None, *, full: bool = False) -> Log:
    """Open the log of the tests."""
    return Log.open(disk, DIRECTORY, config or LogConfig(), NOW, "full" if full else "tail")


def begun(disk: Disk, config: LogConfig | None = None) -> Log:
    """Open the log of the tests and begin its next epoch."""
    log = opened(disk, config)
    log.writer.begin_epoch(LeaderEpoch(log.reader.last_epoch + 1), NOW)
    return log


SMALL = LogConfig(segment_bytes=2500)
"""Two batches of one small record fit a segment."""


def filled(disk: Disk, count: int, config: LogConfig = SMALL) -> Log:
    """Return a log with ``count`` batches of one record each, whose value and time are its offset."""
    log = begun(disk, config)
    for offset in range(count):
        append(log, [b"%d" % offset], NOW + offset)
        log.writer.sync()
    return log


def stored_values(log: Log, max_bytes: int = 1 << 20) -> dict[int, bytes]:
    """Return every readable value by offset, leaving out corrupt ranges."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        corrupt = next((end for start, end in log.reader.corrupt_ranges if start <= offset < end), None)
        if corrupt is not None:
            offset = corrupt
            continue
        for frame in iter_frames(log.reader.read(offset, max_bytes, log.log_end_offset)):
            header, records = decode(frame)
            numbers, values = (cast("list[Any]", records.column(at).to_pylist()) for at in (0, 6))
            for number, value in zip(numbers, values, strict=True):
                assert number not in found or number < offset, "an offset was stored twice"
                if number >= log.log_start_offset:
                    found[number] = value
            offset = header.next
    return found


def flipped(content: bytes, position: int, bit: int) -> bytes:
    """Return ``content`` with one bit inverted."""
    changed = bytearray(content)
    changed[position] ^= 1 << bit
    return bytes(changed)


def file_content(disk: Disk, path: str) -> bytes:
    """Return the content of a file."""
    file = disk.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def overwrite(disk: Disk, path: str, content: bytes) -> None:
    """Put ``content`` in a file, durably, behind the log's back."""
    file = disk.open(path)
    file.write([content], 0)
    file.truncate(len(content))
    file.sync()
    file.close()
