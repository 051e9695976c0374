"""How long a stream with three copies has no leader: SIGKILL and SIGSTOP of its leader's process.

A publisher goes on by the clock through each change. An outage lasts from the last ack of the old leader to
the first one of the new; its parts come from the nodes' logs. The struck server comes back, and all three
copies are in sync, before the next one is struck.
"""

import asyncio
import os
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from nats.aio.client import Client

from benchmarks.clusters import Cluster, connected, eventually, until_whole
from benchmarks.helper_process import HelperProcess, helper
from benchmarks.measurement import tell
from benchmarks.outages import Ack, Outage, Strike, first_logged, outage
from benchmarks.processes import ProcessError
from benchmarks.replicated import OURS_ALWAYS, PEER_DEFAULT, running
from benchmarks.report import Bar, Report, Row, Settings, new_report
from benchmarks.wake_up import percentile

SYSTEMS: Final = (OURS_ALWAYS, PEER_DEFAULT)
KILLS_DEFAULT: Final = 30
KILLS_QUICK: Final = 2
STREAMS_AT_ONCE: Final = 3
"""One for each server to lead, if leaders are spread."""
_LOOK_SECONDS: Final = 10.0
"""How long a stream is looked at that seems to lack something."""
STREAMS_MAX: Final = 30

MILLISECONDS_MAX: Final[dict[str, dict[str, float]]] = {
    "SIGKILL, not the metadata leader": {"p50": 100, "p99": 500},
    "SIGKILL, metadata leader too": {"p99": 1200},
    "SIGSTOP, not the metadata leader": {"p99": 1500},
    "SIGSTOP, metadata leader too": {"p99": 1500},
}
"""Of an outage: what dies is noticed at once, what is frozen after ``leader_timeout`` of a second."""

_SEEN: Final = r" peer={server} is (dead|silent)"
_LED: Final = r" reign begun stream={stream} "


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to strike a leader; ``leads_metadata`` None takes any."""

    freezes: bool
    leads_metadata: bool | None

    @property
    def point(self) -> str:
        """What tables call it."""
        signal = "SIGSTOP" if self.freezes else "SIGKILL"
        which = {None: "", True: ", metadata leader too", False: ", not the metadata leader"}
        return f"{signal}{which[self.leads_metadata]}"


def run(settings: Settings, kills: int | None = None, ids: int = 0) -> Report:
    """Strike leaders, on ours and on JetStream.

    Args:
        settings: where and how.
        kills: how often ours is killed each way; it is frozen, and JetStream struck, 30 times at most.
        ids: messages with an id of their own that a stream has taken just before.
    """
    count = kills or (KILLS_QUICK if settings.quick else KILLS_DEFAULT)
    rows = []
    for name in SYSTEMS:
        choices = (True, False) if name == OURS_ALWAYS else (None,)
        kinds = [Kind(freezes, leads) for freezes in (False, True) for leads in choices]
        with running(name, settings.directory / name.replace(" ", "-"), "info") as cluster:
            found = asyncio.run(_strikes(cluster, kinds, count, ids))
        rows += [_row(name, kind, outages) for kind, outages in found.items()]
    report = new_report("failover", settings, rows, rate_unit="strikes", kills=count, ids=ids)
    return report.model_copy(update={"bars": [bar for row in rows for bar in _bars(row)]})


def _bars(row: Row) -> list[Bar]:
    most = MILLISECONDS_MAX.get(row.point, {}) if row.system == OURS_ALWAYS else {}
    return [
        Bar(
            requirement=f"{row.system}, {row.point}: {name} (ms)",
            value=value / 1e3,
            bar=most.get(name),
            at_most=True,
        )
        for name, value in (("p50", row.p50_us), ("p99", row.p99_us))
    ]


async def _strikes(cluster: Cluster, kinds: Sequence[Kind], count: int, ids: int) -> dict[Kind, list[Outage]]:
    """Strike in all the ways in turn, until each has had its share of ``count``."""
    found: dict[Kind, list[Outage]] = {kind: [] for kind in kinds}
    for number in range(count):
        for index, kind in enumerate(kinds):
            if number < _share(kind, count):
                one = await _strike(cluster, kind, f"FAIL-{number}-{index}", ids)
                found[kind].append(one)
                tell(f"{number + 1}/{_share(kind, count)}  {kind.point:36} {_brief(one)}")
    return found


def _share(kind: Kind, count: int) -> int:
    """Return how often a system is struck like this: more than a few times only where a p99 is asked for."""
    is_judged = not kind.freezes and kind.leads_metadata is not None
    return count if is_judged else min(count, KILLS_DEFAULT)


async def _strike(cluster: Cluster, kind: Kind, prefix: str, ids: int) -> Outage:
    """Strike the leader of a fresh stream, and wait until everything is as before."""
    async with connected(cluster.address(next(iter(cluster.servers)))) as client:
        names, stream, struck = await _chosen(cluster, client, kind, prefix)
    # A publisher on the struck server itself would have to find another one first.
    near = cluster.address(next(name for name in cluster.servers if name != struck))
    async with connected(near) as client:
        with helper("failover_publisher", "--url", near.url) as publisher:
            publisher.hear("ready")
            if ids:
                publisher.say("fill", stream.lower(), ids)
                publisher.hear("filled")
            publisher.say("watch", stream.lower())
            publisher.hear("flowing")
            if (await until_whole(cluster, client, stream)).leader != struck:
                raise ProcessError(f"{stream} is not led by {struck} any more, before anything was struck")
            strike = _struck(cluster, struck, kind)
            publisher.say("again", strike.ended_ns)
            publisher.hear("again")
            if kind.freezes:
                cluster.servers[struck].resume()
            else:
                cluster.servers[struck].start()
            await until_whole(cluster, client, stream)
            acks = _stopped(publisher)
        problem = await _missing(cluster, client, stream, acks)
        for name in names:
            await until_whole(cluster, client, name)
            await cluster.delete(client, name)
    seen, led = _logged(cluster, stream, struck, strike)
    return outage(strike, acks, seen, led, problem)


def _logged(cluster: Cluster, stream: str, struck: str, strike: Strike) -> tuple[int | None, int | None]:
    """Return when a survivor logged that the struck server is gone, and when one logged that it leads."""
    survivors = [server for name, server in cluster.servers.items() if name != struck]
    lines = [line for one in survivors for line in one.log.read_text(errors="replace").splitlines()]
    seen = first_logged(lines, re.compile(_SEEN.format(server=struck)), strike.begun_ns)
    led = first_logged(lines, re.compile(_LED.format(stream=stream)), strike.begun_ns)
    return seen, led


async def _chosen(cluster: Cluster, client: Client, kind: Kind, prefix: str) -> tuple[list[str], str, str]:
    """Create streams until one is led as ``kind`` asks; return all, the one, and its leader."""
    names: list[str] = []
    while len(names) < STREAMS_MAX:
        fresh = [f"{prefix}-{len(names) + index}" for index in range(STREAMS_AT_ONCE)]
        names += fresh
        for name in fresh:
            await cluster.create(client, name, name.lower(), {})
        places = {name: await until_whole(cluster, client, name) for name in fresh}
        if kind.leads_metadata is None:
            leads = None
        else:
            leads = await eventually("a metadata leader", lambda: cluster.metadata_leader(client))
        for name, place in places.items():
            if place.leader is not None and kind.leads_metadata in (None, place.leader == leads):
                return names, name, place.leader
    raise ProcessError(f"none of {len(names)} streams is led as asked: {kind.point}")


def _struck(cluster: Cluster, name: str, kind: Kind) -> Strike:
    """Send the signal, and wait until the process does nothing more."""
    server = cluster.servers[name]
    begun_ns = time.time_ns()
    if kind.freezes:
        server.pause()
        os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)
    else:
        server.kill()
    return Strike(begun_ns, time.time_ns())


def _stopped(publisher: HelperProcess) -> list[Ack]:
    publisher.say("stop")
    return [Ack(*fields) for fields in publisher.hear("watched")["acks"]]


async def _missing(cluster: Cluster, client: Client, stream: str, acks: Sequence[Ack]) -> str | None:
    """Say that an acked message cannot be in the stream any more.

    A former leader that has stood still may tell of what it has until it hears who leads.
    """
    highest = max(ack.sequence for ack in acks)
    records, looks_until = 0, time.monotonic() + _LOOK_SECONDS
    while records < highest and time.monotonic() < looks_until:
        records = await eventually("the stream's records", lambda: cluster.records(client, stream))
    return None if records >= highest else f"{highest} was acked, the stream holds {records}"


def _row(system: str, kind: Kind, outages: Sequence[Outage]) -> Row:
    whole = [one.whole_ms for one in outages]
    strikes = float(len(outages))
    parts = {
        "loss seen p50 ms": [one.seen_ms for one in outages],
        "then elected p50 ms": [one.elected_ms for one in outages],
        "then acked p50 ms": [one.acked_ms for one in outages],
    }
    details = {
        name: statistics.median(known)
        for name, values in parts.items()
        if (known := [value for value in values if value is not None])
    }
    return Row(
        system=system,
        point=kind.point,
        rate=strikes,
        rate_min=strikes,
        rate_max=strikes,
        p50_us=1e3 * percentile(whole, 0.5),
        p99_us=1e3 * percentile(whole, 0.99),
        details={"shortest ms": min(whole), "longest ms": max(whole)} | details,
        problems=sorted({one.problem for one in outages if one.problem is not None}),
        runs=[asdict(one) for one in outages],
    )


def _brief(one: Outage) -> str:
    parts = (one.seen_ms, one.elected_ms, one.acked_ms)
    text = " + ".join("?" if part is None else f"{part:,.0f}" for part in parts)
    return f"{one.whole_ms:>8,.0f} ms: {text}" + (f"  PROBLEM: {one.problem}" if one.problem else "")
