"""What very many groups cost in which nothing happens: the CPU of the node that coordinates them all.

1,000 groups of 10 members on 100 connections: a connection has 100 members, beats for all of them in one
request, waits 3 s for news in vain, and beats again. The same node without members stands beside.
"""

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks.group_members import HEARTBEAT_MS, find_coordinator, groups_of
from benchmarks.group_nodes import ONE, group_nodes
from benchmarks.helper_process import HelperProcess, helper
from benchmarks.measurement import tell
from benchmarks.process_stats import ProcessSample
from benchmarks.report import MIB, Bar, Report, Row, Settings, new_report
from envelope.internal_streams import GROUP_SHARD_STREAMS

SETTLE_SECONDS_MAX: Final = 300.0
SECONDS_MIN: Final = 30.0
"""Of a run that is no look: ten heartbeats of each connection."""
STREAMS: Final = 10
CPU_PERCENT_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who is there."""

    groups: int
    members: int
    """Of each group."""
    connections: int

    @property
    def point(self) -> str:
        """What tables call it."""
        return f"{self.groups:,} groups x {self.members} members on {self.connections} connections"


NOBODY: Final = "nobody"
CROWD: Final = Crowd(1_000, 10, 100)
QUICK: Final = Crowd(100, 10, 10)


@dataclass(frozen=True, slots=True)
class Idling:
    """What the node spent in some seconds."""

    seconds: float
    cpu_seconds: float
    resident_bytes: int
    heartbeats: int = 0
    news: int = 0

    @property
    def cpu_percent(self) -> float:
        """Of one core."""
        return 100 * self.cpu_seconds / self.seconds


def run(settings: Settings) -> Report:
    """Let members beat, and look what the node spends; rates are heartbeats a second."""
    crowd = QUICK if settings.quick else CROWD
    seconds = settings.seconds if settings.quick else max(settings.seconds, SECONDS_MIN)
    streams = [f"IDLE-{number}" for number in range(STREAMS)]
    with group_nodes(ONE, settings.directory / "nodes") as nodes:
        ((name, socket),) = nodes.sockets.items()
        nodes.create_streams(streams)
        for shard in GROUP_SHARD_STREAMS:
            find_coordinator(socket, groups_of(shard, 1)[0])
        alone = [_watch(nodes.pids[name], seconds) for _ in range(settings.runs)]
        words = ("--groups", crowd.groups, "--members", crowd.members, "--connections", crowd.connections)
        with helper("idle_members", "--address", socket, *words, "--streams", ",".join(streams)) as members:
            settled = members.hear("idle", SETTLE_SECONDS_MAX)
            tell(f"{crowd.point}: idle after {settled['seconds']:.1f} s")
            beating = [_watch(nodes.pids[name], seconds, members) for _ in range(settings.runs)]
    rows = [_row(NOBODY, alone), _row(crowd.point, beating)]
    report = new_report(
        "groups_idle",
        settings,
        rows,
        rate_unit="heartbeats/s",
        heartbeat_ms=HEARTBEAT_MS,
        settled_seconds=round(settled["seconds"], 1),
        without_partitions=settled["without_partitions"],
    )
    bar = Bar(
        requirement=f"{crowd.point}: node CPU, % of a core",
        value=rows[1].details["node CPU %"],
        bar=CPU_PERCENT_MAX,
        at_most=True,
    )
    return report.model_copy(update={"bars": [bar]})


def _watch(pid: int, seconds: float, members: HelperProcess | None = None) -> Idling:
    answered = _answered(members)
    before, begun = ProcessSample.of(pid), time.monotonic()
    time.sleep(seconds)
    after, took = ProcessSample.of(pid), time.monotonic() - begun
    heartbeats, news = (now - then for now, then in zip(_answered(members), answered, strict=True))
    spent = after.cpu_seconds - before.cpu_seconds
    found = Idling(took, spent, after.resident_bytes, heartbeats, news)
    tell(f"{found.cpu_percent:.1f} % of a core, {heartbeats / took:.0f} heartbeats/s")
    return found


def _answered(members: HelperProcess | None) -> tuple[int, int]:
    """Return how many heartbeats were answered so far, and how much news they had."""
    if members is None:
        return 0, 0
    members.say("count")
    event = members.hear("answered")
    return event["heartbeats"], event["news"]


def _row(point: str, runs: list[Idling]) -> Row:
    rates = [run.heartbeats / run.seconds for run in runs]
    details = {
        "node CPU %": statistics.median(run.cpu_percent for run in runs),
        "node RSS MiB": statistics.median(run.resident_bytes for run in runs) / MIB,
    }
    return Row(
        system=ONE,
        point=point,
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        details=details,
        problems=sorted({f"{run.news} news in idle groups" for run in runs if run.news}),
        runs=[asdict(run) for run in runs],
    )
