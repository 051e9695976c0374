"""A mirror of one stream between two clusters of one node each: its rate, and how far its copy is behind.

The rate is that of a backlog, beside a plain reader of the same records and a plain publisher of them. The
lag is that of a stream that is published to all the time: for every thousandth record from the source's time
of it until the target has committed it, by samples every few milliseconds.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

import jetstream
from benchmarks.measurement import tell
from benchmarks.report import Bar, Report, Row, Settings, new_report
from benchmarks.systems import OURS_ALWAYS, Laboratory, Ours
from benchmarks.wake_up import percentile
from jetstream.client.connection import JetstreamClient
from jetstream.client.publish.session_publisher import SessionPublisher

STREAM: Final = "orders"
SUBJECT: Final = "orders.eu"
VALUE: Final = b"v" * 128
BACKLOG: Final = 3_000_000
BACKLOG_QUICK: Final = 300_000
PACE: Final = 50_000
"""Records a second that are published while the lag is measured."""
TURN_S: Final = 0.01
SAMPLE_S: Final = 0.005
EACH: Final = 1_000

RATE_MIN: Final = 100_000.0
LAG_S_MAX: Final = 1.0

MIRROR, READER, PUBLISHER = "mirror", "plain reader", "plain publisher"
BACKLOG_POINT: Final = "backlog"
LAG_POINT: Final = f"{PACE:,} records/s"


@dataclass(frozen=True, slots=True)
class Site:
    """Both clusters, each with a client."""

    east: JetstreamClient
    west: JetstreamClient
    urls: tuple[str, str]

    def command(self, *arguments: str) -> list[str]:
        """Return the command that mirrors the stream."""
        where = ("--from", self.urls[0], "--nats", self.urls[1], "--stream", STREAM)
        return [sys.executable, "-m", "jetstream", "mirror", *where, *arguments]


def run(settings: Settings) -> Report:
    """Measure rate and lag, in turn, each in streams of its own."""
    backlog = BACKLOG_QUICK if settings.quick else BACKLOG
    with Laboratory(settings.directory / "systems") as laboratory:
        started = (laboratory.system(OURS_ALWAYS, labels={"side": side}) for side in ("east", "west"))
        systems = [system for system in started if isinstance(system, Ours)]
        rates: dict[str, list[float]] = {MIRROR: [], READER: [], PUBLISHER: []}
        lags: list[list[float]] = []
        for number in range(settings.runs):
            for system, rate in asyncio.run(_rates(systems, backlog)).items():
                rates[system].append(rate)
            lags.append(asyncio.run(_lags(systems, settings.seconds)))
            shown = f"{rates[MIRROR][-1]:,.0f} records/s, lag p99 {percentile(lags[-1], 0.99) * 1e3:.0f} ms"
            tell(f"{number + 1}/{settings.runs}  {shown}")
    rows = [_rate_row(system, found) for system, found in rates.items()]
    rows.append(_lag_row(lags))
    report = new_report(
        "mirror", settings, rows, rate_unit="records/s", value_bytes=len(VALUE), backlog=backlog
    )
    p99 = statistics.median(percentile(lag, 0.99) for lag in lags)
    bars = [
        Bar(requirement="records/s of a backlog", value=statistics.median(rates[MIRROR]), bar=RATE_MIN),
        Bar(requirement=f"acked lag, p99, at {LAG_POINT}, s", value=p99, bar=LAG_S_MAX, at_most=True),
    ]
    return report.model_copy(update={"bars": bars})


@asynccontextmanager
async def _site(systems: list[Ours]) -> AsyncIterator[Site]:
    """Begin with an empty stream in the east, and none in the west."""
    urls = [system.address.url for system in systems]
    async with jetstream.connect(urls[0]) as east, jetstream.connect(urls[1]) as west:
        await east.streams.create(STREAM, "orders.>")
        try:
            yield Site(east, west, (urls[0], urls[1]))
        finally:
            await east.streams.delete(STREAM)
            await west.streams.delete(STREAM)


async def _publish(session: SessionPublisher, count: int) -> None:
    """Publish ``count`` records in as few envelopes as they fit in; returns when they are on their way."""
    rows = pa.record_batch({"value": pa.array([VALUE] * count, pa.binary())})
    for envelope in session.envelopes(SUBJECT, rows):
        _ = await session.publish(SUBJECT, envelope)  # the session raises what becomes of it


async def _rates(systems: list[Ours], backlog: int) -> dict[str, float]:
    async with _site(systems) as site:
        begun = time.monotonic()
        async with site.east.session("filler", stream=STREAM) as session:
            for _ in range(backlog // EACH):
                await _publish(session, EACH)
        published = time.monotonic() - begun
        begun, read = time.monotonic(), 0
        async with site.east.read_batches(STREAM) as batches:
            async for batch in batches:
                read += batch.num_rows
        reading = time.monotonic() - begun
        begun = time.monotonic()
        await asyncio.to_thread(subprocess.run, site.command("--once"), check=True, capture_output=True)
        mirrored = time.monotonic() - begun
        end = (await site.west.ranges([STREAM]))[STREAM].end
        assert read == end == backlog, f"{backlog} published, {read} read, {end} mirrored"
    return {MIRROR: backlog / mirrored, READER: backlog / reading, PUBLISHER: backlog / published}


async def _lags(systems: list[Ours], seconds: float) -> list[float]:
    """Return the lags of every `EACH`-th record, in seconds."""
    async with _site(systems) as site:
        process = await asyncio.to_thread(
            subprocess.Popen, site.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            samples: list[tuple[float, int]] = []
            count = int(PACE * seconds)
            async with site.east.session("paced", stream=STREAM) as session:
                await _publish(session, EACH)
                await _sample(site.west, [], EACH)  # the mirror works
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_sample(site.west, samples, EACH + count))
                    await _paced(session, count)
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)
        times = (await site.east.read_table(STREAM, columns=["txid"])).column("timestamp")
        stored = times.cast(pa.int64()).to_numpy() / 1e6
    lags: list[float] = []
    offset = EACH
    for now, end in samples:
        while offset < end:
            lags.append(now - float(stored[offset]))
            offset += EACH
    return lags


async def _paced(session: SessionPublisher, count: int) -> None:
    loop = asyncio.get_running_loop()
    begun, published = loop.time(), 0
    while published < count:
        await asyncio.sleep(TURN_S)
        due = min(count, int((loop.time() - begun) * PACE)) - published
        await _publish(session, due)
        published += due


async def _sample(west: JetstreamClient, samples: list[tuple[float, int]], count: int) -> None:
    """Note the target's committed end now and then, until all is there."""
    end = 0
    while end < count:
        await asyncio.sleep(SAMPLE_S)
        found = await west.ranges([STREAM])
        if STREAM in found and found[STREAM].end > end:
            end = found[STREAM].end
            samples.append((time.time(), end))


def _rate_row(system: str, rates: list[float]) -> Row:
    return Row(
        system=system,
        point=BACKLOG_POINT,
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        runs=[{"rate": rate} for rate in rates],
    )


def _lag_row(lags: list[list[float]]) -> Row:
    p50, p99 = ([percentile(lag, share) * 1e6 for lag in lags] for share in (0.5, 0.99))
    return Row(
        system=MIRROR,
        point=LAG_POINT,
        rate=PACE,
        rate_min=PACE,
        rate_max=PACE,
        p50_us=statistics.median(p50),
        p99_us=statistics.median(p99),
        runs=[{"p50_us": low, "p99_us": high} for low, high in zip(p50, p99, strict=True)],
    )
