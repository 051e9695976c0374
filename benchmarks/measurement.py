"""One measurement, and many of them interleaved: A B A B, medians over the rounds.

A measurement counts twice: what the generator says was acked must be what the streams hold, and the acked
sequences must be exactly 1…n of every stream. A number whose records cannot be accounted for is not a result.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.loadgen import FsyncResult, Load, LoadResult, fsync_loop, publish
from benchmarks.process_stats import ProcessSample, machine_busy_seconds
from benchmarks.systems import SUBJECT, Count, Holdings, System

SEQUENCE_MODULUS: Final = 1 << 64
"""The generator adds up sequences in 64 bits."""
STORED_SECONDS_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class Case:
    """A system under one load; ``point`` names the load in tables ("128 B", "32 x 4")."""

    system: System
    point: str
    load: Load


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """What one process of the system spent while the measured seconds ran, and held at their end."""

    cpu_seconds: float
    written_bytes: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of one case."""

    system: str
    point: str
    result: LoadResult
    costs: dict[str, ProcessCost]
    other_cpu_cores: float
    """Cores that neither the system nor the generator used: the kernel's own threads, and other people."""
    holdings: Holdings | None
    before: Holdings | None = None
    """What the streams held before the run; None is nothing."""

    @property
    def problem(self) -> str | None:
        """Say why the numbers do not stand; None if every message is accounted for."""
        result = self.result
        if result.errors or result.no_responders:
            return f"{result.errors} refused, {result.no_responders} without responder: {result.first_error}"
        if result.unanswered or result.stray or result.duplicates:
            return f"{result.unanswered} unanswered, {result.stray} stray, {result.duplicates} duplicates"
        if self.holdings is None or self.holdings.problem is not None:
            return None if self.holdings is None else self.holdings.problem
        before = (0,) * len(self.holdings.records) if self.before is None else self.before.records
        stored = sum(self.holdings.records) - sum(before)
        acked = result.acked * result.records
        if stored != acked:
            return f"{acked} acked, {stored} stored"
        if not result.asked:
            return None
        after_all = _sequence_sum(self.holdings.records, result.records)
        expected = (after_all - _sequence_sum(before, result.records)) % SEQUENCE_MODULUS
        return None if expected == result.sequence_sum else "the acked sequences are not 1…n of each stream"

    @property
    def batch_messages(self) -> float | None:
        """Mean messages in one stored batch; None where the system does not show it."""
        if self.holdings is None or not self.holdings.batches:
            return None
        if self.before is None or self.before.batches is None:
            return sum(self.holdings.records) / self.holdings.batches
        batches = self.holdings.batches - self.before.batches
        return (sum(self.holdings.records) - sum(self.before.records)) / batches if batches else None

    @property
    def groups(self) -> tuple[str, ...]:
        """The processes' roles by their first word: both followers of a stream are one group."""
        return tuple(dict.fromkeys(role.split()[0] for role in self.costs))

    def cpu_us(self, group: str | None = None) -> float:
        """Return the CPU time of a group, or of all, per acked message in microseconds."""
        cpu_seconds = sum(cost.cpu_seconds for cost in self._costs_of(group))
        return 1e6 * cpu_seconds / max(1, self.result.measured)

    def resident_bytes(self, group: str) -> int:
        """Return the resident memory of a group's processes together."""
        return sum(cost.resident_bytes for cost in self._costs_of(group))

    def _costs_of(self, group: str | None) -> list[ProcessCost]:
        return [cost for role, cost in self.costs.items() if group in (None, role.split()[0])]


def measure(case: Case) -> Measurement:
    """Run one case on fresh streams; everything it made dirty is on disk when this returns."""
    with case.system.streams(case.load.subjects) as count:
        measurement = measure_on(case, count)
    os.sync()  # the next system must not pay for this one's dirty pages
    return measurement


def measure_on(case: Case, count: Count, before: Holdings | None = None) -> Measurement:
    """Run one case on streams that are there and hold ``before``."""
    samples: list[dict[str, ProcessSample]] = []
    busy: list[float] = []

    def on_event(_event: str) -> None:
        samples.append({role: ProcessSample.of(pid) for role, pid in case.system.processes.items()})
        busy.append(machine_busy_seconds())

    result = publish(case.system.address, SUBJECT, case.load, on_event)
    holdings = count() if case.load.asks else _when_stored(count, result.acked, before)
    start, end = samples
    costs = {role: _cost(start[role], end[role]) for role in start}
    known = result.cpu_seconds + sum(cost.cpu_seconds for cost in costs.values())
    other = max(0.0, busy[1] - busy[0] - known) / result.seconds
    return Measurement(
        system=case.system.name,
        point=case.point,
        result=result,
        costs=costs,
        other_cpu_cores=other,
        holdings=holdings,
        before=before,
    )


def interleaved(cases: Sequence[Case], runs: int) -> list[Measurement]:
    """Measure every case ``runs`` times, all cases once before any is repeated."""
    measurements = []
    for number in range(runs):
        for case in cases:
            measurement = measure(case)
            measurements.append(measurement)
            tell(f"{number + 1}/{runs}  {case.system.name:26} {case.point:16} {_brief(measurement)}")
    return measurements


def raw_fsync(
    directory: Path, sizes: Sequence[int], seconds: float, runs: int
) -> dict[int, list[FsyncResult]]:
    """Measure write + fdatasync of each size in ``directory``, interleaved."""
    results: dict[int, list[FsyncResult]] = {size: [] for size in sizes}
    for number in range(runs):
        for size in sizes:
            result = fsync_loop(directory / "fsync", size, seconds, warmup_seconds=min(0.5, seconds))
            results[size].append(result)
            tell(f"{number + 1}/{runs}  write + fdatasync of {size:>8} B {result.rate:>10,.0f}/s")
    return results


def median(measurements: Sequence[Measurement], value: Callable[[Measurement], float]) -> float:
    """Return the median of one value over repeated runs."""
    return statistics.median(value(measurement) for measurement in measurements)


def tell(line: str) -> None:
    """Show progress on stderr; stdout is for results."""
    print(line, file=sys.stderr, flush=True)


def _when_stored(count: Count, messages: int, before: Holdings | None) -> Holdings | None:
    """Count when what nobody was told about has been stored as well, or will not be any more."""
    expected = messages + (sum(before.records) if before is not None else 0)
    deadline = time.monotonic() + STORED_SECONDS_MAX
    while (holdings := count()) is not None and sum(holdings.records) < expected:
        if time.monotonic() > deadline:
            break
    return holdings


def _sequence_sum(records: Sequence[int], each: int) -> int:
    """Return what the acked sequences of streams with so many records add up to: every ``each``-th of 1…n."""
    return sum(each * (n // each) * (n // each + 1) // 2 for n in records)


def _cost(before: ProcessSample, after: ProcessSample) -> ProcessCost:
    return ProcessCost(
        cpu_seconds=after.cpu_seconds - before.cpu_seconds,
        written_bytes=after.written_bytes - before.written_bytes,
        resident_bytes=after.resident_bytes,
    )


def _brief(measurement: Measurement) -> str:
    latency = measurement.result.latency
    spent = ", ".join(f"{group} {measurement.cpu_us(group):.2f} us" for group in measurement.groups)
    text = f"{measurement.result.rate:>10,.0f}/s  p50 {latency['p50']:>8,.0f} us  {spent}"
    return f"{text}  PROBLEM: {measurement.problem}" if measurement.problem else text
