"""How far in a log so many stored bytes reach: by what the indexes know of each batch.

A sealed segment that is taken whole counts by its length. So the indexes of two segments are looked at, at
most, and no batch is read.
"""

from bisect import bisect_right
from collections.abc import Callable

from envelope.errors import CorruptDataError, UnavailableError
from envelope.types import Offset
from jetstream.log.batch_index import StoredBatches
from jetstream.log.readable_log import ReadableLog
from jetstream.log.scan import FIRST_BATCH
from jetstream.log.segment import PlanAgain, Segment


def joined(
    offset: Offset, max_bytes: int, end: Offset, piece: Callable[[StoredBatches], StoredBatches]
) -> StoredBatches:
    """Return the batches from ``offset`` on that take ``max_bytes`` at most, put together from pieces.

    Args:
        offset: where they begin.
        max_bytes: at most so many, but for the first batch, which comes however long it is.
        end: no piece is asked for from there on.
        piece: returns what follows those that it is given, of what is left of ``max_bytes``; 0 bytes end it.
    """
    taken = StoredBatches(offset, 0)
    while taken.next < end:
        more = piece(taken)
        if more.bytes == 0 or (taken.bytes > 0 and taken.bytes + more.bytes > max_bytes):
            break
        taken = StoredBatches(more.next, taken.bytes + more.bytes)
    return taken


def batches_within(log: ReadableLog, offset: Offset, max_bytes: int, end: Offset) -> StoredBatches:
    """Return the batches from the one that holds ``offset`` on that take ``max_bytes`` at most.

    At least one, however long, but none that reaches beyond ``end`` or lies behind a corrupt range. Any
    thread that may wait for the disk can ask, whatever is appended, removed or rewritten meanwhile.

    Args:
        log: where they are counted.
        offset: below ``end``.
        max_bytes: as they are stored.
        end: at most the log's end.

    Raises:
        OffsetOutOfRange: ``offset`` is below the log start.
        CorruptDataError: ``offset`` lies in a corrupt range.
        StorageError: the disk refused.
        UnavailableError: the log is closed.
    """
    while True:
        start = log.log_start_offset
        try:
            return joined(offset, max_bytes, end, lambda taken: _piece(log, taken, max_bytes, end))
        except UnavailableError as error:
            if not isinstance(error, PlanAgain) and log.log_start_offset == start:
                raise


def _piece(log: ReadableLog, taken: StoredBatches, max_bytes: int, end: Offset) -> StoredBatches:
    """Return what of one segment, or of one epoch in it, follows ``taken``."""
    offset, left = taken.next, max_bytes - taken.bytes
    whole = _whole(log, offset, end)
    if whole is not None and whole.bytes <= left:
        return whole
    nothing = StoredBatches(offset, 0)
    try:
        found = log.locate(offset)
    except CorruptDataError:
        if taken.bytes == 0:
            raise
        return nothing
    stop = min([end, *(start for start, _ in log.corrupt_ranges if start > offset)])
    return found.index.within(found.row, left, stop) or nothing


def _whole(log: ReadableLog, offset: Offset, end: Offset) -> StoredBatches | None:
    """Return the sealed, intact segment that begins at ``offset`` and ends by ``end``, if there is one."""
    segments = log.all_segments
    segment = segments[bisect_right(segments, offset, key=_base) - 1]
    # Of the segment that is being written the length is told before the end that belongs to it.
    is_kept = log.log_start_offset <= offset == segment.base
    is_hurt = any(low < segment.next and high > segment.base for low, high in log.corrupt_ranges)
    if not is_kept or not segment.sealed or segment.next > end or is_hurt:
        return None
    return StoredBatches(segment.next, segment.data_end - FIRST_BATCH)


def _base(segment: Segment) -> Offset:
    return segment.base
