"""What a cluster costs that has nothing to do: its servers' CPU and loopback traffic, by number of streams.

Traffic is what passed the machine's loopback, whoever sent it; that of the machine without a cluster is taken
first and stands beside. Each packet counts once.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nats.aio.client import Client

from benchmarks.clusters import NAMES, Cluster, until_whole
from benchmarks.measurement import tell
from benchmarks.process_stats import ProcessSample
from benchmarks.replicated import OURS_ALWAYS, PEER_DEFAULT, running
from benchmarks.report import MIB, Bar, Report, Row, Settings, new_report
from benchmarks.systems import each, stream_name

COUNTS: Final = (1, 1000)
COUNTS_QUICK: Final = (1, 20)
SYSTEMS: Final = (OURS_ALWAYS, PEER_DEFAULT)
NOTHING: Final = "no cluster"
SETTLE_SECONDS: Final = 10.0
"""After the streams were created: checkpoints, elections and page-outs of their creation are over."""
GROWTH_MAX: Final = 2.0
"""How often more may be spent for all those streams than for one."""
LOOPBACK: Final = Path("/proc/net/dev")


@dataclass(frozen=True, slots=True)
class Idling:
    """What was spent in some seconds."""

    seconds: float
    cpu_seconds: dict[str, float]
    """By process."""
    resident_bytes: int
    bytes: int
    packets: int

    @property
    def cpu_percent(self) -> float:
        """CPU time of all processes, in percent of one core."""
        return 100 * sum(self.cpu_seconds.values()) / self.seconds


def run(settings: Settings) -> Report:
    """Leave clusters alone and look what they do; rates are packets a second."""
    counts = COUNTS_QUICK if settings.quick else COUNTS
    rows = [_row(NOTHING, "", [_watch({}, settings.seconds)])]
    for name in SYSTEMS:
        with running(name, settings.directory / name.replace(" ", "-")) as cluster:
            pids = {role: server.pid for role, server in cluster.servers.items()} | dict(cluster.others)
            for count in counts:
                with _streams(cluster, count):
                    time.sleep(min(SETTLE_SECONDS, settings.seconds))
                    runs = [_watch(pids, settings.seconds) for _ in range(settings.runs)]
                rows.append(_row(name, _point(count), runs))
                tell(f"{name}, {count}: {statistics.median(run.cpu_percent for run in runs):.1f} %")
    report = new_report("cluster_idle", settings, rows, rate_unit="packets/s")
    few, many = (report.row(OURS_ALWAYS, _point(count)) for count in counts)
    bars = [
        Bar(
            requirement=f"{OURS_ALWAYS}, {many.point} / {few.point}: {what}",
            value=many.details[what] / few.details[what],
            bar=GROWTH_MAX,
            at_most=True,
        )
        for what in ("CPU % of a core", "KiB/s")
    ]
    return report.model_copy(update={"bars": bars})


def _point(count: int) -> str:
    return f"{count} stream{'s' if count > 1 else ''}"


@contextmanager
def _streams(cluster: Cluster, count: int) -> Iterator[None]:
    """Create so many streams, all copies in sync, and delete them."""
    names = [stream_name(index) for index in range(count)]
    home = cluster.address(NAMES[0])

    async def create(client: Client, name: str) -> None:
        await cluster.create(client, name, f"idle.{name}", {})
        await until_whole(cluster, client, name)

    each(home, names, create)
    try:
        yield
    finally:
        each(home, names, cluster.delete)


def _watch(pids: dict[str, int], seconds: float) -> Idling:
    before = {role: ProcessSample.of(pid) for role, pid in pids.items()}
    traffic = loopback()
    begun = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - begun
    after = {role: ProcessSample.of(pid) for role, pid in pids.items()}
    ended = loopback()
    return Idling(
        took,
        {role: after[role].cpu_seconds - before[role].cpu_seconds for role in pids},
        sum(sample.resident_bytes for sample in after.values()),
        ended[0] - traffic[0],
        ended[1] - traffic[1],
    )


def loopback(text: str | None = None) -> tuple[int, int]:
    """Return the bytes and packets that the loopback interface has carried since the machine started."""
    lines = (LOOPBACK.read_text() if text is None else text).splitlines()
    fields = next(line.split(":")[1].split() for line in lines if line.strip().startswith("lo:"))
    return int(fields[0]), int(fields[1])


def _row(system: str, point: str, runs: list[Idling]) -> Row:
    packets = [run.packets / run.seconds for run in runs]
    details = {
        "KiB/s": statistics.median(run.bytes / run.seconds / 1024 for run in runs),
        "CPU % of a core": statistics.median(run.cpu_percent for run in runs),
        "RSS MiB, all": statistics.median(run.resident_bytes for run in runs) / MIB,
    }
    for role in runs[0].cpu_seconds:
        details[f"{'nats-server' if role == 'nats-server' else 'server ' + role} CPU %"] = statistics.median(
            100 * run.cpu_seconds[role] / run.seconds for run in runs
        )
    return Row(
        system=system,
        point=point,
        rate=statistics.median(packets),
        rate_min=min(packets),
        rate_max=max(packets),
        details=details,
    )
