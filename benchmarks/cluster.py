"""Three copies, two of them in sync at least, against JetStream R3: full speed, 128 in flight, one by one.

Ours is three nodes on one plain nats-server, JetStream's three nats-servers; its publisher is connected to
the stream's leader. CPU per message is that of all servers together.
"""

from typing import Final

from benchmarks.loadgen import Load
from benchmarks.measurement import Case, interleaved
from benchmarks.replicated import (
    OURS_ALWAYS,
    OURS_OS,
    PEER_ALWAYS,
    PEER_DEFAULT,
    SYSTEMS,
    ClusterLaboratory,
)
from benchmarks.report import Bar, Report, Settings, new_report, rows_of

SHAPES: Final = {
    "128 B, 1 x 1000": (1, 1000, 128),
    "1 KiB, 1 x 1000": (1, 1000, 1024),
    "2 KiB, 1 x 128": (1, 128, 2048),
    "2 KiB, 128 x 1": (128, 1, 2048),
    "128 B, one by one": (1, 1, 128),
}
"""Connections, messages in flight on each, bytes of a message."""
ONE_BY_ONE: Final = "128 B, one by one"
CPU: Final = "all servers CPU us/msg"


def run(settings: Settings) -> Report:
    """Measure every load on ours and on JetStream, with and without fsync."""
    with ClusterLaboratory(settings.directory / "systems") as laboratory:
        cases = [
            Case(laboratory.system(name), point, load_of(settings, *shape))
            for point, shape in SHAPES.items()
            for name in SYSTEMS
        ]
        measurements = interleaved(cases, settings.runs)
    report = new_report("cluster", settings, rows_of(cases, measurements), replicas=3, min_insync_replicas=2)
    return report.model_copy(update={"bars": [bar for point in SHAPES for bar in _bars(report, point)]})


def load_of(settings: Settings, connections: int, window: int, size_bytes: int, *, asks: bool = True) -> Load:
    """Return one load of the length that the settings say."""
    return Load(
        connections,
        window,
        size_bytes,
        seconds=settings.seconds,
        warmup_seconds=settings.warmup_seconds,
        asks=asks,
    )


def _bars(report: Report, point: str) -> list[Bar]:
    """Return the ratios of ours to each setting of the peer: of rates, or of latencies one by one."""
    pairs = ((OURS_ALWAYS, PEER_DEFAULT), (OURS_ALWAYS, PEER_ALWAYS), (OURS_OS, PEER_DEFAULT))
    bars = []
    for ours, peer in pairs:
        mine, theirs = report.row(ours, point), report.row(peer, point)
        ratios = {"acked msg/s": mine.rate / theirs.rate}
        if point == ONE_BY_ONE:
            ratios = {"p50": mine.p50_us / theirs.p50_us, "p99": mine.p99_us / theirs.p99_us}
        if theirs.details[CPU]:
            ratios["CPU of all servers a message"] = mine.details[CPU] / theirs.details[CPU]
        bars += [
            Bar(requirement=f"{point}, {what}: {ours} / {peer}", value=value)
            for what, value in ratios.items()
        ]
    return bars
