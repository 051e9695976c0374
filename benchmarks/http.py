"""Reading over HTTP beside our own client at the socket, and readers that follow and wait."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from benchmarks.measurement import tell
from benchmarks.process_stats import ProcessSample
from benchmarks.read import ARROW, point
from benchmarks.readers import ReadCase, interleaved_reads, remove
from benchmarks.report import MIB, Bar, Report, Row, Settings, new_report
from benchmarks.stored import Stored, StoredSegments, filled
from benchmarks.systems import OURS_ALWAYS, Laboratory, Ours, node_http, stream_name
from jetstream.client.nodes.socket_access import parse_address

SIZES: Final = {"1 KiB": 1024, "100 B": 100}
FILL_BYTES: Final = {"1 KiB": 512 * MIB, "100 B": 192 * MIB}
FILL_BYTES_QUICK: Final = 48 * MIB
READERS: Final = (1, 16)
READERS_QUICK: Final = (1, 4)
FOLLOWERS: Final = 1000
FOLLOWERS_QUICK: Final = 100

HTTP_ARROW: Final = "HTTP, Arrow, decoded"
HTTP_LINES: Final = "HTTP, JSON lines"
WAITING: Final = "HTTP, followers that wait"

OF_SOCKET_MIN: Final = 0.9
LINES_PER_SECOND_MIN: Final = 200_000.0
IDLE_CORES_MAX: Final = 0.01


def run(settings: Settings) -> Report:
    """Read by HTTP and by the socket, with one process and with 16, then let a thousand followers wait."""
    rows: list[Row] = []
    followers = FOLLOWERS_QUICK if settings.quick else FOLLOWERS
    for load, size in SIZES.items():
        values_bytes = FILL_BYTES_QUICK if settings.quick else FILL_BYTES[load]
        directory = settings.directory / f"systems-{size}"
        with Laboratory(directory) as laboratory, ExitStack() as stack:
            ours = laboratory.system(OURS_ALWAYS)
            assert isinstance(ours, Ours), "the node has an HTTP port"
            stored = stack.enter_context(filled(ours, size, values_bytes))
            rows += interleaved_reads(_cases(load, ours, stored, settings), settings)
            if load == "100 B":
                rows.append(_waiting(ours, followers, settings))
        remove(directory)
    report = new_report("http", settings, rows, rate_unit="records/s", followers=followers)
    return report.model_copy(update={"bars": _bars(report, settings)})


def _cases(load: str, system: Ours, stored: Stored, settings: Settings) -> list[ReadCase]:
    segments = StoredSegments.of(system)
    records = ("--records", stored.records)
    http = ("--http", node_http(system.address), *records)
    kinds = {
        ARROW: ("batches", "--socket", segments.socket, *records),
        HTTP_ARROW: ("http_batches", *http),
        HTTP_LINES: ("http_lines", *http),
    }
    return [
        ReadCase(
            system=name,
            point=point(load, readers),
            words=words,
            processes={"node": system.processes["node"]},
            size_bytes=stored.size_bytes,
            readers=readers,
            files=segments.files,
        )
        for readers in (READERS_QUICK if settings.quick else READERS)
        for name, words in kinds.items()
    ]


def _waiting(system: Ours, followers: int, settings: Settings) -> Row:
    """Measure the CPU of the node while followers wait at the end of the stream."""
    pid = system.processes["node"]
    seconds = max(settings.seconds, 5.0 if settings.quick else 60.0)
    with _following(node_http(system.address), followers):
        before = ProcessSample.of(pid)
        time.sleep(seconds)
        after = ProcessSample.of(pid)
    cores = (after.cpu_seconds - before.cpu_seconds) / seconds
    where = f"{followers:,} followers"
    tell(f"{WAITING}: {where} cost {100 * cores:.2f} % of a core")
    details = {"node CPU cores": cores, "resident MiB": after.resident_bytes / MIB}
    return Row(
        system=WAITING, point=where, rate=0.0, rate_min=0.0, rate_max=0.0, details=details, runs=[details]
    )


@contextmanager
def _following(address: str, followers: int) -> Iterator[None]:
    target = f"/v1/streams/{stream_name(0)}/records?from=latest&follow=true&format=events"
    with ExitStack() as stack:
        for _ in range(followers):  # one after the other: of peers that ask nothing few are kept
            connection = stack.enter_context(socket.create_connection(parse_address(address)))
            connection.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 "), "each follows"
        yield


def _bars(report: Report, settings: Settings) -> list[Bar]:
    most = (READERS_QUICK if settings.quick else READERS)[-1]

    def rate(system: str, load: str, readers: int = 1) -> float:
        return report.row(system, point(load, readers)).rate

    bars = []
    for load in SIZES:
        for readers in (1, most):
            of_socket = rate(HTTP_ARROW, load, readers) / rate(ARROW, load, readers)
            needed = OF_SOCKET_MIN if readers == 1 else None
            text = f"{point(load, readers)}: Arrow by HTTP / our client by the socket"
            bars.append(Bar(requirement=text, value=of_socket, bar=needed))
        lines = rate(HTTP_LINES, load)
        text = f"{point(load)}: JSON lines a second"
        bars.append(Bar(requirement=text, value=lines, bar=LINES_PER_SECOND_MIN))
    waiting = next(row for row in report.rows if row.system == WAITING)
    text = f"node CPU for {waiting.point} that wait, cores"
    bars.append(
        Bar(requirement=text, value=waiting.details["node CPU cores"], bar=IDLE_CORES_MAX, at_most=True)
    )
    return bars
