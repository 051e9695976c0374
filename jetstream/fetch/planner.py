"""The decision on a fetch: bytes, a wait, nothing, or a typed refusal.

The only place that decides which records a reader gets. Everything below the high watermark, from the log
start on, is served in whole batches; an offset at or above the high watermark waits, up to the log end; any
other offset is out of range (Kafka, KIP-392: an offset that is stored but not yet committed is not an error).
A reader that names the leader epoch of the record before its offset is refused if this log has another epoch
there: the reader's record was never committed here (KIP-320).

A follower may know less than a reader that comes from another replica: an offset above its log end waits too,
and so does a reader that has read from a later reign than the follower knows. Records of its log above the
high watermark may yet be replaced, so no reader is refused for them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from envelope.errors import DivergedHistory, JetstreamError, OffsetOutOfRange, StreamRecreated
from envelope.types import Incarnation, LeaderEpoch, Offset
from jetstream.log.segments.index import StoredBatches


class PlannedRange(Protocol):
    """Whole batches in one segment file, covering ``[base, next)``."""

    @property
    def base(self) -> Offset:
        """Offset of the first record."""
        ...

    @property
    def next(self) -> Offset:
        """Offset after the last record."""
        ...


RangeT = TypeVar("RangeT", bound=PlannedRange)
RangeT_co = TypeVar("RangeT_co", bound=PlannedRange, covariant=True)


class IndexView(Protocol[RangeT_co]):
    """A log, as the planner needs it."""

    @property
    def log_start_offset(self) -> Offset:
        """First offset kept."""
        ...

    @property
    def log_end_offset(self) -> Offset:
        """Next offset to be written."""
        ...

    def plan_read(
        self, offset: Offset, max_bytes: int, end: Offset, *, max_records: int | None, load: bool
    ) -> RangeT_co:
        """Return whole batches from the one that holds ``offset`` on, none beyond ``end``; empty if it is.

        Without ``load`` it reads no file, and raises an error of its own if it would have to.
        """
        ...

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Return the leader epoch that wrote ``offset``."""
        ...


@dataclass(frozen=True, slots=True)
class FetchQuery:
    """Where a reader stands and how much it wants."""

    offset: Offset
    max_bytes: int
    last_epoch: LeaderEpoch | None = None
    """Leader epoch of the record before ``offset``, if the reader knows it."""
    incarnation: Incarnation | None = None
    """The life of the stream that the reader began with, if it is to be checked."""
    max_records: int | None = None
    """At most so many records, in whole batches; at least one batch."""
    end: Offset | None = None
    """End of the reader's range: it waits for nothing from there on."""


@dataclass(frozen=True, slots=True)
class StreamView(Generic[RangeT]):
    """A stream at one moment."""

    incarnation: Incarnation
    high_watermark: Offset
    index: IndexView[RangeT]
    leader_epoch: LeaderEpoch
    """Epoch of the newest reign that is known here."""
    leads: bool
    """Whether this node leads the stream now: only then its log's end is the stream's."""


@dataclass(frozen=True, slots=True)
class ServeRange(Generic[RangeT]):
    """Send these bytes."""

    file_range: RangeT


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to read yet: ask again when the high watermark is above ``offset``."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class Nothing:
    """Answer at once that there is nothing: the reader has reached its end."""


@dataclass(frozen=True, slots=True)
class RefuseRead:
    """Answer with this error."""

    error: JetstreamError


Plan = ServeRange[RangeT] | Wait | Nothing | RefuseRead

ByteSearch = Callable[[Offset, int, Offset], StoredBatches]
"""Returns the batches of a log from an offset on, by a limit of bytes and an end."""


def plan_fetch(query: FetchQuery, stream: StreamView[RangeT], *, load: bool) -> Plan[RangeT]:
    """Decide what ``query`` gets from ``stream`` now; ``load``: whether files may be read for that.

    Invariant:
        F1: a served range holds the offset that was asked for, ends at or below the high watermark and is not
            empty.
    """
    try:
        _check(query, stream)
        if query.end is not None and query.offset >= query.end:
            return Nothing()
        if query.offset >= stream.high_watermark or _is_ahead(query, stream):
            return Wait(query.offset)
        file_range = stream.index.plan_read(
            query.offset, query.max_bytes, stream.high_watermark, max_records=query.max_records, load=load
        )
    except JetstreamError as error:
        return RefuseRead(error)
    if file_range.next == query.offset:
        return Wait(query.offset)  # the batch reaches beyond the high watermark: not committed as a whole
    assert file_range.base <= query.offset < file_range.next, "F1: the range holds the offset asked for"
    assert file_range.next <= stream.high_watermark, "F1: nothing uncommitted is served"
    return ServeRange(file_range)


def boundary(query: FetchQuery, stream: StreamView[RangeT], within: ByteSearch) -> StoredBatches:
    """Return the batches from ``query.offset`` on that take ``query.max_bytes`` at most; may read files.

    No batches where a fetch would wait: nothing there is known to be committed.

    Args:
        query: their start, and the limit of bytes.
        stream: as it is now.
        within: counts the batches.

    Raises:
        JetstreamError: the error of a fetch with that query.

    Invariant:
        F8: they are whole batches, and end at or below the high watermark.
    """
    _check(query, stream)
    end = min(stream.high_watermark, stream.index.log_end_offset)
    if query.offset >= end:
        return StoredBatches(query.offset, 0)
    found = within(query.offset, query.max_bytes, end)
    assert query.offset <= found.next <= end, "F8: nothing uncommitted is counted"
    return found


def committed(offset: Offset, stream: StreamView[RangeT]) -> Offset:
    """Return the nearest offset a reader can start at: from the log start to the high watermark."""
    return max(min(offset, stream.high_watermark), stream.index.log_start_offset)


def check_incarnation(incarnation: Incarnation | None, stream: StreamView[RangeT]) -> None:
    """Raise StreamRecreated if the reader began with another life of the stream."""
    if incarnation is not None and incarnation != stream.incarnation:
        raise StreamRecreated(
            f"the stream was created again: its incarnation is {stream.incarnation}, not {incarnation}",
            incarnation=stream.incarnation,
        )


def _check(query: FetchQuery, stream: StreamView[RangeT]) -> None:
    check_incarnation(query.incarnation, stream)
    start, end = stream.index.log_start_offset, stream.index.log_end_offset
    if query.offset < start or (query.offset > end and stream.leads):
        raise OffsetOutOfRange(
            f"offset {query.offset} is outside [{start}, {end}]",
            offset=query.offset,
            log_start_offset=start,
            log_end_offset=end,
            high_watermark=stream.high_watermark,
        )
    before = Offset(query.offset - 1)
    # Below the log start there is nothing to compare with; retention is not divergence.
    known_end = end if stream.leads else min(end, stream.high_watermark)
    if query.last_epoch is None or not start <= before < known_end or _is_ahead(query, stream):
        return
    epoch = stream.index.epoch_at(before)
    if epoch != query.last_epoch:
        raise DivergedHistory(
            f"offset {before} was written in leader epoch {epoch} here, not in {query.last_epoch}",
            offset=query.offset,
            leader_epoch=epoch,
        )


def _is_ahead(query: FetchQuery, stream: StreamView[RangeT]) -> bool:
    return not stream.leads and query.last_epoch is not None and query.last_epoch > stream.leader_epoch
