"""A publisher by the clock, alone and while readers of one column come, stop reading, and leave again.

The answers to such readers are made in the node's memory. Each round counts from before they come, so the
answers made for them are within it, and a reader that does read goes through the stream meanwhile.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

from benchmarks.helper_process import helper
from benchmarks.loadgen import Load
from benchmarks.measurement import Case, Measurement, measure_on, median, tell
from benchmarks.process_stats import ProcessSample
from benchmarks.raw_protocol import BlockingConnection
from benchmarks.report import MIB, Bar, Report, Settings, new_report, rows_of
from benchmarks.soak import watched_memory
from benchmarks.stored import filled
from benchmarks.systems import OURS_ALWAYS, Laboratory, Ours, node_socket, stream_name

SIZE_BYTES: Final = 1024
RATE: Final = 500.0
"""Messages a second, as in `catch_up`."""
IN_FLIGHT_MAX: Final = 10_000
FILL_BYTES: Final = 256 * MIB
FILL_BYTES_QUICK: Final = 48 * MIB
STALLED: Final = 250
FETCH_BYTES: Final = 4 * MIB
LEFT_SECONDS: Final = 3.0
"""Time in which a node gives back the memory of readers that have left."""

ALONE: Final = "alone"
STOPPED: Final = f"{STALLED} readers of a column have stopped"

BUDGET_MIB: Final = 64.0
GROWTH_MIB_MAX: Final = 2 * BUDGET_MIB
LEFT_MIB_MAX: Final = 32.0
P99_US_MAX: Final = 50_000.0


@dataclass(slots=True)
class _Round:
    """One round beside stopped readers."""

    before_mib: float = 0.0
    during_mib: float = 0.0
    after_mib: float = 0.0
    read_mib: float = 0.0
    """By the reader that reads."""
    read_seconds: float = 0.0

    @property
    def read_rate(self) -> float:
        """MiB a second."""
        return self.read_mib / max(1e-9, self.read_seconds)


def run(settings: Settings) -> Report:
    """Measure acks, memory and a reader that reads, without and with readers that have stopped."""
    values_bytes = FILL_BYTES_QUICK if settings.quick else FILL_BYTES
    with Laboratory(settings.directory / "systems") as laboratory:
        ours = laboratory.system(OURS_ALWAYS)
        assert isinstance(ours, Ours), "the readers are the node's"
        with filled(ours, SIZE_BYTES, values_bytes) as old:
            cases = {point: _case(ours, point, settings) for point in (ALONE, STOPPED)}
            measured: dict[str, list[Measurement]] = {point: [] for point in cases}
            rounds: list[_Round] = []
            for number in range(settings.runs):
                for point, case in cases.items():
                    rounds += [_Round()] if point == STOPPED else []
                    beside = _stopped_readers(ours, rounds[-1]) if point == STOPPED else _nothing()
                    before = old.count()
                    with beside:
                        measured[point].append(measure_on(case, old.count, before))
                    os.sync()
                    latency = measured[point][-1].result.latency
                    tell(
                        f"{number + 1}/{settings.runs}  {point:40} p50 {latency['p50']:>9,.0f} us"
                        f"  p99 {latency['p99']:>9,.0f} us  max {latency['max']:>11,.0f} us"
                    )
    rows = rows_of(tuple(cases.values()), [each for done in measured.values() for each in done])
    rows = [row.model_copy(update={"details": _extremes(measured[row.point]) | row.details}) for row in rows]
    report = new_report(
        "selected_readers",
        settings,
        rows,
        messages_per_second=RATE,
        size_bytes=SIZE_BYTES,
        stored_bytes=values_bytes,
        rounds=[
            f"RSS {each.before_mib:.0f} / {each.during_mib:.0f} / {each.after_mib:.0f} MiB,"
            f" reader {each.read_rate:.1f} MiB/s"
            for each in rounds
        ],
    )
    return report.model_copy(update={"bars": _bars(report, rounds)})


def _case(system: Ours, point: str, settings: Settings) -> Case:
    load = Load(
        1,
        IN_FLIGHT_MAX,
        SIZE_BYTES,
        seconds=settings.seconds,
        warmup_seconds=settings.warmup_seconds,
        rate=RATE,
    )
    return Case(system, point, load)


def _nothing() -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _stopped_readers(system: Ours, done: _Round) -> Iterator[None]:
    """Let the readers come while the block runs; afterwards see what is left of them."""
    address, pid = node_socket(system.address), system.processes["node"]
    done.before_mib = ProcessSample.of(pid).resident_bytes / MIB
    words = ("stalled_parts", "--address", address, "--connections", STALLED)
    with watched_memory(pid) as memory:
        leaving = threading.Event()
        swarm = threading.Thread(target=_swarm, args=(words, leaving))
        reader = threading.Thread(target=_read_a_column, args=(address, done, leaving))
        swarm.start()
        reader.start()
        try:
            yield
        finally:
            leaving.set()
            swarm.join()
            reader.join()
    done.during_mib = memory.resident_mib_max()
    time.sleep(LEFT_SECONDS)
    done.after_mib = ProcessSample.of(pid).resident_bytes / MIB


def _swarm(words: tuple[object, ...], leaving: threading.Event) -> None:
    with helper("socket_swarm", *words) as swarm:
        swarm.hear("stalled")
        leaving.wait()


def _read_a_column(address: str, done: _Round, leaving: threading.Event) -> None:
    """Read the stream over and over, as one that reads its answers, beginning when the others have come."""
    connection, stream = BlockingConnection(address), stream_name(0)
    connection.socket.settimeout(None)
    leaving.wait(1.0)
    begun, offset, number = time.monotonic(), 0, 0
    while not leaving.is_set():
        number += 1
        answer = connection.ask(
            op="fetch", id=number, stream=stream, offset=offset, max_bytes=FETCH_BYTES, columns=["value"]
        )
        done.read_mib += answer["records"] * SIZE_BYTES / MIB
        offset = answer["next_offset"] if answer["next_offset"] < answer["high_watermark"] else 0
    done.read_seconds = time.monotonic() - begun
    connection.socket.close()


def _extremes(measurements: list[Measurement]) -> dict[str, float]:
    return {
        "p99.9 us": median(measurements, lambda m: m.result.latency["p999"]),
        "max us": max(m.result.latency["max"] for m in measurements),
    }


def _bars(report: Report, rounds: list[_Round]) -> list[Bar]:
    alone, stopped = report.row(OURS_ALWAYS, ALONE), report.row(OURS_ALWAYS, STOPPED)
    grown = max(each.during_mib - each.before_mib for each in rounds)
    left = max(each.after_mib - rounds[0].before_mib for each in rounds)
    return [
        Bar(requirement=f"p99 of an ack, {ALONE} (us)", value=alone.p99_us),
        Bar(requirement=f"p99 of an ack, {STOPPED} (us)", value=stopped.p99_us, bar=P99_US_MAX, at_most=True),
        Bar(
            requirement="RSS of the node: what they add, highest (MiB)",
            value=grown,
            bar=GROWTH_MIB_MAX,
            at_most=True,
        ),
        Bar(
            requirement="RSS of the node: what is left when they have left (MiB)",
            value=left,
            bar=LEFT_MIB_MAX,
            at_most=True,
        ),
        Bar(
            requirement="values to the reader that reads, least of a round (MiB/s)",
            value=min(each.read_rate for each in rounds),
        ),
    ]
