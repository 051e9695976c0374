"""The appointment, the events and the actions of the leader of a stream.

The shell performs actions in the order they come. Answers to fetches repeat the last epoch and the log end
that the follower sent: they are about that log, whenever they arrive.
"""

from dataclasses import dataclass

from envelope.types import LeaderEpoch, NodeEpoch, NodeId, Offset
from envelope.values import value
from jetstream.replica.role_events import AdvanceHighWatermark, LogStartMoved, Tick
from jetstream.replica.wire import DivergingMessage, FetchMessage, RefusedMessage, StartOverMessage
from metadata.catalog.commands import NodeAtEpoch


@dataclass(frozen=True, slots=True)
class Appointment:
    """The reign as the catalogue has it."""

    node_id: NodeId
    node_epoch: NodeEpoch
    """Of the leading process: a reign is given to one start of a node."""
    leader_epoch: LeaderEpoch
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    isr_version: int
    min_insync_replicas: int
    read_replicas: tuple[NodeId, ...] = ()
    """They follow, but are never in the ISR."""

    @property
    def others(self) -> tuple[NodeId, ...]:
        """The followers."""
        return tuple(node for node in (*self.replicas, *self.read_replicas) if node != self.node_id)


# --- events -------------------------------------------------------------------------------------------


@value(frozen=True, slots=True)
class LeaderLogSynced:
    """The leader's own log ends at ``log_end`` and is durable below ``synced_end``.

    Due when a record is written, before it is served to a follower, and again once it is durable. Neither end
    goes back in this reign: a log that fails has no leader any more. ``synced_end`` is the log
    end when ``sync`` is not ``always``.
    """

    synced_end: Offset
    log_end: Offset


@value(frozen=True, slots=True)
class FetchArrived:
    """A follower asks for what comes after its log, and acknowledges what it has on disk."""

    follower: NodeId
    fetch: FetchMessage


@value(frozen=True, slots=True)
class ReplicasChanged:
    """The catalogue has these replicas, in the same reign, and this ISR of them; repeats do no harm.

    A new version of the ISR comes with every change of the replicas, so what was proposed before is void.
    """

    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    isr_version: int
    read_replicas: tuple[NodeId, ...] = ()


@value(frozen=True, slots=True)
class IsrRefused:
    """The catalogue refused a proposal: it can never be applied, however often it was sent.

    Made by `jetstream.replica.isr.refusal_of`. Not to be told when nobody knows: then silence, and the
    proposal is repeated.
    """

    number: int
    """Of `ProposeIsr`."""
    version_moved: bool
    """The reason was that the ISR has another version. Perhaps this very proposal made it, sent before."""


@value(frozen=True, slots=True)
class FollowerLost:
    """The follower's process is known to be dead: it need not be waited for. Wrong news costs a rejoin."""

    follower: NodeId


@value(frozen=True, slots=True)
class LeaseRenewed:
    """The node's lease had lapsed and is valid again; to be told before anything else is.

    A lease that is renewed in time is no event: the leader reads it from `metadata.lease.Lease`.
    """


@value(frozen=True, slots=True)
class MinimumChanged:
    """The stream's ``min_insync_replicas`` is another now."""

    min_insync_replicas: int


@value(frozen=True, slots=True)
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


@value(frozen=True, slots=True)
class ProposeIsr:
    """Send the catalogue this compare-and-set; the same number is the same proposal, sent again."""

    number: int
    leader_epoch: LeaderEpoch
    expected_isr_version: int
    isr: tuple[NodeAtEpoch, ...]


@value(frozen=True, slots=True)
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


@value(frozen=True, slots=True)
class AnswerFollower:
    """Send the follower an answer without batches; one to start over gets its note from the shell."""

    follower: NodeId
    answer: DivergingMessage | StartOverMessage | RefusedMessage


Action = AdvanceHighWatermark | ProposeIsr | ServeFollower | AnswerFollower
