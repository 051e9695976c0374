"""Group commit with three copies, fsynced and not: 2 KiB, 128 in flight over 1, 2, 4 … 128 connections."""

from typing import Final

from benchmarks.cluster import load_of
from benchmarks.connections import CONNECTIONS, CONNECTIONS_QUICK, IN_FLIGHT, SIZE_BYTES
from benchmarks.measurement import Case, interleaved
from benchmarks.replicated import OURS_ALWAYS, OURS_OS, ClusterLaboratory
from benchmarks.report import Bar, Report, Settings, new_report, rows_of

SYSTEMS: Final = (OURS_ALWAYS, OURS_OS)


def run(settings: Settings) -> Report:
    """Measure our rate over so many connections, with an fsync on every replica and without."""
    counts = CONNECTIONS_QUICK if settings.quick else CONNECTIONS
    with ClusterLaboratory(settings.directory / "systems") as laboratory:
        cases = [
            Case(
                laboratory.system(name),
                _point(count),
                load_of(settings, count, IN_FLIGHT // count, SIZE_BYTES),
            )
            for count in counts
            for name in SYSTEMS
        ]
        measurements = interleaved(cases, settings.runs)
    rows = rows_of(cases, measurements)
    report = new_report("cluster_connections", settings, rows, in_flight=IN_FLIGHT, size_bytes=SIZE_BYTES)
    bars = [
        Bar(
            requirement=f"{_point(count)}: {OURS_ALWAYS} / {OURS_OS}",
            value=report.row(OURS_ALWAYS, _point(count)).rate / report.row(OURS_OS, _point(count)).rate,
            bar=bar,
            goal=goal,
        )
        for count in counts
        for bar, goal in ((0.4, False), (0.7, True))
    ]
    return report.model_copy(update={"bars": bars})


def _point(connections: int) -> str:
    return f"{connections} x {IN_FLIGHT // connections}"
