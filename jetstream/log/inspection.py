"""Inspection of a log's files, which changes nothing: their content, and everything that is wrong with them.

Every batch is read, checked against its CRC and decoded; indexes, checkpoint and epochs are compared with the
batches. For a log that no process has open: bytes that are being written look torn.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
import pyarrow as pa

from envelope.errors import CorruptDataError, JetstreamError, StorageError, Unsupported
from envelope.types import NO_OFFSET, FilePosition, LeaderEpoch, Offset, TimestampUs
from jetstream.log.disk.port import Disk, File
from jetstream.log.disk.state_file import Json, decode_state, read_whole
from jetstream.log.format.batch import BatchFlags, BatchHeader, decode
from jetstream.log.segments.corrupt_ranges import OffsetRange, with_range
from jetstream.log.segments.index import BatchIndex, decode_index
from jetstream.log.segments.scan import FileWindow, SegmentScan, scan_segment
from jetstream.log.segments.segment import INDEX_SUFFIX, SEGMENT_SUFFIX, base_of
from jetstream.log.state.checkpoint import CHECKPOINT_FILE, Checkpoint, decode_checkpoint
from jetstream.log.state.epochs import EPOCHS_FILE, EpochHistory, decode_epochs, is_followed
from jetstream.log.state.reset import RESET_FILE, is_resetting


class ProblemKind(StrEnum):
    """How bad a finding is."""

    CORRUPT = "corrupt"
    """Bytes that had been synced are damaged or missing."""
    TORN = "torn"
    """A crash has stopped a write group or a reset; opening the log cuts the one, and finishes the other."""
    DERIVED = "derived"
    """An index or a state file is damaged or does not fit; opening the log does without it."""
    ILLEGAL = "illegal"
    """Intact bytes that no writer of ours should have written."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding; ``position`` is a byte of the file, None for all of it."""

    kind: ProblemKind
    path: str
    position: FilePosition | None
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """A good batch."""

    position: FilePosition
    length: int
    flags: BatchFlags
    base: Offset
    next: Offset
    records: int
    leader_epoch: LeaderEpoch
    max_timestamp: TimestampUs


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReport:
    """A segment file; ``next`` follows its last good batch; ``index`` is the state of its index file."""

    path: str
    base: Offset
    next: Offset
    bytes: int = 0
    sealed: bool = False
    batches: tuple[BatchReport, ...] = ()
    index: str
    problems: tuple[Finding, ...]

    @property
    def records(self) -> int:
        """Records in good batches."""
        return sum(batch.records for batch in self.batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """A log directory."""

    directory: str
    segments: tuple[SegmentReport, ...] = ()
    checkpoint: Checkpoint | None = None
    epochs: EpochHistory | None = None
    log_start_offset: Offset = NO_OFFSET
    log_end_offset: Offset = NO_OFFSET
    corrupt_ranges: tuple[OffsetRange, ...] = ()
    problems: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether there are no findings at all."""
        return not self.problems


def inspect_stream(disk: Disk, directory: str) -> StreamReport:
    """Return the report on a log's directory.

    Raises:
        StorageError: the directory is missing or the disk refused.
    """
    problems: list[Finding] = []
    if is_resetting(disk, directory):
        path = f"{directory}/{RESET_FILE}"
        description = "the log is to begin anew: what else is here does not count any more"
        problem = Finding(ProblemKind.TORN, path, None, description)
        return StreamReport(directory=directory, problems=(problem,))
    checkpoint = _read_checkpoint(disk, directory, problems)
    epochs, followed = _read_epochs(disk, directory, problems)
    synced_end = max(
        checkpoint.synced_end if checkpoint is not None else Offset(0),
        epochs.starts[-1].start if epochs is not None and epochs.starts else Offset(0),
    )
    names = [name for name in disk.listdir(directory) if base_of(name) is not None]
    while checkpoint is not None and len(names) > 1 and _base(names[1]) <= checkpoint.log_start_offset:
        del names[0]  # the next opening removes it
    segments = [
        inspect_segment(
            disk,
            f"{directory}/{name}",
            synced_end,
            first=name == names[0],
            last=name == names[-1],
            followed=followed,
        )
        for name in names
    ]
    for segment in segments:
        problems.extend(segment.problems)
    corrupt = _missing(directory, segments, checkpoint, synced_end, problems)
    log_end_offset = max(synced_end, segments[-1].next) if segments else synced_end
    start = segments[0].base if segments else Offset(0)
    return StreamReport(
        directory=directory,
        segments=tuple(segments),
        checkpoint=checkpoint,
        epochs=epochs,
        log_start_offset=checkpoint.log_start_offset if checkpoint is not None else start,
        log_end_offset=log_end_offset,
        corrupt_ranges=corrupt,
        problems=tuple(problems),
    )


def inspect_segment(
    disk: Disk,
    path: str,
    synced_end: Offset | None = None,
    *,
    first: bool = False,
    last: bool = False,
    followed: bool = False,
) -> SegmentReport:
    """Return the report on one segment file and its index.

    Args:
        disk: where ``path`` lies.
        path: of the segment.
        synced_end: offset below which everything had been synced, if that is known from elsewhere.
        first: the segment is its log's first one, which may begin in the middle of a leader's.
        last: the segment is its log's last one, so it may be unsealed, and torn above ``synced_end``.
        followed: its last batches may have been written by a follower.

    Raises:
        StorageError: not a segment's name, or the disk refused.
    """
    base = _base(path.rpartition("/")[2])
    file = disk.open(path)
    try:
        size = file.size()
        scan = scan_segment(file, base)
        synced_end = max(synced_end or base, scan.proven_end(followed=followed))
        problems = list(_damages(path, scan, synced_end, last=last))
        batches = tuple(_read_batches(path, file, scan, problems, first=first))
    except Unsupported as error:
        problem = Finding(ProblemKind.ILLEGAL, path, None, error.description)
        return SegmentReport(path=path, base=base, next=base, index="unknown", problems=(problem,))
    finally:
        file.close()
    if not last and not scan.sealed and scan.intact:
        problems.append(_corrupt(path, scan.data_end, "there is no end-of-stream marker"))
    index = _check_index(disk, path, scan, problems)
    return SegmentReport(
        path=path,
        base=base,
        next=scan.next,
        bytes=size,
        sealed=scan.sealed,
        batches=batches,
        index=index,
        problems=tuple(problems),
    )


def _base(name: str) -> Offset:
    base = base_of(name)
    if base is None:
        raise StorageError(f"{name} is not named like a segment")
    return base


def _corrupt(path: str, position: FilePosition | None, description: str) -> Finding:
    return Finding(ProblemKind.CORRUPT, path, position, description)


def _damages(path: str, scan: SegmentScan, synced_end: Offset, *, last: bool) -> Iterator[Finding]:
    for damage in scan.damages:
        kind = ProblemKind.TORN if last and damage.base >= synced_end else ProblemKind.CORRUPT
        until = f"to {damage.next}" if damage.next is not None else "on"
        yield Finding(kind, path, damage.position, f"offsets from {damage.base} {until}: {damage.reason}")


def _read_batches(
    path: str, file: File, scan: SegmentScan, problems: list[Finding], *, first: bool
) -> Iterator[BatchReport]:
    window = FileWindow(file, file.size())
    epoch, timestamp = LeaderEpoch(0), TimestampUs(0)
    for row in range(len(scan.index)):
        entry = scan.index[row]
        frame = bytes(window.view(entry.position, entry.length))
        try:
            header, records = decode(frame)
        except CorruptDataError as error:
            problems.append(Finding(ProblemKind.ILLEGAL, path, entry.position, error.description))
            continue
        faults = list(_illegal(header, records))
        begins, rolls = header.base == scan.base, BatchFlags.ROLL in header.flags
        if rolls is not begins and not (begins and first):
            faults.append("only the first batch of a segment carries ROLL")
        if header.leader_epoch < epoch or header.max_timestamp < timestamp:
            faults.append("epoch or timestamp is below the previous batch's")
        epoch, timestamp = header.leader_epoch, header.max_timestamp
        problems.extend(
            Finding(ProblemKind.ILLEGAL, path, entry.position, f"batch {header.base}: {fault}")
            for fault in faults
        )
        yield BatchReport(
            position=entry.position,
            length=entry.length,
            flags=header.flags,
            base=header.base,
            next=header.next,
            records=records.num_rows,
            leader_epoch=header.leader_epoch,
            max_timestamp=header.max_timestamp,
        )


def _illegal(header: BatchHeader, records: pa.RecordBatch) -> Iterator[str]:
    offsets = records.column(0).to_numpy()
    timestamps = records.column(1).cast(pa.int64()).to_numpy()
    # Compaction leaves fewer records than offsets, here or on the node this was copied from.
    is_inside = len(offsets) == 0 or (header.base <= offsets[0] and offsets[-1] < header.next)
    if not is_inside or np.any(np.diff(offsets) <= 0):
        yield f"its offsets do not increase within [{header.base}, {header.next})"
    if len(timestamps) and (np.any(np.diff(timestamps) < 0) or timestamps[-1] != header.max_timestamp):
        yield "its timestamps decrease or do not end at its largest"
    try:
        records.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        yield f"its columns are not valid Arrow: {error}"


def _check_index(disk: Disk, path: str, scan: SegmentScan, problems: list[Finding]) -> str:
    """Return the state of the index file in a word, adding its problems."""
    index_path = path.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX
    if not disk.exists(index_path):
        return "missing"
    try:
        _, index = decode_index(read_whole(disk, index_path))
    except CorruptDataError as error:
        problems.append(Finding(ProblemKind.DERIVED, index_path, None, error.description))
        return "damaged"
    if not _agrees(index, scan):
        problems.append(Finding(ProblemKind.DERIVED, index_path, None, "does not describe the segment"))
        return "wrong"
    return "complete" if len(index) == len(scan.index) else "partial"


def _agrees(index: BatchIndex, scan: SegmentScan) -> bool:
    """Return whether the index describes the first batches of the segment; a sealed one's describes all."""
    if len(index) > len(scan.index) or (scan.sealed and len(index) < len(scan.index)):
        return False
    return all(index[row] == scan.index[row] for row in range(len(index)))


def _missing(
    directory: str,
    segments: list[SegmentReport],
    checkpoint: Checkpoint | None,
    synced_end: Offset,
    problems: list[Finding],
) -> tuple[OffsetRange, ...]:
    """Return the missing offsets, adding the problems of missing segments."""
    start = checkpoint.log_start_offset if checkpoint is not None else Offset(0)
    covered = start if checkpoint is not None or not segments else segments[0].base
    corrupt: tuple[OffsetRange, ...] = ()
    spans = [(batch.base, batch.next) for segment in segments for batch in segment.batches]
    for base, end in [*spans, (max(synced_end, segments[-1].base if segments else start), Offset(0))]:
        corrupt = with_range(corrupt, covered, base)
        covered = max(covered, end)
    bounds = [(segment.path, segment.base, segment.next) for segment in segments]
    for (path, _, end), (_, base, _) in pairwise(bounds):
        if end != base:
            problems.append(_corrupt(path, None, f"it ends at {end}, the next segment begins at {base}"))
    if corrupt and corrupt[0][0] == start and (not segments or segments[0].base > start):
        problems.append(_corrupt(directory, None, f"no segment holds the log's start {start}"))
    if synced_end > 0 and (not segments or segments[-1].next < synced_end):
        problems.append(_corrupt(directory, None, f"the log had been synced up to {synced_end}"))
    elif checkpoint is not None and segments and segments[-1].base < checkpoint.segment_base == covered:
        problems.append(_corrupt(directory, None, f"segment {covered} is missing"))
    return corrupt


def _read_checkpoint(disk: Disk, directory: str, problems: list[Finding]) -> Checkpoint | None:
    state = _read_state(disk, f"{directory}/{CHECKPOINT_FILE}", problems)
    try:
        return decode_checkpoint(state) if state is not None else None
    except JetstreamError as error:
        path = f"{directory}/{CHECKPOINT_FILE}"
        problems.append(Finding(ProblemKind.DERIVED, path, None, error.description))
        return None


def _read_epochs(disk: Disk, directory: str, problems: list[Finding]) -> tuple[EpochHistory | None, bool]:
    state = _read_state(disk, f"{directory}/{EPOCHS_FILE}", problems)
    try:
        return (decode_epochs(state), is_followed(state)) if state is not None else (None, False)
    except CorruptDataError as error:
        path = f"{directory}/{EPOCHS_FILE}"
        problems.append(Finding(ProblemKind.DERIVED, path, None, error.description))
        return None, False


def _read_state(disk: Disk, path: str, problems: list[Finding]) -> dict[str, Json] | None:
    if not disk.exists(path):
        return None
    try:
        return decode_state(read_whole(disk, path))
    except CorruptDataError as error:
        problems.append(Finding(ProblemKind.DERIVED, path, None, error.description))
        return None
