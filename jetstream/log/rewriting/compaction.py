"""Compaction of sealed segments: the last record of each key stays, and so do records without a key.

Theory of operation: a pass gathers the last offset of each key of the dirty part of the log, as many keys as
a budget of memory holds, and reads all segments up to there. A segment of which a record goes is written
anew, beside the old one and synced, and `Log.replace_segment` puts it in its place; until then nothing has
changed, and readers of the old file go on. All but that last step runs on any thread that may wait.

Offsets, order, timestamps and epochs stay. A batch of which all records stay keeps its bytes; one that is
left without any gives its range to the batch before it of the same epoch, or to the one behind it, and stays
as an empty batch only if its epoch has no other in the segment. So the ranges tile as before, and each
segment keeps its base, its end and at least one batch.

Source: Kafka's log cleaner (``LogCleaner``, ``SkimpyOffsetMap``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from envelope.errors import CorruptDataError, StorageError
from envelope.limits import MIB
from envelope.types import Compression, Offset, TimestampUs
from jetstream.log.disk.port import Disk
from jetstream.log.format.batch import BatchFlags
from jetstream.log.format.schema import NO_RECORDS
from jetstream.log.reader import LogReader
from jetstream.log.rewriting.compaction_plan import CompactionPlan, Detour
from jetstream.log.rewriting.latest_offsets import KeyHasher, LatestOffsets
from jetstream.log.rewriting.replacement import ReplacementBatch, RewrittenSegment, write_beside
from jetstream.log.rewriting.segment_chunks import BatchChunk, chunks_of
from jetstream.log.segments.segment import Segment
from jetstream.log.state.compaction_state import CompactionState

KEY_BYTES_DEFAULT: Final = 64 * MIB
"""Bytes of hashes and offsets in one pass: 2.8 million keys."""

Pace = Callable[[int], None]
"""Called with the bytes of each chunk that is done; it may wait, or raise to stop."""

Bits = npt.NDArray[np.bool_]


class CompactionPass:
    """A pass over one log: `gather`, then `rewritten` for each segment of the plan.

    Attributes:
        end: end of the gathered keys: below it the segments of the plan are clean after the pass.
        tombstones: number of those that stay.
        unreadable: the segment that could not be read, if that has ended the pass.
    """

    def __init__(
        self,
        log: LogReader,
        disk: Disk,
        plan: CompactionPlan,
        codec: Compression,
        pace: Pace,
        key_bytes: int = KEY_BYTES_DEFAULT,
    ) -> None:
        self._log = log
        self._disk = disk
        self._plan = plan
        self._codec = codec
        self._pace = pace
        self._hasher = KeyHasher()
        self._latest = LatestOffsets(key_bytes)
        self._lost = 0
        self.end = plan.dirty_start
        self.tombstones = 0
        self.unreadable: Segment | None = None

    def gather(self) -> None:
        """Find the last offset of each key in the dirty part, as far as the budget reaches.

        Raises:
            CorruptDataError: a batch is damaged; its offsets are refused from now on.
            StorageError, UnavailableError: the disk refused, or the segment is gone.
        """
        for segment in self._plan.segments:
            if segment.next <= self.end or self.end >= self._plan.end:
                continue
            for chunk in self._chunks(segment, max(self.end, segment.base)):
                keyed = _keyed(chunk)
                if len(keyed.rows):
                    self._latest.add(self._hasher.hashes(keyed.keys), keyed.offsets)
                self.end = chunk.end
                self._pace(chunk.bytes)
                if self._latest.is_full:
                    return

    @property
    def segments(self) -> list[Segment]:
        """The segments that may lose a record, as far as the keys were gathered."""
        reach = max(self.end, self._plan.purge_end)
        return [segment for segment in self._plan.segments if segment.base < reach]

    def rewritten(self, segment: Segment) -> RewrittenSegment | None:
        """Write the records of a segment that stay, durably, beside it; None if all stay.

        Raises:
            CorruptDataError: a batch is damaged; its offsets are refused from now on.
            DiskFull: there is no space for it.
            StorageError, FsyncFailed, UnavailableError: the disk refused, or the segment is gone.
        """
        found = self.tombstones
        if not any(self._loses(chunk) for chunk in self._chunks(segment, segment.base)):
            return None
        self.tombstones, self._lost = found, 0
        new = write_beside(self._disk, segment, self._left_of(segment), self._codec)
        return RewrittenSegment(segment, new, self._lost)

    def outcome(self, state: CompactionState, now: TimestampUs) -> CompactionState:
        """Return the state to record once every segment of the plan is in its place."""
        skipped = self._plan.skipped
        # Such a pass does not read everything.
        left = self.tombstones > 0 or self._plan.only_purges or bool(skipped)
        return state.cleaned(min([self.end, *skipped]), now, tombstones=left)

    def detour(self, state: CompactionState) -> Detour:
        """Return how far the log is compacted, around damage, once ``state`` is on record."""
        return Detour(state, self._plan.skipped, self.end)

    # --- inside -----------------------------------------------------------------------------------

    def _chunks(self, segment: Segment, start: Offset) -> Iterator[BatchChunk]:
        try:
            yield from chunks_of(self._log, segment, start)
        except (CorruptDataError, StorageError):
            self.unreadable = segment
            raise

    def _loses(self, chunk: BatchChunk) -> bool:
        kept = self._kept(chunk)
        self._pace(chunk.bytes)
        return not kept.all()

    def _left_of(self, segment: Segment) -> Iterator[list[ReplacementBatch]]:
        held: list[ReplacementBatch] = []
        for chunk in self._chunks(segment, segment.base):
            kept = self._kept(chunk)
            self._lost += len(kept) - int(np.count_nonzero(kept))
            held = list(_joined([*held, *_pieces(chunk, kept)]))
            yield held[:-1]
            del held[:-1]
            self._pace(chunk.bytes)
        yield held

    def _kept(self, chunk: BatchChunk) -> Bits:
        keyed = _keyed(chunk)
        kept = np.ones(chunk.records.num_rows, np.bool_)
        if len(keyed.rows) == 0:
            return kept
        gone = self._latest.are_superseded(self._hasher.hashes(keyed.keys), keyed.offsets)
        gone |= keyed.tombstones & (keyed.offsets < self._plan.purge_end)
        self.tombstones += int(np.count_nonzero(keyed.tombstones & ~gone))
        kept[keyed.rows[gone]] = False
        return kept


@dataclass(frozen=True, slots=True)
class _Keyed:
    """The records of a chunk that have a key."""

    rows: npt.NDArray[np.int64]
    keys: "pa.Array[pa.BinaryScalar]"
    offsets: npt.NDArray[np.int64]
    tombstones: Bits


def _keyed(chunk: BatchChunk) -> _Keyed:
    # A column at a time for all batches together: a call costs more than its rows.
    keys = chunk.records.column(3).combine_chunks()
    has_key = keys.is_valid().to_numpy(zero_copy_only=False)
    tombstones = chunk.records.column(6).is_null().to_numpy()
    offsets = chunk.records.column(0).to_numpy()
    return _Keyed(np.flatnonzero(has_key), keys.drop_null(), offsets[has_key], tombstones[has_key])


def _pieces(chunk: BatchChunk, kept: Bits) -> Iterator[ReplacementBatch]:
    [left] = chunk.records.filter(pa.array(kept)).combine_chunks().to_batches() or [NO_RECORDS]
    counts = np.concatenate([[0], np.cumsum(kept)])[chunk.bounds].tolist()
    were = np.diff(chunk.bounds).tolist()
    for header, frame, was, (start, end) in zip(
        chunk.headers, chunk.frames, were, pairwise(counts), strict=True
    ):
        if start == end:
            yield ReplacementBatch(header, None)
        elif end - start == was:
            yield ReplacementBatch(header, left.slice(start, was), frame, header)
        else:
            timestamp = left.column(1)[end - 1].value
            yield ReplacementBatch(replace(header, max_timestamp=timestamp), left.slice(start, end - start))


def _joined(pieces: Sequence[ReplacementBatch]) -> Iterator[ReplacementBatch]:
    """Yield ``pieces`` with the ranges of empty ones given to their neighbours of the same epoch."""
    held: ReplacementBatch | None = None
    for piece in pieces:
        if held is not None and held.header.leader_epoch == piece.header.leader_epoch:
            if piece.records is None:
                header = replace(held.header, next=piece.header.next)
                if held.records is None:
                    header = replace(header, max_timestamp=piece.header.max_timestamp)
                held = replace(held, header=header)
                continue
            if held.records is None:
                flags = piece.header.flags | held.header.flags & BatchFlags.ROLL
                held = replace(piece, header=replace(piece.header, base=held.header.base, flags=flags))
                continue
        if held is not None:
            yield held
        held = piece
    if held is not None:
        yield held
