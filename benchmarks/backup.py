"""Backup and restore of one large stream, beside `cp` of the same files: all cold, on one disk.

Both of ours return when everything is durable; `cp` returns before, and is timed with a sync behind it, too.
Between two copies the pages of what is to be read are dropped, and dirty ones written back.
"""

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.measurement import tell
from benchmarks.page_cache import drop
from benchmarks.readers import remove
from benchmarks.report import MIB, Bar, Report, Row, Settings, new_report
from benchmarks.stored import filled
from benchmarks.systems import OURS_ALWAYS, Laboratory, Ours

VALUES_BYTES: Final = 10 * 1024 * MIB
VALUES_BYTES_QUICK: Final = 512 * MIB
VALUE_BYTES: Final = 1024
OF_CP_MIN: Final = 0.7

BACKUP: Final = "backup"
RESTORE: Final = "restore"
CP: Final = "cp"
CP_SYNC: Final = "cp, sync"
OURS: Final = "ours"
AGAIN: Final = "backup of nothing new"


@dataclass(frozen=True, slots=True)
class Timed:
    """One copy: which way, of what, how many bytes, in how many seconds and seconds of CPU."""

    system: str
    point: str
    size: int
    seconds: float
    cpu_seconds: float


def run(settings: Settings) -> Report:
    """Fill a stream; copy it by `cp` and by a backup, the backup by `cp` and by a restore, in turn."""
    values_bytes = VALUES_BYTES_QUICK if settings.quick else VALUES_BYTES
    with Laboratory(settings.directory / "systems") as laboratory:
        system = laboratory.system(OURS_ALWAYS)
        assert isinstance(system, Ours), "only ours have backups"
        with filled(system, VALUE_BYTES, values_bytes):
            timed = [each for number in range(settings.runs) for each in _round(number, system, settings)]
    rows = [_row(system, point, timed) for system, point in dict.fromkeys((t.system, t.point) for t in timed)]
    report = new_report("backup", settings, rows, rate_unit="MiB/s", value_bytes=VALUE_BYTES)
    bars = [
        Bar(
            requirement=f"{point}: ours / {other} of the same round, median",
            value=_of(_seconds(timed, other, point), _seconds(timed, OURS, point)),
            bar=OF_CP_MIN,
        )
        for point in (BACKUP, RESTORE)
        for other in (CP, CP_SYNC)
    ]
    return report.model_copy(update={"bars": bars})


def _round(number: int, system: Ours, settings: Settings) -> Iterator[Timed]:
    [directory] = (system.data / "streams").glob("*@*")
    place, copy, data = (settings.directory / name for name in ("backups", "copy", "data"))
    command = (sys.executable, "-m", "jetstream")
    backup = (*command, "backup", str(place), "--nats", system.address.url)
    restore = (*command, "restore", str(place), "--data", str(data))
    measured: tuple[tuple[Callable[[], list[Timed]], Path | None], ...] = (
        (lambda: _copied(BACKUP, directory, copy), copy),
        (lambda: [Timed(OURS, BACKUP, *_timed(directory, backup))], None),
        (lambda: [Timed(OURS, AGAIN, *_timed(directory, backup))], None),
        (lambda: _copied(RESTORE, place, copy), copy),
        (lambda: [Timed(OURS, RESTORE, *_timed(place, restore))], data),
    )
    for measure, made in measured:
        for each in measure():
            tell(f"{number + 1}/{settings.runs}  {each.point}, {each.system}: {each.seconds:.1f} s")
            yield each
        if made is not None:
            remove(made)
    remove(place)


def _copied(point: str, source: Path, target: Path) -> list[Timed]:
    size, copied, cpu = _timed(source, ("cp", "-r", str(source), str(target)))
    begun = time.monotonic()
    subprocess.run(("sync", "-f", str(target)), check=True)
    synced = copied + time.monotonic() - begun
    return [Timed(CP, point, size, copied, cpu), Timed(CP_SYNC, point, size, synced, cpu)]


def _timed(source: Path, command: Sequence[str]) -> tuple[int, float, float]:
    """Run a command that copies what is not in memory; return bytes, seconds, seconds of CPU."""
    drop(_files(source))
    size = sum(path.stat().st_size for path in _files(source))
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return size, seconds, cpu


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def _seconds(timed: Sequence[Timed], system: str, point: str) -> list[float]:
    return [each.seconds for each in timed if (each.system, each.point) == (system, point)]


def _of(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Return the median ratio of two rates, which follow each other closely: the disk's own rate changes."""
    return statistics.median(other / own for other, own in zip(theirs, ours, strict=True))


def _row(system: str, point: str, timed: Sequence[Timed]) -> Row:
    same = [each for each in timed if (each.system, each.point) == (system, point)]
    rates = [each.size / MIB / each.seconds for each in same]
    return Row(
        system=system,
        point=point,
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        details={
            "MiB": same[0].size / MIB,
            "seconds": statistics.median(each.seconds for each in same),
            "CPU seconds": statistics.median(each.cpu_seconds for each in same),
        },
        runs=[
            {"seconds": each.seconds, "cpu_seconds": each.cpu_seconds, "rate": rate}
            for each, rate in zip(same, rates, strict=True)
        ],
    )
