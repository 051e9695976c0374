"""The leader of one stream during one epoch: decides what is committed.

With one replica the rule of DESIGN §7.2 is at its smallest: the high watermark is the leader's own synced
end, the minimum over an ISR of one. Followers, ISR changes and fencing join this machine with replication.

Source: Kafka's replication protocol (high watermark as minimum over the ISR), KIP-101 for epochs.
"""

from dataclasses import dataclass
from typing import assert_never

from envelope.types import LeaderEpoch, Offset


@dataclass(frozen=True, slots=True)
class Synced:
    """The leader's log is durable below ``synced_end`` (its log end when ``sync`` is not ``always``)."""

    synced_end: Offset


Event = Synced


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Everything below ``high_watermark`` is committed: release acks, wake readers."""

    high_watermark: Offset


Action = AdvanceHighWatermark


class Leader:
    """Decides which records are committed during one leader epoch.

    Invariants:
        L1: high_watermark <= synced_end of every in-sync replica, the leader included.
        L2: high_watermark never decreases.
    """

    def __init__(self, leader_epoch: LeaderEpoch, synced_end: Offset) -> None:
        """Begin the epoch with a log that is durable below ``synced_end``."""
        self.leader_epoch = leader_epoch
        self.high_watermark = synced_end

    def handle(self, event: Event) -> tuple[Action, ...]:
        """Take in one event; return what the shell must do, in that order."""
        match event:
            case Synced(synced_end):
                assert synced_end >= self.high_watermark, f"L1: {synced_end} < {self.high_watermark}"
                if synced_end == self.high_watermark:
                    return ()
                self.high_watermark = synced_end
                return (AdvanceHighWatermark(synced_end),)
            case _:
                assert_never(event)

    def __str__(self) -> str:
        """One line for logs: epoch and high watermark."""
        return f"leader e{self.leader_epoch} hw={self.high_watermark}"
