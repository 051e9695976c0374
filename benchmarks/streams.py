"""Many streams at once, 128 B, messages in turn to 1, 10, 100, 1,000 streams over one connection.

Two loads: 1,000 messages in flight in all, so that the more streams, the fewer messages each has to share a
group with, down to one; and 100 in flight on each of 100 streams, all of which are busy then.
"""

from benchmarks.loadgen import Load
from benchmarks.measurement import Case, interleaved
from benchmarks.report import Bar, Report, Settings, new_report, rows_of
from benchmarks.systems import OURS_ALWAYS, OURS_OS, PEER_ALWAYS, PEER_DEFAULT, Laboratory

IN_FLIGHT = 1000
IN_FLIGHT_EACH = 100
SIZE_BYTES = 128
COUNTS = (1, 10, 100, 1000)
COUNTS_QUICK = (1, 10)
BUSY = (100,)
SYSTEMS = (OURS_ALWAYS, OURS_OS, PEER_DEFAULT, PEER_ALWAYS)
SYSTEMS_BUSY = (OURS_ALWAYS, PEER_DEFAULT)
LEAST_OF_ONE = {100: 0.5}
"""Total rate over that many busy streams, of the rate of one."""


def run(settings: Settings) -> Report:
    """Measure the total rate over all streams."""
    counts = COUNTS_QUICK if settings.quick else COUNTS
    with Laboratory(settings.directory / "systems") as laboratory:
        cases = [
            Case(laboratory.system(name), _point(count), _load(settings, count, IN_FLIGHT))
            for count in counts
            for name in SYSTEMS
        ]
        cases += [
            Case(laboratory.system(name), _busy(count), _load(settings, count, IN_FLIGHT_EACH * count))
            for count in counts
            if count in BUSY
            for name in SYSTEMS_BUSY
        ]
        measurements = interleaved(cases, settings.runs)
    rows = rows_of(cases, measurements)
    report = new_report("streams", settings, rows, in_flight=IN_FLIGHT, size_bytes=SIZE_BYTES)
    bars = [
        _bar(report, system, point, LEAST_OF_ONE.get(count) if system == OURS_ALWAYS and is_busy else None)
        for system in SYSTEMS_BUSY
        for count in counts[1:]
        for point, is_busy in ((_point(count), False), (_busy(count), True))
        if not is_busy or count in BUSY
    ]
    return report.model_copy(update={"bars": bars})


def _point(count: int) -> str:
    return f"{count} stream{'s' if count > 1 else ''}"


def _busy(count: int) -> str:
    return f"{_point(count)}, {IN_FLIGHT_EACH} each"


def _load(settings: Settings, count: int, in_flight: int) -> Load:
    return Load(
        1,
        in_flight,
        SIZE_BYTES,
        subjects=count,
        seconds=settings.seconds,
        warmup_seconds=settings.warmup_seconds,
    )


def _bar(report: Report, system: str, point: str, least: float | None) -> Bar:
    value = report.row(system, point).rate / report.row(system, _point(1)).rate
    return Bar(requirement=f"{point} / 1 stream, {system}", value=value, bar=least)
