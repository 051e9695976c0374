"""Events and actions of the controller."""

from dataclasses import dataclass

from envelope.types import LeaderEpoch, NodeEpoch, NodeId, StreamName
from metadata.catalog.commands import ChangeLeader, FinishReassignment, NameCluster, ReassignReplicas
from metadata.catalog.events import Events
from metadata.raft.configuration import QuorumState
from metadata.raft.events import ChangeMembers

# --- events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeHeard:
    """A node has reported that it is alive and asks for a lease."""

    node: NodeId
    node_epoch: NodeEpoch


@dataclass(frozen=True, slots=True)
class LeaderSilent:
    """A follower does not reach its leader: its process is gone, or nothing came for the leader timeout."""

    stream: StreamName
    leader_epoch: LeaderEpoch
    reporter: NodeId


@dataclass(frozen=True, slots=True)
class NodeUnheard:
    """A node does not hear another: as `LeaderSilent` about every stream that the other leads."""

    node: NodeId
    reporter: NodeId


@dataclass(frozen=True, slots=True)
class NodeStopping:
    """A node is about to stop, and wants others to lead its streams."""

    node: NodeId
    node_epoch: NodeEpoch


@dataclass(frozen=True, slots=True)
class RowsChanged:
    """A command was applied to the catalogue, with these events."""

    events: Events


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; to be given several times in a lease."""

    quorum: QuorumState | None = None
    """The members of the metadata group; None: they are not to be changed."""


Event = NodeHeard | LeaderSilent | NodeUnheard | NodeStopping | RowsChanged | Tick

# --- actions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GrantLease:
    """Answer the node that it may act as a leader for ``duration_ns`` from when it *asked*, by its own clock.

    To be sent only if this node still leads the metadata group after it heard the question: a majority must
    have confirmed it, as for a read. A former metadata leader would otherwise keep a former leader in office.
    """

    node: NodeId
    node_epoch: NodeEpoch
    duration_ns: int


@dataclass(frozen=True, slots=True)
class RefuseLease:
    """Answer that a newer start of the node has registered: the process that asked is to stop."""

    node: NodeId
    node_epoch: NodeEpoch
    """The registered one."""


@dataclass(frozen=True, slots=True)
class Elect:
    """Propose this command; it is a compare-and-set, so it may be lost, late or repeated."""

    command: ChangeLeader


@dataclass(frozen=True, slots=True)
class Finish:
    """Propose this command; it is a compare-and-set like an election."""

    command: FinishReassignment


@dataclass(frozen=True, slots=True)
class Grow:
    """Propose this command, which adds replicas to an internal stream; it is a compare-and-set, too."""

    command: ReassignReplicas


@dataclass(frozen=True, slots=True)
class Name:
    """Propose this command, which gives the cluster its id; only the first one does."""

    command: NameCluster


@dataclass(frozen=True, slots=True)
class ChangeVoters:
    """Begin this change of the metadata group's members; it may be refused, lost or repeated."""

    change: ChangeMembers


Decision = ChangeLeader | FinishReassignment | ReassignReplicas | NameCluster
Action = GrantLease | RefuseLease | Elect | Finish | Grow | Name | ChangeVoters
