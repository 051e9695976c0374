"""Many busy streams at once: 1,000 messages in flight, round robin over 1, 10, 100, 1,000 streams.

The load is the same in every row, so the more streams, the fewer messages each has to share a batch with.
"""

from benchmarks.loadgen import Load
from benchmarks.measurement import Case, interleaved
from benchmarks.report import Bar, Report, Settings, new_report, rows_of
from benchmarks.systems import OURS_ALWAYS, OURS_OS, PEER_ALWAYS, PEER_DEFAULT, Laboratory

IN_FLIGHT = 1000
SIZE_BYTES = 128
COUNTS = (1, 10, 100, 1000)
COUNTS_QUICK = (1, 10)
SYSTEMS = (OURS_ALWAYS, OURS_OS, PEER_DEFAULT, PEER_ALWAYS)
LEAST_OF_ONE = {100: 0.5}
"""Total rate over that many streams, of the rate of one."""


def run(settings: Settings) -> Report:
    """Measure the total rate over all streams."""
    counts = COUNTS_QUICK if settings.quick else COUNTS
    with Laboratory(settings.directory / "systems") as laboratory:
        cases = [
            Case(laboratory.system(name), _point(count), _load(settings, count))
            for count in counts
            for name in SYSTEMS
        ]
        measurements = interleaved(cases, settings.runs)
    rows = rows_of(cases, measurements)
    report = new_report("streams", settings, rows, in_flight=IN_FLIGHT, size_bytes=SIZE_BYTES)
    bars = [_bar(report, system, count) for system in (OURS_ALWAYS, PEER_DEFAULT) for count in counts[1:]]
    return report.model_copy(update={"bars": bars})


def _point(count: int) -> str:
    return f"{count} stream{'s' if count > 1 else ''}"


def _load(settings: Settings, count: int) -> Load:
    return Load(
        1,
        IN_FLIGHT,
        SIZE_BYTES,
        subjects=count,
        seconds=settings.seconds,
        warmup_seconds=settings.warmup_seconds,
    )


def _bar(report: Report, system: str, count: int) -> Bar:
    value = report.row(system, _point(count)).rate / report.row(system, _point(1)).rate
    least = LEAST_OF_ONE.get(count) if system == OURS_ALWAYS else None
    return Bar(requirement=f"{_point(count)} / 1 stream, {system}", value=value, bar=least)
