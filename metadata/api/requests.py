"""Requests: one frozen model each; unknown keys are errors."""

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, model_validator

from envelope.errors import InvalidConfig, RequestError
from envelope.limits import (
    CURSOR_INCARNATION_CHARS_MAX,
    CURSOR_METADATA_BYTES_MAX,
    RESET_CURSORS_MAX,
)
from envelope.subjects import (
    validated_names,
    validated_pattern,
    validated_subject,
)
from metadata.api.request_names import NamespaceName, NodeName, ShardName, StreamNameField
from metadata.limits import (
    LIST_PAGE_DEFAULT,
    LIST_PAGE_MAX,
    READ_REPLICAS_MAX,
    REPLICAS_DEFAULT,
    REPLICAS_MAX,
)
from metadata.namespaces import EVERYWHERE, NamespaceLimits
from metadata.stream_config import Name, Replicas, StreamConfig, Subject
from metadata.stream_patch import StreamPatch
from metadata.tickets import TICKET_CHARS_MAX

Count = Annotated[int, Strict(), Field(ge=0, le=1 << 62)]
Txid = Annotated[int, Strict(), Field(ge=-(1 << 63), le=(1 << 63) - 1)]


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CreateStreamRequest(StreamConfig):
    """Create a stream, or find it if one of that name has an equal configuration."""

    replicas: Replicas = Field(
        default=REPLICAS_DEFAULT,
        description="copies, on as many nodes; absent: the cluster's default, or as many as the stream has",
    )

    @model_validator(mode="after")
    def _no_partition_alone(self) -> Self:
        if self.partition_of is not None:
            raise InvalidConfig(
                f"partition_of: partitions are made together: create {self.partition_of!r} with partitions",
                field="partition_of",
            )
        return self

    @classmethod
    def of(cls, config: StreamConfig) -> "CreateStreamRequest":
        """Return the request that asks for ``config``, every field written out."""
        return cls.model_validate(config.settings())

    def _check_replicas(self) -> None:
        if "replicas" in self.model_fields_set:  # else it is checked by `config`, which knows how many
            super()._check_replicas()

    def config(self, default_replicas: int = REPLICAS_DEFAULT) -> StreamConfig:
        """Return the configuration that is asked for, with so many replicas if it does not say how many.

        Raises:
            InvalidConfig: more replicas must hold a record than there are.
        """
        number = self.replicas if "replicas" in self.model_fields_set else default_replicas
        return StreamConfig.model_validate(self.settings() | {"replicas": number})


class RestoreStreamRequest(_Request):
    """Make a stream again from what the object store alone has of it; it goes on behind that."""

    name: StreamNameField
    incarnation: str | None = Field(default=None, description="which life of it; null: the newest")
    replicas: Replicas | None = Field(default=None, description="null: as many as it had")


class UpdateStreamRequest(StreamPatch):
    """Change a stream's configuration: a JSON Merge Patch (RFC 7396) beside the name."""

    # Narrower than the patch's own optional name: a request must name its stream.
    name: StreamNameField = Field(description="the stream to change")

    @property
    def patch(self) -> StreamPatch:
        """The changes alone."""
        changed = self.model_fields_set - {"name"}
        return StreamPatch.model_validate({name: getattr(self, name) for name in changed})


class DeleteStreamRequest(_Request):
    """Delete a stream with everything in it; there is no way back."""

    name: StreamNameField


class StreamInfoRequest(_Request):
    """Ask for a stream's configuration and live state."""

    name: StreamNameField


class ListStreamsRequest(_Request):
    """List streams by name, in pages."""

    prefix: str | None = Field(default=None, description="only names that begin so, e.g. a namespace 'a/'")
    internal: Annotated[bool, Strict()] = Field(default=False, description="the system's own streams, too")
    offset: Count = Field(default=0, description="streams to skip, in the order of names")
    limit: Annotated[int, Strict(), Field(ge=1, le=LIST_PAGE_MAX)] = LIST_PAGE_DEFAULT


class StreamPublishersRequest(_Request):
    """Ask what a stream remembers of its publishers: its last txid, and the last message of each session."""

    name: StreamNameField
    after: str | None = Field(default=None, description="only sessions behind this one, in their order")
    limit: Annotated[int, Strict(), Field(ge=1, le=LIST_PAGE_MAX)] = LIST_PAGE_MAX


class LookupStreamsRequest(_Request):
    """List the streams that would store a message on a subject."""

    subject: Annotated[Subject, AfterValidator(validated_subject)] = Field(description="without wildcards")


class TruncateStreamRequest(_Request):
    """Remove records before an offset; at most up to the high watermark."""

    name: StreamNameField
    before: Count = Field(description="the first offset to keep")


class SetTxidRequest(_Request):
    """Let a stream's last txid be this one from now on, so that lower ones are taken than it has stored."""

    name: StreamNameField
    txid: Txid = Field(description="what the last one is to be; the next may be equal, or larger")


class ResetStreamTimeRequest(_Request):
    """Let the times of a stream's next records go on from the leader's clock, if they are ahead of it."""

    name: StreamNameField


class ClusterInfoRequest(_Request):
    """Ask for the nodes and how to reach them."""


class ReassignStreamRequest(_Request):
    """Move a stream's replicas to these nodes while it is in use, or go back to where they were.

    Of replicas and read replicas, those that are not named stay where they are.
    """

    name: StreamNameField
    replicas: Annotated[list[NodeName], Field(min_length=1, max_length=REPLICAS_MAX)] | None = Field(
        default=None, description="the nodes to hold it, the preferred leader first"
    )
    read_replicas: Annotated[list[NodeName], Field(max_length=READ_REPLICAS_MAX)] | None = Field(
        default=None, description="the nodes for its read replicas; empty: none"
    )
    cancel: bool = Field(default=False, description="end the move of replicas that is under way; alone")

    @model_validator(mode="after")
    def _asks_one_thing(self) -> Self:
        if (self.replicas is None and self.read_replicas is None) != self.cancel:
            raise RequestError("replicas: say where to move the stream, or cancel: true, and not both")
        return self


class ElectLeaderRequest(_Request):
    """Let a node lead a stream that is offline, whatever it holds: records that only others have are lost."""

    name: StreamNameField
    node: NodeName = Field(description="has a replica or a read replica, and is alive")
    unclean: Annotated[bool, Strict()] = Field(description="must be true: acked records may be lost")

    @model_validator(mode="after")
    def _says_so(self) -> Self:
        if not self.unclean:
            raise RequestError("unclean: true: who is in sync is elected without being asked")
        return self


class UpdateClusterRequest(_Request):
    """Change the cluster's settings; an absent field stays as it is, null puts one back to its default."""

    default_replicas: Replicas | None = Field(
        default=None, description="copies of streams that are created without a number; null: 1"
    )
    voters: Annotated[int, Strict()] | None = Field(
        default=None, description="nodes that decide, 1, 3 or 5; null: three, or as many as there are"
    )
    feature_level: Annotated[int, Field(ge=1)] | Literal["latest"] = Field(
        default=0, description="to raise it to; latest: the highest that the metadata leader can"
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise RequestError("default_replicas, voters, feature_level: say which setting to change")
        return self


class DrainNodeRequest(_Request):
    """Move every replica of a node to others, so that it can leave."""

    node: NodeName


class RebalanceRequest(_Request):
    """Even out replicas and preferred leaders over the nodes that are alive, with few moves."""

    dry_run: bool = Field(default=False, description="only say what would be moved")


class RemoveNodeRequest(_Request):
    """Forget a node that holds nothing and does not come back."""

    node: NodeName


class LimitNamespaceRequest(NamespaceLimits):
    """Limit what a namespace may have: absent fields stay as they are, null takes a limit away."""

    name: NamespaceName | None = Field(default=None, description="null: all streams of the cluster")

    @property
    def namespace(self) -> str:
        """The namespace, as the catalogue calls it."""
        return EVERYWHERE if self.name is None else self.name

    @property
    def changes(self) -> NamespaceLimits:
        """The changes alone."""
        changed = self.model_fields_set - {"name"}
        return NamespaceLimits.model_validate({name: getattr(self, name) for name in changed})


class NamespaceInfoRequest(_Request):
    """Ask for the limits and the use of a namespace; it need not have any."""

    name: NamespaceName | None = Field(default=None, description="null: all streams of the cluster")


class ListNamespacesRequest(_Request):
    """List the namespaces that have streams or limits by name, in pages; the first is that of all streams."""

    prefix: str | None = Field(default=None, description="only names that begin so, e.g. a namespace 'a/'")
    limited: Annotated[bool, Strict()] = Field(default=False, description="only those that have limits")
    offset: Count = Field(default=0, description="namespaces to skip, in the order of names")
    limit: Annotated[int, Strict(), Field(ge=1, le=LIST_PAGE_MAX)] = LIST_PAGE_DEFAULT


NamespaceRequest = LimitNamespaceRequest | NamespaceInfoRequest | ListNamespacesRequest
"""Answered by the leader of the metadata log, whose catalogue is the newest."""


class GetCursorRequest(_Request):
    """Ask where a consumer reads on in a stream."""

    consumer: StreamNameField = Field(description="whose cursor; the grammar of stream names")
    stream: StreamNameField = Field(description="need not exist")


class ListCursorsRequest(_Request):
    """List cursors by consumer and stream, in pages."""

    consumer: StreamNameField | None = Field(default=None, description="only those of this consumer")
    stream: StreamNameField | None = Field(default=None, description="only those in this stream")
    offset: Count = Field(default=0, description="cursors to skip, in the order of consumers, then streams")
    limit: Annotated[int, Strict(), Field(ge=1, le=LIST_PAGE_MAX)] = LIST_PAGE_DEFAULT


CursorQuestion = GetCursorRequest | ListCursorsRequest
"""Answered by the leader of the stream of cursors, which the first of them makes."""


class FindCoordinatorRequest(_Request):
    """Ask which node coordinates a consumer group; it need not exist yet."""

    group: StreamNameField = Field(description="the grammar of stream names")


class ListGroupsRequest(_Request):
    """List consumer groups by name, in pages."""

    shard: ShardName | None = Field(
        default=None, description="only those in this internal stream, such as '__cursors/3'"
    )
    prefix: str | None = Field(default=None, description="only names that begin so, e.g. a namespace 'a/'")
    offset: Count = Field(default=0, description="groups to skip, in the order of names")
    limit: Annotated[int, Strict(), Field(ge=1, le=LIST_PAGE_MAX)] = LIST_PAGE_DEFAULT


class GroupInfoRequest(_Request):
    """Ask for a consumer group's members, with what they own, and for its cursors, in pages."""

    group: StreamNameField = Field(description="the grammar of stream names")
    offset: Count = Field(
        default=0, description="to skip: of the members by id, then of the cursors by stream and partition"
    )
    limit: Annotated[int, Strict(), Field(ge=1, le=LIST_PAGE_MAX)] = LIST_PAGE_MAX


class GroupPlace(_Request):
    """Where a group is to read on in one partition."""

    stream: StreamNameField
    partition: Count = Field(default=0, description="from 0; the only one of a stream that has no partitions")
    offset: Count = Field(description="the next one to read; it need not exist")
    incarnation: str | None = Field(
        default=None,
        min_length=1,
        max_length=CURSOR_INCARNATION_CHARS_MAX,
        description="of the stream that the offset belongs to",
    )
    metadata: str | None = Field(
        default=None, max_length=CURSOR_METADATA_BYTES_MAX, description="told to whoever reads on"
    )


class ResetGroupRequest(_Request):
    """Set cursors of a consumer group, forward or back, all or none; the group need not exist yet."""

    group: StreamNameField
    cursors: Annotated[list[GroupPlace], Field(min_length=1, max_length=RESET_CURSORS_MAX)]
    force: Annotated[bool, Strict()] = Field(default=False, description="put out members that there are")

    @model_validator(mode="after")
    def _says_each_once(self) -> Self:
        said: set[tuple[str, int]] = set()
        for place in self.cursors:
            if (place.stream, place.partition) in said:
                raise RequestError(f"cursors: partition {place.partition} of {place.stream!r} is there twice")
            said.add((place.stream, place.partition))
        return self


class DeleteGroupRequest(_Request):
    """Delete a consumer group with its cursors."""

    group: StreamNameField
    force: Annotated[bool, Strict()] = Field(default=False, description="put out members that there are")


class ReadTicketRequest(_Request):
    """Ask for a ticket to read a stream, or those of a namespace; NATS decides who may, by the subject."""

    stream: Annotated[Name, AfterValidator(validated_names)] = Field(
        description="of a partitioned one the whole; need not exist yet; shop/*: all directly in shop/"
    )
    subject: Annotated[Subject, AfterValidator(validated_pattern)] | None = Field(
        default=None, description="a pattern: only records on subjects that match it; null: all records"
    )
    first_level: str | None = Field(
        default=None,
        repr=False,
        max_length=TICKET_CHARS_MAX,
        description="a ticket for the same with * in the place of the > at its end: needed where it has one",
    )


class GroupTicketRequest(_Request):
    """Ask for a ticket to be a member of a group and store its cursors; NATS decides who may."""

    group: StreamNameField = Field(description="the grammar of stream names; need not exist yet")


class RotateKeyRequest(_Request):
    """Let a new key sign tickets; those of the key before go on to their end, those of older ones end."""

    revoke: Annotated[bool, Strict()] = Field(default=False, description="end all tickets that there are")


TicketRequest = ReadTicketRequest | GroupTicketRequest | RotateKeyRequest
"""Answered by any node."""

GroupQuestion = ListGroupsRequest | GroupInfoRequest

StoredQuestion = CursorQuestion | GroupQuestion
"""Questions about internal streams; none of them does harm if it is repeated."""

GroupRequest = GroupQuestion | ResetGroupRequest | DeleteGroupRequest | FindCoordinatorRequest
"""Answered by the leader of the stream that has the group."""

Request = (
    CreateStreamRequest
    | RestoreStreamRequest
    | UpdateStreamRequest
    | DeleteStreamRequest
    | StreamInfoRequest
    | StreamPublishersRequest
    | ListStreamsRequest
    | LookupStreamsRequest
    | TruncateStreamRequest
    | SetTxidRequest
    | ResetStreamTimeRequest
    | ClusterInfoRequest
    | UpdateClusterRequest
    | ReassignStreamRequest
    | ElectLeaderRequest
    | DrainNodeRequest
    | RebalanceRequest
    | RemoveNodeRequest
    | NamespaceRequest
    | CursorQuestion
    | GroupRequest
    | TicketRequest
)

StreamChange = (
    CreateStreamRequest
    | RestoreStreamRequest
    | UpdateStreamRequest
    | DeleteStreamRequest
    | TruncateStreamRequest
    | SetTxidRequest
)
"""Requests that make, change or end a stream or its records: not for users where the stream is internal."""

REQUESTS: Final[dict[str, type[Request]]] = {
    "stream.create": CreateStreamRequest,
    "stream.restore": RestoreStreamRequest,
    "stream.update": UpdateStreamRequest,
    "stream.delete": DeleteStreamRequest,
    "stream.info": StreamInfoRequest,
    "stream.publishers": StreamPublishersRequest,
    "stream.list": ListStreamsRequest,
    "stream.lookup": LookupStreamsRequest,
    "stream.truncate": TruncateStreamRequest,
    "stream.set_txid": SetTxidRequest,
    "stream.reset_time": ResetStreamTimeRequest,
    "stream.reassign": ReassignStreamRequest,
    "stream.elect": ElectLeaderRequest,
    "read": ReadTicketRequest,
    "group.join": GroupTicketRequest,
    "namespace.limit": LimitNamespaceRequest,
    "namespace.info": NamespaceInfoRequest,
    "namespace.list": ListNamespacesRequest,
    "group.coordinator": FindCoordinatorRequest,
    "cursor.get": GetCursorRequest,
    "cursor.list": ListCursorsRequest,
    "group.list": ListGroupsRequest,
    "group.info": GroupInfoRequest,
    "group.reset": ResetGroupRequest,
    "group.delete": DeleteGroupRequest,
    "cluster.info": ClusterInfoRequest,
    "cluster.update": UpdateClusterRequest,
    "cluster.drain": DrainNodeRequest,
    "cluster.rebalance": RebalanceRequest,
    "cluster.remove": RemoveNodeRequest,
    "cluster.rotate_key": RotateKeyRequest,
}
"""By the tail of the subject, behind the prefix."""

QUESTIONS: Final[frozenset[type[Request]]] = frozenset(
    {
        StreamInfoRequest,
        StreamPublishersRequest,
        ListStreamsRequest,
        LookupStreamsRequest,
        ClusterInfoRequest,
        GetCursorRequest,
        ListCursorsRequest,
        FindCoordinatorRequest,
        ListGroupsRequest,
        GroupInfoRequest,
        NamespaceInfoRequest,
        ListNamespacesRequest,
        ReadTicketRequest,
        GroupTicketRequest,
    }
)
"""Requests that change nothing; all others are audited."""
