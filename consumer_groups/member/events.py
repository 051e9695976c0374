"""The events and actions of a member of a group. Times are ns of the monotonic clock.

The requests to its coordinator, and the answers, are in `consumer_groups.coordinator.events`; here is
what only its own process knows.
"""

from dataclasses import dataclass

from consumer_groups.assignment.partitions import Claim
from consumer_groups.coordinator.events import (
    Assigned,
    ConnectionId,
    CoordinatorRefusal,
    Join,
    Joined,
    JoinRefused,
    Leave,
    Left,
    MemberRefused,
    Release,
    SetTimer,
    Tick,
)
from envelope.types import StreamName

# --- events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The application wants to read these streams, and no others: the first event; it may come again."""

    streams: frozenset[StreamName]


@dataclass(frozen=True, slots=True)
class CoordinatorFound:
    """Requests can be sent from now on; those before it, on another connection, may have been lost."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class CoordinatorLost:
    """Nothing more comes from there: the connection is broken, or its other end coordinates no more."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class CoordinatorRefused:
    """There can be no coordinator of this group: to ask again is no use."""

    refusal: CoordinatorRefusal


@dataclass(frozen=True, slots=True)
class StoppedReading:
    """These are read no more, and what was to be committed for them is."""

    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """The application wants no more records."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """The application is stuck in a record: others are to have its partitions."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The application goes on, after it was stalled."""


MemberEvent = (
    Subscribed
    | CoordinatorFound
    | CoordinatorLost
    | CoordinatorRefused
    | Joined
    | JoinRefused
    | Assigned
    | MemberRefused
    | Left
    | StoppedReading
    | Closed
    | Stalled
    | Resumed
    | Tick
)

# --- actions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocateCoordinator:
    """Ask any node who coordinates the group, until one says so; then give `CoordinatorFound`."""


@dataclass(frozen=True, slots=True)
class StartReading:
    """Read these from the group's cursors on."""

    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class StopReading:
    """Hand out nothing more of these, commit what was handed out, then give `StoppedReading`.

    They need not all be stopped at once: what was is given up, and the others have it.
    """

    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """Hand out nothing more of these and commit nothing for them: perhaps they are others' already."""

    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """There is no member any more and there will be none; no event has any effect from now on."""

    refusal: CoordinatorRefusal | None = None
    """None: it has left, as the application wanted."""


MemberRequest = Join | Release | Leave
"""To be sent on their connection. They may be lost: they are sent again until they are answered."""

MemberAction = MemberRequest | LocateCoordinator | StartReading | StopReading | Lost | Ended | SetTimer
