"""Memory of a node under sustained load: resident size once a second, flat by regression.

The stream keeps its last GiB, as a stream that runs for ever would: the index of a log is held in memory, so
without retention a node's memory follows the number of stored batches.
"""

import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from benchmarks.loadgen import Load
from benchmarks.measurement import Case, interleaved, tell
from benchmarks.process_stats import ProcessSample
from benchmarks.report import MIB, Bar, Report, Settings, new_report, rows_of
from benchmarks.systems import OURS_ALWAYS, Laboratory

SECONDS_DEFAULT: Final = 600.0
IN_FLIGHT: Final = 1000
SIZE_BYTES: Final = 128
RETENTION_BYTES: Final = 1024 * MIB
SEGMENT_BYTES: Final = 64 * MIB
RESIDENT_MIB_MAX: Final = 300.0
GROWTH_MIB_MAX: Final = 10.0
SETTLED_FROM: Final = 0.25
"""Share of the run after which buffers, windows and retention have reached their size."""
SAMPLE_SECONDS: Final = 1.0
TELL_EVERY: Final = 30


@dataclass(slots=True)
class Memory:
    """Resident bytes of one process over time."""

    pid: int
    seconds: list[float] = field(default_factory=list)
    samples: list[ProcessSample] = field(default_factory=list)

    def settled_growth_mib(self) -> float:
        """Return the growth over the settled part of the run by a fitted line, in MiB."""
        first = int(len(self.seconds) * SETTLED_FROM)
        return fitted_growth(self.seconds[first:], [s.resident_bytes / MIB for s in self.samples[first:]])

    def resident_mib_max(self) -> float:
        """Return the largest resident size seen, in MiB."""
        return max(sample.resident_bytes for sample in self.samples) / MIB


def fitted_growth(seconds: Sequence[float], values: Sequence[float]) -> float:
    """Return what a least-squares line through the points rises from the first to the last."""
    if len(seconds) < 2:
        return 0.0
    slope = statistics.linear_regression(seconds, values).slope
    return slope * (seconds[-1] - seconds[0])


def run(settings: Settings) -> Report:
    """Load one stream for ``settings.seconds`` and watch the node's memory."""
    stream = {"retention": {"bytes": RETENTION_BYTES}, "segment_bytes": SEGMENT_BYTES}
    load = Load(1, IN_FLIGHT, SIZE_BYTES, seconds=settings.seconds, warmup_seconds=settings.warmup_seconds)
    with Laboratory(settings.directory / "systems") as laboratory:
        case = Case(laboratory.system(OURS_ALWAYS, **stream), f"{SIZE_BYTES} B", load)
        with watched_memory(case.system.processes["node"]) as memory:
            measurements = interleaved([case], runs=1)
    report = new_report(
        "soak",
        settings,
        rows_of([case], measurements),
        in_flight=IN_FLIGHT,
        retention_bytes=RETENTION_BYTES,
        segment_bytes=SEGMENT_BYTES,
        resident_mib=[round(sample.resident_bytes / MIB, 1) for sample in memory.samples],
        anonymous_mib=[round(sample.anonymous_bytes / MIB, 1) for sample in memory.samples],
    )
    bars = [
        Bar(
            requirement="RSS of the node, highest (MiB)",
            value=memory.resident_mib_max(),
            bar=RESIDENT_MIB_MAX,
            at_most=True,
        ),
        Bar(
            requirement="growth of the RSS over the settled part of the run, by regression (MiB)",
            value=memory.settled_growth_mib(),
            bar=GROWTH_MIB_MAX,
            at_most=True,
        ),
    ]
    return report.model_copy(update={"bars": bars})


@contextmanager
def watched_memory(pid: int) -> Iterator[Memory]:
    """Sample the process on a thread while the block runs."""
    memory = Memory(pid)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_SECONDS):
            memory.seconds.append(len(memory.seconds) * SAMPLE_SECONDS)
            memory.samples.append(ProcessSample.of(pid))
            if len(memory.samples) % TELL_EVERY == 0:
                tell(f"{len(memory.samples)} s: RSS {memory.samples[-1].resident_bytes / MIB:,.1f} MiB")

    thread = threading.Thread(target=watch, name="memory")
    thread.start()
    try:
        yield memory
    finally:
        done.set()
        thread.join()
