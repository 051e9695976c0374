"""Reading over a distance: one reader behind a proxy that adds 0, 5 and 20 ms of round trip.

The same bytes by sendfile pass through the same proxy, so that what the proxy can carry stands beside.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from benchmarks.helper_process import helper
from benchmarks.raw_protocol import ping_us
from benchmarks.read import ARROW, RAW
from benchmarks.readers import ReadCase, interleaved_reads
from benchmarks.report import MIB, Bar, Report, Settings, new_report
from benchmarks.stored import Stored, StoredSegments, batch_records, filled
from benchmarks.systems import OURS_ALWAYS, Laboratory, Ours, stream_name

SIZE_BYTES: Final = 1024
FILL_BYTES: Final = 2048 * MIB
FILL_BYTES_QUICK: Final = 96 * MIB
ROUND_TRIPS_MS: Final = (0, 5, 20)
DIRECT: Final = "no proxy"
OF_NEAR_MIN: Final = 0.8


def run(settings: Settings) -> Report:
    """Read at each distance, by Arrow batch and as raw bytes."""
    values_bytes = FILL_BYTES_QUICK if settings.quick else FILL_BYTES
    with Laboratory(settings.directory / "systems") as laboratory, ExitStack() as stack:
        system = laboratory.system(OURS_ALWAYS)
        assert isinstance(system, Ours), "segments are read as files as well"
        stored = stack.enter_context(filled(system, SIZE_BYTES, values_bytes))
        segments = StoredSegments.of(system)
        sender = stack.enter_context(helper("raw_stream", *segments.files))
        raw_socket = f"127.0.0.1:{sender.hear('ready')['port']}"
        cases: list[ReadCase] = []
        pings: dict[str, float] = {}
        for round_trip_ms in (None, *ROUND_TRIPS_MS):
            near = stack.enter_context(_way(segments.socket, system.processes["node"], "node", round_trip_ms))
            far = stack.enter_context(_way(raw_socket, sender.pid, "sender", round_trip_ms))
            cases += [_ours(stored, segments, near), _raw(stored, segments, far)]
            pings[near.point] = ping_us(near.socket, stream_name(0))
        rows = interleaved_reads(cases, settings)
    # A round trip of the smallest request stands in the column of latencies.
    rows = [
        row.model_copy(update={"p50_us": pings[row.point]}) if row.system == ARROW else row for row in rows
    ]
    report = new_report(
        "read_delay", settings, rows, rate_unit="records/s", batch_records=round(batch_records([stored]))
    )
    return report.model_copy(update={"bars": _bars(report)})


class _Way:
    """How to reach a server: directly, or through a proxy."""

    def __init__(self, socket: str, point: str, processes: dict[str, int]) -> None:
        self.socket = socket
        self.point = point
        self.processes = processes


@contextmanager
def _way(socket: str, pid: int, role: str, round_trip_ms: int | None) -> Iterator[_Way]:
    if round_trip_ms is None:
        yield _Way(socket, DIRECT, {role: pid})
        return
    with helper("delay_proxy", "--target", socket, "--round-trip-ms", round_trip_ms) as proxy:
        port = proxy.hear("ready")["port"]
        yield _Way(f"127.0.0.1:{port}", point(round_trip_ms), {role: pid, "proxy": proxy.pid})


def point(round_trip_ms: int) -> str:
    """Return what tables call a distance."""
    return f"{round_trip_ms} ms"


def _ours(stored: Stored, segments: StoredSegments, way: _Way) -> ReadCase:
    words = ("batches", "--socket", way.socket, "--records", stored.records)
    return ReadCase(ARROW, way.point, words, way.processes, SIZE_BYTES, files=segments.files)


def _raw(stored: Stored, segments: StoredSegments, way: _Way) -> ReadCase:
    words = ("raw", "--socket", way.socket, "--files", *segments.files)
    unit = segments.bytes / stored.records
    return ReadCase(RAW, way.point, words, way.processes, SIZE_BYTES, unit_bytes=unit, files=segments.files)


def _bars(report: Report) -> list[Bar]:
    def rate(system: str, round_trip_ms: int) -> float:
        return report.row(system, point(round_trip_ms)).rate

    near, *others = ROUND_TRIPS_MS
    far = ROUND_TRIPS_MS[-1]
    bars = [
        Bar(
            requirement=f"Arrow, {point(other)} / {point(near)}",
            value=rate(ARROW, other) / rate(ARROW, near),
            bar=OF_NEAR_MIN if other == far else None,
        )
        for other in others
    ]
    return [
        *bars,
        Bar(
            requirement=f"the proxy: sendfile, {point(far)} / {point(near)}",
            value=rate(RAW, far) / rate(RAW, near),
        ),
        Bar(
            requirement=f"the proxy: sendfile at {point(far)} / Arrow at {point(near)}",
            value=rate(RAW, far) / rate(ARROW, near),
            bar=1.0,
        ),
    ]
