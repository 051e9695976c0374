"""Any load on any systems, without bars: for whoever looks for where the time goes."""

from dataclasses import dataclass

from benchmarks import replicated
from benchmarks.loadgen import Load
from benchmarks.measurement import Case, interleaved
from benchmarks.replicated import ClusterLaboratory
from benchmarks.report import Report, Settings, new_report, rows_of
from benchmarks.systems import (
    BARE,
    BARE_STORE_ALWAYS,
    BARE_STORE_OS,
    OURS_ALWAYS,
    OURS_OS,
    PEER_ALWAYS,
    PEER_DEFAULT,
)

SYSTEMS = {
    "ours": OURS_ALWAYS,
    "ours-os": OURS_OS,
    "jetstream": PEER_DEFAULT,
    "jetstream-always": PEER_ALWAYS,
    "bare": BARE,
    "bare-store": BARE_STORE_ALWAYS,
    "bare-store-os": BARE_STORE_OS,
    "ours-rf3": replicated.OURS_ALWAYS,
    "ours-rf3-os": replicated.OURS_OS,
    "jetstream-r3": replicated.PEER_DEFAULT,
    "jetstream-r3-always": replicated.PEER_ALWAYS,
    "bare-store-rf3": replicated.BARE_STORE_ALWAYS,
    "bare-store-rf3-os": replicated.BARE_STORE_OS,
    "python-store-rf3": replicated.PYTHON_STORE_ALWAYS,
    "python-store-rf3-os": replicated.PYTHON_STORE_OS,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The load of the command line."""

    systems: tuple[str, ...]
    connections: int
    window: int
    size_bytes: int
    streams: int


def run(settings: Settings, shape: Shape) -> Report:
    """Measure the chosen systems under the one load, interleaved."""
    load = Load(
        shape.connections,
        shape.window,
        shape.size_bytes,
        subjects=shape.streams,
        seconds=settings.seconds,
        warmup_seconds=settings.warmup_seconds,
    )
    point = f"{shape.connections} x {shape.window}, {shape.size_bytes} B, {shape.streams} streams"
    with ClusterLaboratory(settings.directory / "systems") as laboratory:
        cases = [Case(laboratory.system(SYSTEMS[name]), point, load) for name in shape.systems]
        measurements = interleaved(cases, settings.runs)
    return new_report("one", settings, rows_of(cases, measurements))
