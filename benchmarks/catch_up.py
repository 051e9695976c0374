"""A publisher by the clock, alone and beside readers that catch up at full speed, or have stopped reading.

Latency counts from the moment a message was due, so a stall is charged to every message that waited for it.
Four readers and a node want more than two cores. Two more situations show how much of a delay is only that:
as many readers of the bare files, which do not touch the node, and the node's readers at the lowest priority,
which leave it and its publisher the cores, as if they ran on other machines.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.helper_process import HelperProcess, helper
from benchmarks.loadgen import Load
from benchmarks.measurement import Case, Measurement, measure_on, median, tell
from benchmarks.meter import Reading
from benchmarks.readers import finish, start_window
from benchmarks.report import MIB, Bar, Report, Row, Settings, new_report, rows_of
from benchmarks.soak import Memory, watched_memory
from benchmarks.stored import Stored, StoredSegments, filled
from benchmarks.systems import OURS_ALWAYS, PEER_DEFAULT, Laboratory, Ours, System, node_http, node_socket

SIZE_BYTES: Final = 1024
RATE: Final = 500.0
"""Messages a second: a third of what one publisher that awaits each ack reaches."""
IN_FLIGHT_MAX: Final = 10_000
FILL_BYTES: Final = 512 * MIB
FILL_BYTES_QUICK: Final = 48 * MIB
READERS: Final = 4
LEAST_PRIORITY: Final = 19
STALLED: Final = 100
STALLED_SECONDS: Final = 30.0
STALLED_SECONDS_QUICK: Final = 4.0

ALONE: Final = "alone"
CATCH_UP: Final = f"{READERS} readers catch up"
LOCAL: Final = f"{READERS} readers catch up, short circuit"
HTTP: Final = f"{READERS} readers catch up by HTTP"
POLITE: Final = f"{READERS} readers catch up, nice {LEAST_PRIORITY}"
RAW: Final = f"{READERS} readers of the bare files"
STOPPED: Final = f"{STALLED} readers have stopped"

TIMES_ALONE_MAX: Final = 2.0
GROWTH_MIB_MAX: Final = 10.0
RESIDENT_MIB_MAX: Final = 300.0

Beside = Callable[[float], AbstractContextManager[list[Reading]]]
"""What runs for so many seconds beside the publisher; its readings are there when the block has ended."""


@dataclass(frozen=True, slots=True)
class _Situation:
    case: Case
    stored: Stored
    beside: Beside
    unit_bytes: float = 1.0
    """Bytes of a record, where readers count bytes."""


def run(settings: Settings) -> Report:
    """Measure publish latency in each situation, and the node's memory with readers that do not read."""
    values_bytes = FILL_BYTES_QUICK if settings.quick else FILL_BYTES
    with Laboratory(settings.directory / "systems") as laboratory, ExitStack() as stack:
        ours, peer = laboratory.system(OURS_ALWAYS), laboratory.system(PEER_DEFAULT)
        assert isinstance(ours, Ours), "segments are read as files as well"
        old, peer_old = (
            stack.enter_context(filled(system, SIZE_BYTES, values_bytes)) for system in (ours, peer)
        )
        situations = [
            *stack.enter_context(_ours(ours, old, settings)),
            *_peers(peer, peer_old, settings),
        ]
        measured: list[list[tuple[Measurement, list[Reading]]]] = [[] for _ in situations]
        for number in range(settings.runs):
            for situation, done in zip(situations, measured, strict=True):
                done.append(_measure(situation, settings))
                latency = done[-1][0].result.latency
                tell(
                    f"{number + 1}/{settings.runs}  {situation.case.system.name:24} {situation.case.point:28}"
                    f" p50 {latency['p50']:>9,.0f} us  p99 {latency['p99']:>9,.0f} us"
                )
        seconds = STALLED_SECONDS_QUICK if settings.quick else STALLED_SECONDS
        stalled = _Situation(_case(ours, STOPPED, seconds, settings), old, _nothing)
        with _stalled_readers(ours), watched_memory(ours.processes["node"]) as memory:
            measured.append([_measure(stalled, settings)])
    every = [*situations, stalled]
    rows = [_row(situation, done) for situation, done in zip(every, measured, strict=True)]
    report = new_report(
        "catch_up",
        settings,
        rows,
        messages_per_second=RATE,
        size_bytes=SIZE_BYTES,
        resident_mib=[round(sample.resident_bytes / MIB, 1) for sample in memory.samples],
    )
    return report.model_copy(update={"bars": [*_bars(report), *_memory_bars(memory)]})


@contextmanager
def _ours(system: Ours, old: Stored, settings: Settings) -> Iterator[list[_Situation]]:
    segments = StoredSegments.of(system)
    with helper("raw_stream", *segments.files) as sender:
        port = sender.hear("ready")["port"]
        through_node = ("batches", "--socket", segments.socket, "--records", old.records)
        local = ("local_batches", *through_node[1:])
        http = ("http_batches", "--http", node_http(system.address), "--records", old.records)
        polite = (*through_node, "--nice", LEAST_PRIORITY)
        bare = ("raw", "--socket", f"127.0.0.1:{port}", "--files", *segments.files)

        def situation(point: str, beside: Beside, unit_bytes: float = 1.0) -> _Situation:
            return _Situation(_case(system, point, settings.seconds, settings), old, beside, unit_bytes)

        yield [
            situation(ALONE, _nothing),
            situation(CATCH_UP, partial(_readers, through_node)),
            situation(LOCAL, partial(_readers, local)),
            situation(HTTP, partial(_readers, http)),
            situation(POLITE, partial(_readers, polite)),
            situation(RAW, partial(_readers, bare), segments.bytes / old.records),
        ]


def _peers(system: System, old: Stored, settings: Settings) -> list[_Situation]:
    ordered = ("ordered", "--nats", system.address.url, "--records", old.records)
    return [
        _Situation(_case(system, ALONE, settings.seconds, settings), old, _nothing),
        _Situation(_case(system, CATCH_UP, settings.seconds, settings), old, partial(_readers, ordered)),
    ]


def _case(system: System, point: str, seconds: float, settings: Settings) -> Case:
    load = Load(
        1,
        IN_FLIGHT_MAX,
        SIZE_BYTES,
        seconds=seconds,
        warmup_seconds=settings.warmup_seconds,
        rate=RATE,
    )
    return Case(system, point, load)


def _measure(situation: _Situation, settings: Settings) -> tuple[Measurement, list[Reading]]:
    """Publish to a stream that holds old records, with the readers beside."""
    before = situation.stored.count()
    with situation.beside(settings.warmup_seconds + settings.seconds) as readings:
        measurement = measure_on(situation.case, situation.stored.count, before)
    os.sync()
    return measurement, readings


@contextmanager
def _readers(words: tuple[object, ...], seconds: float) -> Iterator[list[Reading]]:
    """Run readers of old records, over and over, while the block runs; ``seconds`` of it are counted."""
    readings: list[Reading] = []
    with ExitStack() as stack:
        readers: list[HelperProcess] = [
            stack.enter_context(helper("reader_process", *words, "--linger")) for _ in range(READERS)
        ]
        for reader in readers:
            reader.hear("ready")
        start_window(readers, 0.0, seconds)
        yield readings
        readings += finish(readers)


def _nothing(_seconds: float) -> AbstractContextManager[list[Reading]]:
    return nullcontext([])


@contextmanager
def _stalled_readers(system: Ours) -> Iterator[None]:
    words = ("stalled", "--address", node_socket(system.address), "--connections", STALLED)
    with helper("socket_swarm", *words) as swarm:
        swarm.hear("stalled")
        yield


def _row(situation: _Situation, done: list[tuple[Measurement, list[Reading]]]) -> Row:
    measurements = [measurement for measurement, _ in done]
    (row,) = rows_of([situation.case], measurements)
    details: dict[str, float] = {
        "p99.9 us": median(measurements, lambda m: m.result.latency["p999"]),
    }
    if done[0][1]:
        rates = [sum(reading.rate for reading in readings) / situation.unit_bytes for _, readings in done]
        details["records/s to readers"] = sorted(rates)[len(rates) // 2]
    problems = [reading.problem or "" for _, readings in done for reading in readings]
    problems += ["a reader received nothing" for _, r in done for reading in r if not reading.amount]
    problems += ["nothing was acked while it was measured" for m in measurements if not m.result.measured]
    return row.model_copy(
        update={
            "details": details | row.details,
            "problems": sorted({*row.problems, *filter(None, problems)}),
        }
    )


def _bars(report: Report) -> list[Bar]:
    def times_alone(system: str, point: str) -> float:
        # A row in which nothing was acked has a problem; its ratio means nothing.
        return report.row(system, point).p99_us / max(1.0, report.row(system, ALONE).p99_us)

    def stated(system: str, point: str) -> Bar:
        return Bar(requirement=f"p99, {point} / alone: {system}", value=times_alone(system, point))

    return [
        stated(OURS_ALWAYS, CATCH_UP).model_copy(update={"bar": TIMES_ALONE_MAX, "at_most": True}),
        stated(OURS_ALWAYS, LOCAL).model_copy(update={"bar": TIMES_ALONE_MAX, "at_most": True}),
        stated(OURS_ALWAYS, HTTP).model_copy(update={"bar": TIMES_ALONE_MAX, "at_most": True}),
        stated(OURS_ALWAYS, POLITE),
        stated(OURS_ALWAYS, RAW),
        stated(PEER_DEFAULT, CATCH_UP),
        stated(OURS_ALWAYS, STOPPED),
        *(
            Bar(requirement=f"p99, {point}: ours (us)", value=report.row(OURS_ALWAYS, point).p99_us)
            for point in (ALONE, CATCH_UP)
        ),
    ]


def _memory_bars(memory: Memory) -> list[Bar]:
    return [
        Bar(
            requirement=f"{STOPPED}: RSS of the node, highest (MiB)",
            value=memory.resident_mib_max(),
            bar=RESIDENT_MIB_MAX,
            at_most=True,
        ),
        Bar(
            requirement=f"{STOPPED}: growth of the RSS, by regression (MiB)",
            value=memory.settled_growth_mib(),
            bar=GROWTH_MIB_MAX,
            at_most=True,
        ),
    ]
