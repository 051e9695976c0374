"""``jetstream inspect``: print and verify a data directory's files without a node, changing nothing."""

import fcntl
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from jetstream.cli.options.quantities import size_text
from jetstream.cli.output.console import (
    notice,
    print_json,
    print_line,
    print_table,
    printable,
    progress,
)
from jetstream.cli.output.exit_codes import ExitCode
from jetstream.cli.program.help_text import Json
from jetstream.log.disk.identity import LOCK_FILE
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.inspection import (
    Finding,
    ProblemKind,
    SegmentReport,
    StreamReport,
    inspect_segment,
    inspect_stream,
)
from jetstream.log.segments.segment import SEGMENT_SUFFIX
from jetstream.log.state.checkpoint import CHECKPOINT_FILE
from jetstream.log.state.epochs import EPOCHS_FILE

INSPECT_EXAMPLES: Final = (
    "jetstream inspect jetstream-data",
    "jetstream inspect jetstream-data/streams/orders@0f3a --batches",
    "jetstream inspect 00000000000000000000.arrows --json",
)

Report = StreamReport | SegmentReport


def inspect(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A data directory, one stream's directory, or a segment file."),
    ],
    batches: Annotated[bool, typer.Option("--batches", help="Show every batch too.")] = False,
    as_json: Json = False,
) -> None:
    """Verify stored files byte by byte and say what is in them; no node is needed and nothing is changed.

    Every batch is read, checked against its checksum and decoded; indexes, checkpoints and epochs are
    compared with what the batches say. Exit code 6 means damage. A torn last write, as a crash leaves it, is
    no damage: it was never acknowledged, and the next start cuts it. Best on a stopped node: what is being
    written looks torn.
    """
    reports = _reports(path, quiet=as_json)
    damaged = any(problem.kind is not ProblemKind.TORN for report in reports for problem in report.problems)
    if as_json:
        print_json({"damaged": damaged, "files": [_for_machines(report, batches) for report in reports]})
    else:
        _show(path, reports, batches)
    if damaged:
        raise typer.Exit(ExitCode.DATA_DAMAGE)


def _reports(path: Path, *, quiet: bool) -> list[Report]:
    """Inspect whatever ``path`` is.

    Raises:
        FileNotFoundError: nothing is there, or nothing of ours.
        StorageError: the disk refused.
    """
    if path.is_file() and path.suffix == SEGMENT_SUFFIX:
        return [_segment_report(path)]
    directories = _log_directories(path)
    if not directories:
        raise FileNotFoundError(f"no stream's files at {path}")
    if _in_use(path):
        notice("a node has this directory open: what it is writing now may look torn")
    reports: list[Report] = []
    with progress("verifying", len(directories), quiet=quiet) as told:
        for directory in directories:
            reports.append(_stream_report(directory))
            told(1)
    return reports


def _log_directories(path: Path) -> list[Path]:
    """Return every directory at or below ``path`` that holds a log."""
    names = (f"*{SEGMENT_SUFFIX}", CHECKPOINT_FILE, EPOCHS_FILE)
    return sorted({found.parent for name in names for found in path.rglob(name)})


def _stream_report(directory: Path) -> StreamReport:
    directory = directory.resolve()
    disk = OsDisk(directory.parent)
    try:
        return inspect_stream(disk, directory.name)
    finally:
        disk.close()


def _segment_report(path: Path) -> SegmentReport:
    path = path.resolve()
    disk = OsDisk(path.parent)
    try:
        last = max(other.name for other in path.parent.glob(f"*{SEGMENT_SUFFIX}")) == path.name
        return inspect_segment(disk, path.name, last=last)
    finally:
        disk.close()


def _in_use(path: Path) -> bool:
    """Return whether a process holds the lock of a data directory."""
    lock = path / LOCK_FILE
    if not lock.is_file():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _show(path: Path, reports: list[Report], batches: bool) -> None:
    for report in reports:
        if isinstance(report, StreamReport):
            _show_stream(report)
        segments = _segments(report)
        _show_segments(segments)
        if batches:
            for segment in segments:
                _show_batches(segment)
        for problem in report.problems:
            print_line(_problem_text(problem))
        print_line("")
    everything = [segment for report in reports for segment in _segments(report)]
    found = [problem for report in reports for problem in report.problems]
    records = sum(segment.records for segment in everything)
    print_line(
        f"{path}: {records:,} records in {len(everything):,} segments, "
        f"{size_text(sum(segment.bytes for segment in everything))}; {_verdict(found)}"
    )


def _verdict(problems: list[Finding]) -> str:
    damages = [problem for problem in problems if problem.kind is not ProblemKind.TORN]
    if damages:
        return f"DAMAGED: {len(damages)} problems"
    return "a torn last write, which the next start cuts" if problems else "every byte is as it should be"


def _show_stream(report: StreamReport) -> None:
    print_line(f"stream {report.directory}: offsets {report.log_start_offset:,} to {report.log_end_offset:,}")
    checkpoint = report.checkpoint
    if checkpoint is None:
        print_line("  checkpoint: none")
    else:
        closed = "closed in order" if checkpoint.clean else "not closed in order"
        print_line(f"  checkpoint: synced to {checkpoint.synced_end:,}, {closed}")
    starts = report.epochs.starts if report.epochs is not None else ()
    shown = ", ".join(f"{start.epoch} from {start.start:,}" for start in starts[-5:])
    print_line(
        f"  leader epochs: {shown or 'none'}{f' (the last 5 of {len(starts)})' if len(starts) > 5 else ''}"
    )
    for start, end in report.corrupt_ranges:
        print_line(f"  damaged offsets: {start:,} to {end:,}")


def _show_segments(segments: tuple[SegmentReport, ...]) -> None:
    columns = ("segment", "from", "to", "records", "batches", "size", "sealed", "index")
    rows = (
        (
            segment.path.rpartition("/")[2],
            segment.base,
            segment.next,
            segment.records,
            len(segment.batches),
            size_text(segment.bytes),
            segment.sealed,
            segment.index,
        )
        for segment in segments
    )
    print_table("", columns, rows)


def _show_batches(segment: SegmentReport) -> None:
    columns = ("position", "bytes", "from", "to", "epoch", "flags")
    rows = (
        (batch.position, batch.length, batch.base, batch.next, batch.leader_epoch, batch.flags.name or "")
        for batch in segment.batches
    )
    print_table(segment.path.rpartition("/")[2], columns, rows)


def _problem_text(problem: Finding) -> str:
    place = problem.path if problem.position is None else f"{problem.path} at byte {problem.position:,}"
    return printable(f"{problem.kind.upper()}: {place}: {problem.description}")


def _segments(report: Report) -> tuple[SegmentReport, ...]:
    return report.segments if isinstance(report, StreamReport) else (report,)


def _for_machines(report: Report, batches: bool) -> dict[str, Any]:
    """Return a report as JSON values; batches only if they are wanted, there may be millions."""
    if isinstance(report, SegmentReport):
        return _segment_for_machines(report, batches)
    return {
        "stream": report.directory,
        "log_start_offset": report.log_start_offset,
        "log_end_offset": report.log_end_offset,
        "checkpoint": asdict(report.checkpoint) if report.checkpoint is not None else None,
        "epochs": [start._asdict() for start in report.epochs.starts] if report.epochs is not None else None,
        "corrupt_ranges": [{"start": start, "end": end} for start, end in report.corrupt_ranges],
        "segments": [_segment_for_machines(segment, batches) for segment in report.segments],
        "problems": [asdict(problem) for problem in report.problems],
    }


def _segment_for_machines(segment: SegmentReport, batches: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "segment": segment.path,
        "base": segment.base,
        "next": segment.next,
        "bytes": segment.bytes,
        "records": segment.records,
        "batch_count": len(segment.batches),
        "sealed": segment.sealed,
        "index": segment.index,
        "problems": [asdict(problem) for problem in segment.problems],
    }
    return fields | ({"batches": [asdict(batch) for batch in segment.batches]} if batches else {})
