"""The events and actions of a group's coordinator. Times are ns of the monotonic clock."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, NewType

from consumer_groups.assignment.assignors import Assignor
from consumer_groups.assignment.partitions import (
    Claim,
    Generation,
    InstanceId,
    MemberId,
    Partition,
    StreamPartitions,
)
from consumer_groups.coordinator.group_state import ClientId, GroupState
from consumer_groups.cursors import CursorPosition
from envelope.errors import JetstreamError
from envelope.types import MonotonicNs, NodeId, StreamName

ConnectionId = NewType("ConnectionId", str)
"""Where an answer goes; it may lead nowhere by then."""


# --- events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """The group as it is durable, or None if it is new: the first event, and only that."""

    state: GroupState | None


@dataclass(frozen=True, slots=True)
class Join:
    """A client wants to be a member, or its member to subscribe to something else.

    A client counts its joins; repeating one, it sends the same number. One whose number is not above the last
    that was taken in changes nothing.
    """

    connection: ConnectionId
    client: ClientId
    request: int
    fresh_id: MemberId
    """For a new member; unique, and never the id of another."""
    streams: frozenset[StreamName]
    session_timeout_ns: int
    rebalance_timeout_ns: int
    member_id: MemberId | None = None
    """The member that it is; None for the first time, and after it was fenced."""
    instance_id: InstanceId | None = None
    assignor: Assignor = Assignor.STICKY
    """Chosen by the first member; those who join it must want the same."""
    node: NodeId | None = None
    rack: str | None = None
    owned: tuple[Claim, ...] = ()
    """What it has of a former membership: a wish, where partitions move to it anyway."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A member of a connection is alive."""

    member_id: MemberId
    generation: Generation
    """Of the newest assignment that it has heard."""
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """A connection, with all of its members, is alive."""

    connection: ConnectionId
    beats: tuple[Beat, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """A member does not read these any more, and will commit nothing more for them."""

    connection: ConnectionId
    member_id: MemberId
    claims: tuple[Claim, ...]
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """A member stops, and has given up everything."""

    connection: ConnectionId
    member_id: MemberId
    instance_id: InstanceId | None = None


class NewCursor(NamedTuple):
    """A cursor that is to be stored."""

    partition: Partition
    place: CursorPosition


@dataclass(frozen=True, slots=True)
class StoreCursors:
    """A member wants to store these cursors, all or none.

    Its number is that of the member's commit; a repeat of the commit has the same one. The coordinator checks
    the partitions and nothing else of the cursors.
    """

    connection: ConnectionId
    member_id: MemberId
    request: int
    generation: Generation
    """Of the newest assignment that it has heard."""
    cursors: tuple[NewCursor, ...]
    instance_id: InstanceId | None = None
    is_reset: bool = False
    """Whether a cursor may go back."""


@dataclass(frozen=True, slots=True)
class PartitionsChanged:
    """These streams exist now, with so many partitions; those have been deleted.

    To be given before the first join to a stream that the machine was not told of, and after `Loaded` for all
    that changed meanwhile. An unchanged stream may be told again.
    """

    changed: tuple[StreamPartitions, ...]
    deleted: tuple[StreamName, ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """The time of `SetTimer` has come."""


@dataclass(frozen=True, slots=True)
class PutOut:
    """An operator wants the group to have no members; it has some."""


Event = Loaded | Join | MemberHeartbeat | Release | Leave | StoreCursors | PartitionsChanged | PutOut | Tick

# --- answers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CoordinatorRefusal:
    """Why not."""

    error: type[JetstreamError]
    description: str
    detail: tuple[tuple[str, int | str], ...] = ()

    @classmethod
    def of(cls, error: JetstreamError) -> "CoordinatorRefusal":
        """Return an error as machines take it."""
        return cls(type(error), error.description, tuple(error.detail.items()))

    def as_error(self) -> JetstreamError:
        """Return the error that it is."""
        return self.error(self.description, **dict(self.detail))


@dataclass(frozen=True, slots=True)
class Assignment:
    """All that a member owns.

    A member leaves out one of an older generation than it has heard. It reads what it keeps, from the cursor
    on if the claim is new to it; it stops reading what it gives up, commits, and says so by `Release`.
    """

    member_id: MemberId
    generation: Generation
    keeps: tuple[Claim, ...]
    gives_up: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """Answer a join."""

    connection: ConnectionId
    client: ClientId
    request: int
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class JoinRefused:
    """Answer a join: it changes nothing."""

    connection: ConnectionId
    client: ClientId
    request: int
    refusal: CoordinatorRefusal


@dataclass(frozen=True, slots=True)
class Assigned:
    """Send a member its assignment: unasked for, or as the answer to its release."""

    connection: ConnectionId
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """Answer a heartbeat."""

    connection: ConnectionId
    assignments: tuple[Assignment, ...] = ()
    """Of members that have not heard of theirs."""
    refused: tuple[tuple[MemberId, CoordinatorRefusal], ...] = ()


@dataclass(frozen=True, slots=True)
class MemberRefused:
    """Answer a release."""

    connection: ConnectionId
    member_id: MemberId
    refusal: CoordinatorRefusal


@dataclass(frozen=True, slots=True)
class Left:
    """Answer a leave: the member is gone, by this or before."""

    connection: ConnectionId
    member_id: MemberId


@dataclass(frozen=True, slots=True)
class CommitAllowed:
    """Append the commit before any later event's actions, and answer it once it is durable."""

    connection: ConnectionId
    member_id: MemberId
    request: int


@dataclass(frozen=True, slots=True)
class CommitRefused:
    """Answer a commit: nothing is to be written."""

    connection: ConnectionId
    member_id: MemberId
    request: int
    refusal: CoordinatorRefusal


class ExpiryCause(Enum):
    """Why a member was put out."""

    SILENT = "not heard for its session timeout"
    HELD_ON = "did not give up within its rebalance timeout"
    FORCED = "put out by an operator"


@dataclass(frozen=True, slots=True)
class Expire:
    """A member was put out; its partitions are others'."""

    member_id: MemberId
    cause: ExpiryCause


Answer = (
    Joined
    | JoinRefused
    | Assigned
    | HeartbeatAnswered
    | MemberRefused
    | Left
    | CommitAllowed
    | CommitRefused
    | Expire
)

# --- actions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Persist:
    """Make this durable, then do ``then``, in order; no event may be given before, except for heartbeats.

    The answer to a heartbeat that is given meanwhile speaks of what is not durable: it may not leave.

    If that fails, or it is not known whether it did, nothing of ``then`` may leave and the machine is over.
    """

    state: GroupState
    then: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Give a `Tick` then; replaces the time set before."""

    at: MonotonicNs


Action = Persist | SetTimer | Answer
