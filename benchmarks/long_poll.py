"""Readers that wait at the end of a stream: waking one, holding a thousand, waking all of them.

Times are taken on the machine's one clock. "Append" is the record's own timestamp, which the leader takes
before it writes and syncs.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, TypeVar

import nats
import uvloop
from nats.aio.client import Client

from benchmarks.helper_process import Event, HelperProcess, helper
from benchmarks.loadgen import Address
from benchmarks.measurement import tell
from benchmarks.process_stats import ProcessSample
from benchmarks.report import MIB, Bar, Report, Row, Settings, new_report
from benchmarks.systems import (
    BARE,
    OURS_ALWAYS,
    OURS_OS,
    PEER_ALWAYS,
    PEER_DEFAULT,
    SUBJECT,
    Laboratory,
    Ours,
    System,
    node_socket,
)
from benchmarks.wake_up import Published, WakeUps, joined, percentile

SIZE_BYTES: Final = 128
PACE_SECONDS: Final = 0.005
"""Between two messages: the reader waits again long before the next one."""
MANY: Final = 1000
MANY_QUICK: Final = 100
APPENDS: Final = 20
APPENDS_QUICK: Final = 5
WAITS_MS: Final = {"60 s": 60_000, "20 s": 20_000}
"""Of one long poll: the longest the protocol has, and what the client library asks for."""
SYSTEMS: Final = (OURS_ALWAYS, OURS_OS, PEER_DEFAULT, PEER_ALWAYS)
ONE_READER: Final = "1 reader"
SUBSCRIPTIONS: Final = "bare NATS subscriptions"

WAKE_UP_US_MAX: Final = 2000.0
IDLE_CORES_MAX: Final = 0.01
REACH_ALL_MS_MAX: Final = 100.0


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Crowd:
    """What waiting readers cost, and when one append had reached all of them."""

    idle_cores: dict[str, float]
    resident_mib: dict[str, float]
    append_to_all_us: tuple[float, ...]
    publish_to_all_us: tuple[float, ...]
    publish_to_first_us: tuple[float, ...]


def run(settings: Settings) -> Report:
    """Measure wake-ups of one reader, then of a thousand."""
    many = MANY_QUICK if settings.quick else MANY
    with Laboratory(settings.directory / "systems") as laboratory:
        wake_ups: dict[str, list[WakeUps]] = {name: [] for name in SYSTEMS}
        crowds: dict[tuple[str, str], list[Crowd]] = {}
        for number in range(settings.runs):
            for name, runs in wake_ups.items():
                runs.append(wake_one(laboratory.system(name), settings))
                p50 = percentile(runs[-1].append_to_reader, 0.5)
                tell(f"{number + 1}/{settings.runs}  {name:26} {ONE_READER}: append to reader {p50:,.0f} us")
            for case, measure in _crowd_cases(laboratory, many, settings).items():
                crowds.setdefault(case, []).append(measure())
                tell(f"{number + 1}/{settings.runs}  {case[0]:26} {case[1]}: {_brief(crowds[case][-1])}")
    rows = [_wake_row(name, runs, settings) for name, runs in wake_ups.items()]
    rows += [_crowd_row(*case, many, runs) for case, runs in crowds.items()]
    report = new_report(
        "long_poll", settings, rows, rate_unit="records/s to readers", size_bytes=SIZE_BYTES, readers=many
    )
    return report.model_copy(update={"bars": _bars(report, many)})


# --- one reader --------------------------------------------------------------------------------------


def wake_one(system: System, settings: Settings) -> WakeUps:
    """Publish by the clock, one message at a time, to one reader that waits in a process of its own."""
    count, skip = int(settings.seconds / PACE_SECONDS), int(settings.warmup_seconds / PACE_SECONDS)
    with system.streams(1):
        words: tuple[object, ...] = ("jetstream", "--nats", system.address.url)
        if isinstance(system, Ours):
            words = ("ours", "--socket", node_socket(system.address))
        with helper("wake_up_process", *words, "--records", count + skip) as reader:
            reader.hear("ready")
            published = _run(_publish_by_the_clock(system.address, count + skip))
            return joined(published, reader.hear("arrivals")["arrivals"], skip)


async def _publish_by_the_clock(address: Address, count: int) -> list[Published]:
    client = await nats.connect(address.url)
    published = []
    payload = bytes(SIZE_BYTES)
    due = time.monotonic()
    try:
        for _ in range(count):
            due += PACE_SECONDS
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            sent_ns = time.time_ns()
            ack = await client.jetstream().publish(SUBJECT, payload)
            published.append(Published(ack.seq - 1, sent_ns, time.time_ns()))
    finally:
        await client.close()
    return published


def _wake_row(system: str, runs: list[WakeUps], settings: Settings) -> Row:
    rates = [len(run.append_to_reader) / settings.seconds for run in runs]

    def median(values: Callable[[WakeUps], tuple[float, ...]], share: float) -> float:
        return statistics.median(percentile(values(run), share) for run in runs)

    return Row(
        system=system,
        point=ONE_READER,
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        p50_us=median(lambda run: run.append_to_reader, 0.5),
        p99_us=median(lambda run: run.append_to_reader, 0.99),
        details={
            "publish to reader p50 us": median(lambda run: run.publish_to_reader, 0.5),
            "publish to reader p99 us": median(lambda run: run.publish_to_reader, 0.99),
            "publish to ack p50 us": median(lambda run: run.publish_to_ack, 0.5),
            "ack to reader p50 us": median(lambda run: run.ack_to_reader, 0.5),
            "ack to reader p99 us": median(lambda run: run.ack_to_reader, 0.99),
        },
        problems=sorted({run.problem for run in runs if run.problem}),
        runs=[_summary(run) for run in runs],
    )


def _summary(run: WakeUps) -> dict[str, Any]:
    """Return percentiles instead of every sample: a run has thousands."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {
        name: {label: percentile(values, share) for label, share in shares.items()}
        for name, values in asdict(run).items()
        if name != "problem"
    }


# --- a thousand readers ------------------------------------------------------------------------------


def _crowd_cases(
    laboratory: Laboratory, many: int, settings: Settings
) -> Mapping[tuple[str, str], Callable[[], Crowd]]:
    cases: dict[tuple[str, str], Callable[[], Crowd]] = {}
    for label, wait_ms in WAITS_MS.items():
        system = laboratory.system(OURS_ALWAYS)
        cases[OURS_ALWAYS, _point(many, label)] = partial(crowd, system, many, wait_ms, settings)
    bare = laboratory.system(BARE)
    cases[SUBSCRIPTIONS, _point(many)] = partial(crowd, bare, many, 0, settings)
    return cases


def _point(many: int, wait: str = "") -> str:
    return f"{many:,} readers" + (f", waits of {wait}" if wait else "")


def crowd(system: System, many: int, wait_ms: int, settings: Settings) -> Crowd:
    """Let readers wait, then publish some messages, each after all are waiting again."""
    appends = APPENDS_QUICK if settings.quick else APPENDS
    if not isinstance(system, Ours):
        words: tuple[object, ...] = ("subscribed", "--address", _host_port(system.address))
        with helper("socket_swarm", *words, "--connections", many) as swarm:
            return _watch_crowd(system, swarm, appends, settings)
    with system.streams(1):
        words = ("parked", "--address", node_socket(system.address), "--wait-ms", wait_ms)
        with helper("socket_swarm", *words, "--connections", many) as swarm:
            return _watch_crowd(system, swarm, appends, settings)


def _watch_crowd(system: System, swarm: HelperProcess, appends: int, settings: Settings) -> Crowd:
    swarm.hear("parked")
    before = _samples(system)
    time.sleep(settings.seconds)
    after = _samples(system)
    reached = _run(_publish_to_all(system, swarm, appends))
    seconds = settings.seconds
    return Crowd(
        idle_cores={role: (after[role].cpu_seconds - before[role].cpu_seconds) / seconds for role in before},
        resident_mib={role: sample.resident_bytes / MIB for role, sample in after.items()},
        append_to_all_us=tuple((e["last_ns"] - e["append_ns"]) / 1e3 for _, e in reached if e["append_ns"]),
        publish_to_all_us=tuple((e["last_ns"] - sent_ns) / 1e3 for sent_ns, e in reached),
        publish_to_first_us=tuple((e["first_ns"] - sent_ns) / 1e3 for sent_ns, e in reached),
    )


def _samples(system: System) -> dict[str, ProcessSample]:
    return {role: ProcessSample.of(pid) for role, pid in system.processes.items()}


async def _publish_to_all(system: System, swarm: HelperProcess, appends: int) -> list[tuple[int, Event]]:
    client = await nats.connect(system.address.url)
    reached = []
    try:
        for _ in range(appends):
            sent_ns = time.time_ns()
            await _publish_one(client, acked=isinstance(system, Ours))
            # Nothing else runs on this loop: it may wait for the swarm.
            reached.append((sent_ns, swarm.hear("reached")))
            swarm.hear("parked")
    finally:
        await client.close()
    return reached


async def _publish_one(client: Client, *, acked: bool) -> None:
    if acked:
        await client.jetstream().publish(SUBJECT, bytes(SIZE_BYTES))
    else:
        await client.publish(SUBJECT, bytes(SIZE_BYTES))
        await client.flush()


def _host_port(address: Address) -> str:
    return f"{address.host}:{address.port}"


def _run(coroutine: Coroutine[None, None, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


def _brief(crowd: Crowd) -> str:
    idle = ", ".join(f"{role} {100 * cores:.2f} %" for role, cores in crowd.idle_cores.items())
    return f"idle {idle}; publish to all {percentile(crowd.publish_to_all_us, 0.5) / 1e3:,.1f} ms"


def _crowd_row(system: str, point: str, many: int, runs: list[Crowd]) -> Row:
    """The latency columns are those of reaching all, from the append on; the rate is that of a wave."""
    from_append = [us for run in runs for us in run.append_to_all_us]
    from_publish = [us for run in runs for us in run.publish_to_all_us]
    rates = [1e6 * many / percentile(run.publish_to_all_us, 0.5) for run in runs]
    details = {
        "publish to first p50 us": percentile([us for run in runs for us in run.publish_to_first_us], 0.5),
        "publish to all p50 us": percentile(from_publish, 0.5),
        "publish to all p99 us": percentile(from_publish, 0.99),
    }
    for role in runs[0].idle_cores:
        details[f"{role} CPU idle, %"] = 100 * statistics.median(run.idle_cores[role] for run in runs)
        details[f"{role} RSS MiB"] = statistics.median(run.resident_mib[role] for run in runs)
    return Row(
        system=system,
        point=point,
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        p50_us=percentile(from_append, 0.5),
        p99_us=percentile(from_append, 0.99),
        details=details,
        runs=[asdict(run) for run in runs],
    )


def _bars(report: Report, many: int) -> list[Bar]:
    one = report.row(OURS_ALWAYS, ONE_READER)
    peer = report.row(PEER_ALWAYS, ONE_READER)
    longest = report.row(OURS_ALWAYS, _point(many, "60 s"))
    crowd_bars = [
        Bar(
            requirement=f"{_point(many, label)}: node CPU while idle, % of a core",
            value=report.row(OURS_ALWAYS, _point(many, label)).details["node CPU idle, %"],
            bar=100 * IDLE_CORES_MAX,
            at_most=True,
        )
        for label in WAITS_MS
    ]
    bare = report.row(SUBSCRIPTIONS, _point(many))
    return [
        Bar(
            requirement="1 reader: append to reader, p50 (us)",
            value=one.p50_us,
            bar=WAKE_UP_US_MAX,
            at_most=True,
        ),
        Bar(
            requirement="1 reader: publish to reader p50 / JetStream sync always",
            value=one.details["publish to reader p50 us"] / peer.details["publish to reader p50 us"],
        ),
        *crowd_bars,
        Bar(
            requirement=f"{_point(many)}: one append has reached all, median (ms)",
            value=longest.p50_us / 1e3,
            bar=REACH_ALL_MS_MAX,
            at_most=True,
        ),
        Bar(
            requirement=f"{_point(many)}: publish to all / bare NATS subscriptions",
            value=longest.details["publish to all p50 us"] / bare.details["publish to all p50 us"],
        ),
    ]
