"""Between the socket protocol's requests and responses of groups and what the coordinator's machines know."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from consumer_groups.assignment.partitions import (
    Claim,
    Generation,
    GroupName,
    InstanceId,
    MemberId,
    Partition,
)
from consumer_groups.coordinator.events import Assignment, Beat, ConnectionId, Join, Leave, Release
from consumer_groups.coordinator.group_state import ClientId
from consumer_groups.cursors import CursorPosition
from consumer_groups.shard.events import LookUpCursors as CursorsWanted
from consumer_groups.shard.events import StoreCursors as CommitToStore
from consumer_groups.shard.records import GroupCursorRecord, NewCursor
from envelope.errors import JetstreamError
from envelope.types import NodeId, StreamName
from jetstream.protocol.group_requests import (
    CommitCursors,
    FetchCursors,
    JoinGroup,
    LeaveGroup,
    MemberBeat,
    ReleasePartitions,
    StreamClaims,
)
from jetstream.protocol.group_responses import AssignedStream, MemberAssignment, MemberRefusal, StoredCursor
from jetstream.protocol.responses import error_body

_NS_PER_MS: Final = 1_000_000


# --- requests -----------------------------------------------------------------------------------------


def join_of(request: JoinGroup, connection: ConnectionId, fresh_id: MemberId) -> Join:
    """Return what is asked of the coordinator."""
    return Join(
        connection=connection,
        client=ClientId(request.client),
        request=request.number,
        fresh_id=fresh_id,
        streams=frozenset(map(StreamName, request.streams)),
        session_timeout_ns=request.session_timeout_ms * _NS_PER_MS,
        rebalance_timeout_ns=request.rebalance_timeout_ms * _NS_PER_MS,
        member_id=None if request.member is None else MemberId(request.member),
        instance_id=_instance(request.instance),
        assignor=request.assignor,
        node=None if request.node is None else NodeId(request.node),
        rack=request.rack,
        owned=_claims(request.owned),
    )


def beat_of(beat: MemberBeat) -> Beat:
    """Return what is asked of the coordinator."""
    return Beat(MemberId(beat.member), Generation(beat.generation), _instance(beat.instance))


def release_of(request: ReleasePartitions, connection: ConnectionId) -> Release:
    """Return what is asked of the coordinator."""
    claims = _claims(request.claims)
    return Release(connection, MemberId(request.member), claims, _instance(request.instance))


def leave_of(request: LeaveGroup, connection: ConnectionId) -> Leave:
    """Return what is asked of the coordinator."""
    return Leave(connection, MemberId(request.member), _instance(request.instance))


def commit_of(request: CommitCursors, connection: ConnectionId) -> CommitToStore:
    """Return what is asked of the coordinator."""
    cursors = tuple(
        NewCursor(
            Partition(StreamName(cursor.stream), cursor.partition),
            CursorPosition(cursor.offset, cursor.incarnation, cursor.metadata),
        )
        for cursor in request.cursors
    )
    return CommitToStore(
        connection=connection,
        member_id=MemberId(request.member),
        request=request.number,
        generation=Generation(request.generation),
        cursors=cursors,
        instance_id=_instance(request.instance),
        is_reset=request.reset,
    )


def wanted_of(request: FetchCursors) -> CursorsWanted:
    """Return what is asked of the coordinator."""
    return CursorsWanted(
        tuple(
            Partition(StreamName(wanted.stream), number)
            for wanted in request.partitions
            for number in wanted.numbers
        )
    )


def _instance(instance: str | None) -> InstanceId | None:
    return None if instance is None else InstanceId(instance)


def _claims(claims: Iterable[StreamClaims]) -> tuple[Claim, ...]:
    return tuple(
        Claim(Partition(StreamName(of_stream.stream), number), Generation(generation))
        for of_stream in claims
        for number, generation in of_stream.partitions
    )


# --- responses ----------------------------------------------------------------------------------------


def assignment_on_wire(
    group: GroupName, assignment: Assignment, is_partitioned: Callable[[StreamName], bool]
) -> MemberAssignment:
    """Return an assignment as its member is told."""
    keeps, gives_up = _by_stream(assignment.keeps), _by_stream(assignment.gives_up)
    streams = [
        AssignedStream(
            stream=stream,
            partitioned=is_partitioned(stream),
            keeps=keeps.get(stream, []),
            gives_up=gives_up.get(stream, []),
        )
        for stream in sorted({*keeps, *gives_up})
    ]
    return MemberAssignment(
        group=group, member=assignment.member_id, generation=assignment.generation, streams=streams
    )


def _by_stream(claims: Iterable[Claim]) -> dict[StreamName, list[list[int]]]:
    pairs: dict[StreamName, list[list[int]]] = defaultdict(list)
    for (stream, number), generation in claims:
        pairs[stream].append([number, generation])
    return pairs


def refusal_on_wire(group: GroupName, member_id: MemberId, error: JetstreamError) -> MemberRefusal:
    """Return why a member is refused, as it is told."""
    return MemberRefusal(group=group, member=member_id, error=error_body(error))


def cursor_on_wire(cursor: GroupCursorRecord) -> StoredCursor:
    """Return a cursor as it is told."""
    stream, number = cursor.partition
    return StoredCursor(
        stream=stream,
        partition=number,
        offset=cursor.place.offset,
        incarnation=cursor.place.incarnation,
        metadata=cursor.place.metadata,
        committed_at=cursor.committed_at,
    )
