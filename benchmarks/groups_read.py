"""Reading a partitioned stream as a group: one member, two, four and eight, and the same without a group.

Every member is a process of its own. The stream lies in the page cache, and is read again and again: by Arrow
batch, where one member and the node have two cores to do already, and record by record, where it is the
members' own work that counts.
"""

import os
from dataclasses import replace
from typing import Final

from benchmarks.batches import SEGMENT_PATTERN
from benchmarks.group_nodes import ONE, GroupNodes, group_nodes
from benchmarks.loadgen import Load, publish
from benchmarks.measurement import tell
from benchmarks.readers import ReadCase, ReadRun, read_once, read_row
from benchmarks.report import MIB, Bar, Report, Row, Settings, new_report
from benchmarks.stored import FILL_SECONDS, IN_FLIGHT, FillError
from benchmarks.systems import Answer, ask, each

STREAM: Final = "orders"
PARTITIONS: Final = 8
SIZE_BYTES: Final = 1024
FILL_BYTES: Final = 4096 * MIB
FILL_BYTES_QUICK: Final = 64 * MIB
MEMBERS: Final = (1, 2, 4, 8)

ALONE: Final = "readers without a group"
GROUP: Final = "members of a group"
RECORDS: Final = "members, single records"

TWO_OF_ONE_MIN: Final = 1.3
EIGHT_OF_TWO_MIN: Final = 0.9
OF_ALONE_MIN: Final = 0.95


def run(settings: Settings) -> Report:
    """Read with more and more members."""
    directory = settings.directory / "nodes"
    with group_nodes(ONE, directory) as nodes:
        ends = filled(nodes, FILL_BYTES_QUICK if settings.quick else FILL_BYTES)
        ((name, socket),) = nodes.sockets.items()
        common = ("--socket", socket, "--ends", *(f"{name}={end}" for name, end in ends.items()))

        def case(system: str, members: int, *words: object) -> ReadCase:
            return ReadCase(
                system=system,
                point=_point(members),
                words=(*words, *common),
                processes={"node": nodes.pids[name]},
                size_bytes=SIZE_BYTES,
                readers=members,
                files=tuple(directory.rglob(SEGMENT_PATTERN)),
            )

        groups = [
            case(system, count, kind, "--owned", PARTITIONS // count)
            for system, kind in ((GROUP, "group"), (RECORDS, "group_records"))
            for count in MEMBERS
        ]
        rows = _interleaved([case(ALONE, 1, "partitions"), *groups], settings)
    report = new_report("groups_read", settings, rows, rate_unit="records/s", partitions=PARTITIONS)
    return report.model_copy(update={"bars": _bars(report)})


def filled(nodes: GroupNodes, values_bytes: int) -> dict[str, int]:
    """Create the stream and publish until it holds so much; return the records of each partition.

    Raises:
        FillError: a message was refused, or is not there.
    """
    body = {"name": STREAM, "subject": STREAM, "partitions": PARTITIONS, "partition_by": "queue"}
    each(nodes.address, [body], lambda client, body: ask(client, "stream.create", body))
    load = Load(1, PARTITIONS * IN_FLIGHT, SIZE_BYTES, seconds=FILL_SECONDS, warmup_seconds=0.0)
    acked = 0
    while acked * SIZE_BYTES < values_bytes:
        result = publish(nodes.address, STREAM, load, lambda _event: None)
        if not result.acked or result.acked != result.published:
            raise FillError(f"{result.published} published, {result.acked} acked: {result.first_error}")
        acked += result.acked
    names = [{"name": f"{STREAM}/{number}"} for number in range(PARTITIONS)]
    infos: list[Answer] = each(nodes.address, names, lambda client, body: ask(client, "stream.info", body))
    ends = {str(info["config"]["name"]): int(info["log_end_offset"]) for info in infos}
    if sum(ends.values()) != acked:
        raise FillError(f"{acked} acked, stored are {ends}")
    os.sync()
    tell(f"{acked:,} values of {SIZE_BYTES} B in {PARTITIONS} partitions")
    return ends


def _interleaved(cases: list[ReadCase], settings: Settings) -> list[Row]:
    """Run every case so often, all of them once before any is repeated; each run is a group of its own."""
    runs: list[list[ReadRun]] = [[] for _ in cases]
    for number in range(settings.runs):
        for case, done in zip(cases, runs, strict=True):
            words = (*case.words, "--group", f"run-{number}-{case.words[0]}-{case.readers}")
            done.append(read_once(replace(case, words=words), settings))
            text = f"{case.system:24} {case.point:12} {done[-1].rate:>12,.0f}/s  {done[-1].problem or ''}"
            tell(f"{number + 1}/{settings.runs}  {text}")
    return [read_row(case, done) for case, done in zip(cases, runs, strict=True)]


def _point(processes: int) -> str:
    return f"{processes} process{'es' if processes > 1 else ''}"


def _bars(report: Report) -> list[Bar]:
    one, two, eight = (report.row(RECORDS, _point(count)).rate for count in (1, 2, 8))
    batches = [report.row(GROUP, _point(count)) for count in (1, 2, 8)]
    alone = report.row(ALONE, _point(1))
    return [
        Bar(requirement="single records: two members / one", value=two / one, bar=TWO_OF_ONE_MIN),
        Bar(requirement="single records: eight members / two", value=eight / two, bar=EIGHT_OF_TWO_MIN),
        Bar(requirement="batches: two members / one", value=batches[1].rate / batches[0].rate),
        Bar(requirement="batches: eight members / two", value=batches[2].rate / batches[1].rate),
        Bar(
            requirement="batches: one member / without a group",
            value=batches[0].rate / alone.rate,
            bar=OF_ALONE_MIN,
        ),
        Bar(
            requirement="the same, CPU of the reader a record",
            value=_cpu_of_reader(batches[0]) / _cpu_of_reader(alone),
        ),
    ]


def _cpu_of_reader(row: Row) -> float:
    """Return the CPU time of all readers for each record in seconds."""
    return row.details["readers' CPU cores"] / row.rate
