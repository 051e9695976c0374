"""Requests and responses of group members, as the socket protocol writes them."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import assert_never

from consumer_groups.assignment.partitions import Claim, Generation, MemberId, Partition
from consumer_groups.coordinator.events import (
    Assignment,
    Beat,
    CommitRequested,
    CoordinatorRefusal,
    Join,
    Leave,
    Release,
)
from consumer_groups.cursors import CursorPosition
from consumer_groups.member.commits import CursorCommit
from consumer_groups.member.events import MemberRequest
from envelope.errors import JetstreamError, RemoteProtocolError
from envelope.types import StreamName
from jetstream.protocol.group_requests import (
    CommitCursors,
    FetchCursors,
    JoinGroup,
    LeaveGroup,
    MemberBeat,
    PartitionCursor,
    ReleasePartitions,
    StreamClaims,
    StreamNumbers,
)
from jetstream.protocol.group_responses import CursorsResponse, MemberAssignment
from jetstream.protocol.requests import Request

_NS_PER_MS = 1_000_000


def member_request(group: str, request: MemberRequest, number: int) -> Request:
    """Return what a member asks as request ``number`` of a connection."""
    match request:
        case Join():
            return JoinGroup(
                id=number,
                group=group,
                client=request.client,
                number=request.request,
                streams=sorted(request.streams),
                session_timeout_ms=request.session_timeout_ns // _NS_PER_MS,
                rebalance_timeout_ms=request.rebalance_timeout_ns // _NS_PER_MS,
                member=request.member_id,
                instance=request.instance_id,
                assignor=request.assignor,
                node=request.node,
                rack=request.rack,
                owned=wire_claims(request.owned),
            )
        case Release():
            claims = wire_claims(request.claims)
            member, instance = request.member_id, request.instance_id
            return ReleasePartitions(id=number, group=group, member=member, claims=claims, instance=instance)
        case Leave():
            return LeaveGroup(id=number, group=group, member=request.member_id, instance=request.instance_id)
        case _:
            assert_never(request)


def commit_request(group: str, request: CommitRequested, commit: CursorCommit, number: int) -> CommitCursors:
    """Return a commit as request ``number`` of a connection."""
    cursors = [
        PartitionCursor(
            stream=claim.partition.stream,
            partition=claim.partition.number,
            offset=place.offset,
            incarnation=place.incarnation,
            metadata=place.metadata,
        )
        for claim, place in commit.places
    ]
    return CommitCursors(
        id=number,
        group=group,
        member=request.member_id,
        generation=request.generation,
        number=request.request,
        cursors=cursors,
        instance=request.instance_id,
        reset=commit.goes_back,
    )


def member_beat(group: str, beat: Beat) -> MemberBeat:
    """Return what a heartbeat says of one member."""
    return MemberBeat(
        group=group, member=beat.member_id, generation=beat.generation, instance=beat.instance_id
    )


def wire_claims(claims: Iterable[Claim]) -> list[StreamClaims]:
    """Return claims stream by stream."""
    by_stream = groupby(sorted(claims), key=_stream)
    return [
        StreamClaims(
            stream=stream, partitions=[[claim.partition.number, claim.generation] for claim in of_stream]
        )
        for stream, of_stream in by_stream
    ]


def _stream(claim: Claim) -> StreamName:
    return claim.partition.stream


def read_assignment(message: MemberAssignment) -> tuple[Assignment, Mapping[Partition, str]]:
    """Return what a member owns, and the stream that each of these partitions is.

    Raises:
        RemoteProtocolError: the coordinator contradicts itself.
    """
    keeps: list[Claim] = []
    gives_up: list[Claim] = []
    names: dict[Partition, str] = {}
    for stream in message.streams:
        for claims, pairs in ((keeps, stream.keeps), (gives_up, stream.gives_up)):
            for number, generation in pairs:
                partition = Partition(StreamName(stream.stream), number)
                if partition in names or (number > 0 and not stream.partitioned):
                    raise RemoteProtocolError(f"{partition} comes twice, or is none")
                names[partition] = f"{stream.stream}/{number}" if stream.partitioned else stream.stream
                claims.append(Claim(partition, Generation(generation)))
    assignment = Assignment(
        MemberId(message.member), Generation(message.generation), tuple(keeps), tuple(gives_up)
    )
    return assignment, names


def refusal_of(error: JetstreamError) -> CoordinatorRefusal:
    """Return an error as machines take it."""
    return CoordinatorRefusal(type(error), error.description, tuple(error.detail.items()))


def error_of(refusal: CoordinatorRefusal) -> JetstreamError:
    """Return the error that `refusal_of` took."""
    return refusal.error(refusal.description, **dict(refusal.detail))


def cursors_request(group: str, partitions: Iterable[Partition], number: int) -> FetchCursors:
    """Return the question where the group reads on, as request ``number`` of a connection."""
    by_stream = groupby(sorted(partitions), key=lambda partition: partition.stream)
    wanted = [
        StreamNumbers(stream=stream, numbers=[each.number for each in of_stream])
        for stream, of_stream in by_stream
    ]
    return FetchCursors(id=number, group=group, partitions=wanted)


def read_cursors(response: CursorsResponse) -> dict[Partition, CursorPosition]:
    """Return where the group reads on in the partitions that have a cursor."""
    return {
        Partition(StreamName(each.stream), each.partition): CursorPosition(
            each.offset, each.incarnation, each.metadata
        )
        for each in response.cursors
    }
