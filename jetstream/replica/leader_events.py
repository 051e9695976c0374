"""What the leader of a stream is told, and what it wants done.

The shell performs actions in the order they come. Answers to fetches repeat the last epoch and the log end
that the follower sent: they are about that log, whenever they arrive.
"""

from dataclasses import dataclass
from enum import StrEnum

from envelope.types import LeaderEpoch, NodeEpoch, NodeId, Offset
from jetstream.replica.role_events import AdvanceHighWatermark, LogStartMoved, Tick
from metadata.catalog.commands import NodeAtEpoch

# --- events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderLogSynced:
    """The leader's own log ends at ``log_end`` and is durable below ``synced_end``.

    To be told when a record is written, before it is served to a follower, and again once it is durable. What
    was told is not undone in this reign: a log that fails has no leader any more. ``synced_end`` is the log
    end when ``sync`` is not ``always``.
    """

    synced_end: Offset
    log_end: Offset


@dataclass(frozen=True, slots=True)
class FetchArrived:
    """A follower asks for what comes after its log, and acknowledges what it has on disk."""

    follower: NodeId
    node_epoch: NodeEpoch
    """Of the follower's process."""
    leader_epoch: LeaderEpoch
    """The reign that it follows."""
    last_epoch: LeaderEpoch
    """Of its history; `NO_EPOCH` if it is empty."""
    log_end: Offset
    synced_end: Offset
    high_watermark: Offset
    """As far as the follower knows."""
    asks: bool
    """False: it only acknowledges; the answer to what was asked before about this log is still awaited."""


@dataclass(frozen=True, slots=True)
class ReplicasChanged:
    """The catalogue has these replicas, in the same reign, and this ISR of them; repeats do no harm.

    A new version of the ISR comes with every change of the replicas, so what was proposed before is void.
    """

    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    isr_version: int
    read_replicas: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class IsrRefused:
    """The catalogue refused a proposal: it can never be applied, however often it was sent.

    Made by `jetstream.replica.isr.refusal_of`. Not to be told when nobody knows: then silence, and the
    proposal is repeated.
    """

    number: int
    """Of `ProposeIsr`."""
    version_moved: bool
    """The reason was that the ISR has another version. Perhaps this very proposal made it, sent before."""


@dataclass(frozen=True, slots=True)
class FollowerLost:
    """The follower's process is known to be dead: it need not be waited for. Wrong news costs a rejoin."""

    follower: NodeId


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """The node's lease had lapsed and is valid again; to be told before anything else is.

    A lease that is renewed in time is no event: the leader reads it from `metadata.lease.Lease`.
    """


@dataclass(frozen=True, slots=True)
class MinimumChanged:
    """The stream's ``min_insync_replicas`` is another now."""

    min_insync_replicas: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """Another reign has begun, or this one has ended."""

    leader_epoch: LeaderEpoch
    """The newest reign that is known."""


Event = (
    LeaderLogSynced
    | LogStartMoved
    | FetchArrived
    | ReplicasChanged
    | IsrRefused
    | FollowerLost
    | LeaseRenewed
    | MinimumChanged
    | Tick
    | Deposed
)

# --- actions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Send the catalogue this compare-and-set; the same number is the same proposal, sent again."""

    number: int
    leader_epoch: LeaderEpoch
    expected_isr_version: int
    isr: tuple[NodeAtEpoch, ...]


@dataclass(frozen=True, slots=True)
class ServeFollower:
    """Answer the follower's newest fetch with batches from ``log_end`` on, or with none if there are none."""

    follower: NodeId
    last_epoch: LeaderEpoch
    """Of the follower; repeated in the answer."""
    log_end: Offset
    """Of the follower; the answer begins here."""
    limit: Offset
    """Only with batches below: what the file has beyond is in no history yet, and a follower that had it
    would be taken for one whose log has parted.
    """
    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class Diverging:
    """Answer that the follower's log is no beginning of the leader's: see `jetstream.replica.reconcile`."""

    follower: NodeId
    last_epoch: LeaderEpoch
    log_end: Offset
    epoch: LeaderEpoch
    """The largest that the leader knows and that is not above ``last_epoch``."""
    end: Offset
    """Where it ends in the leader's log."""


@dataclass(frozen=True, slots=True)
class StartOver:
    """Answer that the follower's log has nothing to build on: it is to begin anew at the leader's start."""

    follower: NodeId
    last_epoch: LeaderEpoch
    log_end: Offset
    log_start_offset: Offset


class FetchRefusal(StrEnum):
    """Why a fetch was refused; it has changed nothing."""

    OTHER_LEADER_EPOCH = "other_leader_epoch"
    """It is for another reign than the leader's."""
    OLD_NODE_EPOCH = "old_node_epoch"
    """The follower's process has been replaced by a newer one."""
    UNKNOWN_REPLICA = "unknown_replica"
    """The stream has no such replica."""
    DEPOSED = "deposed"
    """This reign is over."""
    NOT_LEADING = "not_leading"
    """Said by a node without a leader of the stream: it does not lead, or not yet."""
    NO_LEASE = "no_lease"
    """The logs part, and the leader may not say where until its lease is valid again."""
    CANNOT_READ = "cannot_read"
    """The leader has what was asked for, and fails to read it."""


@dataclass(frozen=True, slots=True)
class RefuseFetch:
    """Answer that the fetch is refused."""

    follower: NodeId
    leader_epoch: LeaderEpoch
    """Of the fetch: the follower takes no refusal in another reign for its own."""
    reason: FetchRefusal


Action = AdvanceHighWatermark | ProposeIsr | ServeFollower | Diverging | StartOver | RefuseFetch
