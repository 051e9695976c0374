"""A leader with two followers, told what happens step by step."""

from envelope.types import LeaderEpoch, MonotonicNs, NodeEpoch, NodeId, Offset, TimestampUs
from jetstream.log.epochs import EpochHistory, EpochStart
from jetstream.replica.leader import Appointment, Leader
from jetstream.replica.leader_events import (
    Action,
    Event,
    FetchArrived,
    ProposeIsr,
    Synced,
)
from jetstream.replica.log_state import LogState
from jetstream.replica.settings import NEVER
from metadata.catalog.commands import NodeAtEpoch
from tests.support.replica_cluster import START, A, B, C, D

EPOCH = LeaderEpoch(7)
OLD = LeaderEpoch(5)


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
        appointment = Appointment(A, NodeEpoch(1), EPOCH, (A, B, C), isr, 1, minimum, read_replicas=(D,))
        self.leader = Leader(
            appointment,
            own_log or log((OLD, 0), (EPOCH, 10), end=10),
            Offset(known),
            START,
            MonotonicNs(lease_until),
        )

    def give(self, event: Event) -> tuple[Action, ...]:
        return self.leader.handle(event, self.now)

    def after(self, duration_ns: int) -> "Reign":
        self.now = MonotonicNs(self.now + duration_ns)
        return self

    def written(self, log_end: int, synced_end: int | None = None) -> tuple[Action, ...]:
        return self.give(Synced(Offset(log_end if synced_end is None else synced_end), Offset(log_end)))

    def fetch(
        self,
        follower: NodeId,
        log_end: int = 10,
        synced_end: int | None = None,
        *,
        last: int = OLD,
        epoch: int = EPOCH,
        node_epoch: int = 1,
    ) -> tuple[Action, ...]:
        return self.give(
            FetchArrived(
                follower,
                NodeEpoch(node_epoch),
                LeaderEpoch(epoch),
                LeaderEpoch(last),
                Offset(log_end),
                Offset(log_end if synced_end is None else synced_end),
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
    """All followers have everything, and everybody is heard of."""
    for follower in (B, C):
        reign.fetch(follower)
    return reign
