"""Responses about consumer groups."""

from datetime import datetime

from pydantic import Field

from metadata.api.response_base import ApiResponse


class GroupSummary(ApiResponse):
    """A line in a list of consumer groups."""

    group: str
    shard: str = Field(description="the internal stream that has it")
    members: int
    generation: int


class ListGroupsResponse(ApiResponse):
    """A page of consumer groups in the order of their names; it may be shorter than the limit asked for."""

    groups: list[GroupSummary]
    total: int = Field(description="groups that match, in all pages")
    offset: int = Field(description="of the first in this page; the next page begins at offset + its length")


Claim = tuple[int, int]
"""A partition's number, and the generation since which it is owned."""


class OwnedPartitions(ApiResponse):
    """The partitions of one stream that a member owns."""

    stream: str
    partitions: list[Claim] = Field(description="pairs: a number, and the generation since which it is owned")


class GroupMember(ApiResponse):
    """A member of a consumer group."""

    member: str = Field(description="its id; another one after every join")
    client: str = Field(description="what the consumer calls itself")
    instance: str | None = Field(default=None, description="of a static member: the same after a restart")
    streams: list[str] = Field(description="that it subscribes to; they need not exist")
    session_timeout_ms: int
    rebalance_timeout_ms: int
    node: str | None = Field(default=None, description="that it would like to read from")
    rack: str | None = None
    owned: list[OwnedPartitions] = Field(description="what it reads, and keeps")
    gives_up: list[OwnedPartitions] = Field(description="what it owns until it says that it has stopped")


class GroupCursor(ApiResponse):
    """Where a group reads on in one partition."""

    stream: str
    partition: int
    offset: int = Field(description="the next one to read")
    incarnation: str | None = Field(
        default=None, description="of the stream that the offset belongs to; null: the member did not say"
    )
    metadata: str | None = Field(default=None, description="of whoever committed it")
    committed_at: datetime


class GroupInfo(ApiResponse):
    """A consumer group: a page of its members by id, then of its cursors by stream and partition."""

    group: str
    shard: str = Field(description="the internal stream that has it")
    coordinator: str = Field(description="the node that leads its shard")
    generation: int = Field(description="0: nobody has joined yet")
    assignor: str
    members: list[GroupMember]
    cursors: list[GroupCursor]
    total: int = Field(description="members and cursors, in all pages")
    offset: int = Field(description="of the first in this page; the next begins at offset + what is in this")


class ResetGroupResponse(ApiResponse):
    """The cursors are set, on every replica in sync."""

    group: str
    cursors: int = Field(description="how many")


class DeleteGroupResponse(ApiResponse):
    """The group and its cursors are gone."""

    group: str
