"""Results as JSON and as tables: medians with their spread, every run, each bar with pass or miss."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from benchmarks import machine
from benchmarks.loadgen import FsyncResult
from benchmarks.measurement import Case, Measurement, median

GENERATOR_BUSY: Final = 0.9
"""Above this share of a core the generator may be what limits a rate."""
MIB: Final = 1024 * 1024

Verdict = Literal["pass", "MISS", "stated"]


class Bar(BaseModel):
    """One number the project has to reach; a ``goal`` is wished for, not required."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requirement: str
    value: float
    bar: float | None = None
    at_most: bool = False
    goal: bool = False

    @property
    def verdict(self) -> Verdict:
        """Say whether the value reaches the bar; without a bar the value is only stated."""
        if self.bar is None:
            return "stated"
        reached = self.value <= self.bar if self.at_most else self.value >= self.bar
        return "pass" if reached else "MISS"


class Row(BaseModel):
    """Repeated runs of one case."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    system: str
    point: str
    rate: float
    rate_min: float
    rate_max: float
    p50_us: float = 0.0
    p99_us: float = 0.0
    """0 where nothing was timed one by one: tables leave it out."""
    details: dict[str, float] = {}
    """Medians of what else was seen, by column name."""
    problems: list[str] = []
    runs: list[dict[str, Any]] = []


class Report(BaseModel):
    """Everything one benchmark has to say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    benchmark: str
    rate_unit: str = "acked msg/s"
    code: dict[str, Any]
    machine: dict[str, Any]
    parameters: dict[str, Any]
    rows: list[Row]
    bars: list[Bar]
    warnings: list[str] = []

    @property
    def problems(self) -> list[str]:
        """Every reason why a number does not stand."""
        return [f"{row.system}, {row.point}: {problem}" for row in self.rows for problem in row.problems]

    @property
    def missed(self) -> list[Bar]:
        """The required bars that were not reached."""
        return [bar for bar in self.bars if bar.verdict == "MISS" and not bar.goal]

    def row(self, system: str, point: str) -> Row:
        """Return the row of one case."""
        return next(row for row in self.rows if (row.system, row.point) == (system, point))


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line asks of every benchmark."""

    directory: Path
    seconds: float
    warmup_seconds: float
    runs: int
    quick: bool


def new_report(
    name: str,
    settings: Settings,
    rows: Sequence[Row],
    *,
    rate_unit: str = "acked msg/s",
    **parameters: object,
) -> Report:
    """Describe the machine, the code and the parameters around the rows; bars are added by the caller."""
    described = machine.describe(settings.directory)
    shared = {"seconds": settings.seconds, "warmup_seconds": settings.warmup_seconds, "runs": settings.runs}
    return Report(
        benchmark=name,
        rate_unit=rate_unit,
        code=machine.describe_code(),
        machine=described,
        parameters=shared | {"quick": settings.quick} | parameters,
        rows=list(rows),
        bars=[],
        warnings=_warnings(settings, rows),
    )


def rows_of(cases: Sequence[Case], measurements: Sequence[Measurement]) -> list[Row]:
    """Fold the measurements of each case into a row, in the order of the cases."""
    return [
        _row([m for m in measurements if (m.system, m.point) == (case.system.name, case.point)])
        for case in cases
    ]


def fsync_row(point: str, results: Sequence[FsyncResult], **details: float) -> Row:
    """Fold the runs of a raw write + fdatasync loop into a row; its rate is in syncs per second."""
    rates = [result.rate for result in results]
    return Row(
        system="write + fdatasync",
        point=point,
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        p50_us=statistics.median(result.duration["p50"] for result in results),
        p99_us=statistics.median(result.duration["p99"] for result in results),
        details=details,
        runs=[asdict(result) for result in results],
    )


def as_markdown(report: Report) -> str:
    """Render the report as GitHub tables, for people and for benchmarks/results."""
    parts = [f"### {report.benchmark}", "", *_provenance(report), "", *_table(*_row_cells(report))]
    if report.bars:
        parts += [
            "",
            *_table(["bar", "measured", "required", "verdict"], [_bar_cells(b) for b in report.bars]),
        ]
    parts += [f"\nProblem: {problem}" for problem in report.problems]
    parts += [f"\nWarning: {warning}" for warning in report.warnings]
    return "\n".join(parts) + "\n"


def _provenance(report: Report) -> list[str]:
    """Which code ran where, with which parameters; series (a soak's samples) stay in the JSON."""
    code, place = report.code, report.machine
    changed = " with changes" if code["changed"] else ""
    short = {key: value for key, value in report.parameters.items() if not isinstance(value, list)}
    software = f"kernel {place['kernel']}, {place['nats_server']}, Python {place['python']}"
    if "python_loop_ns" in place:  # results of before do not tell
        software += f" ({place['python_loop_ns']} ns a round of its loop)"
    return [
        f"Commit {str(code['commit'])[:12]}{changed} ({code['date']}).",
        f"{place['cores']} cores {place['cpu']}, {place['filesystem']['type']}, {software}.",
        ", ".join(f"{key} {value}" for key, value in short.items()) + ".",
    ]


def _row(runs: Sequence[Measurement]) -> Row:
    rates = [run.result.rate for run in runs]
    return Row(
        system=runs[0].system,
        point=runs[0].point,
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        p50_us=median(runs, lambda run: run.result.latency["p50"]),
        p99_us=median(runs, lambda run: run.result.latency["p99"]),
        details=_details(runs),
        problems=sorted({run.problem for run in runs if run.problem}),
        runs=[asdict(run) for run in runs],
    )


def _details(runs: Sequence[Measurement]) -> dict[str, float]:
    details: dict[str, float] = {}
    for group in runs[0].groups:
        details[f"{group} CPU us/msg"] = statistics.median(run.cpu_us(group) for run in runs)
        details[f"{group} RSS MiB"] = statistics.median(run.resident_bytes(group) / MIB for run in runs)
    details["all servers CPU us/msg"] = median(runs, lambda run: run.cpu_us())
    details["generator CPU cores"] = median(runs, lambda run: run.result.cpu_share)
    details["other CPU cores"] = median(runs, lambda run: run.other_cpu_cores)
    in_sync = [run.holdings.in_sync for run in runs if run.holdings and run.holdings.in_sync is not None]
    if in_sync:
        details["in sync after, least"] = min(in_sync)
    sizes = [run.batch_messages for run in runs if run.batch_messages is not None]
    if sizes:
        details["messages a batch"] = statistics.median(sizes)
    if runs[0].result.fdatasync["count"]:
        details["fdatasync p50 us"] = median(runs, lambda run: run.result.fdatasync["p50"])
        details["fdatasync p99 us"] = median(runs, lambda run: run.result.fdatasync["p99"])
    return details


def _warnings(settings: Settings, rows: Sequence[Row]) -> list[str]:
    warnings = []
    filesystem = machine.mount_of(settings.directory)[1]
    if filesystem in machine.MEMORY_FILESYSTEMS:
        warnings.append(f"{settings.directory} lies in memory ({filesystem}): fdatasync costs nothing there")
    if settings.quick or settings.seconds < 10 or settings.runs < 3:
        warnings.append("a quick look: results need runs of at least 10 s, and three of them")
    warnings += [
        f"the generator used {share:.2f} of a core at {row.system}, {row.point}: it may be the limit"
        for row in rows
        if (share := row.details.get("generator CPU cores", 0.0)) > GENERATOR_BUSY
    ]
    return warnings


def _row_cells(report: Report) -> tuple[list[str], list[list[str]]]:
    columns: list[str] = []
    for row in report.rows:
        columns += [name for name in row.details if name not in columns]
    head = ["system", "load", report.rate_unit, "lowest to highest", "p50 us", "p99 us", *columns]
    body = [
        [
            row.system,
            row.point,
            f"{row.rate:,.0f}",
            f"{row.rate_min:,.0f} to {row.rate_max:,.0f}",
            f"{row.p50_us:,.0f}" if row.p50_us else "",
            f"{row.p99_us:,.0f}" if row.p99_us else "",
            *(_number(row.details.get(name)) for name in columns),
        ]
        for row in report.rows
    ]
    return head, body


def _bar_cells(bar: Bar) -> list[str]:
    required = "" if bar.bar is None else f"{'≤' if bar.at_most else '≥'} {_number(bar.bar)}"
    return [bar.requirement, _number(bar.value), f"{required}{' (goal)' if bar.goal else ''}", bar.verdict]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body)]
