"""What one replica's log holds, by the promises of `jetstream.log.log`.

An epoch begins durably, and everything before it is synced first; so no epoch ever begins behind the synced
end, and a crash leaves all of them.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from envelope.types import LeaderEpoch, Offset, StreamName, TimestampUs
from jetstream.log.state.epochs import EpochHistory
from jetstream.replica.reconcile import LogState
from tests.simulation.replica.stored_damage import StoredDamage
from tests.simulation.violation import Violation
from tests.support.memory_disk import MemoryDisk

_UNTIMED = TimestampUs(0)


@dataclass(frozen=True, slots=True)
class Batch:
    """The values of consecutive offsets, written together under one epoch."""

    base: Offset
    epoch: LeaderEpoch
    values: tuple[str, ...]
    frames: bytes = field(default=b"", compare=False, repr=False)
    """The values as stored messages, of a stream whose ids are read back from them."""

    @property
    def next(self) -> Offset:
        """Offset after the last value."""
        return Offset(self.base + len(self.values))


class LogImage:
    """Batches, epochs and the two ends; ``durable_end`` is what a power loss leaves."""

    __slots__ = (
        "_agreed",
        "_agreed_with",
        "_batches",
        "_ends",
        "damage",
        "durable_end",
        "epochs",
        "log_start",
        "notes",
        "origin",
        "stream",
        "syncs",
    )

    def __init__(self, stream: StreamName, *, syncs: bool = True) -> None:
        self.stream = stream
        self.syncs = syncs
        """Only what is durable counts: ``sync: always``."""
        self.origin = Offset(0)
        """Where the first batch begins, or would; the log start may lie inside that batch."""
        self._batches: list[Batch] = []
        self._ends: list[int] = []
        self.epochs = EpochHistory()
        self.log_start = Offset(0)
        self.durable_end = Offset(0)
        self.damage = StoredDamage(stream)
        self.notes = MemoryDisk()
        """What is noted beside the batches."""
        self._agreed = Offset(0)
        self._agreed_with: object = None

    @property
    def log_end(self) -> Offset:
        """Offset after the last batch."""
        return Offset(self._ends[-1]) if self._ends else self.origin

    @property
    def counted_end(self) -> Offset:
        """Offset below which records count as stored."""
        return self.durable_end if self.syncs else self.log_end

    def state(self) -> LogState:
        """Return what the machines know of it."""
        return LogState(self.epochs, self.log_start, self.log_end, self.counted_end)

    def copy(self) -> "LogImage":
        """Return one that keeps what is here now."""
        other = LogImage(self.stream, syncs=self.syncs)
        other.origin, other.log_start, other.durable_end = self.origin, self.log_start, self.durable_end
        other._batches, other._ends, other.epochs = list(self._batches), list(self._ends), self.epochs
        return other

    def agreed_with(self, history: object) -> Offset:
        """Return the end of what was compared with a history of what is committed; for checkers."""
        return self._agreed if self._agreed_with is history else Offset(0)

    def agree(self, history: object, end: Offset) -> None:
        """Note that everything below ``end`` was compared with a history."""
        self._agreed, self._agreed_with = end, history

    def is_boundary(self, offset: int) -> bool:
        """Tell whether a batch begins or ends at ``offset``."""
        row = bisect_right(self._ends, offset)
        return offset == self.origin or (row > 0 and self._ends[row - 1] == offset)

    def batches_from(self, offset: int, batches_max: int | None = None) -> list[Batch]:
        """Return the batches that begin at ``offset`` or later."""
        row = bisect_right(self._ends, offset)
        if row < len(self._batches) and self._batches[row].base < offset:
            row += 1
        return self._batches[row : None if batches_max is None else row + batches_max]

    def records(self, start: int, end: int) -> list[tuple[LeaderEpoch, str]]:
        """Return epoch and value of every offset in ``[start, end)``; fewer if it does not hold them all."""
        row = bisect_right(self._ends, start)
        found: list[tuple[LeaderEpoch, str]] = []
        for batch in self._batches[row:]:
            if batch.base >= end:
                break
            first, last = max(start - batch.base, 0), min(end, batch.next) - batch.base
            found.extend((batch.epoch, value) for value in batch.values[first:last])
        return found

    def offsets(self) -> dict[str, Offset]:
        """Return where each value is, the first place if there are several; none of what a start lacked."""
        found: dict[str, Offset] = {}
        for batch in self._batches:
            if batch.base in self.damage.missing:
                continue
            for row, value in enumerate(batch.values):
                found.setdefault(value, Offset(batch.base + row))
        return found

    # --- changes --------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """Record durably that ``epoch`` begins at the log's end.

        Raises:
            Violation: it is not above the last one.
        """
        if epoch <= self.epochs.last:
            raise Violation(f"epoch {epoch} begins in a log that knows epoch {self.epochs.last}")
        self.sync()
        self.epochs = self.epochs.begun(epoch, self.log_end, _UNTIMED)

    def append(self, batch: Batch) -> None:
        """Write a batch.

        Raises:
            Violation: it does not begin at the log's end, or its epoch is below the last one.
        """
        if batch.base != self.log_end or batch.epoch < self.epochs.last:
            state = f"a log that ends at {self.log_end} in epoch {self.epochs.last}"
            raise Violation(f"batch {batch.base} of epoch {batch.epoch} is appended to {state}")
        if batch.epoch > self.epochs.last:
            self.begin_epoch(batch.epoch)
        self._batches.append(batch)
        self._ends.append(batch.next)

    def sync(self) -> None:
        """Make everything durable."""
        self.durable_end = self.log_end

    def cut(self, end: int) -> None:
        """Cut back, durably, to the last batch boundary not above ``end``."""
        self._keep(end)
        self.epochs = self.epochs.cut(self.log_end)
        self.sync()

    def lose_power(self, end: int) -> None:
        """Keep what is durable, and of the rest what lies before ``end``."""
        self._keep(max(end, self.durable_end))

    def reset(self, offset: Offset) -> None:
        """Begin anew, durably, with an empty log at ``offset``."""
        self._batches, self._ends, self.epochs = [], [], EpochHistory()
        self.origin = self.log_start = self.durable_end = offset
        self._agreed = offset
        self.damage.kept(offset, offset)

    def move_start(self, offset: Offset) -> list[str]:
        """Remove what lies before ``offset``, a durable boundary; return the values that go."""
        row = bisect_right(self._ends, offset)
        gone = [value for batch in self._batches[:row] for value in batch.values]
        self._batches, self._ends = self._batches[row:], self._ends[row:]
        self.origin = self.log_start = offset
        self.epochs = self.epochs.pruned(offset)
        self.damage.kept(offset, self.log_end)
        return gone

    def boundaries(self) -> list[int]:
        """Return the ends of all batches."""
        return list(self._ends)

    def _keep(self, end: int) -> None:
        row = bisect_right(self._ends, end)
        self._batches, self._ends = self._batches[:row], self._ends[:row]
        self.durable_end = min(self.durable_end, self.log_end)
        self.damage.kept(self.origin, self.log_end)
        self._agreed = min(self._agreed, self.log_end)
