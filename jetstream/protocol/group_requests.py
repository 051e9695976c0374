"""Requests of members of consumer groups to their coordinator, on the socket protocol.

As all requests: one JSON object each, unknown fields are refused. Claims are written stream by stream, each
with pairs of a partition's number and the generation since which it is owned.
"""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from consumer_groups.assignment.assignors import Assignor
from consumer_groups.cursors import CURSOR_OFFSET_MAX
from envelope.limits import (
    CURSOR_INCARNATION_CHARS_MAX,
    CURSOR_METADATA_BYTES_MAX,
    FETCH_WAIT_MS_MAX,
    MEMBER_STREAMS_MAX,
    MEMBER_WORD_BYTES_MAX,
    REBALANCE_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MIN,
    STREAM_NAME_CHARS_MAX,
)
from jetstream.protocol.request_base import Natural, ProtocolRequest

HEARTBEAT_MEMBERS_MAX: Final = 256
"""In one heartbeat; a connection with more of them sends several."""
COMMIT_CURSORS_MAX: Final = 1024
"""In one commit, as far as they fit a frame's header."""
FETCH_CURSORS_MAX: Final = 256

_GroupName = Annotated[str, Field(max_length=STREAM_NAME_CHARS_MAX)]
_StreamName = Annotated[str, Field(max_length=STREAM_NAME_CHARS_MAX)]
_Word = Annotated[str, Field(min_length=1, max_length=MEMBER_WORD_BYTES_MAX)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


WireClaim = Annotated[list[Natural], Field(min_length=2, max_length=2)]
"""A partition's number, and the generation since which it is owned."""


class StreamClaims(_Part):
    """The owned partitions of one stream."""

    stream: _StreamName
    partitions: list[WireClaim]


class FindCoordinator(ProtocolRequest):
    """Ask any node who coordinates a group; it need not exist yet."""

    op: Literal["find_coordinator"] = "find_coordinator"
    group: _GroupName


class JoinGroup(ProtocolRequest):
    """Become a member, or subscribe to something else; the same ``number`` again is the same join."""

    op: Literal["join_group"] = "join_group"
    group: _GroupName
    client: _Word
    number: Natural
    streams: Annotated[list[_StreamName], Field(min_length=1, max_length=MEMBER_STREAMS_MAX)]
    session_timeout_ms: Annotated[int, Field(ge=SESSION_TIMEOUT_MS_MIN, le=SESSION_TIMEOUT_MS_MAX)]
    rebalance_timeout_ms: Annotated[int, Field(ge=SESSION_TIMEOUT_MS_MIN, le=REBALANCE_TIMEOUT_MS_MAX)]
    member: _Word | None = None
    instance: _Word | None = None
    assignor: Annotated[Assignor, Field(strict=False)] = Assignor.STICKY
    node: _Word | None = None
    rack: _Word | None = None
    owned: Annotated[list[StreamClaims], Field(default_factory=list)]


class MemberBeat(_Part):
    """One member is alive, and has heard of this generation."""

    group: _GroupName
    member: _Word
    generation: Natural
    instance: _Word | None = None


class SendHeartbeat(ProtocolRequest):
    """All these members of the connection are alive; wait for news of theirs."""

    op: Literal["heartbeat"] = "heartbeat"
    beats: Annotated[list[MemberBeat], Field(min_length=1, max_length=HEARTBEAT_MEMBERS_MAX)]
    max_wait_ms: Annotated[int, Field(ge=0, le=FETCH_WAIT_MS_MAX)] = 0


class ReleasePartitions(ProtocolRequest):
    """The member reads these no more, and commits nothing more for them."""

    op: Literal["release"] = "release"
    group: _GroupName
    member: _Word
    claims: Annotated[list[StreamClaims], Field(min_length=1)]
    instance: _Word | None = None


class LeaveGroup(ProtocolRequest):
    """The member stops, and has given up everything."""

    op: Literal["leave_group"] = "leave_group"
    group: _GroupName
    member: _Word
    instance: _Word | None = None


class PartitionCursor(_Part):
    """Where a group reads on in one partition."""

    stream: _StreamName
    partition: Natural = 0
    offset: Annotated[int, Field(ge=0, le=CURSOR_OFFSET_MAX)]
    incarnation: Annotated[str, Field(min_length=1, max_length=CURSOR_INCARNATION_CHARS_MAX)] | None = None
    metadata: Annotated[str, Field(max_length=CURSOR_METADATA_BYTES_MAX)] | None = None


class CommitCursors(ProtocolRequest):
    """Store cursors, all or none; answered once they are durable on every replica in sync."""

    op: Literal["commit_cursors"] = "commit_cursors"
    group: _GroupName
    member: _Word
    generation: Natural
    number: Natural
    cursors: Annotated[list[PartitionCursor], Field(min_length=1, max_length=COMMIT_CURSORS_MAX)]
    instance: _Word | None = None
    reset: bool = False
    """Whether a cursor may go back."""


class StreamNumbers(_Part):
    """Some partitions of one stream."""

    stream: _StreamName
    numbers: Annotated[list[Natural], Field(max_length=FETCH_CURSORS_MAX)]


class FetchCursors(ProtocolRequest):
    """Ask where the group reads on; what has no cursor is left out of the answer."""

    op: Literal["fetch_cursors"] = "fetch_cursors"
    group: _GroupName
    partitions: Annotated[list[StreamNumbers], Field(min_length=1, max_length=FETCH_CURSORS_MAX)]


GroupRequest = JoinGroup | SendHeartbeat | ReleasePartitions | LeaveGroup | CommitCursors | FetchCursors
"""What a coordinator answers."""
