"""The holes of a log, and the check that another replica's batches fit them.

Theory of operation: replicas' files are equal byte by byte, unless compaction or the sealed rewrite has
changed one of them. So a damaged part has one place, one length and one content, which any other replica has.
It is written there again; nothing else in the file moves, and a crash meanwhile leaves damage where there was
damage. Batches that do not fit the place to the byte, between the neighbours that are there, are refused.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from envelope.errors import CorruptDataError, StorageError
from envelope.limits import MIB
from envelope.types import Buffer, FilePosition, LeaderEpoch, Offset
from jetstream.log.disk.port import File
from jetstream.log.format.batch import BatchFlags, BatchHeader, SealedBatch
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA_MESSAGE
from jetstream.log.format.txid_column import last_txid_in
from jetstream.log.segments.corrupt_ranges import OffsetRange
from jetstream.log.segments.index import BatchIndex, IndexEntry
from jetstream.log.segments.scan import FIRST_BATCH
from jetstream.log.segments.segment import Segment
from jetstream.log.state.epochs import EpochHistory

HOLE_BYTES_MAX: Final = 4 * MIB
"""Limit of a hole of damaged batches that the index knows; the bytes between known batches are one hole."""


class Hole(NamedTuple):
    """A part of a segment whose bytes are not the written ones.

    Attributes:
        segment: where.
        row: row in the index of the first of its batches, or of the batch behind them if they are missing.
        rows: number of its batches in the index, all of them or none.
        base: first offset of its first batch.
        next: offset after its last batch.
        position: of its first byte.
        length: bytes; None: to the end of a sealed file, wherever that is now.
    """

    segment: Segment
    row: int
    rows: int
    base: Offset
    next: Offset
    position: FilePosition
    length: int | None


def holes(segment: Segment, following: Offset, index: BatchIndex, damaged: OffsetRange) -> Iterator[Hole]:
    """Yield the holes of a segment, in order; the next segment begins at ``following``."""
    offset, end = max(damaged[0], segment.base), min(damaged[1], following)
    while offset < end:
        row = index.find(offset)
        if row < len(index) and index.bases[row] <= offset:
            hole = _known(segment, index, row, end)
        else:
            hole = _missing(segment, following, index, row)
        yield hole
        offset = hole.next


def _known(segment: Segment, index: BatchIndex, row: int, end: Offset) -> Hole:
    """Return the hole of the batches that the index knows, from ``row`` on."""
    first, last = index[row], row
    while (
        last + 1 < len(index)
        and index.bases[last + 1] == index.nexts[last] < end
        and index[last + 1].end - first.position <= HOLE_BYTES_MAX
    ):
        last += 1
    return Hole(
        segment=segment,
        row=row,
        rows=last + 1 - row,
        base=first.base,
        next=index[last].next,
        position=first.position,
        length=index[last].end - first.position,
    )


def _missing(segment: Segment, following: Offset, index: BatchIndex, row: int) -> Hole:
    """Return the hole before a batch that the index knows, or at the end of the segment."""
    base, position = (index[row - 1].next, index[row - 1].end) if row else (segment.base, FIRST_BATCH)
    length: int | None
    if row < len(index):
        end, length = index[row].base, index[row].position - position
    else:
        # The active segment lacks an end only if the batches behind it have been cut.
        end, length = following, None if segment.sealed else segment.data_end - position
    return Hole(segment=segment, row=row, rows=0, base=base, next=end, position=position, length=length)


def check_fits(hole: Hole, index: BatchIndex, epochs: EpochHistory, batches: Sequence[SealedBatch]) -> None:
    """Raise CorruptDataError if intact batches, in this order, cannot be those of the hole."""
    before = index[hole.row - 1] if hole.row else None
    after = index[hole.row + hole.rows] if hole.row + hole.rows < len(index) else None
    expected, time = hole.base, before.max_timestamp if before is not None else 0
    for header, _ in batches:
        _check_header(header, expected, epochs.at(header.base), begins=header.base == hole.segment.base)
        if header.max_timestamp < time:
            raise CorruptDataError(f"batch {header.base} is older than the one before it")
        expected, time = header.next, header.max_timestamp
    if expected != hole.next:
        raise CorruptDataError(f"batches end at {expected} where {hole.next} was expected")
    if after is not None and time > after.max_timestamp:
        raise CorruptDataError(f"the batches before {after.base} are newer than it")
    length = sum(len(frame) for _, frame in batches)
    if hole.length is not None and length != hole.length:
        raise CorruptDataError(f"{length} bytes do not fill the {hole.length} of [{hole.base}, {hole.next})")
    if hole.rows:
        _check_rows(hole, index, batches)


def _check_header(header: BatchHeader, expected: Offset, epoch: LeaderEpoch, *, begins: bool) -> None:
    if header.base != expected:
        raise CorruptDataError(f"batch {header.base} comes where {expected} was expected")
    if header.leader_epoch != epoch:
        raise CorruptDataError(f"batch {header.base} is of epoch {header.leader_epoch}, not {epoch}")
    if (BatchFlags.ROLL in header.flags) != begins:
        raise CorruptDataError(f"segments do not begin where those of the other replica do: {header.base}")


def _check_rows(hole: Hole, index: BatchIndex, batches: Sequence[SealedBatch]) -> None:
    known = [index[row] for row in range(hole.row, hole.row + hole.rows)]
    found = [(header.base, header.next, len(frame)) for header, frame in batches]
    if found != [(entry.base, entry.next, entry.length) for entry in known]:
        raise CorruptDataError(f"other batches than the index has in [{hole.base}, {hole.next})")


def entries_of(hole: Hole, batches: Sequence[SealedBatch]) -> list[IndexEntry]:
    """Return the index entries of batches in the hole."""
    position, entries = hole.position, []
    for header, frame in batches:
        entries.append(IndexEntry.of(header, position, len(frame), last_txid_in(frame)))
        position = entries[-1].end
    return entries


def put_back(file: File, hole: Hole, batches: Sequence[SealedBatch]) -> int:
    """Write batches that fit a hole into its file; return the file's size, when they are durable.

    Raises:
        DiskFull, StorageError, FsyncFailed: the hole is damaged still; the medium has other bytes than were
            written, or is unknown.
    """
    frames: list[Buffer] = [frame for _, frame in batches]
    position = hole.position
    if position == FIRST_BATCH:  # the schema message before it may be damaged as well
        frames.insert(0, SCHEMA_MESSAGE)
        position = FilePosition(0)
    if hole.length is None:
        frames.append(END_OF_STREAM)
    content = b"".join(frames)
    file.write([content], position)
    if hole.length is None:
        file.truncate(position + len(content))
    file.sync()
    file.drop_cache(position)
    if file.read(position, len(content)) != content:
        raise StorageError(f"the disk does not keep what is written at {position} of {hole.segment.path}")
    return file.size()


def publish(hole: Hole, entries: Sequence[IndexEntry]) -> None:
    """Add the batches that are in the hole now to the segment's index, which is loaded and lacks them.

    Raises:
        StorageError: the disk did not take the index file; readers find the batches all the same.
    """
    segment = hole.segment
    assert segment.index is not None, "the hole was found in it"
    index = segment.index = segment.index.filled(hole.row, entries)
    last = index[len(index) - 1]
    segment.damages = tuple(found for found in segment.damages if not hole.base <= found.base < hole.next)
    segment.data_end, segment.last_epoch = last.end, last.leader_epoch
    segment.max_timestamp, segment.last_txid = last.max_timestamp, index.last_txid
    segment.next = max(segment.next, last.next)
    if segment.sealed and not segment.damages and last.next == segment.next:
        segment.index_doubtful = False
        segment.save_index(len(index))
