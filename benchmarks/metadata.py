"""A metadata group of three voters: commands one by one and many at once, and what a dead leader costs.

Every command is on the disks of a majority, fdatasynced, before its proposer hears of it. The disk alone
stands beside: the voters' syncs share it.
"""

import json
import signal
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.helper_process import HelperProcess, helper
from benchmarks.measurement import raw_fsync, tell
from benchmarks.metadata_member import HOST
from benchmarks.report import Report, Row, Settings, fsync_row, new_report
from benchmarks.wake_up import percentile

NAMES: Final = ("n1", "n2", "n3")
GROUP: Final = "3 voters"
ENTRY_BYTES: Final = 256
"""About what a command of this benchmark is in the log, framing included."""
WINDOW: Final = 256
KILLS: Final = 30
KILLS_QUICK: Final = 3
AFTER_KILL: Final = 20
"""Commands that are applied after a kill before the next one."""


@dataclass(frozen=True, slots=True)
class Failover:
    """Milliseconds of one: from the kill until the loss is seen, a leader is found, a command is applied."""

    detected_ms: float
    elected_ms: float
    applied_ms: float

    @property
    def whole_ms(self) -> float:
        """From the kill to the first command that is applied again."""
        return self.detected_ms + self.elected_ms + self.applied_ms


class Members:
    """The running voters."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._voters = json.dumps({name: _free_port() for name in NAMES})
        self._stacks: dict[str, ExitStack] = {}
        self.running: dict[str, HelperProcess] = {}

    def start(self, names: Sequence[str]) -> None:
        """Start these and wait until they know a leader."""
        for name in names:
            words = ("--name", name, "--root", self._directory / name, "--voters", self._voters)
            self._stacks[name] = ExitStack()
            self.running[name] = self._stacks[name].enter_context(helper("metadata_member", *words))
        for name in names:
            self.running[name].hear("ready")

    def leader(self) -> str:
        """Return the name of the voter that leads."""
        while True:
            named = {self._leader_of(member) for member in self.running.values()}
            if len(named) == 1 and (name := named.pop()) is not None and name in self.running:
                return name

    def count(self) -> int:
        """Return how many commands the leader has applied."""
        leader = self.running[self.leader()]
        leader.say("leader")
        count: int = leader.hear("leader")["count"]
        return count

    def kill(self, name: str) -> int:
        """End a voter with SIGKILL; return when, in nanoseconds of the monotonic clock."""
        killed_at = time.monotonic_ns()
        self.running[name].process.send_signal(signal.SIGKILL)
        self.running.pop(name).process.wait()
        return killed_at

    def stop(self) -> None:
        """Stop all."""
        for stack in self._stacks.values():
            stack.close()

    def _leader_of(self, member: HelperProcess) -> str | None:
        member.say("leader")
        name: str | None = member.hear("leader")["name"]
        return name


def run(settings: Settings) -> Report:
    """Measure commands at the leader, at a follower and many at once; then kill the leader, often."""
    serial = int(20 * settings.seconds)
    rows: list[Row] = []
    with _members(settings.directory / "members") as members:
        leader = members.leader()
        follower = next(name for name in NAMES if name != leader)
        proposed = 0
        for point, name in (("one by one, at the leader", leader), ("one by one, at a follower", follower)):
            runs = []
            for _ in range(settings.runs):
                members.running[name].say("serial", serial)
                runs.append(members.running[name].hear("took")["us"])
                tell(f"{point}: p50 {percentile(runs[-1], 0.5):,.0f} us")
                proposed += serial
            rows.append(_serial_row(point, runs))
        rates = []
        for _ in range(settings.runs):
            count = WINDOW * max(1, serial // 16)
            members.running[leader].say("burst", count, WINDOW)
            rates.append(count / members.running[leader].hear("took")["seconds"])
            tell(f"{WINDOW} under way: {rates[-1]:,.0f}/s")
            proposed += count
        rows.append(_rate_row(f"{WINDOW} under way", rates))
        problems = [] if members.count() == proposed else [f"{members.count()} applied of {proposed}"]
        rows[-1] = rows[-1].model_copy(update={"problems": problems})
        failovers = list(_failovers(members, KILLS_QUICK if settings.quick else KILLS))
    rows.append(_failover_row(failovers))
    syncs = raw_fsync(settings.directory, [ENTRY_BYTES], settings.seconds, settings.runs)
    rows.append(fsync_row(f"1 x {ENTRY_BYTES} B", syncs[ENTRY_BYTES]))
    return new_report("metadata", settings, rows, rate_unit="commands/s", voters=len(NAMES))


def _failovers(members: Members, kills: int) -> Iterator[Failover]:
    for number in range(kills):
        leader = members.leader()
        follower = members.running[next(name for name in NAMES if name != leader)]
        follower.say("watch")
        before = members.count()
        while members.count() < before + AFTER_KILL:
            pass  # each look is a round trip; the watcher goes on meanwhile
        killed_at = members.kill(leader)
        while members.count() < before + 3 * AFTER_KILL:
            pass
        follower.say("stop")
        watched = follower.hear("watched")
        yield (failover := _failover(killed_at, watched["applied_at"], watched["leaders"]))
        tell(f"{number + 1}/{kills}  {failover}")
        members.start([leader])


def _failover(killed_at: int, applied_at: list[int], leaders: list[tuple[int, str | None]]) -> Failover:
    """Return the parts of an outage as one follower saw it."""
    lost_at = next(at for at, leader in leaders if leader is None and at > killed_at)
    found_at = next(at for at, leader in leaders if leader is not None and at > lost_at)
    again_at = next(at for at in applied_at if at > found_at)
    return Failover((lost_at - killed_at) / 1e6, (found_at - lost_at) / 1e6, (again_at - found_at) / 1e6)


def _serial_row(point: str, runs: list[list[float]]) -> Row:
    rates = [1e6 * len(us) / sum(us) for us in runs]
    row = _rate_row(point, rates)
    p50 = statistics.median(percentile(us, 0.5) for us in runs)
    p99 = statistics.median(percentile(us, 0.99) for us in runs)
    return row.model_copy(update={"p50_us": p50, "p99_us": p99})


def _rate_row(point: str, rates: list[float]) -> Row:
    return Row(
        system=GROUP, point=point, rate=statistics.median(rates), rate_min=min(rates), rate_max=max(rates)
    )


def _failover_row(failovers: list[Failover]) -> Row:
    whole_us = [1e3 * failover.whole_ms for failover in failovers]
    rates = [1e6 / us for us in whole_us]
    return _rate_row("the leader killed", rates).model_copy(
        update={
            "p50_us": percentile(whole_us, 0.5),
            "p99_us": percentile(whole_us, 0.99),
            "details": {
                "kills": float(len(failovers)),
                "loss seen p50 ms": statistics.median(failover.detected_ms for failover in failovers),
                "leader found p50 ms": statistics.median(failover.elected_ms for failover in failovers),
                "applied p50 ms": statistics.median(failover.applied_ms for failover in failovers),
            },
        }
    )


@contextmanager
def _members(directory: Path) -> Iterator[Members]:
    directory.mkdir()
    members = Members(directory)
    try:
        members.start(NAMES)
        yield members
    finally:
        members.stop()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port
