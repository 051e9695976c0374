"""Cursors that consumers of groups commit, durable when acked: on one node and on three, all in one shard.

Beside it in the same run: plain cursors published on NATS, as many at once, and the disk alone. Consumers
beat while they commit. A commit is acked when it is synced on every replica of its shard.
"""

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from typing import Final

from nats.aio.client import Client

from benchmarks.clusters import eventually
from benchmarks.group_members import groups_of
from benchmarks.group_nodes import ONE, THREE, GroupNodes, group_nodes
from benchmarks.helper_process import helper
from benchmarks.loadgen import Load, LoadResult, publish
from benchmarks.measurement import raw_fsync, tell
from benchmarks.process_stats import ProcessSample, machine_busy_seconds
from benchmarks.processes import API_PREFIX
from benchmarks.report import Bar, Report, Row, Settings, fsync_row, new_report
from benchmarks.systems import ask, each
from envelope.internal_streams import CURSORS, GROUP_SHARDS
from envelope.types import StreamName

SHARD: Final = StreamName(f"{CURSORS}/{GROUP_SHARDS - 1}")
"""All groups of a run are in it."""
CONSUMER: Final = "bench"
PAYLOAD: Final = b'{"offset":4611686018427387904,"incarnation":"01JD2Q3G6W8X0V4T5R7Y9ZBENCH"}'
CURSOR_BYTES: Final = 256
"""About what one cursor is in the log, framing included."""

CURSORS_MIN: Final = 20_000
"""A second, when clients send several in a request."""
REQUESTS_MIN: Final = 4_000
"""A second, of one cursor each."""
P50_MS_MAX: Final = 5.0
RATE: Final = 1_000.0


@dataclass(frozen=True, slots=True)
class Shape:
    """How consumers commit; ``rate`` in requests a second of all of them, None: each when it is acked."""

    consumers: int
    cursors: int
    rate: float | None = None

    @property
    def point(self) -> str:
        """What tables call it."""
        pace = "" if self.rate is None else f", {self.rate:,.0f} requests/s by the clock"
        return f"{self.consumers:,} consumers x {self.cursors}{pace}"


SEVERAL: Final = Shape(100, 10)
SINGLE: Final = Shape(1_000, 1)
CLOCKED: Final = Shape(1_000, 1, RATE)
QUICK: Final = {SEVERAL: Shape(20, 10), SINGLE: Shape(100, 1), CLOCKED: Shape(100, 1, RATE)}


@dataclass(frozen=True, slots=True)
class Commits:
    """One run of one load."""

    requests: int
    seconds: float
    cursors: int
    latency_us: dict[str, float]
    generator_cores: float
    cpu_seconds: dict[str, float]
    """By role; those of all followers together."""
    busy_seconds: float
    """Of all cores."""
    problem: str | None = None

    @property
    def rate(self) -> float:
        """Cursors acked a second."""
        return self.requests * self.cursors / self.seconds

    @property
    def other_cores(self) -> float:
        """Cores that neither system nor generator used: the kernel's own threads, and other people."""
        known = self.generator_cores * self.seconds + sum(self.cpu_seconds.values())
        return max(0.0, self.busy_seconds - known) / self.seconds

    def cpu_us(self, role: str) -> float:
        """Return the CPU time of a role for each request in microseconds."""
        return 1e6 * self.cpu_seconds[role] / max(1, self.requests)


class Meter:
    """CPU time of processes while the measured seconds run."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._samples: list[dict[str, float]] = []
        self._busy: list[float] = []

    def look(self, _event: str = "") -> None:
        """Take a sample; two are needed."""
        self._samples.append({role: ProcessSample.of(pid).cpu_seconds for role, pid in self._pids.items()})
        self._busy.append(machine_busy_seconds())

    @property
    def busy_seconds(self) -> float:
        """What all cores have spent between the two."""
        return self._busy[1] - self._busy[0]

    @property
    def spent(self) -> dict[str, float]:
        """Seconds between the two by the first words of the roles."""
        before, after = self._samples
        spent = dict.fromkeys((role.split()[0] for role in before), 0.0)
        for role in before:
            spent[role.split()[0]] += after[role] - before[role]
        return spent


Measure = Callable[[GroupNodes, Shape, Settings], Commits]


def run(settings: Settings) -> Report:
    """Commit in three ways on one node and on three."""
    shapes = {shape: QUICK[shape] if settings.quick else shape for shape in (SINGLE, SEVERAL, CLOCKED)}
    found: dict[tuple[str, Shape], list[Commits]] = {}
    fsyncs = raw_fsync(settings.directory, [CURSOR_BYTES], settings.seconds, settings.runs)
    with ExitStack() as stack:
        systems = [stack.enter_context(group_nodes(name, settings.directory / name)) for name in (ONE, THREE)]
        for nodes in systems:
            nodes.create_streams(_streams(max(shape.cursors for shape in shapes.values())))
            _create_plain(nodes)
        for number in range(settings.runs):
            for shape, used in shapes.items():
                for nodes, measure in product(systems, MEASURES):
                    commits = MEASURES[measure](nodes, used, settings)
                    name = f"{nodes.name}{measure}"
                    found.setdefault((name, shape), []).append(commits)
                    tell(f"{number + 1}/{settings.runs}  {name:32} {used.point:46} {_brief(commits)}")
    rows = [_row(name, shapes[shape], runs) for (name, shape), runs in found.items()]
    rows.append(fsync_row(f"{CURSOR_BYTES} B", fsyncs[CURSOR_BYTES]))
    report = new_report("groups", settings, rows, rate_unit="cursors/s")
    bars = [bar for name in (ONE, THREE) for bar in _bars(report, name, shapes)]
    return report.model_copy(update={"bars": bars})


# --- consumers of groups -----------------------------------------------------------------------------


def commit(nodes: GroupNodes, shape: Shape, settings: Settings) -> Commits:
    """Let consumers of groups commit, all in one shard."""
    (group,) = groups_of(SHARD, 1)
    coordinator = nodes.coordinator(group)
    words = ("--address", nodes.sockets[coordinator], "--shard", SHARD, "--consumers", shape.consumers)
    with helper("committers", *words, "--streams", ",".join(_streams(shape.cursors))) as committers:
        committers.hear("joined")
        kind, rate = ("closed", "") if shape.rate is None else ("open", shape.rate)
        meter = Meter(nodes.roles(coordinator))
        committers.say(kind, settings.seconds, settings.warmup_seconds, rate)
        for event in ("measuring", "measured"):
            committers.hear(event)
            meter.look()
        result = committers.hear("result")
        committers.hear("left")
    problem = result["problem"]
    if nodes.coordinator(group) != coordinator:
        problem = "another node coordinates the groups than at the beginning"
    return Commits(
        requests=result["acked"],
        seconds=settings.seconds,
        cursors=shape.cursors,
        latency_us=result["latency_us"],
        generator_cores=result["cpu_seconds"] / settings.seconds,
        cpu_seconds=meter.spent,
        busy_seconds=meter.busy_seconds,
        problem=problem,
    )


def _streams(count: int) -> list[str]:
    return [f"GROUPS-{number}" for number in range(count)]


# --- plain cursors -----------------------------------------------------------------------------------


def commit_plain(nodes: GroupNodes, shape: Shape, settings: Settings) -> Commits:
    """Publish plain cursors, as many at once, each of a stream of its own name."""
    payload = settings.directory / "cursor.json"
    payload.write_bytes(PAYLOAD)
    by_the_clock = shape.rate is not None
    load = Load(
        connections=1 if by_the_clock else shape.consumers,
        window=shape.consumers if by_the_clock else shape.cursors,
        size_bytes=len(PAYLOAD),
        subjects=shape.consumers,
        seconds=settings.seconds,
        warmup_seconds=settings.warmup_seconds,
        rate=shape.rate,
        payload=payload,
    )
    before, leader = _plain_records(nodes)
    meter = Meter(nodes.roles(leader))
    result = publish(nodes.address, f"{API_PREFIX}.cursors.plain.{CONSUMER}", load, meter.look)
    stored = _plain_records(nodes)[0] - before
    return Commits(
        requests=result.measured,
        seconds=result.seconds,
        cursors=1,
        latency_us={name: result.latency[name] for name in ("p50", "p90", "p99", "max")},
        generator_cores=result.cpu_share,
        cpu_seconds=meter.spent,
        busy_seconds=meter.busy_seconds,
        problem=_plain_problem(result, stored),
    )


def _create_plain(nodes: GroupNodes) -> None:
    """Have the stream of plain cursors made: the first question for one does it."""

    async def made(client: Client, body: dict[str, str]) -> None:
        await eventually("the stream of cursors", lambda: ask(client, "cursor.get", body))

    each(nodes.address, [{"consumer": CONSUMER, "stream": "0"}], made)
    nodes.until_whole(CURSORS)


def _plain_records(nodes: GroupNodes) -> tuple[int, str]:
    """Return the end of the stream of plain cursors, and who leads it."""
    (info,) = each(nodes.address, [{"name": CURSORS}], lambda client, body: ask(client, "stream.info", body))
    return int(info["log_end_offset"]), str(info["leader"])


def _plain_problem(result: LoadResult, stored: int) -> str | None:
    if result.errors or result.unanswered or result.no_responders:
        return f"{result.errors} refused, {result.unanswered} unanswered: {result.first_error}"
    return None if stored == result.acked else f"{result.acked} acked, {stored} stored"


MEASURES: Final[dict[str, Measure]] = {"": commit, ", plain cursors": commit_plain}
"""By what is added to the system's name."""


# --- the report --------------------------------------------------------------------------------------


def _brief(commits: Commits) -> str:
    p50_ms, coordinator = commits.latency_us["p50"] / 1e3, commits.cpu_us("coordinator")
    return f"{commits.rate:>8,.0f} cursors/s, p50 {p50_ms:.2f} ms, coordinator {coordinator:.0f} us/request"


def _row(name: str, shape: Shape, runs: list[Commits]) -> Row:
    rates = [one.rate for one in runs]
    details = {"requests/s": statistics.median(one.requests / one.seconds for one in runs)}
    for role in runs[0].cpu_seconds:
        details[f"{role} CPU us/request"] = statistics.median(one.cpu_us(role) for one in runs)
    details["generator CPU cores"] = statistics.median(one.generator_cores for one in runs)
    details["other CPU cores"] = statistics.median(one.other_cores for one in runs)
    return Row(
        system=name,
        point=shape.point,
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        p50_us=statistics.median(one.latency_us["p50"] for one in runs),
        p99_us=statistics.median(one.latency_us["p99"] for one in runs),
        details=details,
        problems=sorted({one.problem for one in runs if one.problem}),
        runs=[asdict(one) for one in runs],
    )


def _bars(report: Report, name: str, shapes: dict[Shape, Shape]) -> list[Bar]:
    several, single, clocked = (report.row(name, shapes[shape].point) for shape in (SEVERAL, SINGLE, CLOCKED))
    plain = report.row(f"{name}, plain cursors", single.point)
    fsyncs = report.row("write + fdatasync", f"{CURSOR_BYTES} B")
    return [
        Bar(requirement=f"{name}, {several.point}: cursors/s", value=several.rate, bar=CURSORS_MIN),
        Bar(requirement=f"{name}, {single.point}: requests/s", value=single.rate, bar=REQUESTS_MIN),
        Bar(
            requirement=f"{name}, {clocked.point}: p50 (ms)",
            value=clocked.p50_us / 1e3,
            bar=P50_MS_MAX,
            at_most=True,
        ),
        Bar(requirement=f"{name}, {single.point}: of plain cursors", value=single.rate / plain.rate),
        Bar(requirement=f"{name}, {single.point}: of bare fsyncs", value=single.rate / fsyncs.rate),
    ]
