"""A metadata log under faults: what it was asked, what it said, and what it may hold afterwards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from envelope.errors import DiskFull
from envelope.types import LogIndex, NodeId, Term
from metadata.node.storage.file_storage import FileStorage
from metadata.node.storage.port import INITIAL_HARD_STATE, INITIAL_SNAPSHOT, Stored
from metadata.raft.state import Entry, HardState, Snapshot
from tests.support.memory_disk import MemoryDisk

DIRECTORY = "metadata"


def entries(first: int, last: int, term: int = 1) -> tuple[Entry, ...]:
    """Entries whose payload tells their index and term."""
    return tuple(
        Entry(LogIndex(index), Term(term), f"{index}@{term};".encode() * index)
        for index in range(first, last + 1)
    )


@dataclass(frozen=True, slots=True)
class Append:
    """An append of ``last - first + 1`` entries in ``term``."""

    first: int
    last: int
    term: int

    def perform(self, storage: FileStorage) -> None:
        """Ask for it."""
        storage.append(entries(self.first, self.last, self.term), HardState(Term(self.term), NodeId("n1")))

    def expected(self, before: Stored) -> Stored:
        """What is stored if it is."""
        kept = tuple(entry for entry in before.entries if entry.index < self.first)
        added = entries(self.first, self.last, self.term)
        return Stored(HardState(Term(self.term), NodeId("n1")), before.snapshot, kept + added)


@dataclass(frozen=True, slots=True)
class Compact:
    """A snapshot at ``index`` of ``term``."""

    index: int
    term: int

    @property
    def _snapshot(self) -> Snapshot:
        return Snapshot(LogIndex(self.index), Term(self.term), b"state %d;" % self.index * 20)

    def perform(self, storage: FileStorage) -> None:
        """Ask for it."""
        storage.compact(self._snapshot)

    def expected(self, before: Stored) -> Stored:
        """What is stored if it is."""
        same = any((entry.index, entry.term) == (self.index, self.term) for entry in before.entries)
        kept = tuple(entry for entry in before.entries if same and entry.index > self.index)
        return Stored(before.hard_state, self._snapshot, kept)


@dataclass(frozen=True, slots=True)
class Restart:
    """A clean stop and start."""

    def perform(self, storage: FileStorage) -> None:
        """Stop; `History.run` starts again."""
        storage.close()

    def expected(self, before: Stored) -> Stored:
        """Nothing changes."""
        return before


Operation = Append | Compact | Restart

OPERATIONS: tuple[Operation, ...] = (
    Append(1, 3, 1),
    Append(4, 4, 1),
    Compact(2, 1),
    Append(5, 9, 2),
    Append(7, 8, 3),
    Restart(),
    Append(9, 12, 3),
    Compact(12, 3),
    Append(13, 13, 3),
    Compact(20, 3),
    Restart(),
    Append(21, 22, 3),
)
"""Appends, replaced suffixes, snapshots with and without entries behind them or from elsewhere, restarts."""


@dataclass(slots=True)
class History:
    """What was acknowledged, and what the operation in flight would make of it."""

    acked: Stored = field(default_factory=lambda: Stored(INITIAL_HARD_STATE, INITIAL_SNAPSHOT, ()))
    possible: Stored = field(default_factory=lambda: Stored(INITIAL_HARD_STATE, INITIAL_SNAPSHOT, ()))
    has_opened: bool = False
    refusals: int = 0

    def run(self, disk: MemoryDisk, operations: Sequence[Operation]) -> None:
        """Open and perform; a full disk is tried again, every other error ends the run by raising."""
        storage = self.retried(lambda: FileStorage.open(disk, DIRECTORY))
        self.has_opened = True
        for operation in operations:
            self.possible = operation.expected(self.acked)
            self._perform(storage, operation)
            if isinstance(operation, Restart):
                storage = self.retried(lambda: FileStorage.open(disk, DIRECTORY, create=False))
            self.acked = self.possible
            assert storage.load() == self.acked

    def _perform(self, storage: FileStorage, operation: Operation) -> None:
        try:
            operation.perform(storage)
        except DiskFull:
            self.refusals += 1
            assert storage.load() == self.acked, "a full disk changes nothing"
            operation.perform(storage)

    def retried(self, opening: Callable[[], FileStorage]) -> FileStorage:
        """Open, once more if the disk was full for a moment."""
        try:
            return opening()
        except DiskFull:
            self.refusals += 1
            return opening()

    def check(self, disk: MemoryDisk) -> Stored:
        """Recover and require all that was acknowledged, or that and the operation in flight."""
        storage = FileStorage.open(disk, DIRECTORY, create=not self.has_opened)
        found = storage.load()
        assert found in (self.acked, self.possible)
        storage.close()
        return found
