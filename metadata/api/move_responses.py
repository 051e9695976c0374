"""Responses about where the replicas of streams are, and which of them leads."""

from pydantic import Field

from metadata.api.response_base import ApiResponse


class ReplicaMove(ApiResponse):
    """The replicas of a stream before and after a move; the first is the preferred leader."""

    stream: str
    before: list[str]
    after: list[str]
    read_replicas_before: list[str] = Field(default_factory=list)
    read_replicas_after: list[str] = Field(default_factory=list)


class MovesResponse(ApiResponse):
    """The moves under way; a stream has a target in ``stream.info`` until it is moved."""

    moves: list[ReplicaMove] = Field(
        description="at most 1024, in the order of names; those that are not listed are made too"
    )
    total: int = Field(description="streams that are moved")


class ElectLeaderResponse(ApiResponse):
    """A reign has begun whose leader was not in sync."""

    name: str
    leader: str
    leader_epoch: int
    given_up: list[str] = Field(description="who was in sync before; what only these have is lost")


class RemoveNodeResponse(ApiResponse):
    """The node is forgotten."""

    node: str
