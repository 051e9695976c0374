"""A leader with two followers, told what happens step by step."""

from envelope.types import LeaderEpoch, MonotonicNs, NodeEpoch, NodeId, Offset, TimestampUs
from jetstream.log.state.epochs import EpochHistory, EpochStart
from jetstream.replica.leader_events import (
    Action,
    Appointment,
    Event,
    FetchArrived,
    LeaderLogSynced,
    LeaseRenewed,
    ProposeIsr,
)
from jetstream.replica.reconcile import LogState
from jetstream.replica.settings import NEVER
from jetstream.replica.wire import FetchMessage
from metadata.catalog.commands import NodeAtEpoch
from metadata.lease import Lease
from tests.support.checked_leader import CheckedLeader
from tests.support.replica_cluster import START, A, B, C, D

EPOCH = LeaderEpoch(7)
OLD = LeaderEpoch(5)
_FETCH = {"last": OLD, "epoch": EPOCH, "node_epoch": 1, "known": 0, "asks": True}


def log(*starts: tuple[int, int], start: int = 0, end: int = 0, synced: int | None = None) -> LogState:
    """A log with epochs that begin at these offsets."""
    epochs = EpochHistory(
        tuple(EpochStart(LeaderEpoch(epoch), Offset(at), TimestampUs(0)) for epoch, at in starts)
    )
    return LogState(epochs, Offset(start), Offset(end), Offset(end if synced is None else synced))


class Reign:
    """A leader a, with followers b and c and a log of ten records from an earlier epoch; and its time."""

    def __init__(
        self,
        isr: tuple[NodeId, ...] = (A, B, C),
        minimum: int = 2,
        known: int = 0,
        lease_until: int = NEVER,
        own_log: LogState | None = None,
    ) -> None:
        self.now = START
        self.lease = Lease(MonotonicNs(lease_until))
        appointment = Appointment(
            node_id=A,
            node_epoch=NodeEpoch(1),
            leader_epoch=EPOCH,
            replicas=(A, B, C),
            isr=isr,
            isr_version=1,
            min_insync_replicas=minimum,
            read_replicas=(D,),
        )
        self.leader = CheckedLeader(
            appointment,
            own_log or log((OLD, 0), (EPOCH, 10), end=10),
            Offset(known),
            START,
            self.lease,
        )

    def give(self, event: Event) -> tuple[Action, ...]:
        return self.leader.handle(event, self.now)

    def after(self, duration_ns: int) -> "Reign":
        self.now = MonotonicNs(self.now + duration_ns)
        return self

    def renew(self, duration_ns: int) -> tuple[Action, ...]:
        """Let the lease be valid again, for that long."""
        self.lease.until = MonotonicNs(self.now + duration_ns)
        return self.give(LeaseRenewed())

    @property
    def wakes_after(self) -> int:
        """How long until the leader wants a tick."""
        return self.leader.wake_at - self.now

    def written(self, log_end: int, synced_end: int | None = None) -> tuple[Action, ...]:
        return self.give(
            LeaderLogSynced(Offset(log_end if synced_end is None else synced_end), Offset(log_end))
        )

    def fetch(
        self,
        follower: NodeId,
        log_end: int = 10,
        synced_end: int | None = None,
        **said: int,
    ) -> tuple[Action, ...]:
        """Let a fetch arrive; what it says besides is as in `_FETCH` where nothing else is said."""
        assert said.keys() <= _FETCH.keys(), said
        said = _FETCH | said
        return self.give(
            FetchArrived(
                follower,
                FetchMessage(
                    node_epoch=NodeEpoch(said["node_epoch"]),
                    leader_epoch=LeaderEpoch(said["epoch"]),
                    last_epoch=LeaderEpoch(said["last"]),
                    log_end=Offset(log_end),
                    synced_end=Offset(log_end if synced_end is None else synced_end),
                    high_watermark=Offset(said["known"]),
                    asks=bool(said["asks"]),
                ),
            )
        )

    @property
    def high_watermark(self) -> int:
        return self.leader.high_watermark


def proposals(actions: tuple[Action, ...]) -> list[tuple[NodeAtEpoch, ...]]:
    return [action.isr for action in actions if isinstance(action, ProposeIsr)]


def named(*members: tuple[NodeId, int]) -> tuple[NodeAtEpoch, ...]:
    return tuple(NodeAtEpoch(node, NodeEpoch(epoch)) for node, epoch in members)


def steady(reign: Reign) -> Reign:
    """All followers have everything, and know it; everybody is heard of."""
    for _ in range(2):
        for follower in (B, C):
            reign.fetch(follower, known=reign.high_watermark)
    return reign
