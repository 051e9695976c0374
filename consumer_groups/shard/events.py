"""The events and actions of a shard's coordinator. Times are ns of the monotonic clock.

The groups' own requests and answers are those of `consumer_groups.coordinator.events`, where one fits.
"""

from dataclasses import dataclass
from typing import Final, NewType

from consumer_groups.assignment.partitions import (
    Generation,
    GroupName,
    MemberId,
    Partition,
    StreamPartitions,
)
from consumer_groups.coordinator.events import (
    Assignment,
    Beat,
    ConnectionId,
    CoordinatorRefusal,
    ExpiryCause,
    Join,
    Leave,
    Left,
    NewCursor,
    Release,
    SetTimer,
    StoreCursors,
    Tick,
)
from consumer_groups.coordinator.group_state import GroupState
from consumer_groups.shard.records import GroupCursorRecord, GroupRecord
from envelope.errors import JetstreamError
from envelope.types import StreamName, TimestampUs

QuestionId = NewType("QuestionId", int)
"""Chosen by the shell, never twice in a reign; each is answered by one `Reply`."""

WriteNumber = NewType("WriteNumber", int)
"""Of a write in a reign: from 1 on, without gaps."""


# --- what is asked of a group -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookUpCursors:
    """Somebody wants to know where the group reads on in these partitions."""

    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    """Somebody wants to know all that is durable of the group."""


@dataclass(frozen=True, slots=True)
class ResetCursors:
    """An operator sets these cursors, all or none; the group may be new, and must have no members."""

    cursors: tuple[NewCursor, ...]
    force: bool = False
    """Put the members out first."""


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """An operator wants nothing to be left of the group; it must have no members."""

    force: bool = False
    """Put the members out first; and delete a group that cannot be read."""


GroupRequest = (
    Join | Release | Leave | StoreCursors | LookUpCursors | DescribeGroup | ResetCursors | DeleteGroup
)


# --- events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody asks something of a group."""

    question: QuestionId
    group: GroupName
    """Any text."""
    request: GroupRequest


@dataclass(frozen=True, slots=True)
class Beats:
    """A connection with these members is alive, and waits for news of theirs.

    A later one on the same connection takes its place.
    """

    question: QuestionId
    connection: ConnectionId
    beats: tuple[tuple[GroupName, Beat], ...]
    wait_ns: int
    """How long at most; 0: answer at once."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Somebody wants to know which groups there are."""

    question: QuestionId
    prefix: str = ""
    """Of their names."""


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """Nothing can be answered there any more; its members live on until their sessions end."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class ShardWritten:
    """This write is committed: it outlives this reign. Writes are settled in the order of their numbers."""

    number: WriteNumber
    at: TimestampUs
    """The timestamp of its records."""


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """Certainly nothing of this write is stored, nor ever will be.

    If that is not known, the reign is over, and so is this machine.
    """

    number: WriteNumber
    error: JetstreamError


@dataclass(frozen=True, slots=True)
class StreamsChanged:
    """These streams exist now, with so many partitions; those do not.

    A stream in both was deleted and made again. Before a join all of its streams are to be told; and when a
    reign begins, as whenever they change, those that are `Shard.subscribed`.
    """

    changed: tuple[StreamPartitions, ...]
    deleted: tuple[StreamName, ...] = ()


ShardEvent = (
    Asked | Beats | Listed | ConnectionClosed | ShardWritten | WriteRefused | StreamsChanged | Tick
)  # `Tick`: the time of `SetTimer` has come


# --- answers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The news of a connection's members; none if the wait is over."""

    assignments: tuple[tuple[GroupName, Assignment], ...] = ()
    refused: tuple[tuple[GroupName, MemberId, CoordinatorRefusal], ...] = ()


NO_NEWS: Final = HeartbeatAnswer()


@dataclass(frozen=True, slots=True)
class CursorsCommitted:
    """The cursors are durable."""

    superseded: bool = False
    """They are not: a later commit of the same member is, and nothing of this one was written."""


@dataclass(frozen=True, slots=True)
class CursorsFound:
    """Those that there are, in the order in which they were asked for."""

    cursors: tuple[GroupCursorRecord, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """All that is durable of a group."""

    state: GroupState
    cursors: tuple[GroupCursorRecord, ...]
    """Ordered by partition."""


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """The summary of one group."""

    name: GroupName
    members: int
    generation: Generation


@dataclass(frozen=True, slots=True)
class GroupsFound:
    """Those that there are, ordered by name."""

    groups: tuple[GroupOverview, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """It is durable."""


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """Nothing was done."""

    error: JetstreamError


Answer = (
    Assignment
    | HeartbeatAnswer
    | Left
    | CursorsCommitted
    | CursorsFound
    | GroupDescription
    | GroupsFound
    | Done
    | RequestFailed
)


# --- actions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """Append these records, in this order, behind those of the writes before, and all of them or none.

    `ShardWritten` or `WriteRefused` is to follow. Many may be under way.
    """

    number: WriteNumber
    records: tuple[GroupRecord, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a question."""

    question: QuestionId
    answer: Answer


@dataclass(frozen=True, slots=True)
class Expired:
    """A member was put out: something to be logged."""

    group: GroupName
    member_id: MemberId
    cause: ExpiryCause


ShardAction = Write | Reply | Expired | SetTimer
