"""Three copies, two of them in sync at least, against JetStream R3: full speed, 128 in flight, one by one.

Ours is three nodes on one plain nats-server, JetStream's three nats-servers; its publisher is connected to
the stream's leader. CPU per message is that of all servers together. A bare store of three files is measured
beside them, in C and in Python: what any store that is a client of NATS has to do, and no more.
"""

from typing import Final

from benchmarks.loadgen import Load
from benchmarks.measurement import Case, interleaved
from benchmarks.replicated import (
    BARE_STORE_ALWAYS,
    BARE_STORE_OS,
    OURS_ALWAYS,
    OURS_OS,
    PEER_ALWAYS,
    PEER_DEFAULT,
    PYTHON_STORE_ALWAYS,
    PYTHON_STORE_OS,
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
FULL_SPEED: Final = ("128 B, 1 x 1000", "1 KiB, 1 x 1000")
CPU: Final = "all servers CPU us/msg"
RATE: Final = "acked msg/s"
P50: Final = "p50"
P99: Final = "p99"

PAIRS: Final[tuple[tuple[str, str], ...]] = (
    (OURS_ALWAYS, PEER_DEFAULT),
    (OURS_ALWAYS, PEER_ALWAYS),
    (OURS_OS, PEER_DEFAULT),
    (BARE_STORE_ALWAYS, PEER_DEFAULT),
    (BARE_STORE_ALWAYS, PEER_ALWAYS),
    (BARE_STORE_OS, PEER_DEFAULT),
    (PYTHON_STORE_ALWAYS, PEER_DEFAULT),
    (PYTHON_STORE_ALWAYS, PEER_ALWAYS),
    (PYTHON_STORE_OS, PEER_DEFAULT),
)
"""What is compared with what."""
LEAST: Final[dict[tuple[str, str], dict[str, float]]] = {
    (OURS_ALWAYS, PEER_DEFAULT): dict.fromkeys(SHAPES, 1.0),
    (OURS_ALWAYS, PEER_ALWAYS): dict.fromkeys(SHAPES, 1.8) | {"2 KiB, 128 x 1": 1.15},
    (OURS_OS, PEER_DEFAULT): {"128 B, 1 x 1000": 1.15, "1 KiB, 1 x 1000": 1.25, "2 KiB, 128 x 1": 1.4},
}
"""Required ratios of rates; one by one the latencies are compared."""
MOST: Final[dict[tuple[str, str], dict[str, float]]] = {
    (OURS_ALWAYS, PEER_ALWAYS): {P50: 1.0, P99: 0.6, CPU: 0.5},
    (OURS_OS, PEER_DEFAULT): {P50: 1.5},
}
"""Required ratios of what is to be small: the 99th percentile at full speed only, CPU not one by one."""


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
    """Return the ratios to each setting of the peer: of rates, or of latencies one by one."""
    bars = []
    for pair in PAIRS:
        mine, theirs = (report.row(name, point) for name in pair)
        ratios = {RATE: mine.rate / theirs.rate}
        if point == ONE_BY_ONE:
            ratios = {P50: mine.p50_us / theirs.p50_us, P99: mine.p99_us / theirs.p99_us}
        elif pair[1] == PEER_ALWAYS:
            ratios[P99] = mine.p99_us / theirs.p99_us
        if theirs.details[CPU]:
            ratios[CPU] = mine.details[CPU] / theirs.details[CPU]
        bars += [_bar(pair, point, what, value) for what, value in ratios.items()]
    return bars


def _bar(pair: tuple[str, str], point: str, what: str, value: float) -> Bar:
    least = LEAST.get(pair, {}).get(point) if what == RATE else None
    most = MOST.get(pair, {}).get(what) if what != P99 or point in FULL_SPEED else None
    if what == CPU and point == ONE_BY_ONE:
        most = None
    requirement = f"{point}, {what}: {pair[0]} / {pair[1]}"
    return Bar(
        requirement=requirement, value=value, bar=most if least is None else least, at_most=least is None
    )
