"""The metadata log against a model, through kills and power losses at any moment."""

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from envelope.errors import DiskFull
from metadata.node.storage.file_storage import FileStorage
from metadata.node.storage.port import INITIAL_HARD_STATE, INITIAL_SNAPSHOT, Stored
from tests.support.example_counts import examples
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    everything_survives,
    random_survival,
)
from tests.support.metadata_logs import DIRECTORY, Append, Compact, Operation


class StorageAgainstModel(RuleBasedStateMachine):
    """Legal operations of a Raft log; between and within them the machine may stop."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.model = Stored(INITIAL_HARD_STATE, INITIAL_SNAPSHOT, ())

    @initialize()
    def start(self) -> None:
        self.storage = FileStorage.open(self.disk, DIRECTORY)

    def _perform(self, operation: Operation) -> None:
        """Perform; if the power goes, either outcome is right and the disk decides which it was."""
        possible = operation.expected(self.model)
        try:
            operation.perform(self.storage)
        except DiskFull:
            return
        except PowerLostError:
            self._restart_after_power_loss(self.seed)
            found = self.storage.load()
            assert found in (self.model, possible)
            self.model = found
            return
        self.model = possible

    def _restart_after_power_loss(self, seed: int) -> None:
        survive: Callable[[int], int] = random_survival(seed) if seed else everything_survives
        self.disk = self.disk.power_loss(survive)
        self.storage = FileStorage.open(self.disk, DIRECTORY, create=False)

    @rule(count=st.integers(1, 4), new_term=st.booleans(), back=st.integers(0, 3))
    def append(self, count: int, new_term: bool, back: int) -> None:
        term = max(self.model.hard_state.term + new_term, 1)
        last, snapshot = self.model.last_index, self.model.snapshot.index
        first = max(last + 1 - (back if new_term else 0), snapshot + 1)
        self._perform(Append(first, first + count - 1, term))

    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        if not self.model.entries:
            return
        entry = data.draw(st.sampled_from(self.model.entries))
        self._perform(Compact(entry.index, entry.term))

    @rule(ahead=st.integers(1, 5))
    def install_a_snapshot_from_elsewhere(self, ahead: int) -> None:
        if self.model.hard_state.term:
            self._perform(Compact(self.model.last_index + ahead, self.model.hard_state.term))

    @rule()
    def stop_and_start(self) -> None:
        self.storage.close()
        self.storage = FileStorage.open(self.disk, DIRECTORY, create=False)

    @rule()
    def kill_and_start(self) -> None:
        self.storage = FileStorage.open(self.disk, DIRECTORY, create=False)

    @rule(seed=st.integers(0, 1000))
    def lose_power_and_start(self, seed: int) -> None:
        self._restart_after_power_loss(seed)

    @rule(
        calls=st.integers(1, 9),
        kind=st.sampled_from(
            (FaultKind.POWER_LOSS, FaultKind.POWER_LOSS_AFTER, FaultKind.DISK_FULL, FaultKind.EXHAUSTED)
        ),
        kept=st.integers(0, 600),
        seed=st.integers(0, 1000),
    )
    def something_will_happen_soon(self, calls: int, kind: FaultKind, kept: int, seed: int) -> None:
        self.seed = seed
        self.disk.faults = {self.disk.calls + calls: Fault(kind, kept)}
        for _ in range(4):
            self.append(2, new_term=False, back=0)
        self.disk.faults = {}

    @invariant()
    def storage_and_model_agree(self) -> None:
        if hasattr(self, "storage"):
            assert self.storage.load() == self.model


TestStorageAgainstModel = StorageAgainstModel.TestCase
TestStorageAgainstModel.settings = settings(max_examples=examples(80), stateful_step_count=30)
