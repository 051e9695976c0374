"""Acked publishing at full speed: one connection, 1,000 messages in flight, 128 B and 1 KiB."""

from benchmarks.loadgen import Load
from benchmarks.measurement import Case, interleaved
from benchmarks.report import Bar, Report, Settings, new_report, rows_of
from benchmarks.systems import OURS_ALWAYS, OURS_OS, PEER_ALWAYS, PEER_DEFAULT, Laboratory

SIZES = {"128 B": 128, "1 KiB": 1024}
IN_FLIGHT = 1000
SYSTEMS = (OURS_ALWAYS, OURS_OS, PEER_DEFAULT, PEER_ALWAYS)


def run(settings: Settings) -> Report:
    """Compare ours with JetStream, with and without fsync."""
    with Laboratory(settings.directory / "systems") as laboratory:
        cases = [
            Case(laboratory.system(name), point, _load(settings, size))
            for point, size in SIZES.items()
            for name in SYSTEMS
        ]
        measurements = interleaved(cases, settings.runs)
    report = new_report("publish", settings, rows_of(cases, measurements), connections=1, in_flight=IN_FLIGHT)
    bars = [bar for point in SIZES for bar in _bars(report, point)]
    return report.model_copy(update={"bars": bars})


def _load(settings: Settings, size: int) -> Load:
    return Load(1, IN_FLIGHT, size, seconds=settings.seconds, warmup_seconds=settings.warmup_seconds)


def _bars(report: Report, point: str) -> list[Bar]:
    ours = report.row(OURS_ALWAYS, point)
    default = ours.rate / report.row(PEER_DEFAULT, point).rate
    always = ours.rate / report.row(PEER_ALWAYS, point).rate
    bars = [
        Bar(requirement=f"{point}: ours with fsync / JetStream default (no fsync)", value=default, bar=0.8),
        Bar(requirement=f"{point}: the same, goal", value=default, bar=1.5, goal=True),
        Bar(requirement=f"{point}: ours with fsync / JetStream sync always", value=always, bar=20.0),
    ]
    if point == "128 B":
        cpu = ours.details["node CPU us/msg"]
        bars.append(Bar(requirement=f"{point}: node CPU us per message", value=cpu, bar=2.5, at_most=True))
        if "messages a batch" in ours.details:
            size = ours.details["messages a batch"]
            bars.append(
                Bar(requirement=f"{point}: messages a batch, for the figure above", value=size, bar=100.0)
            )
    return bars
