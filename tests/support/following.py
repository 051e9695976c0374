"""A follower's machine, fed by hand."""

from envelope.types import LeaderEpoch, MonotonicNs, NodeEpoch, NodeId, Offset
from jetstream.replica.follower import Follower
from jetstream.replica.follower_events import (
    Action,
    Event,
    LeaderAssigned,
    LogSynced,
    LogWritten,
)
from jetstream.replica.reconcile import LogState
from jetstream.replica.settings import ReplicaSettings
from jetstream.replica.wire import DivergingMessage, FetchMessage
from tests.support.reigns import log
from tests.support.replica_cluster import START, A, B

EPOCH = LeaderEpoch(7)


SETTINGS = ReplicaSettings()


LOG = log((3, 0), (5, 6), end=10)
"""Ten records: six of epoch 3, four of epoch 5."""


class Following:
    """A follower b, of a if nothing else is said; and its time."""

    def __init__(
        self,
        own_log: LogState = LOG,
        known: int = 0,
        *,
        leader: NodeId | None = A,
        settings: ReplicaSettings = SETTINGS,
        may_lack_committed: bool = False,
    ) -> None:
        self.now = START
        self.follower = Follower(B, NodeEpoch(2), own_log, Offset(known), settings)
        if leader is not None:
            self.begun = self.give(LeaderAssigned(leader, EPOCH, may_lack_committed))

    def give(self, event: Event) -> tuple[Action, ...]:
        return self.follower.handle(event, self.now)

    def after(self, duration_ns: int) -> "Following":
        self.now = MonotonicNs(self.now + duration_ns)
        return self

    @property
    def wakes_after(self) -> int:
        """How long until it wants a tick."""
        return self.follower.wake_at - self.now

    def reign(self, leader: NodeId | None, epoch: int) -> tuple[Action, ...]:
        return self.give(LeaderAssigned(leader, LeaderEpoch(epoch)))

    def written(self, end: int) -> tuple[Action, ...]:
        return self.give(LogWritten(Offset(end)))

    def synced(self, end: int) -> tuple[Action, ...]:
        return self.give(LogSynced(Offset(end)))


def fetch(
    last: int,
    end: int,
    synced: int | None = None,
    *,
    epoch: int = EPOCH,
    known: int = 0,
    asks: bool = True,
) -> FetchMessage:
    return FetchMessage(
        node_epoch=NodeEpoch(2),
        leader_epoch=LeaderEpoch(epoch),
        last_epoch=LeaderEpoch(last),
        log_end=Offset(end),
        synced_end=Offset(end if synced is None else synced),
        high_watermark=Offset(known),
        asks=asks,
    )


def diverging(last: int, log_end: int, epoch: int, end: int) -> DivergingMessage:
    return DivergingMessage(EPOCH, LeaderEpoch(last), Offset(log_end), LeaderEpoch(epoch), Offset(end))
