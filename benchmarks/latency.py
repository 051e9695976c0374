"""One publisher that awaits each ack, with an fdatasync of the same file system sampled in between.

The sample is taken by the load generator itself, between two messages, when nothing is in flight: it meets
the same disk in the same seconds, and disturbs nobody. It appends a block of the message's size and syncs it.
"""

from pathlib import Path

from benchmarks.loadgen import Load
from benchmarks.measurement import Case, interleaved
from benchmarks.report import Bar, Report, Settings, new_report, rows_of
from benchmarks.systems import BARE, OURS_ALWAYS, OURS_OS, PEER_ALWAYS, PEER_DEFAULT, Laboratory

SIZES = {"128 B": 128, "1 KiB": 1024}
SYSTEMS = (OURS_ALWAYS, OURS_OS, PEER_DEFAULT, PEER_ALWAYS, BARE)
SYNCING = (OURS_ALWAYS, PEER_ALWAYS)
"""Sampled; where nobody syncs, a sync of ours would only write back other people's pages."""
ABOVE_FDATASYNC_US = 500.0
WITHOUT_FDATASYNC_US = 400.0


def run(settings: Settings) -> Report:
    """Measure the time from a message to its ack."""
    probe = settings.directory / "probe"
    with Laboratory(settings.directory / "systems") as laboratory:
        cases = [
            Case(laboratory.system(name), point, _load(settings, size, probe if name in SYNCING else None))
            for point, size in SIZES.items()
            for name in SYSTEMS
        ]
        measurements = interleaved(cases, settings.runs)
    probe.unlink(missing_ok=True)
    report = new_report("latency", settings, rows_of(cases, measurements), connections=1, in_flight=1)
    return report.model_copy(update={"bars": [bar for point in SIZES for bar in _bars(report, point)]})


def _load(settings: Settings, size: int, probe: Path | None) -> Load:
    return Load(
        1, 1, size, seconds=settings.seconds, warmup_seconds=settings.warmup_seconds, probe_file=probe
    )


def _bars(report: Report, point: str) -> list[Bar]:
    synced = report.row(OURS_ALWAYS, point)
    above = synced.p50_us - synced.details["fdatasync p50 us"]
    return [
        Bar(
            requirement=f"{point}: p50 with fsync, above one fdatasync (us)",
            value=above,
            bar=ABOVE_FDATASYNC_US,
            at_most=True,
        ),
        Bar(
            requirement=f"{point}: p50 with sync os (us)",
            value=report.row(OURS_OS, point).p50_us,
            bar=WITHOUT_FDATASYNC_US,
            at_most=True,
        ),
        Bar(
            requirement=f"{point}: p50 with fsync / JetStream sync always",
            value=synced.p50_us / report.row(PEER_ALWAYS, point).p50_us,
        ),
    ]
