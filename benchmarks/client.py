"""Publishing with the client library in Python: message by message and in batch envelopes, acked and fsynced.

The publisher is this process. Its CPU, the node's and the NATS server's stand beside each rate: on few cores
all three share what there is, and the largest of them is the limit.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import pyarrow as pa
import uvloop

import jetstream
from benchmarks.measurement import tell
from benchmarks.process_stats import ProcessSample
from benchmarks.report import Bar, Report, Row, Settings, new_report
from benchmarks.systems import OURS_ALWAYS, SUBJECT, Count, Laboratory, System
from jetstream import JetstreamClient

SIZES: Final = {"100 B": 100, "1 KiB": 1024}
MESSAGES: Final = 50_000
"""Between two looks at the clock."""

Publish = Callable[[JetstreamClient, bytes], Awaitable[None]]


async def _publish_all(client: JetstreamClient, value: bytes) -> None:
    await client.publish_all(repeat((SUBJECT, value), MESSAGES))


async def _publish_table(client: JetstreamClient, value: bytes) -> None:
    await client.publish_table(pa.table({"subject": [SUBJECT] * MESSAGES, "value": [value] * MESSAGES}))


async def _publish_keyed_table(client: JetstreamClient, value: bytes) -> None:
    keys = list(map(str, range(MESSAGES)))
    columns = {"subject": [SUBJECT] * MESSAGES, "value": [value] * MESSAGES, "key": keys}
    await client.publish_table(pa.table(columns))


async def _publisher(client: JetstreamClient, value: bytes) -> None:
    async with client.publisher() as publisher:
        for _ in range(MESSAGES):
            _ = await publisher.publish(SUBJECT, value)


async def _publish_batch(client: JetstreamClient, value: bytes) -> None:
    await client.publish_batch(
        SUBJECT, pa.table({"value": pa.array([value], pa.binary()).take([0] * MESSAGES)})
    )


async def _batch_publisher(client: JetstreamClient, value: bytes) -> None:
    async with client.batch_publisher(SUBJECT) as publisher:
        for _ in range(MESSAGES):
            _ = await publisher.publish(value)


WAYS: Final[dict[str, Publish]] = {
    "publish_all": _publish_all,
    "publish_table": _publish_table,
    "publish_table, with keys": _publish_keyed_table,
    "publisher, a future each": _publisher,
    "batch_publisher": _batch_publisher,
    "publish_batch": _publish_batch,
}
RATES_MIN: Final = {"publish_all": 200_000.0, "publish_table": 200_000.0}


@dataclass(frozen=True, slots=True)
class _Run:
    """A way of publishing over a few seconds."""

    rate: float
    cpu_us: dict[str, float]
    """By role, for each record."""
    problem: str | None


def run(settings: Settings) -> Report:
    """Publish in each way with values of two sizes, one stream, one connection, in interleaved rounds."""
    runs: dict[tuple[str, str], list[_Run]] = {(way, size): [] for size in SIZES for way in WAYS}
    with Laboratory(settings.directory / "systems") as laboratory:
        system = laboratory.system(OURS_ALWAYS)
        for number in range(settings.runs):
            for (way, size), done in runs.items():
                with system.streams(1) as count:
                    done.append(uvloop.run(_measured(system, count, WAYS[way], bytes(SIZES[size]), settings)))
                spent = ", ".join(f"{role} {us:.2f} us" for role, us in done[-1].cpu_us.items())
                tell(f"{number + 1}/{settings.runs}  {way:26} {size:6} {done[-1].rate:>10,.0f}/s  {spent}")
    rows = [_row(way, size, done) for (way, size), done in runs.items()]
    report = new_report("client", settings, rows, rate_unit="acked records/s")
    bars = [
        Bar(requirement=f"{way}, 100 B: acked records/s", value=report.row(way, "100 B").rate, bar=rate)
        for way, rate in RATES_MIN.items()
    ]
    return report.model_copy(update={"bars": bars})


async def _measured(system: System, count: Count, publish: Publish, value: bytes, settings: Settings) -> _Run:
    """Publish until the seconds are over; every record that was acked must be stored."""
    async with jetstream.connect(system.address.url) as client:
        await publish(client, value)
        servers = {role: ProcessSample.of(pid).cpu_seconds for role, pid in system.processes.items()}
        begun, cpu = time.monotonic(), time.process_time()
        records = 0
        while time.monotonic() < begun + settings.seconds:
            await publish(client, value)
            records += MESSAGES
        seconds, spent = time.monotonic() - begun, {"client": time.process_time() - cpu}
        for role, pid in system.processes.items():
            spent[role] = ProcessSample.of(pid).cpu_seconds - servers[role]
    holdings = await asyncio.to_thread(count)
    stored = sum(holdings.records) if holdings else 0
    acked = records + MESSAGES
    return _Run(
        rate=records / seconds,
        cpu_us={role: 1e6 * cpu_seconds / records for role, cpu_seconds in spent.items()},
        problem=None if stored == acked else f"{acked} acked, {stored} stored",
    )


def _row(way: str, size: str, runs: list[_Run]) -> Row:
    rates = [each.rate for each in runs]
    return Row(
        system=way,
        point=size,
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        details={
            f"{role} CPU us/record": statistics.median(each.cpu_us[role] for each in runs)
            for role in runs[0].cpu_us
        },
        problems=[each.problem for each in runs if each.problem],
    )
