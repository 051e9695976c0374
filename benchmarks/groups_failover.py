"""How long a group's partitions are not read when members are killed or leave, or its coordinator is killed.

Members are processes with the client library. On one node three of them share eight streams, to which records
come by the clock: one is killed, and the others read its streams again; one leaves; one comes and goes while
those that keep their streams are watched. On three nodes a member commits one cursor after the other while
the node that coordinates its group is killed; its shard is small, or has 100,000 cursors to be read first.
"""

from collections.abc import Callable
from typing import Final

from benchmarks.clusters import node_cluster
from benchmarks.group_moves import GROUP, sharing
from benchmarks.group_nodes import ONE, THREE, group_nodes
from benchmarks.group_strikes import LOADED, Coordinators
from benchmarks.measurement import tell
from benchmarks.report import Bar, Report, Row, Settings, new_report
from benchmarks.wake_up import percentile

SESSION_SECONDS: Final = 2.0
COUNT: Final = 10
COUNT_QUICK: Final = 2
CURSORS: Final = 100_000
CURSORS_QUICK: Final = 10_000

KILLED: Final = "member killed, its streams are read again"
LEFT: Final = "member leaves, its streams are read again"
QUIET: Final = "longest pause of a stream, nobody comes or goes"
MOVING: Final = "longest pause of a kept stream, others come and go"
COORDINATOR: Final = "coordinator killed, not the metadata leader"
BOTH: Final = "coordinator killed, metadata leader too"

MILLISECONDS_MAX: Final = {
    KILLED: 1e3 * SESSION_SECONDS + 200,
    LEFT: 200.0,
    COORDINATOR: 1_000.0,
    BOTH: 1_500.0,
}
PAUSE_OF_QUIET_MAX: Final = 2.0

Took = Callable[[str, float], None]
"""Told what was measured, and the milliseconds."""


def run(settings: Settings) -> Report:
    """Strike members, then coordinators; times are in the columns of latencies."""
    count, cursors = (COUNT_QUICK, CURSORS_QUICK) if settings.quick else (COUNT, CURSORS)
    found: dict[tuple[str, str], list[float]] = {}

    def on(system: str) -> Took:
        def took(point: str, milliseconds: float) -> None:
            found.setdefault((system, point), []).append(milliseconds)
            tell(f"{system:18} {point:52} {milliseconds:>8,.0f} ms")

        return took

    with group_nodes(ONE, settings.directory / "one") as nodes:
        nodes.coordinator(GROUP)
        with sharing(nodes.address, SESSION_SECONDS) as members:
            took = on(ONE)
            for _ in range(count):
                took(KILLED, members.killed())
                took(LEFT, members.left())
            for _ in range(count):
                took(QUIET, members.longest_pause(changes=False))
                took(MOVING, members.longest_pause(changes=True))
    with node_cluster(settings.directory / "three", "info") as cluster:
        _strike(Coordinators(cluster), count, cursors, on(THREE))
    rows = [_row(*case, times) for case, times in found.items()]
    report = new_report("groups_failover", settings, rows, rate_unit="times", session_s=SESSION_SECONDS)
    return report.model_copy(update={"bars": _bars(report)})


def _strike(coordinators: Coordinators, count: int, cursors: int, took: Took) -> None:
    """Kill coordinators in both ways, and then those of a shard with many cursors."""
    for _ in range(count):
        for point, leads_metadata in ((COORDINATOR, False), (BOTH, True)):
            strike = coordinators.strike(None, leads_metadata=leads_metadata)
            if strike is not None:
                took(point, strike.outage_ms)
    coordinators.fill(cursors)
    for _ in range(count):
        strike = coordinators.strike(LOADED, leads_metadata=None)
        assert strike is not None, "somebody leads the shard"
        took(_loaded(cursors), strike.outage_ms)
        if strike.reading_ms is not None:
            took(_loaded(cursors) + ": of that, reading", strike.reading_ms)


def _loaded(cursors: int) -> str:
    return f"coordinator killed, {cursors:,} cursors in its shard"


def _row(system: str, point: str, times: list[float]) -> Row:
    count = float(len(times))
    return Row(
        system=system,
        point=point,
        rate=count,
        rate_min=count,
        rate_max=count,
        p50_us=1e3 * percentile(times, 0.5),
        p99_us=1e3 * percentile(times, 0.99),
        details={"shortest ms": min(times), "longest ms": max(times)},
        runs=[{"milliseconds": each} for each in times],
    )


def _bars(report: Report) -> list[Bar]:
    """Bars ask of the longest time of each kind; without one a time is only stated."""
    pauses = (report.row(ONE, MOVING).p50_us, report.row(ONE, QUIET).p50_us)
    longest = [
        Bar(
            requirement=f"{row.point}: longest (ms)",
            value=row.details["longest ms"],
            bar=MILLISECONDS_MAX.get(row.point),
            at_most=True,
        )
        for row in report.rows
    ]
    return [
        *longest,
        Bar(
            requirement=f"{MOVING}, p50 / nobody does",
            value=pauses[0] / pauses[1],
            bar=PAUSE_OF_QUIET_MAX,
            at_most=True,
        ),
    ]
