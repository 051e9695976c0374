"""Compacting logs in tests, and what must be left of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from envelope.types import Compression, Offset, TimestampUs
from jetstream.log.disk.port import Disk
from jetstream.log.format.batch import BatchHeader, decode, encode, iter_frames
from jetstream.log.log import Log, LogConfig
from jetstream.log.rewriting.compaction import KEY_BYTES_DEFAULT, CompactionPass
from jetstream.log.rewriting.compaction_plan import CompactionBounds, Detour, plan_compaction
from jetstream.log.segments.log_config import CompactionConfig
from tests.support.logs import Record, records_batch

EAGER = CompactionConfig(dirty_ratio=0.01, age_us=10**15, tombstone_retention_us=100)
"""Cleans whatever can be."""

COMPACTED = LogConfig(segment_bytes=4000, compaction=EAGER)


@dataclass(frozen=True, slots=True)
class Stored:
    """What a reader sees of a record."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    epoch: int


def no_pace(size: int) -> None:
    """Go on at once."""
    assert size > 0, "a chunk has bytes"


def append_records(log: Log, records: Sequence[Record]) -> None:
    """Append one batch and sync it."""
    batch = encode(records_batch(records, log.log_end_offset), log.log_end_offset, log.reader.last_epoch)
    log.writer.append_group((batch,), batch.max_timestamp)
    log.writer.sync()


def compact(
    disk: Disk,
    log: Log,
    now: int,
    *,
    high_watermark: int | None = None,
    min_synced_end: int | None = None,
    key_bytes: int = KEY_BYTES_DEFAULT,
    meanwhile: Callable[[], object] = lambda: None,
) -> bool:
    """Do one pass as a node does, on one thread; tell whether anything was due.

    ``meanwhile`` is what others do with the log between any two steps.
    """
    end = log.log_end_offset
    bounds = CompactionBounds(
        Offset(end if high_watermark is None else high_watermark),
        Offset(end if min_synced_end is None else min_synced_end),
        TimestampUs(now),
    )
    return _pass(disk, log, bounds, key_bytes, meanwhile) is not None


def compact_around(
    disk: Disk, log: Log, now: int, detours: list[Detour], key_bytes: int = KEY_BYTES_DEFAULT
) -> bool:
    """Do one pass around damage, as `compact`; add how far it went to ``detours``, of those before."""
    bounds = CompactionBounds(
        high_watermark=log.log_end_offset,
        min_synced_end=log.log_end_offset,
        now=TimestampUs(now),
        damaged=log.reader.damaged,
        detour=(detours or [Detour()])[-1],
    )
    detour = _pass(disk, log, bounds, key_bytes, lambda: None)
    detours.extend([] if detour is None else [detour])
    return detour is not None


def _pass(
    disk: Disk, log: Log, bounds: CompactionBounds, key_bytes: int, meanwhile: Callable[[], object]
) -> Detour | None:
    config = log.writer.config.compaction
    assert config is not None, "the log is to be compacted"
    plan = plan_compaction(log.reader.segments, log.compaction, bounds, config)
    if plan is None:
        return None
    run = CompactionPass(
        log=log.reader, disk=disk, plan=plan, codec=Compression.NONE, pace=no_pace, key_bytes=key_bytes
    )
    run.gather()
    meanwhile()
    log.note_compaction(log.compaction.purged(plan.purge_end))
    state = log.compaction
    for segment in run.segments:
        rewritten = run.rewritten(segment)
        if rewritten is not None:
            meanwhile()
            assert log.replace_segment(rewritten, since=state)
        meanwhile()
    log.note_compaction(run.outcome(log.compaction, bounds.now))
    return run.detour(log.compaction)


def stored_in(frame: memoryview) -> tuple[BatchHeader, dict[int, Stored]]:
    """Return a batch's header and its records by offset, in their order."""
    header, records = decode(frame)
    columns = (records.column(0), records.column(3), records.column(6), records.column(1).cast(pa.int64()))
    found = {
        at: Stored(key, value, timestamp, header.leader_epoch)
        for at, key, value, timestamp in zip(*(part.to_pylist() for part in columns), strict=True)
    }
    assert len(found) == records.num_rows, "a record appears once"
    return header, found


def stored_records(log: Log, max_bytes: int = 1 << 20) -> dict[int, Stored]:
    """Return every record by offset, in their order, after checking that the ranges tile."""
    found: dict[int, Stored] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for frame in iter_frames(log.reader.read(offset, max_bytes, log.log_end_offset)):
            header, records = stored_in(frame)
            assert header.base <= offset < header.next, "ranges tile"
            for at, record in records.items():
                assert header.base <= at < header.next, "a record lies in its batch's range"
                if at >= log.log_start_offset:
                    assert at not in found, "a record appears once"
                    found[at] = record
            offset = header.next
    return found


def latest(records: Mapping[int, Stored]) -> dict[bytes, tuple[int, bytes]]:
    """Return offset and value of the last record of each key, without those that are deleted."""
    found: dict[bytes, tuple[int, bytes]] = {}
    for offset in sorted(records):
        record = records[offset]
        if record.key is None:
            continue
        found.pop(record.key, None)
        if record.value is not None:
            found[record.key] = (offset, record.value)
    return found
