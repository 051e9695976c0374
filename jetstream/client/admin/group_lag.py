"""Where a consumer group stands in the partitions that it reads, and where a reset puts it. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, NamedTuple

from consumer_groups.cursors import records_behind
from envelope.errors import OffsetOutOfRange, RequestError, UnknownStream
from envelope.types import Offset
from jetstream.client.read.places import since
from metadata.api.group_responses import GroupCursor, GroupInfo, GroupMember
from metadata.api.responses import StreamInfo

Target = Literal["earliest", "latest"] | int | datetime | timedelta
"""Where cursors are put: an end of the log, an offset, a moment, or, below 0, so long ago."""


class PartitionName(NamedTuple):
    """A log that a group reads."""

    stream: str
    partition: int


class CursorStatus(StrEnum):
    """The state of a cursor beside its offset."""

    CURRENT = "current"
    """It is within the log."""
    NONE = "none"
    """There is none: everything in the log is to be read."""
    EXPIRED = "expired"
    """Records at and above it were removed before they were read."""
    AHEAD = "ahead"
    """It is above what is committed: the stream has lost records, or somebody has set it there."""
    RECREATED = "recreated"
    """It belongs to an earlier stream of that name: everything in the log is to be read."""
    OFFLINE = "offline"
    """Nobody leads the stream, so that nobody can tell where it ends."""
    NO_STREAM = "no_stream"
    """There is no such stream, or not that partition of it."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in one partition."""

    stream: str
    partition: int
    standing: CursorStatus
    cursor: int | None
    """The next offset to be read; None: there is none."""
    log_start_offset: int | None
    high_watermark: int | None
    """None, as the one before: nobody can tell."""
    lag: int | None
    """Offsets from the cursor, or from the log start, to the high watermark; None: nobody can tell."""
    member: str | None
    """The member that owns it."""
    client: str | None
    committed_at: datetime | None


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind."""

    info: GroupInfo
    partitions: tuple[PartitionLag, ...]
    """Of all streams that it reads or has read, in the order of streams and partitions."""

    @property
    def total(self) -> int:
        """The sum of all that are known."""
        return sum(each.lag or 0 for each in self.partitions)

    @property
    def unknown(self) -> int:
        """The number of partitions whose lag is unknown."""
        return sum(each.lag is None for each in self.partitions)


@dataclass(frozen=True, slots=True)
class CursorMove:
    """A cursor as it was and as it is to be."""

    stream: str
    partition: int
    before: int | None
    """None: there was none, or it belonged to an earlier stream of that name."""
    after: Offset
    incarnation: str
    """Of the stream."""


class CommittedRange(NamedTuple):
    """The committed offsets of a partition now, ``[start, end)``; with a moment, those stored since then."""

    start: Offset
    end: Offset
    incarnation: str


# --- how far it is ------------------------------------------------------------------------------------


def streams_of(info: GroupInfo) -> list[str]:
    """Return the streams that a group subscribes to, owns something of, or has cursors in."""
    subscribed = {stream for member in info.members for stream in member.streams}
    return sorted({*subscribed, *(name.stream for name in (*owners_of(info), *cursors_of(info)))})


def cursors_of(info: GroupInfo) -> dict[PartitionName, GroupCursor]:
    """Return a group's cursors by partition."""
    return {PartitionName(cursor.stream, cursor.partition): cursor for cursor in info.cursors}


def owners_of(info: GroupInfo) -> dict[PartitionName, GroupMember]:
    """Return the owner of each partition, those that are to be given up included."""
    return dict(_owned(info))


def _owned(info: GroupInfo) -> Iterator[tuple[PartitionName, GroupMember]]:
    for member in info.members:
        for owned in (*member.owned, *member.gives_up):
            for number, _ in owned.partitions:
                yield PartitionName(owned.stream, number), member


def lag_of(info: GroupInfo, partitions: Mapping[PartitionName, StreamInfo]) -> GroupLag:
    """Return how far a group is behind.

    Args:
        info: the group.
        partitions: the existing ones of the streams that it reads; a cursor of any other is one of a deleted
            partition.
    """
    cursors, owners = cursors_of(info), owners_of(info)
    names = sorted({*partitions, *cursors, *owners})
    lags = (_lag(name, cursors.get(name), partitions.get(name), owners.get(name)) for name in names)
    return GroupLag(info, tuple(lags))


def _lag(
    name: PartitionName, cursor: GroupCursor | None, log: StreamInfo | None, owner: GroupMember | None
) -> PartitionLag:
    standing = _standing(cursor, log)
    start, end = (None, None)
    if log is not None and standing is not CursorStatus.OFFLINE:
        start, end = log.log_start_offset, log.high_watermark
    return PartitionLag(
        stream=name.stream,
        partition=name.partition,
        standing=standing,
        cursor=None if cursor is None else cursor.offset,
        log_start_offset=start,
        high_watermark=end,
        lag=None if start is None or end is None else _behind(standing, cursor, start, end),
        member=None if owner is None else owner.member,
        client=None if owner is None else owner.client,
        committed_at=None if cursor is None else cursor.committed_at,
    )


def _standing(cursor: GroupCursor | None, log: StreamInfo | None) -> CursorStatus:
    if log is None:
        return CursorStatus.NO_STREAM
    if not log.replica_states:  # who leads it would tell of itself: this is what another node has heard
        return CursorStatus.OFFLINE
    if cursor is None:
        return CursorStatus.NONE
    if cursor.incarnation not in (None, log.incarnation):
        return CursorStatus.RECREATED
    if cursor.offset < log.log_start_offset:
        return CursorStatus.EXPIRED
    return CursorStatus.AHEAD if cursor.offset > log.high_watermark else CursorStatus.CURRENT


def _behind(standing: CursorStatus, cursor: GroupCursor | None, start: int, end: int) -> int:
    is_valid = cursor is not None and standing is not CursorStatus.RECREATED
    return records_behind(cursor.offset if cursor and is_valid else None, start, end)


# --- where it is put ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CursorReset:
    """A change of cursors and the cursors that it is for; either ``to`` or ``by`` is set."""

    to: Target | None = None
    by: int | None = None
    """So many offsets forward, or back if it is below 0."""
    streams: Sequence[str] | None = None
    """None: all that the group reads or has read, as far as they exist."""
    partitions: Sequence[int] = field(default=())
    """Of the one stream; none: all."""

    def range_start(self, now: datetime) -> Literal["earliest"] | datetime:
        """Return where the range of each partition is to begin that `put` is given."""
        moment = since(self.to, now)
        return moment if isinstance(moment, datetime) else "earliest"

    def validated(self) -> "CursorReset":
        """Return self.

        Raises:
            RequestError: neither or both of ``to`` and ``by`` are set, or a value is invalid.
        """
        if (self.to is None) == (self.by is None):
            raise RequestError("say where to: to, or by how many offsets: by; one of them")
        if self.partitions and len(set(self.streams or ())) != 1:
            raise RequestError("partitions: of which stream? name one, and no other")
        _check_target(self.to)
        return self

    def streams_of(self, info: GroupInfo | None) -> list[str]:
        """Return the streams that it is about; of the group's own, if none was named."""
        if self.streams is not None:
            return sorted(set(self.streams))
        return [] if info is None else streams_of(info)

    def selected(
        self, existing: Collection[PartitionName], cursors: Collection[PartitionName]
    ) -> list[PartitionName]:
        """Return the partitions whose cursors are moved.

        Args:
            existing: the partitions of the streams in question.
            cursors: the partitions with a cursor of the group; only these are moved ``by`` offsets, unless
                others are named.

        Raises:
            UnknownStream: a stream, or a partition, that was named is not there.
            RequestError: nothing is left.
        """
        gone = sorted(set(self.streams or ()) - {name.stream for name in existing})
        if gone:
            raise UnknownStream(f"there is no stream {gone[0]!r}", stream=gone[0])
        if self.partitions:
            [stream] = set(self.streams or ())
            named = [PartitionName(stream, number) for number in sorted(set(self.partitions))]
            missing = next((name for name in named if name not in existing), None)
            if missing is not None:
                raise UnknownStream(f"there is no {_text(missing)}", stream=stream)
            return named
        chosen = sorted(existing if self.by is None else set(existing).intersection(cursors))
        if not chosen:
            raise RequestError("the group has no cursor in any stream that there is: name the streams")
        return chosen

    def put(self, name: PartitionName, cursor: GroupCursor | None, log: CommittedRange) -> CursorMove:
        """Return where a cursor is put.

        Raises:
            OffsetOutOfRange: the offset is not in the partition, nor its end.
            RequestError: there is no cursor to be moved by some offsets, or it belongs to another stream.
        """
        belongs = cursor is not None and cursor.incarnation in (None, log.incarnation)
        before = cursor.offset if cursor is not None and belongs else None
        return CursorMove(*name, before, self._after(name, before, log), log.incarnation)

    def _after(self, name: PartitionName, before: int | None, log: CommittedRange) -> Offset:
        if self.by is not None:
            if before is None:
                raise RequestError(f"{_text(name)} has no cursor that could be moved by {self.by:+}")
            return Offset(min(max(before + self.by, log.start), log.end))
        if isinstance(self.to, int):
            if not log.start <= self.to <= log.end:
                raise OffsetOutOfRange(
                    f"offset {self.to} of {_text(name)} is not in [{log.start}, {log.end}]",
                    log_start_offset=log.start,
                    high_watermark=log.end,
                )
            return Offset(self.to)
        return log.end if self.to == "latest" else log.start


def _check_target(to: Target | None) -> None:
    if isinstance(to, bool) or (isinstance(to, int) and to < 0):
        raise RequestError(f"{to!r} is not an offset")
    if isinstance(to, datetime) and to.tzinfo is None:
        raise RequestError(f"{to!r} has no time zone: which moment is meant?")
    if isinstance(to, timedelta) and to > timedelta(0):
        raise RequestError(f"{to!r} is yet to come: so long ago has a minus")
    if not isinstance(to, int | datetime | timedelta) and to not in (None, "earliest", "latest"):
        raise RequestError(f"{to!r} is neither an offset, a datetime, a timedelta, 'earliest' nor 'latest'")


def _text(name: PartitionName) -> str:
    return f"partition {name.partition} of {name.stream!r}"
