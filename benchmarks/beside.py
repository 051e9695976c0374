"""A publisher that sends one message at a time by the clock, beside something else that the node does."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from nats.aio.client import Client

from benchmarks.loadgen import Address
from benchmarks.measurement import tell
from benchmarks.report import Bar, Report, Row, Settings
from benchmarks.systems import OURS_ALWAYS, SUBJECT, Laboratory
from benchmarks.wake_up import percentile

PACE_SECONDS: Final = 0.01
RATIO_MAX: Final = 1.5

_PUBLISHER: Final = "publish, one by one"
_ALONE: Final = "with nothing else"

Times = list[float]
"""Microseconds to each ack."""

Scenario = Callable[[Address], Awaitable[tuple[Times, Times]]]
"""Publishes with nothing else to do, then beside it."""


def publisher_rows(scenario: Scenario, beside: str, settings: Settings) -> list[Row]:
    """Run ``scenario`` on a node; return a row for each of its two halves, the second named ``beside``."""
    with Laboratory(settings.directory / "systems") as laboratory:
        system = laboratory.system(OURS_ALWAYS)
        with system.streams(1):
            runs = [asyncio.run(_run(scenario, system.address)) for _ in range(settings.runs)]
    return [
        _row(_ALONE, [alone for alone, _ in runs], settings),
        _row(beside, [times for _, times in runs], settings),
    ]


async def _run(scenario: Scenario, address: Address) -> tuple[Times, Times]:
    return await scenario(address)


def _row(point: str, runs: list[Times], settings: Settings) -> Row:
    p50s = [percentile(run, 0.5) for run in runs]
    tell(f"{point}: p50 {statistics.median(p50s):,.0f} us")
    rates = [len(run) / settings.seconds for run in runs]
    return Row(
        system=_PUBLISHER,
        point=point,
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        p50_us=statistics.median(p50s),
        p99_us=statistics.median(percentile(run, 0.99) for run in runs),
        problems=[] if all(runs) else ["nothing was published at that time"],
    )


async def published(client: Client, meanwhile: "asyncio.Task[Any]") -> Times:
    """Publish until ``meanwhile`` is over."""
    spent: Times = []
    payload, due = bytes(128), time.monotonic()
    while not meanwhile.done():
        due += PACE_SECONDS
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        begun = time.perf_counter_ns()
        await client.request(SUBJECT, payload, timeout=10)
        spent.append((time.perf_counter_ns() - begun) / 1000)
    return spent


def publisher_bars(report: Report, beside: str) -> list[Bar]:
    """Return what is asked of the second row, as a part of the first."""
    first, second = (report.row(_PUBLISHER, point) for point in (_ALONE, beside))
    if first.p50_us == 0.0:
        return []
    ratio = Bar(
        requirement=f"p50 to an ack {beside}, of the same {_ALONE}",
        value=second.p50_us / first.p50_us,
        bar=RATIO_MAX,
        at_most=True,
    )
    return [ratio, Bar(requirement="the same, p99", value=second.p99_us / first.p99_us)]
