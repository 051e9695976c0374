"""Requests of members of consumer groups to their coordinator, on the socket protocol.

As all requests: one JSON object each, unknown fields are refused. Claims are written stream by stream, each
with pairs of a partition's number and the generation since which it is owned.

A request stands beside the message that the machines of `consumer_groups` exchange: ``of`` writes that of a
member, and a method named after it returns that of the coordinator.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from consumer_groups.assignment.assignors import Assignor
from consumer_groups.assignment.partitions import Claim, Generation, InstanceId, MemberId, Partition
from consumer_groups.coordinator.events import (
    Beat,
    ConnectionId,
    Join,
    Leave,
    NewCursor,
    Release,
    StoreCursors,
)
from consumer_groups.coordinator.group_state import ClientId
from consumer_groups.cursors import CURSOR_OFFSET_MAX, CursorPosition
from consumer_groups.shard.events import LookUpCursors
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
from envelope.types import NodeId, StreamName
from jetstream.protocol.request_base import Natural, ProtocolRequest

HEARTBEAT_MEMBERS_MAX: Final = 256
"""In one heartbeat; a connection with more of them sends several."""
COMMIT_CURSORS_MAX: Final = 1024
"""In one commit, as far as they fit a frame's header."""
FETCH_CURSORS_MAX: Final = 256
_NS_PER_MS: Final = 1_000_000

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


def pairs_by_stream(claims: Iterable[Claim]) -> dict[StreamName, list[list[int]]]:
    """Return the pairs of `WireClaim`, those of a stream in the order of ``claims``."""
    pairs: dict[StreamName, list[list[int]]] = defaultdict(list)
    for (stream, number), generation in claims:
        pairs[stream].append([number, generation])
    return pairs


def _stream_claims(claims: Iterable[Claim]) -> list[StreamClaims]:
    by_stream = pairs_by_stream(sorted(claims)).items()
    return [StreamClaims(stream=stream, partitions=pairs) for stream, pairs in by_stream]


def claims_of(stream: str, pairs: Iterable[list[int]]) -> tuple[Claim, ...]:
    """Return the claims in one stream that `WireClaim` pairs are."""
    name = StreamName(stream)
    return tuple(Claim(Partition(name, number), Generation(generation)) for number, generation in pairs)


def _claims(claims: Iterable[StreamClaims]) -> tuple[Claim, ...]:
    return tuple(claim for each in claims for claim in claims_of(each.stream, each.partitions))


def _instance(instance: str | None) -> InstanceId | None:
    return None if instance is None else InstanceId(instance)


class FindCoordinator(ProtocolRequest):
    """Ask any node who coordinates a group; it need not exist yet."""

    op: Literal["find_coordinator"] = "find_coordinator"
    group: _GroupName


class JoinGroup(ProtocolRequest):
    """Become a member, or subscribe to something else; the same ``number`` again is the same join."""

    can_be_cancelled: ClassVar[bool] = False
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

    @classmethod
    def of(cls, group: str, join: Join, number: int) -> Self:
        """Return a member's join as request ``number`` of a connection."""
        return cls(
            id=number,
            group=group,
            client=join.client,
            number=join.request,
            streams=sorted(join.streams),
            session_timeout_ms=join.session_timeout_ns // _NS_PER_MS,
            rebalance_timeout_ms=join.rebalance_timeout_ns // _NS_PER_MS,
            member=join.member_id,
            instance=join.instance_id,
            assignor=join.assignor,
            node=join.node,
            rack=join.rack,
            owned=_stream_claims(join.owned),
        )

    def join(self, connection: ConnectionId, fresh_id: MemberId) -> Join:
        """Return what the coordinator handles."""
        return Join(
            connection=connection,
            client=ClientId(self.client),
            request=self.number,
            fresh_id=fresh_id,
            streams=frozenset(map(StreamName, self.streams)),
            session_timeout_ns=self.session_timeout_ms * _NS_PER_MS,
            rebalance_timeout_ns=self.rebalance_timeout_ms * _NS_PER_MS,
            member_id=None if self.member is None else MemberId(self.member),
            instance_id=_instance(self.instance),
            assignor=self.assignor,
            node=None if self.node is None else NodeId(self.node),
            rack=self.rack,
            owned=_claims(self.owned),
        )


class MemberBeat(_Part):
    """One member is alive, and has heard of this generation."""

    group: _GroupName
    member: _Word
    generation: Natural
    instance: _Word | None = None

    @classmethod
    def of(cls, group: str, beat: Beat) -> Self:
        """Return a member's part of a heartbeat."""
        return cls(group=group, member=beat.member_id, generation=beat.generation, instance=beat.instance_id)

    def beat(self) -> Beat:
        """Return what the coordinator handles."""
        return Beat(MemberId(self.member), Generation(self.generation), _instance(self.instance))


class SendHeartbeat(ProtocolRequest):
    """All these members of the connection are alive; wait for news of theirs."""

    op: Literal["heartbeat"] = "heartbeat"
    beats: Annotated[list[MemberBeat], Field(min_length=1, max_length=HEARTBEAT_MEMBERS_MAX)]
    max_wait_ms: Annotated[int, Field(ge=0, le=FETCH_WAIT_MS_MAX)] = 0


class ReleasePartitions(ProtocolRequest):
    """The member reads these no more, and commits nothing more for them."""

    can_be_cancelled: ClassVar[bool] = False
    op: Literal["release"] = "release"
    group: _GroupName
    member: _Word
    claims: Annotated[list[StreamClaims], Field(min_length=1)]
    instance: _Word | None = None

    @classmethod
    def of(cls, group: str, release: Release, number: int) -> Self:
        """Return a member's release as request ``number`` of a connection."""
        claims, instance = _stream_claims(release.claims), release.instance_id
        return cls(id=number, group=group, member=release.member_id, claims=claims, instance=instance)

    def release(self, connection: ConnectionId) -> Release:
        """Return what the coordinator handles."""
        return Release(connection, MemberId(self.member), _claims(self.claims), _instance(self.instance))


class LeaveGroup(ProtocolRequest):
    """The member stops, and has given up everything."""

    can_be_cancelled: ClassVar[bool] = False
    op: Literal["leave_group"] = "leave_group"
    group: _GroupName
    member: _Word
    instance: _Word | None = None

    @classmethod
    def of(cls, group: str, leave: Leave, number: int) -> Self:
        """Return a member's leave as request ``number`` of a connection."""
        return cls(id=number, group=group, member=leave.member_id, instance=leave.instance_id)

    def leave(self, connection: ConnectionId) -> Leave:
        """Return what the coordinator handles."""
        return Leave(connection, MemberId(self.member), _instance(self.instance))


class PartitionCursor(_Part):
    """Where a group reads on in one partition."""

    stream: _StreamName
    partition: Natural = 0
    offset: Annotated[int, Field(ge=0, le=CURSOR_OFFSET_MAX)]
    incarnation: Annotated[str, Field(min_length=1, max_length=CURSOR_INCARNATION_CHARS_MAX)] | None = None
    metadata: Annotated[str, Field(max_length=CURSOR_METADATA_BYTES_MAX)] | None = None

    @classmethod
    def of(cls, cursor: NewCursor) -> Self:
        """Return one cursor of a commit."""
        partition, place = cursor
        return cls(stream=partition.stream, partition=partition.number, **place._asdict())

    def cursor(self) -> NewCursor:
        """Return what the coordinator stores."""
        return NewCursor(
            Partition(StreamName(self.stream), self.partition),
            CursorPosition(self.offset, self.incarnation, self.metadata),
        )


class CommitCursors(ProtocolRequest):
    """Store cursors, all or none; answered once they are durable on every replica in sync."""

    can_be_cancelled: ClassVar[bool] = False
    op: Literal["commit_cursors"] = "commit_cursors"
    group: _GroupName
    member: _Word
    generation: Natural
    number: Natural
    cursors: Annotated[list[PartitionCursor], Field(min_length=1, max_length=COMMIT_CURSORS_MAX)]
    instance: _Word | None = None
    reset: bool = False
    """Whether a cursor may go back."""

    @classmethod
    def of(cls, group: str, request: StoreCursors, number: int) -> Self:
        """Return a member's commit as request ``number`` of a connection."""
        return cls(
            id=number,
            group=group,
            member=request.member_id,
            generation=request.generation,
            number=request.request,
            cursors=[PartitionCursor.of(cursor) for cursor in request.cursors],
            instance=request.instance_id,
            reset=request.is_reset,
        )

    def commit(self, connection: ConnectionId) -> StoreCursors:
        """Return what the coordinator handles."""
        return StoreCursors(
            connection=connection,
            member_id=MemberId(self.member),
            request=self.number,
            generation=Generation(self.generation),
            cursors=tuple(cursor.cursor() for cursor in self.cursors),
            instance_id=_instance(self.instance),
            is_reset=self.reset,
        )


class StreamNumbers(_Part):
    """Some partitions of one stream."""

    stream: _StreamName
    numbers: Annotated[list[Natural], Field(max_length=FETCH_CURSORS_MAX)]


class FetchCursors(ProtocolRequest):
    """Ask where the group reads on; what has no cursor is left out of the answer."""

    op: Literal["fetch_cursors"] = "fetch_cursors"
    group: _GroupName
    partitions: Annotated[list[StreamNumbers], Field(min_length=1, max_length=FETCH_CURSORS_MAX)]

    @classmethod
    def of(cls, group: str, partitions: Iterable[Partition], number: int) -> Self:
        """Return the question where a group reads on, as request ``number`` of a connection."""
        by_stream: dict[StreamName, list[int]] = defaultdict(list)
        for partition in sorted(partitions):
            by_stream[partition.stream].append(partition.number)
        asked = [StreamNumbers(stream=stream, numbers=numbers) for stream, numbers in by_stream.items()]
        return cls(id=number, group=group, partitions=asked)

    def look_up(self) -> LookUpCursors:
        """Return what the coordinator handles."""
        return LookUpCursors(
            tuple(
                Partition(StreamName(asked.stream), number)
                for asked in self.partitions
                for number in asked.numbers
            )
        )


GroupRequest = JoinGroup | SendHeartbeat | ReleasePartitions | LeaveGroup | CommitCursors | FetchCursors
"""What a coordinator answers."""
