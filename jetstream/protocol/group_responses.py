"""Responses of a group's coordinator on the socket protocol."""

from pydantic import BaseModel, ConfigDict, Field

from jetstream.protocol.group_requests import WireClaim
from jetstream.protocol.request_base import Natural
from jetstream.protocol.response_base import ProtocolResponse, SocketErrorBody


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class CoordinatorResponse(ProtocolResponse):
    """Where a group's coordinator is now."""

    node: str
    host: str
    port: int


class AssignedStream(_Part):
    """The partitions of one stream that a member owns: pairs of partition and generation since when."""

    stream: str
    partitioned: bool
    """Whether partition 3 is the stream ``<stream>/3``; if not, partition 0 is the stream itself."""
    keeps: list[WireClaim] = Field(default_factory=list)
    gives_up: list[WireClaim] = Field(default_factory=list)
    """It owns these until it releases them: others are to have them."""


class MemberAssignment(_Part):
    """All that a member owns; one of an older generation than the member has heard is to be ignored."""

    group: str
    member: str
    generation: Natural
    streams: list[AssignedStream] = Field(default_factory=list)


class AssignmentResponse(ProtocolResponse):
    """The answer to a join and to a release."""

    assignment: MemberAssignment


class MemberRefusal(_Part):
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


class StoredCursor(_Part):
    """Where a group reads on in one partition."""

    stream: str
    partition: Natural
    offset: Natural
    incarnation: str | None = None
    metadata: str | None = None
    committed_at: int
    """Microseconds since 1970 UTC."""


class CursorsResponse(ProtocolResponse):
    """Those cursors that there are."""

    cursors: list[StoredCursor] = Field(default_factory=list)
