"""Responses of a group's coordinator on the socket protocol; conversions as in `group_requests`."""

from collections.abc import Callable, Mapping
from typing import Final, Self

from pydantic import Field

from consumer_groups.assignment.partitions import Claim, Generation, GroupName, MemberId, Partition
from consumer_groups.coordinator.events import Assignment
from consumer_groups.cursors import CursorPosition
from consumer_groups.shard.records import GroupCursorRecord
from envelope.errors import RemoteProtocolError
from envelope.types import StreamName
from jetstream.protocol.group_requests import (
    CommitCursors,
    FetchCursors,
    FindCoordinator,
    JoinGroup,
    LeaveGroup,
    ReleasePartitions,
    SendHeartbeat,
    WireClaim,
    claims_of,
    pairs_by_stream,
)
from jetstream.protocol.request_base import Natural, ProtocolRequest
from jetstream.protocol.response_base import ProtocolResponse, ResponsePart, SocketErrorBody


class CoordinatorResponse(ProtocolResponse):
    """Where a group's coordinator is now."""

    node: str
    host: str
    port: int


class AssignedStream(ResponsePart):
    """The partitions of one stream that a member owns: pairs of partition and generation since when."""

    stream: str
    partitioned: bool
    """Whether partition 3 is the stream ``<stream>/3``; if not, partition 0 is the stream itself."""
    keeps: list[WireClaim] = Field(default_factory=list)
    gives_up: list[WireClaim] = Field(default_factory=list)
    """It owns these until it releases them: others are to have them."""


class MemberAssignment(ResponsePart):
    """All that a member owns; one of an older generation than the member has heard is to be ignored."""

    group: str
    member: str
    generation: Natural
    streams: list[AssignedStream] = Field(default_factory=list)

    @classmethod
    def of(
        cls, group: GroupName, assignment: Assignment, is_partitioned: Callable[[StreamName], bool]
    ) -> Self:
        """Return the coordinator's assignment as its member reads it."""
        keeps, gives_up = pairs_by_stream(assignment.keeps), pairs_by_stream(assignment.gives_up)
        streams = [
            AssignedStream(
                stream=stream,
                partitioned=is_partitioned(stream),
                keeps=keeps.get(stream, []),
                gives_up=gives_up.get(stream, []),
            )
            for stream in sorted({*keeps, *gives_up})
        ]
        member, generation = assignment.member_id, assignment.generation
        return cls(group=group, member=member, generation=generation, streams=streams)

    def assignment(self) -> tuple[Assignment, Mapping[Partition, str]]:
        """Return what the member owns, and the stream that each of these partitions is.

        Raises:
            RemoteProtocolError: the coordinator contradicts itself.
        """
        keeps: list[Claim] = []
        gives_up: list[Claim] = []
        names: dict[Partition, str] = {}
        for each in self.streams:
            for claims, pairs in ((keeps, each.keeps), (gives_up, each.gives_up)):
                for claim in claims_of(each.stream, pairs):
                    partition = claim.partition
                    if partition in names or (partition.number > 0 and not each.partitioned):
                        raise RemoteProtocolError(f"{partition} comes twice, or is none")
                    names[partition] = (
                        f"{each.stream}/{partition.number}" if each.partitioned else each.stream
                    )
                    claims.append(claim)
        generation = Generation(self.generation)
        return Assignment(MemberId(self.member), generation, tuple(keeps), tuple(gives_up)), names


class AssignmentResponse(ProtocolResponse):
    """The answer to a join and to a release."""

    assignment: MemberAssignment


class MemberRefusal(ResponsePart):
    """A member that the coordinator does not know, or not like that."""

    group: str
    member: str
    error: SocketErrorBody


class HeartbeatResponse(ProtocolResponse):
    """The news for the connection's members; none if the wait was over."""

    assignments: list[MemberAssignment] = Field(default_factory=list)
    refused: list[MemberRefusal] = Field(default_factory=list)


class LeftResponse(ProtocolResponse):
    """The member is gone, by this request or before."""


class CommittedResponse(ProtocolResponse):
    """The cursors are durable; or a later commit of the same member was already, and these were left out."""

    superseded: bool = False


class StoredCursor(ResponsePart):
    """Where a group reads on in one partition."""

    stream: str
    partition: Natural
    offset: Natural
    incarnation: str | None = None
    metadata: str | None = None
    committed_at: int
    """Microseconds since 1970 UTC."""

    @classmethod
    def of(cls, cursor: GroupCursorRecord) -> Self:
        """Return a cursor that the coordinator has stored."""
        (stream, number), place = cursor.partition, cursor.place
        return cls(stream=stream, partition=number, **place._asdict(), committed_at=cursor.committed_at)


class CursorsResponse(ProtocolResponse):
    """Those cursors that there are."""

    cursors: list[StoredCursor] = Field(default_factory=list)

    def places(self) -> dict[Partition, CursorPosition]:
        """Return where the group reads on in the partitions that have a cursor."""
        return {
            Partition(StreamName(each.stream), each.partition): CursorPosition(
                each.offset, each.incarnation, each.metadata
            )
            for each in self.cursors
        }


GroupResponse = (
    CoordinatorResponse
    | AssignmentResponse
    | HeartbeatResponse
    | LeftResponse
    | CommittedResponse
    | CursorsResponse
)

GROUP_RESPONSES: Final[Mapping[type[ProtocolRequest], type[GroupResponse]]] = {
    FindCoordinator: CoordinatorResponse,
    JoinGroup: AssignmentResponse,
    SendHeartbeat: HeartbeatResponse,
    ReleasePartitions: AssignmentResponse,
    LeaveGroup: LeftResponse,
    CommitCursors: CommittedResponse,
    FetchCursors: CursorsResponse,
}
