"""Reader processes measured: all of them in the same window of the clock, beside the CPU of who serves them.

A reading counts only if the reader has verified it (`reader_process`) and if the page cache was, before it,
as the case says.
"""

import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import page_cache
from benchmarks.helper_process import HelperProcess, helper
from benchmarks.measurement import tell
from benchmarks.meter import Reading
from benchmarks.process_stats import ProcessSample, machine_busy_seconds
from benchmarks.report import MIB, Row, Settings

COVERED_MIN: Final = 0.5
"""Share of the window in which a reader must have received something."""
COLD_SHARE_MAX: Final = 0.03
"""Some folios in use at that moment are spared; of files of this size that is no more."""
CACHED_SHARE_MIN: Final = 0.99


@dataclass(frozen=True, slots=True)
class ReadCase:
    """Some readers of one kind; ``system`` and ``point`` name the case in tables."""

    system: str
    point: str
    words: tuple[object, ...]
    """Of the command line of `reader_process`, the kind first."""
    processes: Mapping[str, int]
    """Pids by role of who serves the readers."""
    size_bytes: int
    """Of one value."""
    readers: int = 1
    unit_bytes: float | None = None
    """Bytes of a record where the reader counts bytes; None where it counts records."""
    files: tuple[Path, ...] = ()
    """What has to be in the page cache before each run, or must not be in it."""
    cold: bool = False
    """Read once, from a page cache that holds nothing of the files."""


@dataclass(frozen=True, slots=True)
class ReadRun:
    """One run of one case."""

    rate: float
    """Records a second, all readers together."""
    readings: tuple[Reading, ...]
    cpu_ns: dict[str, float]
    """By role, for each record that was read."""
    reader_cpu_cores: float
    other_cpu_cores: float
    cached_share: float | None
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return everything, for the report."""
        return asdict(self)


def read_once(case: ReadCase, settings: Settings) -> ReadRun:
    """Run one case."""
    cached = _prepare(case)
    with ExitStack() as stack:
        readers = [
            stack.enter_context(helper("reader_process", *case.words, *(["--once"] if case.cold else [])))
            for _ in range(case.readers)
        ]
        for reader in readers:
            reader.hear("ready")
        watched = _watch_pass(readers, case) if case.cold else _watch_window(readers, case, settings)
    return _run(case, watched, cached)


def start_window(
    readers: Sequence[HelperProcess], begin_seconds: float, seconds: float
) -> tuple[float, float]:
    """Have readers that read measure ``seconds``, beginning ``begin_seconds`` from now.

    Returns both ends on the monotonic clock.
    """
    begin = time.monotonic() + begin_seconds
    for reader in readers:
        reader.say(int(begin * 1e9), int((begin + seconds) * 1e9))
    return begin, begin + seconds


def finish(readers: Sequence[HelperProcess]) -> tuple[Reading, ...]:
    """Wait for the readers' results."""
    return tuple(
        Reading.from_json({key: value for key, value in reader.hear("result").items() if key != "event"})
        for reader in readers
    )


def interleaved_reads(cases: Sequence[ReadCase], settings: Settings) -> list[Row]:
    """Run every case ``settings.runs`` times, all cases once before any is repeated; fold them into rows."""
    runs: list[list[ReadRun]] = [[] for _ in cases]
    for number in range(settings.runs):
        for case, done in zip(cases, runs, strict=True):
            run = read_once(case, settings)
            done.append(run)
            spent = ", ".join(f"{role} {ns:,.0f} ns" for role, ns in run.cpu_ns.items())
            text = f"{number + 1}/{settings.runs}  {case.system:34} {case.point:24} {run.rate:>12,.0f}/s"
            tell(f"{text}  {spent}" + (f"  PROBLEM: {run.problem}" if run.problem else ""))
    return [read_row(case, done) for case, done in zip(cases, runs, strict=True)]


def read_row(case: ReadCase, runs: Sequence[ReadRun]) -> Row:
    """Fold the runs of a case into medians."""
    rates = [run.rate for run in runs]
    rate = statistics.median(rates)
    details = {"values MiB/s": rate * case.size_bytes / MIB}
    for role in runs[0].cpu_ns:
        details[f"{role} CPU ns/record"] = statistics.median(run.cpu_ns[role] for run in runs)
    details["readers' CPU cores"] = statistics.median(run.reader_cpu_cores for run in runs)
    details["other CPU cores"] = statistics.median(run.other_cpu_cores for run in runs)
    shares = [run.cached_share for run in runs if run.cached_share is not None]
    if shares:
        details["cached before, %"] = 100 * statistics.median(shares)
    return Row(
        system=case.system,
        point=case.point,
        rate=rate,
        rate_min=min(rates),
        rate_max=max(rates),
        details=details,
        problems=sorted({run.problem for run in runs if run.problem}),
        runs=[run.as_json() for run in runs],
    )


def remove(directory: Path) -> None:
    """Give the disk back what systems that have ended left there."""
    shutil.rmtree(directory)


@dataclass(frozen=True, slots=True)
class _Sample:
    processes: dict[str, ProcessSample]
    busy_seconds: float
    moment: float

    @classmethod
    def of(cls, pids: Mapping[str, int]) -> "_Sample":
        processes = {role: ProcessSample.of(pid) for role, pid in pids.items()}
        return cls(processes, machine_busy_seconds(), time.monotonic())


@dataclass(frozen=True, slots=True)
class _Watched:
    """Readings, and the counters at both ends of what was measured."""

    start: _Sample
    end: _Sample
    readings: tuple[Reading, ...]

    @property
    def seconds(self) -> float:
        return self.end.moment - self.start.moment


def _prepare(case: ReadCase) -> float | None:
    """Bring the page cache into the state of the case; return which share of the files it holds."""
    if not case.files:
        return None
    if case.cold:
        page_cache.drop(case.files)
    else:
        page_cache.warm(case.files)
    return page_cache.resident_share(case.files)


def _watch_pass(readers: Sequence[HelperProcess], case: ReadCase) -> _Watched:
    """Let the readers read everything once."""
    start = _Sample.of(case.processes)
    for reader in readers:
        reader.say("now")
    readings = finish(readers)
    return _Watched(start, _Sample.of(case.processes), readings)


def _watch_window(readers: Sequence[HelperProcess], case: ReadCase, settings: Settings) -> _Watched:
    """Let the readers measure a window."""
    begin, end = start_window(readers, settings.warmup_seconds, settings.seconds)
    samples = _sample_at(begin, case), _sample_at(end, case)
    return _Watched(*samples, finish(readers))


def _sample_at(moment: float, case: ReadCase) -> _Sample:
    time.sleep(max(0.0, moment - time.monotonic()))
    return _Sample.of(case.processes)


def _run(case: ReadCase, watched: _Watched, cached: float | None) -> ReadRun:
    readings, start, end = watched.readings, watched.start, watched.end
    unit = case.unit_bytes or 1.0
    rate = sum(reading.rate for reading in readings) / unit
    # Readers open their windows at an arrival, servers are sampled by the clock: nearly the same time.
    served = sum(r.amount for r in readings) / unit if case.cold else rate * watched.seconds
    spent = {
        role: end.processes[role].cpu_seconds - start.processes[role].cpu_seconds for role in case.processes
    }
    known = sum(spent.values()) + sum(reading.cpu_seconds for reading in readings)
    return ReadRun(
        rate=rate,
        readings=readings,
        cpu_ns={role: 1e9 * cpu / max(1.0, served) for role, cpu in spent.items()},
        reader_cpu_cores=sum(r.cpu_seconds / r.seconds for r in readings if r.seconds),
        other_cpu_cores=max(0.0, end.busy_seconds - start.busy_seconds - known) / watched.seconds,
        cached_share=cached,
        problem=problem_of(case, readings, cached, watched.seconds),
    )


def problem_of(
    case: ReadCase, readings: Sequence[Reading], cached: float | None, seconds: float
) -> str | None:
    """Say why a run of ``seconds`` does not stand; None if everything that was read is verified."""
    for reading in readings:
        if problem := reading.problem or _too_little(case, reading, seconds):
            return problem
    if cached is not None and case.cold and cached > COLD_SHARE_MAX:
        return f"{cached:.0%} of the files were cached before a cold pass"
    if cached is not None and not case.cold and cached < CACHED_SHARE_MIN:
        return f"only {cached:.0%} of the files were cached"
    return None


def _too_little(case: ReadCase, reading: Reading, seconds: float) -> str | None:
    if not reading.amount:
        return "a reader received nothing"
    if case.cold:
        return None if reading.passes == 1 else "a cold pass was not finished"
    if reading.seconds < COVERED_MIN * seconds:
        return f"a reader received something in {reading.seconds:.1f} of {seconds:.1f} s only"
    return None
