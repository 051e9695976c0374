"""What nodes, the metadata service, publishers and readers say to each other."""

from dataclasses import dataclass

from envelope.types import LeaderEpoch, MonotonicNs, NodeEpoch, NodeId, Offset, StreamName
from jetstream.replica.wire import Answer as FetchAnswer
from jetstream.replica.wire import FetchMessage
from metadata.catalog.commands import Command
from metadata.catalog.events import Event
from metadata.catalog.tables import RegisteredNode, Stream
from tests.simulation.replica.log_image import Batch

METADATA = "meta"
"""The service's name on the network."""

RequestId = tuple[NodeId, int, int]
"""Node, its life, number."""
Row = Stream | RegisteredNode


@dataclass(frozen=True, slots=True)
class ToReplica:
    """A fetch, or the answer to one with the batches it carries."""

    source: NodeId
    stream: StreamName
    message: FetchMessage | FetchAnswer
    batches: tuple[Batch, ...] = ()


@dataclass(frozen=True, slots=True)
class RepairQuestion:
    """A replica asks for what is committed in ``[offset, end)``: here it is damaged."""

    source: NodeId
    stream: StreamName
    offset: Offset
    end: Offset


@dataclass(frozen=True, slots=True)
class RepairAnswer:
    """Whole batches from ``base`` to ``next``; none if the two are equal."""

    source: NodeId
    stream: StreamName
    base: Offset
    next: Offset
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """A command for the catalogue; one id is applied once, however often it comes."""

    request_id: RequestId
    command: Command


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a command, and all rows as of ``index``."""

    request_id: RequestId
    event: Event
    index: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A node lives."""

    source: NodeId
    node_epoch: NodeEpoch
    asked_at: MonotonicNs
    """By the node's own clock."""


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """The metadata leader vouches for the node."""

    node_epoch: NodeEpoch
    until: MonotonicNs
    """By the node's clock: counted from when it asked."""
    index: int


@dataclass(frozen=True, slots=True)
class LeaseRefused:
    """A newer start of the node has registered."""

    node_epoch: NodeEpoch


@dataclass(frozen=True, slots=True)
class Stopping:
    """A node is about to stop."""

    source: NodeId
    node_epoch: NodeEpoch


@dataclass(frozen=True, slots=True)
class LeaderSilent:
    """A follower hears nothing of its leader."""

    source: NodeId
    stream: StreamName
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class Ping:
    """A follower wants to hear of its leader's process."""

    source: NodeId


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer of a process that runs, whatever its streams do."""

    source: NodeId


@dataclass(frozen=True, slots=True)
class Notice:
    """The catalogue has changed up to ``index``."""

    index: int


ToMetadata = Request | Answer | Heartbeat | LeaseGranted | LeaseRefused | LeaderSilent | Stopping | Notice
"""What a metadata group that is a service says and is told."""

Message = ToReplica | RepairQuestion | RepairAnswer | Ping | Pong | ToMetadata


@dataclass(frozen=True, slots=True)
class Publish:
    """One attempt to publish a value, which is its message id too."""

    publisher: str
    stream: StreamName
    value: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Ack:
    """The value is committed at ``offset``."""

    publish: Publish
    offset: Offset


@dataclass(frozen=True, slots=True)
class Refusal:
    """The message was not stored, and will not be."""

    publish: Publish


BusMessage = Publish | Ack | Refusal
