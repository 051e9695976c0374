"""Group commit across connections: 2 KiB values, 128 in flight split over 1, 2, 4 … 128 connections.

Source: the write benchmark of the Akutan team's "Kafka in Akutan", where a log without group commit
collapses to the right. NATS itself costs more per message over many connections: its bare request-reply rate
stands beside, and that of a bare store: what any store that is a client of NATS has to do, and no more.
"""

from benchmarks.loadgen import Load
from benchmarks.measurement import Case, interleaved
from benchmarks.report import Bar, Report, Settings, new_report, rows_of
from benchmarks.systems import (
    BARE,
    BARE_STORE_ALWAYS,
    BARE_STORE_OS,
    OURS_ALWAYS,
    OURS_OS,
    PEER_ALWAYS,
    PEER_DEFAULT,
    Laboratory,
)

IN_FLIGHT = 128
SIZE_BYTES = 2048
CONNECTIONS = (1, 2, 4, 8, 16, 32, 64, 128)
CONNECTIONS_QUICK = (1, 128)
MANY = 32
SYSTEMS = (OURS_ALWAYS, OURS_OS, PEER_DEFAULT, PEER_ALWAYS, BARE, BARE_STORE_ALWAYS, BARE_STORE_OS)


def run(settings: Settings) -> Report:
    """Compare the curves of ours, JetStream and a bare store, with and without fsync, and NATS alone."""
    counts = CONNECTIONS_QUICK if settings.quick else CONNECTIONS
    with Laboratory(settings.directory / "systems") as laboratory:
        cases = [
            Case(laboratory.system(name), _point(count), _load(settings, count))
            for count in counts
            for name in SYSTEMS
        ]
        measurements = interleaved(cases, settings.runs)
    rows = rows_of(cases, measurements)
    report = new_report("connections", settings, rows, in_flight=IN_FLIGHT, size_bytes=SIZE_BYTES)
    bars = [bar for count in counts for bar in _bars(report, count)]
    flat = report.row(OURS_ALWAYS, _point(counts[-1])).rate / report.row(OURS_ALWAYS, _point(1)).rate
    nats = report.row(BARE, _point(counts[-1])).rate / report.row(BARE, _point(1)).rate
    bars += [
        Bar(requirement=f"ours with fsync, {_point(counts[-1])} / {_point(1)}", value=flat),
        Bar(requirement=f"bare NATS request-reply, {_point(counts[-1])} / {_point(1)}", value=nats),
    ]
    return report.model_copy(update={"bars": bars})


def _point(connections: int) -> str:
    return f"{connections} x {IN_FLIGHT // connections}"


def _load(settings: Settings, connections: int) -> Load:
    return Load(
        connections,
        IN_FLIGHT // connections,
        SIZE_BYTES,
        seconds=settings.seconds,
        warmup_seconds=settings.warmup_seconds,
    )


def _bars(report: Report, connections: int) -> list[Bar]:
    point = _point(connections)
    ours = report.row(OURS_ALWAYS, point).rate

    def against(system: str, least: float) -> Bar:
        value = ours / report.row(system, point).rate
        return Bar(requirement=f"{point}: ours with fsync / {system}", value=value, bar=least)

    bars = [against(OURS_OS, 0.7), against(PEER_DEFAULT, 1.0 if connections >= MANY else 0.8)]
    if connections == IN_FLIGHT:
        bars.append(against(PEER_ALWAYS, 6.0))
    bare = report.row(BARE_STORE_ALWAYS, point).rate
    for system in (BARE_STORE_OS, PEER_DEFAULT):
        value = bare / report.row(system, point).rate
        bars.append(Bar(requirement=f"{point}: {BARE_STORE_ALWAYS} / {system}", value=value))
    return bars
