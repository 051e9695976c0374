"""However a voter's writes gather before the disk is free, they store what one after the other would."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.errors import DiskFull, FsyncFailed
from envelope.types import LogIndex, NodeId, Term
from metadata.node.storage.file_storage import FileStorage
from metadata.node.storage.port import INITIAL_SNAPSHOT, Storage, Stored
from metadata.node.voter import voter_disk
from metadata.node.voter.voter_disk import VoterDisk
from metadata.raft.events import Persist
from metadata.raft.state import Entry, HardState, Snapshot
from tests.support.example_counts import examples
from tests.support.faulty_storage import FaultyStorage
from tests.support.memory_disk import MemoryDisk, nothing_survives
from tests.support.sockets import run


@dataclass
class Model:
    """A voter's state, and the writes that lead there."""

    term: int = 1
    snapshot: Snapshot = INITIAL_SNAPSHOT
    entries: list[Entry] = field(default_factory=list)
    writes: list[Persist] = field(default_factory=list)

    def write(self, kind: str, amount: int) -> None:
        hard_state = None
        snapshot = None
        if kind == "term":
            self.term += 1
            hard_state = HardState(Term(self.term), NodeId(f"n{amount}"))
        last = self.snapshot.index + len(self.entries)
        first = last + 1
        if kind == "replace":
            first = max(self.snapshot.index + 1, last + 1 - amount)
            self.term += 1
            hard_state = HardState(Term(self.term), None)
        if kind == "compact" and self.entries:
            kept = min(amount, len(self.entries) - 1)
            at = self.entries[len(self.entries) - 1 - kept]
            snapshot = Snapshot(at.index, at.term, b"state %d" % at.index)
            self.snapshot, self.entries = snapshot, self.entries[len(self.entries) - kept :]
        if kind == "install":
            self.term += 1
            hard_state = HardState(Term(self.term), None)
            snapshot = Snapshot(LogIndex(last + amount + 1), Term(self.term), b"other %d" % amount)
            self.snapshot, self.entries = snapshot, []
        added: tuple[Entry, ...] = ()
        if kind in ("append", "replace"):
            added = tuple(
                Entry(LogIndex(index), Term(self.term), b"%d" % index)
                for index in range(first, first + amount + 1)
            )
            self.entries = [*(entry for entry in self.entries if entry.index < first), *added]
        self.writes.append(Persist(len(self.writes) + 1, hard_state, snapshot, added))


KINDS = st.sampled_from(["append", "append", "replace", "term", "compact", "install", "barrier"])


class Outcome:
    """What the thread said."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.stalls = 0
        self.error: BaseException | None = None
        self.told = asyncio.Event()

    def persisted(self, writes: Sequence[Persist], _: int) -> None:
        self.numbers += [write.number for write in writes]
        self.told.set()

    def stalled(self, _: DiskFull) -> None:
        self.stalls += 1
        self.told.set()

    def failed(self, error: BaseException) -> None:
        self.error = error
        self.told.set()


def begun(disk: MemoryDisk) -> FileStorage:
    storage = FileStorage.open(disk, "metadata")
    storage.append((), HardState(Term(1), None))
    return storage


def stored_after(storage: Storage, writes: Sequence[Persist], outcome: Outcome) -> None:
    async def test() -> None:
        thread = VoterDisk(storage, outcome.persisted, outcome.stalled, outcome.failed)
        for write in writes:
            thread.write(write)
        await thread.stop()
        await asyncio.sleep(0)  # what the thread said last

    run(test())


@given(st.lists(st.tuples(KINDS, st.integers(0, 4)), max_size=12))
@settings(max_examples=examples(60))
def test_writes_that_gather_are_stored_as_if_one_after_the_other(steps: list[tuple[str, int]]) -> None:
    model = Model()
    for kind, amount in steps:
        model.write(kind, amount)
    disk = MemoryDisk()
    outcome = Outcome()
    stored_after(begun(disk), model.writes, outcome)
    assert outcome.error is None
    assert outcome.numbers == [write.number for write in model.writes]
    found: Stored = FileStorage.open(disk.power_loss(nothing_survives), "metadata").load()
    assert found.hard_state.term == model.term
    assert found.snapshot == model.snapshot
    assert list(found.entries) == model.entries


def syncs(disk: MemoryDisk) -> int:
    return sum(call.startswith("sync metadata/0") for call in disk.trace)


def test_many_entries_are_written_in_parts_that_fit_an_append(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voter_disk, "APPEND_BYTES_MAX", 1000)
    disk = MemoryDisk()
    storage = begun(disk)
    before = syncs(disk)
    entries = tuple(Entry(LogIndex(index), Term(1), bytes(200)) for index in range(1, 11))
    outcome = Outcome()
    stored_after(storage, [Persist(1, entries=entries)], outcome)
    assert outcome.numbers == [1]
    assert syncs(disk) - before == 10
    assert FileStorage.open(disk, "metadata").load().entries == entries


def test_a_full_disk_is_tried_again_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voter_disk, "FULL_DISK_RETRY_SECONDS", 0.001)
    disk = MemoryDisk()
    outcome = Outcome()
    model = Model()
    for kind in ("append", "replace", "term"):
        model.write(kind, 1)

    async def test() -> None:
        thread = VoterDisk(
            FaultyStorage(begun(disk), full_for=3), outcome.persisted, outcome.stalled, outcome.failed
        )
        for write in model.writes:
            thread.write(write)
        async with asyncio.timeout(20):
            while len(outcome.numbers) < 3:
                outcome.told.clear()
                await outcome.told.wait()
        await thread.stop()

    run(test())
    assert outcome.stalls == 3
    assert outcome.numbers == [1, 2, 3]
    assert list(FileStorage.open(disk, "metadata").load().entries) == model.entries


def test_a_thread_that_waits_for_space_stops_when_it_is_told_to() -> None:
    outcome = Outcome()
    storage = FaultyStorage(begun(MemoryDisk()), full_for=10**9)
    stored_after(storage, [Persist(1, HardState(Term(2), None))], outcome)
    assert outcome.numbers == []
    assert outcome.error is None


def test_nothing_is_written_after_an_error() -> None:
    storage = FaultyStorage(begun(MemoryDisk()))
    storage.broken = True
    outcome = Outcome()
    stored_after(storage, [Persist(1, HardState(Term(2), None)), Persist(2)], outcome)
    assert isinstance(outcome.error, FsyncFailed)
    assert outcome.numbers == []
