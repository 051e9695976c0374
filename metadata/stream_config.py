"""The configuration of a stream: one model for the request API, the catalogue and the node.

Durations are accepted as ISO 8601 (``"P7D"``, ``"PT2M"``) or seconds (``120``, ``0.5``), kept as
`datetime.timedelta` and written as ISO 8601; sizes are bytes. Unknown keys are errors, and so is a
number given as a string.

A field that is wrong by itself raises `pydantic.ValidationError`; fields that contradict each other and
names outside the grammar raise the typed error of `envelope.errors`.
"""

from datetime import timedelta
from typing import Annotated, Final, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    Strict,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from envelope.errors import InvalidConfig, InvalidSubject
from envelope.internal_streams import is_internal
from envelope.limits import (
    DEDUPE_IDS_MAX,
    RECORD_BYTES_MAX,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_BYTES_MIN,
    STREAM_NAME_CHARS_MAX,
    SUBJECT_BYTES_MAX,
    SUBSCRIPTION_BYTES_MAX,
)
from envelope.subjects import overlap, validated_pattern, validated_stream_name
from envelope.types import AckPolicy, Compact, Compression, PartitionBy, StreamName, SyncMode
from metadata.limits import (
    DEDUPE_IDS_CEILING,
    DURATION_MAX,
    LABEL_KEY_CHARS_MAX,
    LABEL_VALUE_CHARS_MAX,
    LABELS_MAX,
    PARTITIONS_MAX,
    READ_REPLICAS_MAX,
    REPLICAS_DEFAULT,
    REPLICAS_MAX,
)

API_PREFIX_DEFAULT: Final = "jetstream.api"
"""Subject prefix of the request API; configurable, equal on every node of a cluster."""


def iso_duration(duration: timedelta) -> str:
    """Return ``duration`` (not negative) as ISO 8601 in days, hours, minutes and seconds.

    Written here and not left to a library, because equal configurations must be equal bytes in every
    version of every node.
    """
    assert duration >= timedelta(0), f"negative duration {duration}"
    minutes, seconds = divmod(duration.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{duration.microseconds:06d}".rstrip("0") if duration.microseconds else ""
    days = f"{duration.days}D" if duration.days else ""
    clock = "".join(
        text
        for text, present in (
            (f"{hours}H", hours),
            (f"{minutes}M", minutes),
            (f"{seconds}{fraction}S", seconds or fraction),
        )
        if present
    )
    if not days and not clock:
        return "PT0S"
    return f"P{days}T{clock}" if clock else f"P{days}"


def _not_a_bool(value: object) -> object:
    # Python's bool is an int, and a second is no sensible reading of "true".
    if isinstance(value, bool):
        raise PydanticCustomError("time_delta_type", "Input should be an ISO 8601 duration or seconds")
    return value


_AsIsoDuration = PlainSerializer(iso_duration, return_type=str, when_used="json")
_DurationSchema = WithJsonSchema(
    {"anyOf": [{"type": "string", "format": "duration"}, {"type": "number", "description": "seconds"}]},
    mode="validation",
)
_WrittenDurationSchema = WithJsonSchema({"type": "string", "format": "duration"}, mode="serialization")

Duration = Annotated[
    timedelta,
    BeforeValidator(_not_a_bool),
    Field(gt=timedelta(0), le=DURATION_MAX),
    _AsIsoDuration,
    _DurationSchema,
    _WrittenDurationSchema,
]
"""More than nothing, up to a hundred years; microseconds are the finest unit."""

DurationOrZero = Annotated[
    timedelta,
    BeforeValidator(_not_a_bool),
    Field(ge=timedelta(0), le=DURATION_MAX),
    _AsIsoDuration,
    _DurationSchema,
    _WrittenDurationSchema,
]

Replicas = Annotated[int, Strict(), Field(ge=1, le=REPLICAS_MAX)]
Partitions = Annotated[int, Strict(), Field(ge=1, le=PARTITIONS_MAX)]
PartitionNumber = Annotated[int, Strict(), Field(ge=0, lt=PARTITIONS_MAX)]
ReadReplicas = Annotated[int, Strict(), Field(ge=0, le=READ_REPLICAS_MAX)]
Switch = Annotated[bool, Strict()]
SegmentBytes = Annotated[int, Strict(), Field(ge=SEGMENT_BYTES_MIN, le=1 << 40)]
RecordBytes = Annotated[int, Strict(), Field(ge=1, le=RECORD_BYTES_MAX)]
DedupeIds = Annotated[int, Strict(), Field(ge=1, le=DEDUPE_IDS_CEILING)]
DirtyRatio = Annotated[float, Strict(), Field(gt=0, le=1)]
RetainedBytes = Annotated[int, Strict(), Field(ge=SEGMENT_BYTES_MIN, le=1 << 62)]
TxidStep = Annotated[int, Strict(), Field(ge=1, le=(1 << 63) - 1)]
RetainedMessages = Annotated[int, Strict(), Field(ge=1, le=1 << 62)]
# Lengths of names and subjects are checked with their grammar, so that one typed error reports both.
Subject = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": SUBJECT_BYTES_MAX})]
Name = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": STREAM_NAME_CHARS_MAX})]
LabelKey = Annotated[str, Field(min_length=1, max_length=LABEL_KEY_CHARS_MAX)]
LabelValue = Annotated[str, Field(max_length=LABEL_VALUE_CHARS_MAX)]


class Retention(BaseModel):
    """When whole old segments are removed; a field that is None never removes any."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    age: Duration | None = Field(default=None, description="of a segment's newest record")
    bytes: RetainedBytes | None = Field(default=None, description="kept at least, in whole segments")
    messages: RetainedMessages | None = Field(default=None, description="kept at least, in whole segments")


class StreamConfig(BaseModel):
    """Configuration of one stream (DESIGN: request API); equality decides idempotent creation.

    With ``partitions`` and ``partition_by`` alone it is that of a partitioned stream as a whole, which exists
    as its partitions: streams whose configuration says all four of ``partition_of`` and so on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name = Field(description="unique in the cluster; letters, digits, '_', '-', '/'")
    subject: Subject = Field(description="NATS subject or pattern the stream binds")
    replicas: Replicas = Field(default=REPLICAS_DEFAULT, description="copies, on as many nodes")
    min_insync_replicas: Replicas | None = Field(
        default=None, description="copies that must hold a record before its ack; None: a majority"
    )
    read_replicas: ReadReplicas = Field(
        default=0, description="more copies, on other nodes, that only serve reads: no ack waits for them"
    )
    unclean_election: Switch = Field(
        default=False,
        description="a replica that is not in sync may lead if all in sync are dead: records may be lost",
    )
    read_only: Switch = Field(
        default=False, description="messages are refused; reading, retention, truncation and deletion go on"
    )
    ack: AckPolicy = Field(default=AckPolicy.ALL, description="when a publisher is answered")
    sync: SyncMode = Field(default=SyncMode.ALWAYS, description="when appended bytes are forced to disk")
    sync_interval: Duration = Field(default=timedelta(seconds=1), description="with sync: interval")
    compression: Compression = Field(default=Compression.NONE, description="of a batch's body")
    segment_bytes: SegmentBytes = Field(default=SEGMENT_BYTES_DEFAULT, description="a segment rolls at")
    segment_age: Duration | None = Field(default=None, description="a segment rolls at; None: by bytes only")
    record_bytes_max: RecordBytes = Field(default=RECORD_BYTES_MAX, description="largest payload taken")
    retention: Retention = Field(default=Retention(), description="when old segments go; default: never")
    tier: Switch = Field(
        default=False, description="sealed segments are copied to the nodes' object store, and stay readable"
    )
    local_retention: Duration | None = Field(
        default=None,
        description="with tier: how long what was copied stays on the nodes' disks; default: as long as all",
    )
    local_retention_bytes: RetainedBytes | None = Field(
        default=None, description="with tier: bytes that stay on the nodes' disks at least"
    )
    compact: Compact = Field(
        default=Compact.NONE, description="key: only the last record of each key is kept"
    )
    compact_dirty_ratio: DirtyRatio = Field(
        default=0.5, description="compacted once so much of what can be has not been"
    )
    compact_age_max: Duration = Field(
        default=timedelta(days=1), description="compacted at this age anyway; a segment rolls at it, too"
    )
    tombstone_retention: Duration = Field(
        default=timedelta(days=1), description="how long a tombstone stays once what it deletes is gone"
    )
    rewrite_after: DurationOrZero = Field(
        default=timedelta(hours=1),
        description="small batches of a sealed segment are merged at this age of its records; 0: never",
    )
    dedupe_window: DurationOrZero = Field(
        default=timedelta(minutes=2), description="how long a message id is remembered; 0: not at all"
    )
    dedupe_ids_max: DedupeIds = Field(
        default=DEDUPE_IDS_MAX, description="message ids, and messages of sessions, that are remembered"
    )
    session_window: Duration = Field(
        default=timedelta(days=7), description="how long a publisher's session is kept after its last message"
    )
    txid_max_step: TxidStep | None = Field(
        default=None, description="a txid further above the stream's last one is refused; null: none is"
    )
    group: Name | None = Field(default=None, description="streams of one group share their subject")
    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, max_length=LABELS_MAX, description="for people and tools; not interpreted"
    )
    partitions: Partitions | None = Field(
        default=None, description="streams NAME/0, NAME/1, … that share the messages; null: one stream"
    )
    partition_by: PartitionBy | None = Field(
        default=None, description="with partitions: what decides which of them stores a message"
    )
    partition_of: Name | None = Field(
        default=None, description="of a partition: the stream that it is part of; not to be asked for"
    )
    partition: PartitionNumber | None = Field(
        default=None, description="of a partition: its number, from 0; not to be asked for"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        validated_stream_name(self.name)
        validated_pattern(self.subject)
        if len(self.subject.encode()) > SUBSCRIPTION_BYTES_MAX:
            raise InvalidSubject(f"the subject of a stream has at most {SUBSCRIPTION_BYTES_MAX} bytes")
        if self.group is not None:
            validated_stream_name(self.group)
        self._check_replicas()
        _check_partitions(self)
        return self

    def _check_replicas(self) -> None:
        """Raise InvalidConfig if more replicas must hold a record than there are."""
        if self.min_insync_replicas is not None and self.min_insync_replicas > self.replicas:
            raise InvalidConfig(
                f"min_insync_replicas: {self.min_insync_replicas} is more than replicas: {self.replicas}",
                field="min_insync_replicas",
            )

    def settings(self) -> dict[str, object]:
        """Return the value of every setting by its name."""
        return {name: getattr(self, name) for name in StreamConfig.model_fields}

    def differing(self, other: "StreamConfig") -> list[str]:
        """Return the names of the settings that have another value in ``other``, as declared."""
        return [name for name, value in self.settings().items() if value != getattr(other, name)]

    @property
    def is_partitioned(self) -> bool:
        """Whether this is a partitioned stream as a whole, and so no stream by itself."""
        return self.partitions is not None and self.partition_of is None

    @property
    def queue(self) -> str:
        """NATS queue group of the stream's subscription; empty: it gets every message."""
        if self.group is None and self.partition_by is PartitionBy.QUEUE:
            return self.partition_of or ""
        return self.group or ""

    @property
    def insync_minimum(self) -> int:
        """Replicas that must hold a record before it is committed: as configured, or a majority."""
        if self.min_insync_replicas is not None:
            return self.min_insync_replicas
        return self.replicas // 2 + 1

    @property
    def answers_only_on_request(self) -> bool:
        """Whether plain messages get no answer: somebody else may own their replies."""
        return self.ack is AckPolicy.NONE


def partition_name(partitioned: str, partition: int) -> StreamName:
    """Return the name of a stream that is a partition."""
    return StreamName(f"{partitioned}/{partition}")


def _check_partitions(config: StreamConfig) -> None:
    """Raise InvalidConfig or InvalidName unless it is one stream, one partition or a partitioned stream."""
    if (config.partitions is None) != (config.partition_by is None):
        raise InvalidConfig(
            "partition_by: say queue, key or subject, together with partitions", field="partition_by"
        )
    if (config.partition_of is None) != (config.partition is None):
        raise InvalidConfig("partition: goes together with partition_of", field="partition")
    if config.group is not None and config.partition_by in (PartitionBy.KEY, PartitionBy.SUBJECT):
        raise InvalidConfig(
            f"group: messages are partitioned by {config.partition_by}, and in a group by NATS", field="group"
        )
    if config.partition_of is None or config.partition is None:
        if config.partitions is not None:
            validated_stream_name(partition_name(config.name, PARTITIONS_MAX - 1))
        return
    if config.partitions is None or config.partition >= config.partitions:
        raise InvalidConfig(
            f"partition: {config.partition} of partitions: {config.partitions}", field="partition"
        )
    if config.name != partition_name(config.partition_of, config.partition):
        raise InvalidConfig(
            f"name: {config.name!r} is not {partition_name(config.partition_of, config.partition)!r}",
            field="name",
        )


def reaches_reserved(pattern: str, api_prefix: str) -> bool:
    """Return whether ``pattern`` can match an inbox, a ``$`` subject or our request API.

    A pattern that begins with a wildcard can: it matches NATS's own ``$JS``, ``$SYS`` and ``$KV``.
    """
    first = pattern.split(".", 1)[0]
    return (
        first in ("*", ">")
        or first.startswith("$")
        or overlap(pattern, "_INBOX.>")
        or overlap(pattern, f"{api_prefix}.>")
    )


def reserved_refusal(config: StreamConfig, api_prefix: str) -> str | None:
    """Return why ``config`` may not bind its subject, or None if it may.

    An ack on an inbox or a request would be taken for the answer, so such a stream must be one that answers
    only on request (``ack: none``). Internal streams bind subjects that are the
    system's own to answer on.
    """
    if is_internal(config.name) or config.answers_only_on_request:
        return None
    if not reaches_reserved(config.subject, api_prefix):
        return None
    return (
        f"subject: {config.subject!r} reaches inboxes, '$' subjects or {api_prefix!r}; "
        "a stream on it must have ack: none"
    )
