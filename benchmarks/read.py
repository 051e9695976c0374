"""Reading what is stored: Arrow batches and single records, beside files, sendfile and NATS JetStream."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from benchmarks.helper_process import helper
from benchmarks.measurement import tell
from benchmarks.readers import ReadCase, interleaved_reads, remove
from benchmarks.report import MIB, Bar, Report, Row, Settings, new_report
from benchmarks.stored import Stored, StoredSegments, batch_records, filled
from benchmarks.systems import OURS_ALWAYS, PEER_DEFAULT, Laboratory, Ours, System

SIZES: Final = {"1 KiB": 1024, "100 B": 100}
FILL_BYTES: Final = {"1 KiB": 768 * MIB, "100 B": 256 * MIB}
"""Values in each of the two systems: together, with all around them, less than 2 GiB at a time."""
FILL_BYTES_QUICK: Final = 48 * MIB
READERS: Final = (1, 4, 16)
READERS_QUICK: Final = (1, 4)

ARROW: Final = "ours, Arrow batches"
LOCAL: Final = "ours, Arrow batches, short circuit"
"""As the client reads by itself on the node's machine; all others get everything by the socket."""
RECORDS: Final = "ours, single records"
RAW: Final = "sendfile to recv_into"
FILES: Final = "cat segments"
CONSUMERS: Final = {
    "JetStream R1, ordered consumer": "ordered",
    "JetStream R1, pull, fetch of 1,000": "pull",
}

OF_RAW_MIN: Final = 0.7
RECORDS_PER_SECOND_MIN: Final = 5e6
OF_PEER_MIN: Final = 20.0
SINGLE_PER_SECOND_MIN: Final = 500_000.0


def run(settings: Settings) -> Report:
    """Read with 1, 4 and 16 processes from the page cache, with one from the disk, and as the peers do."""
    rows: list[Row] = []
    batch_sizes: dict[str, float] = {}
    for load, size in SIZES.items():
        values_bytes = FILL_BYTES_QUICK if settings.quick else FILL_BYTES[load]
        directory = settings.directory / f"systems-{size}"
        with Laboratory(directory) as laboratory, ExitStack() as stack:
            ours, peer = laboratory.system(OURS_ALWAYS), laboratory.system(PEER_DEFAULT)
            assert isinstance(ours, Ours), "segments are read as files as well"
            stored = [stack.enter_context(filled(system, size, values_bytes)) for system in (ours, peer)]
            cases = stack.enter_context(_ours(load, ours, stored[0], settings))
            cases += _peers(load, peer, stored[1])
            batch_sizes[load] = round(batch_records(stored))
            rows += interleaved_reads(cases, settings)
        remove(directory)
    report = new_report(
        "read",
        settings,
        rows,
        rate_unit="records/s",
        **{f"batch_records_{k}": v for k, v in batch_sizes.items()},
    )
    return report.model_copy(
        update={"bars": [bar for load in SIZES for bar in _bars(report, load, settings)]}
    )


@contextmanager
def _ours(load: str, system: Ours, stored: Stored, settings: Settings) -> Iterator[list[ReadCase]]:
    """Yield the cases that read our segments, through the node or as files."""
    segments = StoredSegments.of(system)
    tell(f"{load}: {segments.bytes / MIB:,.0f} MiB in {len(segments.files)} segments")
    through_node = ("--socket", segments.socket, "--records", stored.records)
    with helper("raw_stream", *segments.files) as sender:
        to_sender = (
            "raw",
            "--socket",
            f"127.0.0.1:{sender.hear('ready')['port']}",
            "--files",
            *segments.files,
        )

        def case(name: str, words: tuple[object, ...], readers: int = 1, *, cold: bool = False) -> ReadCase:
            ways: dict[str, dict[str, int]] = {RAW: {"sender": sender.pid}, FILES: {}}
            return ReadCase(
                system=name,
                point=point(load, readers, cold=cold),
                words=words,
                processes=ways.get(name, {"node": system.processes["node"]}),
                size_bytes=stored.size_bytes,
                readers=readers,
                unit_bytes=segments.bytes / stored.records if name in (RAW, FILES) else None,
                files=segments.files,
                cold=cold,
            )

        arrow, local = ((kind, *through_node) for kind in ("batches", "local_batches"))
        files = ("files", "--files", *segments.files)
        counts = READERS_QUICK if settings.quick else READERS
        yield [
            *(
                case(name, words, count)
                for count in counts
                for name, words in ((ARROW, arrow), (LOCAL, local), (RAW, to_sender))
            ),
            case(RECORDS, ("records", *through_node)),
            case(FILES, files),
            *(
                case(name, words, cold=True)
                for name, words in ((ARROW, arrow), (LOCAL, local), (RAW, to_sender), (FILES, files))
            ),
        ]


def _peers(load: str, system: System, stored: Stored) -> list[ReadCase]:
    """Return the ways nats-py has to read the same payloads."""
    words = ("--nats", system.address.url, "--records", stored.records)
    return [
        ReadCase(name, point(load), (kind, *words), system.processes, stored.size_bytes)
        for name, kind in CONSUMERS.items()
    ]


def point(load: str, readers: int = 1, *, cold: bool = False) -> str:
    """Return what tables call a case."""
    return f"{load}, {readers} reader{'s' if readers > 1 else ''}{', cold' if cold else ''}"


def _bars(report: Report, load: str, settings: Settings) -> list[Bar]:
    def rate(system: str, readers: int = 1, *, cold: bool = False) -> float:
        return report.row(system, point(load, readers, cold=cold)).rate

    peer = max(rate(name) for name in CONSUMERS)
    most = (READERS_QUICK if settings.quick else READERS)[-1]
    return [
        Bar(
            requirement=f"{load}: Arrow / sendfile to recv_into",
            value=rate(ARROW) / rate(RAW),
            bar=OF_RAW_MIN if load == "1 KiB" else None,
        ),
        Bar(
            requirement=f"{load}: Arrow, million records a second",
            value=rate(ARROW) / 1e6,
            bar=RECORDS_PER_SECOND_MIN / 1e6 if load == "100 B" else None,
        ),
        Bar(
            requirement=f"{load}: Arrow, short circuit / JetStream's fastest consumer in Python",
            value=rate(LOCAL) / peer,
            bar=OF_PEER_MIN,
        ),
        Bar(
            requirement=f"{load}: Arrow, by the socket / JetStream's fastest consumer in Python",
            value=rate(ARROW) / peer,
        ),
        Bar(
            requirement=f"{load}: sendfile to recv_into / JetStream's fastest consumer in Python",
            value=rate(RAW) / peer,
        ),
        Bar(requirement=f"{load}: single records a second", value=rate(RECORDS), bar=SINGLE_PER_SECOND_MIN),
        Bar(
            requirement=f"{load}: Arrow, {most} readers together / one", value=rate(ARROW, most) / rate(ARROW)
        ),
        Bar(
            requirement=f"{load}, cold: Arrow / sendfile to recv_into",
            value=rate(ARROW, cold=True) / rate(RAW, cold=True),
        ),
        Bar(requirement=f"{load}: Arrow, cold / cached", value=rate(ARROW, cold=True) / rate(ARROW)),
    ]
