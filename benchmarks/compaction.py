"""Compaction: what a pass costs of a core, and what publishers on the same node notice of it.

The pass is run in this process on a log of keyed records, without the rests that a node's thread takes. The
publisher sends one message at a time by the clock, to another stream than the one that is compacted.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from nats.aio.client import Client

import jetstream
from benchmarks.beside import Times, published, publisher_bars, publisher_rows
from benchmarks.loadgen import Address
from benchmarks.measurement import tell
from benchmarks.report import MIB, Bar, Report, Row, Settings, new_report
from benchmarks.systems import ask
from envelope.types import Compression, LeaderEpoch, TimestampUs
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.format.batch import encode
from jetstream.log.format.schema import SCHEMA
from jetstream.log.log import Log, LogConfig
from jetstream.log.rewriting.compaction import CompactionPass
from jetstream.log.rewriting.compaction_plan import CompactionBounds, plan_compaction
from jetstream.log.segments.log_config import CompactionConfig

INPUT_BYTES: Final = 256 * MIB
INPUT_BYTES_QUICK: Final = 32 * MIB
SEGMENT_BYTES: Final = 16 * MIB
RATE_MIN: Final = 100.0

_EAGER: Final = CompactionConfig(dirty_ratio=0.01, age_us=10**15, tombstone_retention_us=10**15)
_BESIDE: Final = "while it compacts"
_FAR: Final = TimestampUs(10**15)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a log is made of; a tenth of the records are the last of their key."""

    name: str
    batch_records: int
    value_bytes: int


SHAPES: Final = (
    Shape("1000 x 100 B a batch", 1000, 100),
    Shape("100 x 1 KiB a batch", 100, 1024),
    Shape("100 x 100 B a batch", 100, 100),
    Shape("1 x 100 B a batch", 1, 100),
)


def run(settings: Settings) -> Report:
    """Compact logs of several shapes; then publish beside a node that compacts."""
    size = INPUT_BYTES_QUICK if settings.quick else INPUT_BYTES
    rows = [_pass_row(shape, size, settings) for shape in SHAPES]
    beside_bytes = INPUT_BYTES_QUICK if settings.quick else 2 * INPUT_BYTES
    rows += publisher_rows(lambda address: _beside(address, beside_bytes, settings), _BESIDE, settings)
    report = new_report("compaction", settings, rows, rate_unit="MiB/s of a core, or messages/s", bytes=size)
    return report.model_copy(update={"bars": _bars(report)})


# --- a pass ------------------------------------------------------------------------------------------


def _pass_row(shape: Shape, size: int, settings: Settings) -> Row:
    rates, left = [], 0.0
    for number in range(settings.runs):
        directory = settings.directory / f"{shape.batch_records}-{shape.value_bytes}-{number}"
        directory.mkdir()
        rate, left = _one_pass(shape, size, directory)
        rates.append(rate)
        tell(f"{number + 1}/{settings.runs}  {shape.name}: {rate:,.0f} MiB/s of a core")
    return Row(
        system="one pass",
        point=shape.name,
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        details={"bytes left %": 100 * left},
    )


def _one_pass(shape: Shape, size: int, directory: Path) -> tuple[float, float]:
    """Fill a log and compact it; return MiB of input for each second of CPU, and how much is left."""
    disk = OsDisk(directory)
    log = Log.open(disk, "log", LogConfig(segment_bytes=SEGMENT_BYTES, compaction=_EAGER), _FAR)
    log.writer.begin_epoch(LeaderEpoch(1), _FAR)
    for records in _batches(shape, size):
        log.writer.append_group((encode(records, log.log_end_offset, log.reader.last_epoch),), _FAR)
    log.writer.sync()
    bounds = CompactionBounds(log.log_end_offset, log.log_end_offset, _FAR)
    plan = plan_compaction(log.reader.segments, log.compaction, bounds, _EAGER)
    assert plan is not None, "all of it is dirty"
    before = sum(segment.size for segment in plan.segments)
    begun = time.process_time()
    work = CompactionPass(log.reader, disk, plan, Compression.NONE, _no_rest)
    work.gather()
    freed = 0
    for segment in plan.segments:
        rewritten = work.rewritten(segment)
        if rewritten is not None:
            freed += rewritten.bytes
            log.replace_segment(rewritten)
    spent = time.process_time() - begun
    log.close()
    disk.close()
    return before / MIB / spent, 1 - freed / before


def _no_rest(_: int) -> None:
    """Go on at once."""


def _batches(shape: Shape, size: int) -> Iterator[pa.RecordBatch]:
    chance, value = np.random.default_rng(0), bytes(shape.value_bytes)
    keys = max(1, size // (shape.value_bytes + 1500 // shape.batch_records + 50) // 10)
    count, base, written = shape.batch_records, 0, 0
    while written < size:
        numbers = chance.integers(0, keys, count).tolist()
        columns: list[pa.Array[Any]] = [
            pa.array(np.arange(base, base + count)),
            pa.array(np.arange(base, base + count)).cast(SCHEMA.field("timestamp").type),
            pa.array(["prices.x"] * count),
            pa.array([b"customer-%d" % number for number in numbers], pa.binary()),
            pa.nulls(count, SCHEMA.field("headers").type),
            pa.nulls(count, pa.int64()),
            pa.array([value] * count, pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        base += count
        written += count * (shape.value_bytes + 50) + 1400


# --- publishers beside it ----------------------------------------------------------------------------


async def _beside(address: Address, size: int, settings: Settings) -> tuple[Times, Times]:
    """Return the times to an ack, microseconds: with nothing else to do, and while a stream is compacted."""
    async with jetstream.connect(address.url) as js:
        await js.streams.create("compacted", "compacted.>", segment_bytes=SEGMENT_BYTES, dedupe_window=0)
        try:
            for records in _batches(Shape("", 5000, 100), size):
                await js.publish_batch(
                    "compacted.x", pa.Table.from_batches([records]).select(["key", "value"])
                )
            async with asyncio.TaskGroup() as tasks:
                alone = await published(js.nats, tasks.create_task(asyncio.sleep(settings.seconds)))
                await js.streams.update("compacted", compact="key", compact_dirty_ratio=0.01)
                begun = await _until(js.nats, "freed")
                compacting = tasks.create_task(_until(js.nats, "cleaned", begun))
                beside = await published(js.nats, compacting)
        finally:
            await js.streams.delete("compacted")
    return alone, beside


async def _until(client: Client, what: str, size: int | None = None) -> int:
    """Wait until the first segment has been replaced, or the pass is over; return the stream's bytes."""
    while True:
        info = await ask(client, "stream.info", {"name": "compacted"})
        found = int(info["bytes"])
        size = found if size is None else size
        if (what == "freed" and found < size) or (what == "cleaned" and info["compaction"]["cleaned_end"]):
            return found
        await asyncio.sleep(0.05)


def _bars(report: Report) -> list[Bar]:
    bars = [
        Bar(
            requirement=f"MiB/s of input for each core, {row.point}",
            value=row.rate,
            bar=RATE_MIN if row.point == SHAPES[0].name else None,
        )
        for row in report.rows
        if row.system == "one pass"
    ]
    return [*bars, *publisher_bars(report, _BESIDE)]
