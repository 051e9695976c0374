"""Memory of Spark while it reads: driver and Python workers, on a stream and on one four times as long.

The longer one is read first: Java keeps what its heap has grown to, and is not to be charged for that later.
"""

import os
import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from benchmarks.measurement import tell
from benchmarks.process_stats import ProcessSample, descendants
from benchmarks.report import MIB, Bar, Report, Row, Settings, new_report
from benchmarks.spark_jobs import missing_rows, to_nowhere
from benchmarks.spark_scene import MASTER, PARTITIONS, SparkScene, StoredRows, filled, spark_scene

SIZE_BYTES: Final = 1024
ROWS: Final = 250_000
ROWS_QUICK: Final = 50_000
TIMES_LONGER: Final = 4
SAMPLE_SECONDS: Final = 0.05

SHORT: Final = "a stream"
LONG: Final = "four times as long"
WORKERS_MAX: Final = 1.15
ALL_MAX: Final = 1.1
"""Of the peak on the short stream, the peak on the long one."""

_PYTHON: Final = "Python workers MiB"
_ALL: Final = "all MiB"


@dataclass(slots=True)
class Peaks:
    """The largest sums of resident bytes, of samples of all processes at once."""

    workers: int = 0
    everything: int = 0
    samples: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def watch(self, nobody: Sequence[int]) -> None:
        """Sample until `stop`: this process and those below it, but for those of ``nobody``."""
        while not self._stop.wait(SAMPLE_SECONDS):
            found = _resident(nobody)
            self.workers = max(self.workers, found[_PYTHON])
            self.everything = max(self.everything, found[_ALL])
            self.samples += 1

    def stop(self) -> None:
        """End `watch`."""
        self._stop.set()


def run(settings: Settings) -> Report:
    """Read both, again and again, and look at the peaks."""
    count = ROWS_QUICK if settings.quick else ROWS
    with spark_scene(settings.directory / "spark") as scene:
        streams = {
            LONG: filled(scene, "long", TIMES_LONGER * count, SIZE_BYTES),
            SHORT: filled(scene, "short", count, SIZE_BYTES),
        }
        problems = {name: missing_rows(scene.read(stored.stream), stored) for name, stored in streams.items()}
        peaks: dict[str, list[Peaks]] = {name: [] for name in streams}
        for _ in range(settings.runs):
            for name, stored in streams.items():
                peaks[name].append(_peaks(scene, stored))
                last = peaks[name][-1]
                tell(f"{name}: workers {last.workers / MIB:,.0f} MiB, all {last.everything / MIB:,.0f} MiB")
    rows = [_row(name, stored, peaks[name], problems[name]) for name, stored in streams.items()]
    report = new_report(
        "spark_memory",
        settings,
        rows,
        rate_unit="rows",
        master=MASTER,
        partitions=PARTITIONS,
        rows_of_the_shorter=count,
    )
    return report.model_copy(update={"bars": _bars(report)})


def _peaks(scene: SparkScene, stored: StoredRows) -> Peaks:
    with _watched(scene) as peaks:
        to_nowhere(scene.read(stored.stream))
    assert peaks.samples, "a read takes longer than a sample"
    return peaks


@contextmanager
def _watched(scene: SparkScene) -> Iterator[Peaks]:
    """Watch everything that this process has started, but the node and its NATS server."""
    peaks = Peaks()
    thread = threading.Thread(target=peaks.watch, args=((scene.node_pid, scene.nats_pid),), name="memory")
    thread.start()
    try:
        yield peaks
    finally:
        peaks.stop()
        thread.join()


def _resident(nobody: Sequence[int]) -> dict[str, int]:
    """Return resident bytes: of Python below Java, and of everything."""
    own = os.getpid()
    sums = {_PYTHON: 0, _ALL: ProcessSample.of(own).resident_bytes}
    for pid, parent in descendants(own).items():
        if pid in nobody:
            continue
        try:
            size = ProcessSample.of(pid).resident_bytes
        except (ProcessLookupError, FileNotFoundError):
            continue  # it has ended meanwhile
        sums[_ALL] += size
        if parent != own:
            sums[_PYTHON] += size
    return sums


def _row(name: str, stored: StoredRows, peaks: Sequence[Peaks], problem: str | None) -> Row:
    return Row(
        system="driver and workers",
        point=name,
        rate=stored.rows,
        rate_min=stored.rows,
        rate_max=stored.rows,
        details={
            _PYTHON: statistics.median(peak.workers for peak in peaks) / MIB,
            _ALL: statistics.median(peak.everything for peak in peaks) / MIB,
        },
        problems=[problem] if problem else [],
        runs=[{_PYTHON: peak.workers / MIB, _ALL: peak.everything / MIB} for peak in peaks],
    )


def _bars(report: Report) -> list[Bar]:
    short, long = (report.row("driver and workers", name).details for name in (SHORT, LONG))
    return [
        Bar(
            requirement=f"peak of the Python workers, {LONG} / {SHORT}",
            value=long[_PYTHON] / short[_PYTHON],
            bar=WORKERS_MAX,
            at_most=True,
        ),
        Bar(
            requirement=f"peak of driver and workers together, {LONG} / {SHORT}",
            value=long[_ALL] / short[_ALL],
            bar=ALL_MAX,
            at_most=True,
        ),
    ]
