"""A log of batches in memory, with what the real one promises: for replicas that are moved by hand."""

from dataclasses import dataclass

from envelope.types import LeaderEpoch, NodeId, Offset, SyncMode, TimestampUs
from jetstream.log.state.epochs import EpochHistory
from jetstream.replica.reconcile import LogState

Records = dict[Offset, tuple[LeaderEpoch, str]]
"""Epoch and value by offset."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The values of consecutive offsets, written together under one epoch."""

    base: Offset
    epoch: LeaderEpoch
    values: tuple[str, ...]

    @property
    def next(self) -> Offset:
        return Offset(self.base + len(self.values))


class ReplicaLog:
    """A log of batches; what is above ``durable_end`` does not survive a power loss."""

    def __init__(self, *batches: Batch, sync: SyncMode = SyncMode.ALWAYS) -> None:
        self.sync_mode = sync
        self.batches: list[Batch] = []
        self.epochs = EpochHistory()
        self.log_start = self.durable_end = Offset(0)
        self._base = Offset(0)
        for batch in batches:
            self.append(batch)
        self.sync()

    @property
    def log_end(self) -> Offset:
        return self.batches[-1].next if self.batches else self._base

    @property
    def synced_end(self) -> Offset:
        return self.durable_end if self.sync_mode is SyncMode.ALWAYS else self.log_end

    def state(self) -> LogState:
        return LogState(self.epochs, self.log_start, self.log_end, self.synced_end)

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """As the real log does: what lies before an epoch that is on record is durable."""
        self.sync()
        self.epochs = self.epochs.begun(epoch, self.log_end, TimestampUs(0))

    def append(self, batch: Batch) -> None:
        assert batch.base == self.log_end, f"{batch} does not begin at {self.log_end}"
        assert batch.epoch >= self.epochs.last, f"{batch} in epoch {self.epochs.last}"
        if batch.epoch > self.epochs.last:
            self.begin_epoch(batch.epoch)
        self.batches.append(batch)

    def sync(self) -> None:
        self.durable_end = self.log_end

    def lose_power(self) -> None:
        self.cut(self.durable_end, epochs_too=False)

    def cut(self, end: Offset, *, epochs_too: bool = True) -> None:
        self.batches = [batch for batch in self.batches if batch.next <= end]
        self.durable_end = min(self.durable_end, self.log_end)
        if epochs_too:
            self.epochs = self.epochs.cut(self.log_end)

    def reset(self, offset: Offset) -> None:
        self.batches, self.epochs = [], EpochHistory()
        self.log_start = self._base = self.durable_end = offset

    def move_start(self, offset: Offset) -> None:
        self._base = max(self._base, offset)
        self.batches = [batch for batch in self.batches if batch.next > offset]
        self.log_start = offset
        self.epochs = self.epochs.pruned(offset)

    def after(self, offset: Offset, batches_max: int) -> list[Batch]:
        return [batch for batch in self.batches if batch.base >= offset][:batches_max]

    def records(self) -> Records:
        return {
            Offset(batch.base + row): (batch.epoch, value)
            for batch in self.batches
            for row, value in enumerate(batch.values)
        }

    def values(self) -> list[str]:
        return [value for _, (_, value) in sorted(self.records().items())]


def assert_matching(
    one: NodeId,
    records: Records,
    other: NodeId,
    others: Records,
) -> None:
    """Assert that two logs which share a record share all before it."""
    shared = [offset for offset in records.keys() & others.keys() if records[offset][0] == others[offset][0]]
    for offset in records.keys() & others.keys():
        if offset <= max(shared, default=-1):
            assert records[offset] == others[offset], (
                f"{one} and {other} differ at {offset}: {records[offset]} {others[offset]}"
            )
