"""The sealed rewrite: what it makes of records that were stored one by one, what it costs, and who notices.

Storage is measured against the same records written as large zstd batches, in this process and without the
rests that a node's thread takes. The publisher sends one message at a time by the clock, to another stream
than the one that is rewritten.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from nats.aio.client import Client

import jetstream
from benchmarks.beside import Times, published, publisher_bars, publisher_rows
from benchmarks.loadgen import Address
from benchmarks.measurement import tell
from benchmarks.report import MIB, Bar, Report, Row, Settings, new_report
from benchmarks.systems import ask
from envelope.types import Compression, LeaderEpoch, Offset, TimestampUs
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.format.batch import encode_group
from jetstream.log.format.plain_batch_encoder import PlainRecords, encode_plain
from jetstream.log.log import Log, LogConfig
from jetstream.log.rewriting.sealed_rewrite import rewritten

RECORDS: Final = 1_000_000
RECORDS_QUICK: Final = 100_000
VALUE_BYTES: Final = 100
LARGE_RECORDS: Final = 50_000
"""In one of the large batches: what 8 MiB hold."""
RATIO_MAX: Final = 1.3
BESIDE_BATCHES: Final = 20_000
BESIDE_BATCHES_QUICK: Final = 5_000

_SUBJECT: Final = (b"orders.new",)
_NOW: Final = TimestampUs(10**15)
_LATER: Final = TimestampUs(10**16)
_STEP_US: Final = 997
_BESIDE: Final = "while it rewrites"
_STORAGE: Final = "storage"


def _as_json(number: int, chance: np.random.Generator) -> bytes:
    order = {"order": number, "customer": int(chance.integers(0, 100_000)), "state": "accepted"}
    return (
        json.dumps(order | {"price": round(float(chance.random()) * 100, 2)})
        .encode()[:VALUE_BYTES]
        .ljust(VALUE_BYTES)
    )


def _as_noise(_: int, chance: np.random.Generator) -> bytes:
    return chance.bytes(VALUE_BYTES)


CONTENTS: Final[dict[str, Callable[[int, np.random.Generator], bytes]]] = {
    "JSON": _as_json,
    "noise": _as_noise,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the same records take.

    Attributes:
        single: each in a batch of its own, in bytes.
        merged: the same after the sealed rewrite.
        large: in large zstd batches.
        cpu_seconds: of the rewrite.
    """

    single: int
    merged: int
    large: int
    cpu_seconds: float


def run(settings: Settings) -> Report:
    """Store records one by one, rewrite them; then publish beside a node that rewrites."""
    count = RECORDS_QUICK if settings.quick else RECORDS
    rows = [_storage_row(content, count, settings) for content in CONTENTS]
    batches = BESIDE_BATCHES_QUICK if settings.quick else BESIDE_BATCHES
    rows += publisher_rows(lambda address: _beside(address, batches, settings), _BESIDE, settings)
    report = new_report("rewrite", settings, rows, rate_unit="MiB/s of a core, or messages/s", records=count)
    return report.model_copy(update={"bars": _bars(report)})


# --- storage -----------------------------------------------------------------------------------------


def _storage_row(content: str, count: int, settings: Settings) -> Row:
    chance = np.random.default_rng(0)
    values = [CONTENTS[content](number, chance) for number in range(count)]
    outcomes: list[Outcome] = []
    for number in range(settings.runs):
        directory = settings.directory / f"{content}-{number}"
        directory.mkdir()
        outcomes.append(rewrite_singles(values, directory))
        rate = outcomes[-1].single / MIB / outcomes[-1].cpu_seconds
        tell(f"{number + 1}/{settings.runs}  {content}: {rate:,.0f} MiB/s of a core")
    rates = [outcome.single / MIB / outcome.cpu_seconds for outcome in outcomes]
    last = outcomes[-1]
    return Row(
        system=_STORAGE,
        point=content,
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        details={
            "bytes a record before": last.single / count,
            "after": last.merged / count,
            "in large batches": last.large / count,
            "of those": last.merged / last.large,
        },
    )


def rewrite_singles(values: Sequence[bytes], directory: Path) -> Outcome:
    """Store each value in a batch of its own and rewrite them; store them in large zstd batches."""
    disk = OsDisk(directory)
    try:
        log = _begun(disk, "single")
        for number, value in enumerate(values):
            records = PlainRecords(Offset(number), _time_of(number), _SUBJECT, (value,))
            log.writer.append_group((encode_plain(records, log.reader.last_epoch),), _NOW)
        _seal(log)
        single = log.reader.size - log.reader.segments[-1].size
        begun = time.process_time()
        for segment in log.reader.segments[:-1]:
            found = rewritten(log.reader, disk, segment, _no_rest)
            if found is not None:
                log.replace_segment(found)
        spent = time.process_time() - begun
        merged = log.reader.size - log.reader.segments[-1].size
        log.close()
        return Outcome(single, merged, _in_large_batches(disk, values), spent)
    finally:
        disk.close()


def _in_large_batches(disk: OsDisk, values: Sequence[bytes]) -> int:
    log = _begun(disk, "large")
    for start in range(0, len(values), LARGE_RECORDS):
        some = tuple(values[start : start + LARGE_RECORDS])
        records = PlainRecords(Offset(start), _NOW, _SUBJECT * len(some), some).to_records()
        times = np.arange(_time_of(start), _time_of(start + len(some)), _STEP_US)
        timed = records.set_column(
            1, records.schema.field(1), pa.array(times).cast(records.schema.field(1).type)
        )
        for batch in encode_group(timed, Offset(start), log.reader.last_epoch, Compression.ZSTD):
            log.writer.append_group((batch,), _NOW)
    _seal(log)
    size = log.reader.size - log.reader.segments[-1].size
    log.close()
    return size


def _begun(disk: OsDisk, name: str) -> Log:
    log = Log.open(disk, name, LogConfig(segment_age_us=1), _NOW)
    log.writer.begin_epoch(LeaderEpoch(1), _NOW)
    return log


def _seal(log: Log) -> None:
    """Begin a new segment, as a record does that comes later."""
    records = PlainRecords(log.log_end_offset, _time_of(log.log_end_offset), _SUBJECT, (b"",))
    log.writer.append_group((encode_plain(records, log.reader.last_epoch),), _LATER)
    log.writer.sync()


def _time_of(number: int) -> TimestampUs:
    return TimestampUs(_NOW + _STEP_US * number)


def _no_rest(_: int) -> None:
    """Go on at once."""


# --- a publisher beside it ---------------------------------------------------------------------------


async def _beside(address: Address, batches: int, settings: Settings) -> tuple[Times, Times]:
    """Publish with nothing else to do, and while a stream is rewritten."""
    async with jetstream.connect(address.url) as js:
        await js.streams.create("cold", "cold.>", rewrite_after=0, segment_bytes=MIB, dedupe_window=0)
        try:
            some = pa.table({"value": pa.array([bytes(VALUE_BYTES)] * 5, pa.binary())})
            for _ in range(batches):
                await js.publish_batch("cold.x", some)
            async with asyncio.TaskGroup() as tasks:
                alone = await published(js.nats, tasks.create_task(asyncio.sleep(settings.seconds)))
                await js.streams.update("cold", rewrite_after=0.001)
                await _rewritten_part(js.nats, 0.0)
                beside = await published(js.nats, tasks.create_task(_rewritten_part(js.nats, 0.7)))
        finally:
            await js.streams.delete("cold")
    return alone, beside


async def _rewritten_part(client: Client, part: float) -> None:
    """Wait until more than ``part`` of the stream has been rewritten."""
    while True:
        info = await ask(client, "stream.info", {"name": "cold"})
        if (info["rewritten_end"] or 0) > part * info["log_end_offset"]:
            return
        await asyncio.sleep(0.05)


def _bars(report: Report) -> list[Bar]:
    bars = [
        Bar(
            requirement=f"{row.point}: bytes after the rewrite, of the same in large zstd batches",
            value=row.details["of those"],
            bar=RATIO_MAX,
            at_most=True,
        )
        for row in report.rows
        if row.system == _STORAGE
    ]
    return [*bars, *publisher_bars(report, _BESIDE)]
