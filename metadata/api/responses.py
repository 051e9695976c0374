"""Responses: one frozen model each; a reader ignores keys that a newer node added.

Times are ISO 8601 in UTC, durations ISO 8601, sizes bytes, ranges half-open.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from envelope.types import TimestampUs
from metadata.api.group_responses import (
    DeleteGroupResponse,
    GroupInfo,
    ListGroupsResponse,
    ResetGroupResponse,
)
from metadata.api.move_responses import ElectLeaderResponse, MovesResponse, RemoveNodeResponse
from metadata.api.namespace_responses import ListNamespacesResponse, NamespaceInfo
from metadata.api.publisher_responses import ResetStreamTimeResponse, SetTxidResponse, StreamPublishers
from metadata.api.requests import ListCursorsRequest, ListStreamsRequest
from metadata.api.response_base import ApiResponse, fitting_page
from metadata.api.ticket_responses import RotateKeyResponse, TicketResponse
from metadata.limits import REPLICAS_DEFAULT
from metadata.stream_config import DurationOrZero, Retention, StreamConfig

_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def utc(timestamp: TimestampUs) -> datetime:
    """Return a timestamp as a datetime in UTC, exact to the microsecond."""
    return _UNIX_EPOCH + timedelta(microseconds=timestamp)


def _known_keys(value: object) -> object:
    """Drop the settings of a newer node that this version does not know."""
    if not isinstance(value, dict):
        return value
    known = {key: part for key, part in value.items() if key in StreamConfig.model_fields}
    retention = known.get("retention")
    if isinstance(retention, dict):
        known["retention"] = {key: part for key, part in retention.items() if key in Retention.model_fields}
    return known


ReportedConfig = Annotated[StreamConfig, BeforeValidator(_known_keys)]


class OffsetRange(ApiResponse):
    """Offsets ``[start, end)``."""

    start: int
    end: int


class GapKind(StrEnum):
    """Why messages may have passed by unstored."""

    RECONNECT = "reconnect"
    SLOW_CONSUMER = "slow_consumer"
    RESTART = "restart"
    OVERLOAD = "overload"
    UNCLEAN_ELECTION = "unclean_election"
    SUBJECT_CHANGED = "subject_changed"


class PossibleGap(ApiResponse):
    """A time in which messages without an awaited ack may have been missed."""

    kind: str = Field(
        description="reconnect, slow_consumer, restart, overload, subject_changed, or unclean_election: then "
        "acked ones too; "
        "others may come"
    )
    since: datetime
    until: datetime | None = Field(description="null while it lasts")
    count: int = Field(description="messages known to be missed; 1 where that is not known")


class DedupeInfo(ApiResponse):
    """The message ids and publishers' sessions that the stream remembers."""

    ids: int = Field(description="message ids, and messages of sessions, that are remembered now")
    effective_window: DurationOrZero = Field(
        description="how far back the memory reaches; shorter than configured if ids came too fast"
    )
    sessions: int = Field(default=0, description="publishers' sessions that are known now")
    effective_session_window: DurationOrZero = Field(
        default=timedelta(0),
        description="how long one is kept when idle; shorter than configured if there are too many",
    )


class StreamState(StrEnum):
    """Whether the node that answers can serve the stream."""

    ONLINE = "online"
    OFFLINE = "offline"


class ReplicaInfo(ApiResponse):
    """A replica as its leader knows it; null: not heard of in this reign."""

    node: str
    in_sync: bool
    is_read_replica: bool = Field(default=False, description="never in sync, never elected by itself")
    log_end_offset: int | None = None
    synced_end: int | None = Field(default=None, description="what it has on disk ends here")
    high_watermark: int | None = Field(default=None, description="what it knows to be committed ends here")
    lag: int | None = Field(default=None, description="records of the leader's that it has not on disk")


class UncleanElectionInfo(ApiResponse):
    """A reign that began on a log that was not in sync."""

    leader: str
    leader_epoch: int
    at: datetime | None = Field(default=None, description="by the clock of the metadata leader")
    from_offset: int | None = Field(
        default=None,
        description="acked records from here on may be lost; null: not known where this was asked",
    )
    given_up: list[str] = Field(description="who was in sync before")


class CompactionInfo(ApiResponse):
    """How far a stream with ``compact: key`` is compacted on the node that was asked."""

    dirty_ratio: float = Field(description="how much of what can be compacted has not been, by bytes")
    cleaned_end: int = Field(description="below it no record is left that a later one below it replaces")
    purged_end: int = Field(description="below it tombstones may be gone")


class TierInfo(ApiResponse):
    """The part of a stream in the object store, as far as the answering node knows."""

    start: int | None = Field(description="first offset of the stream; null: nothing was uploaded yet")
    end: int | None = Field(description="what is below it is in the object store, read back and verified")
    manifest: str | None = Field(description="the object that lists the segments; null: there are none")
    local_start_offset: int = Field(description="first offset on this node's disk")
    problem: str | None = Field(default=None, description="why the last upload failed; null: it did not")


class StreamInfo(ApiResponse):
    """A stream's configuration and its live state on the node that leads it."""

    config: ReportedConfig
    incarnation: str = Field(description="identity of this life of the stream")
    created_at: datetime
    state: str = Field(description="online or offline; others may come")
    reason: str | None = Field(default=None, description="why it is not online")
    reason_code: str | None = Field(default=None, description="the same as a word of docs/errors.md")
    leader: str | None
    leader_epoch: int
    replicas: list[str]
    isr: list[str] = Field(description="replicas in sync")
    blank: list[str] = Field(
        default_factory=list,
        description="replicas that may hold nothing on the disks that they have now, until they are copied",
    )
    read_replicas: list[str] = Field(default_factory=list, description="nodes that only serve reads")
    last_unclean_election: UncleanElectionInfo | None = Field(
        default=None, description="the newest election that may have lost records; null: there was none"
    )
    target: list[str] | None = Field(
        default=None, description="what the replicas are to be once all of these are in sync; null: no move"
    )
    replica_states: list[ReplicaInfo] = Field(
        default_factory=list,
        description="every replica and read replica, the leader first; empty where nobody leads",
    )
    log_start_offset: int = Field(description="first offset kept")
    log_end_offset: int = Field(description="next offset to be written")
    high_watermark: int = Field(description="first offset not committed")
    bytes: int = Field(description="on this node's disk")
    segments: int
    time_ahead: timedelta = Field(
        default=timedelta(0), description="of the newest record's time, ahead of this node's clock"
    )
    dedupe: DedupeInfo
    compaction: CompactionInfo | None = Field(default=None, description="null: the stream is not compacted")
    rewritten_end: int | None = Field(
        default=None,
        description="below it small batches have been merged where that pays; null: they are not",
    )
    tier: TierInfo | None = Field(default=None, description="null: the stream has none")
    possible_gaps: list[PossibleGap] = Field(default_factory=list)
    corrupt_ranges: list[OffsetRange] = Field(
        default_factory=list, description="refused to readers, never cut"
    )

    @property
    def is_replicated(self) -> bool:
        """Whether the leader has heard of every replica that is in sync, so that records can be committed."""
        return all(state.log_end_offset is not None for state in self.replica_states if state.in_sync)


class CreateStreamResponse(StreamInfo):
    """The stream as it is now, new or found."""

    created: bool = Field(description="false: it existed with an equal configuration")


class UpdateStreamResponse(StreamInfo):
    """The stream as it is now."""


class DeleteStreamResponse(ApiResponse):
    """The stream is gone."""

    name: str
    incarnation: str = Field(description="of the life that ended")


class DeletePartitionedStreamResponse(ApiResponse):
    """The stream is gone with all its partitions."""

    name: str
    partitions: list[DeleteStreamResponse]


class StreamSummary(ApiResponse):
    """A line in a list; offsets and bytes are null where the answering node does not hold the stream."""

    name: str
    subject: str
    ack: str
    replicas: list[str]
    leader: str | None
    leader_epoch: int
    isr: list[str] = Field(default_factory=list, description="replicas in sync")
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    high_watermark: int | None = None
    bytes: int | None = None
    partition_of: str | None = Field(default=None, description="the stream that it is a partition of")
    partition: int | None = Field(default=None, description="its number, if it is a partition")


class PartitionedStreamInfo(ApiResponse):
    """A partitioned stream: its configuration and its partitions, each of which has a ``stream.info``."""

    config: ReportedConfig = Field(description="of the first partition, with the name of the whole")
    effective_partitions: int = Field(
        description="so many, the first, share the messages; 0: none takes any, as not all are there"
    )
    missing: list[int] = Field(
        description="numbers of the partitions that are not there: repeat the request that makes them"
    )
    partitions: list[StreamSummary] = Field(description="those that are there, by number")


class CreatePartitionedStreamResponse(PartitionedStreamInfo):
    """The stream as it is now, new or found."""

    created: bool = Field(description="false: it existed with an equal configuration, and all its partitions")


class ListStreamsResponse(ApiResponse):
    """A page of streams in the order of their names; it may be shorter than the limit asked for."""

    streams: list[StreamSummary]
    total: int = Field(description="streams that match, in all pages")
    offset: int = Field(description="of the first in this page; the next page begins at offset + its length")


class LookupStreamsResponse(ApiResponse):
    """The streams that bind a subject; each stores its own copy."""

    subject: str
    streams: list[StreamSummary]


class TruncateStreamResponse(ApiResponse):
    """The offsets after the truncation, which is durable."""

    name: str
    log_start_offset: int
    high_watermark: int
    freed_bytes: int | None = Field(
        default=None, description="of the leader's files that are gone; null: the node did not say"
    )
    frees_more_at: int | None = Field(
        default=None,
        description="the log start from which on the file of the oldest records goes; null: none waits",
    )


class CursorInfo(ApiResponse):
    """Where a consumer reads on in a stream; everything is null if it has stored nothing."""

    consumer: str
    stream: str
    offset: int | None = Field(description="the next one to read; null: the consumer has no cursor there")
    incarnation: str | None = Field(
        default=None, description="of the stream that the offset belongs to; null: the consumer did not say"
    )
    metadata: str | None = Field(default=None, description="the consumer's own")
    committed_at: datetime | None = None


class ListCursorsResponse(ApiResponse):
    """A page of cursors by consumer and stream; it may be shorter than the limit asked for."""

    cursors: list[CursorInfo]
    total: int = Field(description="cursors that match, in all pages")
    offset: int = Field(description="of the first in this page; the next page begins at offset + its length")


class CoordinatorInfo(ApiResponse):
    """Where a consumer group's coordinator is now."""

    group: str
    shard: str = Field(description="the internal stream that has the group and its cursors")
    node: str = Field(description="that leads it")
    host: str = Field(description="of the node's socket")
    port: int


class NodeRole(StrEnum):
    """Whether a node has a vote in the metadata log."""

    VOTER = "voter"
    DATA = "data"


class NodeInfo(ApiResponse):
    """A node as it last registered."""

    id: str
    node_epoch: int = Field(description="one per start")
    host: str
    port: int = Field(description="of the socket protocol")
    http_port: int | None = None
    version: str = ""
    peer_host: str | None = None
    peer_port: int | None = Field(default=None, description="of the other nodes; null: it is alone")
    rack: str | None = None
    role: NodeRole = Field(
        default=NodeRole.VOTER,
        description="of the metadata log: whether it has a vote, or holds streams alone",
    )
    alive: bool | None = Field(
        default=None, description="holds a lease; null: nobody leads the metadata log who could say"
    )
    feature_level: int | None = Field(
        default=None, description="the highest that it can; null: it has not said so to the node that answers"
    )


class NodeStart(ApiResponse):
    """The node that answers, by itself."""

    id: str
    node_epoch: int = Field(description="of this start; 0: it has not registered yet")
    feature_level: int = Field(description="the highest that it can")


class ClusterInfo(ApiResponse):
    """The nodes of the cluster and how to reach them."""

    name: str
    cluster_id: str | None = Field(
        default=None, description="32 hexadecimal digits, no other cluster's; null: it has none yet"
    )
    nodes: list[NodeInfo]
    metadata_leader: str | None
    voters: list[str] = Field(
        default_factory=list, description="nodes with a vote in the metadata log, registered or not"
    )
    learners: list[str] = Field(
        default_factory=list, description="nodes that are about to become voters, perhaps with another disk"
    )
    voters_wanted: int | None = Field(
        default=None, description="so many voters there should be; null: three, or as many as there are"
    )
    streams: int = Field(description="without the system's own")
    protocol_versions: list[int] = Field(description="of the socket protocol, that every node speaks")
    default_replicas: int = Field(
        default=REPLICAS_DEFAULT, description="copies of streams that are created without a number"
    )
    feature_level: int = Field(default=0, description="what all nodes can, and so may be done")
    answered_by: NodeStart | None = Field(default=None, description="null: a node of feature level 0")


class ErrorBody(ApiResponse):
    """An error, for people and for machines."""

    code: int = Field(description="as in HTTP")
    err_code: str = Field(description="stable word; see the table in docs/api.md")
    description: str
    retriable: bool = Field(description="the same request may succeed later")
    detail: dict[str, int | str] = Field(default_factory=dict, description="the numbers and names behind it")


class ErrorResponse(ApiResponse):
    """Any request's answer when it failed."""

    error: ErrorBody


Response = (
    StreamInfo
    | StreamPublishers
    | PartitionedStreamInfo
    | DeleteStreamResponse
    | DeletePartitionedStreamResponse
    | ListStreamsResponse
    | LookupStreamsResponse
    | TruncateStreamResponse
    | SetTxidResponse
    | ResetStreamTimeResponse
    | CursorInfo
    | ListCursorsResponse
    | CoordinatorInfo
    | ListGroupsResponse
    | GroupInfo
    | ResetGroupResponse
    | DeleteGroupResponse
    | ClusterInfo
    | MovesResponse
    | ElectLeaderResponse
    | RemoveNodeResponse
    | TicketResponse
    | RotateKeyResponse
    | NamespaceInfo
    | ListNamespacesResponse
)
"""`CreateStreamResponse` and `UpdateStreamResponse` are `StreamInfo`."""

RESPONSES: Final[dict[str, type[Response]]] = {
    "stream.create": CreateStreamResponse,
    "stream.restore": CreateStreamResponse,
    "stream.update": UpdateStreamResponse,
    "stream.delete": DeleteStreamResponse,
    "stream.info": StreamInfo,
    "stream.publishers": StreamPublishers,
    "stream.list": ListStreamsResponse,
    "stream.lookup": LookupStreamsResponse,
    "stream.truncate": TruncateStreamResponse,
    "stream.set_txid": SetTxidResponse,
    "stream.reset_time": ResetStreamTimeResponse,
    "stream.reassign": MovesResponse,
    "stream.elect": ElectLeaderResponse,
    "read": TicketResponse,
    "group.join": TicketResponse,
    "namespace.limit": NamespaceInfo,
    "namespace.info": NamespaceInfo,
    "namespace.list": ListNamespacesResponse,
    "group.coordinator": CoordinatorInfo,
    "cursor.get": CursorInfo,
    "cursor.list": ListCursorsResponse,
    "group.list": ListGroupsResponse,
    "group.info": GroupInfo,
    "group.reset": ResetGroupResponse,
    "group.delete": DeleteGroupResponse,
    "cluster.info": ClusterInfo,
    "cluster.drain": MovesResponse,
    "cluster.rebalance": MovesResponse,
    "cluster.remove": RemoveNodeResponse,
    "cluster.rotate_key": RotateKeyResponse,
    "cluster.update": ClusterInfo,
}
"""By the tail of the subject, behind the prefix."""


PARTITIONED_RESPONSES: Final[dict[str, type[Response]]] = {
    "stream.create": CreatePartitionedStreamResponse,
    "stream.update": PartitionedStreamInfo,
    "stream.delete": DeletePartitionedStreamResponse,
    "stream.info": PartitionedStreamInfo,
}
"""What the same requests are answered with where the stream is partitioned."""


def list_page(
    request: ListStreamsRequest, total: int, summaries: Iterable[StreamSummary]
) -> ListStreamsResponse:
    """Return a page that fits one NATS message.

    Args:
        request: what was asked.
        total: streams that match the request's prefix.
        summaries: those from the request's offset on, in the order of names; read only as far as needed.
    """
    page = fitting_page(summaries, request.limit)
    return ListStreamsResponse(streams=page, total=total, offset=request.offset)


def cursor_page(
    request: ListCursorsRequest, total: int, cursors: Iterable[CursorInfo]
) -> ListCursorsResponse:
    """Return a page that fits one NATS message; as `list_page`."""
    return ListCursorsResponse(
        cursors=fitting_page(cursors, request.limit), total=total, offset=request.offset
    )
