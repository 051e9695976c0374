"""The effects of a command; its first event answers the proposer."""

from dataclasses import dataclass

from envelope.errors import JetstreamError
from envelope.types import Incarnation, NodeId, StreamName
from metadata.catalog.tables import ClusterRow, InSyncReplica, RegisteredNode, Removal, Stream
from metadata.namespaces import NamespaceLimits
from metadata.tickets import TicketKey


@dataclass(frozen=True, slots=True)
class NodeRegistered:
    """The node has the node_epoch of this start."""

    node: RegisteredNode


@dataclass(frozen=True, slots=True)
class StreamCreated:
    """A new stream; its files are to be made by its replicas."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class StreamFound:
    """The stream to be created existed already, with an equal configuration; nothing changed."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class StreamUpdated:
    """The configuration in ``stream`` is in force; equal to ``before`` if nothing changed."""

    stream: Stream
    before: Stream
    removal: Removal | None = None
    """Names the files of the nodes that are no read replicas any more; None if there are none."""


@dataclass(frozen=True, slots=True)
class StreamDeleted:
    """The stream is gone; ``removal`` names the files to remove."""

    stream: Stream
    removal: Removal


@dataclass(frozen=True, slots=True)
class PartitionCountChanged:
    """So many partitions of a partitioned stream share its messages from now on; 0: none takes any.

    It comes behind the event of the partition that was created or deleted.
    """

    partitioned: StreamName
    count: int


@dataclass(frozen=True, slots=True)
class RemovalConfirmed:
    """The node has removed the files; repeated confirmations are confirmed again."""

    node_id: NodeId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """A reign began (``stream.leader``) or ended without a successor (None)."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class UncleanlyElected:
    """The leader in ``stream`` was not in sync: committed records may be lost. To be logged and shown."""

    stream: Stream
    given_up: tuple[InSyncReplica, ...]
    """The ISR until now; its members have all that was committed."""


@dataclass(frozen=True, slots=True)
class IsrChanged:
    """The ISR in ``stream`` is in force."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class TierAdvanced:
    """The mark in ``stream`` is in force."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class TxidChanged:
    """The last txid in ``stream`` is in force."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class ReplicasReassigned:
    """A reassignment has begun, ended or been cancelled, or the read replicas are others.

    Equal to ``before`` if nothing changed.
    """

    stream: Stream
    before: Stream
    removal: Removal | None = None
    """Names the files of the nodes that are no replicas any more; None if there are none."""


@dataclass(frozen=True, slots=True)
class NodeForgotten:
    """The node is none of the cluster any more."""

    node: RegisteredNode


@dataclass(frozen=True, slots=True)
class TicketKeysChanged:
    """These keys sign tickets and prove them; as before if somebody else was first."""

    keys: tuple[TicketKey, ...]


@dataclass(frozen=True, slots=True)
class NamespaceLimited:
    """The limits of the namespace are in force; none of them limits anything if it has none any more."""

    namespace: str
    limits: NamespaceLimits


@dataclass(frozen=True, slots=True)
class ClusterChanged:
    """These values hold for the whole cluster; as before if the command has changed nothing."""

    cluster: ClusterRow


@dataclass(frozen=True, slots=True)
class CommandRefused:
    """Nothing changed; a value, because being refused is an expected answer."""

    error: type[JetstreamError]
    description: str
    detail: tuple[tuple[str, int | str], ...] = ()

    def exception(self) -> JetstreamError:
        """Return the refusal as the typed error that an API raises."""
        return self.error(self.description, **dict(self.detail))


StreamEvent = (
    StreamCreated
    | StreamFound
    | StreamUpdated
    | StreamDeleted
    | LeaderChanged
    | UncleanlyElected
    | IsrChanged
    | TierAdvanced
    | TxidChanged
    | ReplicasReassigned
)
Event = (
    NodeRegistered
    | StreamEvent
    | PartitionCountChanged
    | RemovalConfirmed
    | NodeForgotten
    | TicketKeysChanged
    | NamespaceLimited
    | ClusterChanged
    | CommandRefused
)
Events = tuple[Event, ...]


def refused(error: type[JetstreamError], description: str, **detail: int | str) -> Events:
    """Return the events of a refused command: the refusal alone."""
    return (CommandRefused(error, description, tuple(detail.items())),)


def refused_by(error: JetstreamError) -> Events:
    """Return the events of a command that is refused with ``error``."""
    return refused(type(error), error.description, **error.detail)
