"""The metadata log when disk calls fail, power goes or bytes rot: all that was acked, or a loud refusal."""

import asyncio
from collections.abc import Iterator

import pytest

from envelope.errors import CorruptDataError, DiskFull, FsyncFailed, JetstreamError, StorageError
from envelope.types import LogIndex, StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import Command, DeleteStream
from metadata.node.catalogue.replicated_catalog import ReplicatedCatalog
from metadata.node.storage.file_storage import MARK_NAME, FileStorage
from metadata.node.storage.port import Stored
from metadata.node.voter import voter_disk
from tests.support.catalogs import create, register, update
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    everything_survives,
    nothing_survives,
    random_survival,
)
from tests.support.memory_tree import Survival
from tests.support.metadata_logs import DIRECTORY, OPERATIONS, Append, Compact, History, Operation
from tests.support.single_voters import opened, rows
from tests.support.sockets import run
from tests.support.struck_calls import struck_calls


def count_calls() -> int:
    disk = MemoryDisk()
    History().run(disk, OPERATIONS)
    return disk.calls


CALLS = count_calls()
EVERY_CALL = range(1, CALLS + 1)


def more_work_then_power_loss(history: History, disk: MemoryDisk) -> None:
    """Go on after the recovery, acknowledge more, and lose everything that was not durable."""
    disk.faults = {}
    found = history.check(disk)
    history.acked = history.possible = found
    storage = FileStorage.open(disk, DIRECTORY, create=False)
    term = max(found.hard_state.term, 1)
    append = Append(found.last_index + 1, found.last_index + 2, term)
    history.possible = append.expected(found)
    append.perform(storage)
    history.acked = history.possible
    history.check(disk.power_loss(nothing_survives))


def test_the_operations_touch_the_disk_often_enough_to_mean_something() -> None:
    assert CALLS > 50


@pytest.mark.parametrize("kind", [FaultKind.DISK_FULL, FaultKind.SHORT_WRITE, FaultKind.EXHAUSTED])
@pytest.mark.parametrize("bytes_kept", [0, 1, 40, 100])
def test_a_disk_that_is_full_for_one_call_refuses_and_forgets_nothing(
    kind: FaultKind, bytes_kept: int
) -> None:
    """A full disk is the one error after which the storage goes on."""
    refused = 0
    for number in EVERY_CALL:
        disk, history = MemoryDisk({number: Fault(kind, bytes_kept)}), History()
        history.run(disk, OPERATIONS)
        refused += history.refusals
        history.check(disk)
        history.check(disk.power_loss(nothing_survives))
    assert refused > 10


@pytest.mark.parametrize("kind", [FaultKind.IO_ERROR, FaultKind.SYNC_ERROR])
def test_after_a_failed_call_everything_acked_is_there_and_stays(kind: FaultKind) -> None:
    """The process dies of the error, another one starts on the same page cache, and then the power goes.

    What a failed sync left in the page cache looks stored and is not (ATC'20), so this is the case that
    a recovery which only reads and syncs again would lose.
    """
    failures = 0
    for number in EVERY_CALL:
        disk, history = MemoryDisk({number: Fault(kind)}), History()
        try:
            history.run(disk, OPERATIONS)
        except JetstreamError:
            failures += 1
        if not history.has_opened:
            continue  # nothing was promised yet
        more_work_then_power_loss(history, disk)
    assert failures > 20


def test_a_storage_that_failed_never_works_again() -> None:
    for number in EVERY_CALL:
        disk = MemoryDisk()
        storage = FileStorage.open(disk, DIRECTORY)
        disk.faults = {disk.calls + number: Fault(FaultKind.SYNC_ERROR)}
        attempts: tuple[Operation, ...] = (Append(1, 3, 1), Compact(2, 1), Append(4, 5, 1), Compact(5, 1))
        for position, operation in enumerate(attempts):
            try:
                operation.perform(storage)
            except FsyncFailed:
                disk.faults = {}
                assert storage.failed is not None
                for later in attempts[position:]:
                    with pytest.raises(StorageError, match="has failed"):
                        later.perform(storage)
                break


SURVIVALS: tuple[Survival, ...] = (nothing_survives, everything_survives)


@pytest.mark.parametrize("kind", [FaultKind.POWER_LOSS, FaultKind.POWER_LOSS_AFTER])
@pytest.mark.parametrize("seed", [None, *range(6)])
def test_a_power_loss_at_any_call_loses_nothing_acked(kind: FaultKind, seed: int | None) -> None:
    for number in EVERY_CALL:
        survivals = SURVIVALS if seed is None else (random_survival(seed * CALLS + number),)
        for survive in survivals:
            disk, history = MemoryDisk({number: Fault(kind, bytes_kept=50)}), History()
            with pytest.raises(PowerLostError):
                history.run(disk, OPERATIONS)
            found = disk.power_loss(survive)
            history.check(found)
            history.check(found)


def test_a_power_loss_during_recovery_loses_nothing_acked() -> None:
    disk, history = MemoryDisk(), History()
    history.run(disk, OPERATIONS)
    crashed = disk.power_loss(nothing_survives)
    before = crashed.calls
    history.check(crashed)
    for number in range(1, crashed.calls - before + 1):
        for survive in (*SURVIVALS, random_survival(number)):
            again = disk.power_loss(nothing_survives)
            again.faults = {number: Fault(FaultKind.POWER_LOSS_AFTER)}
            with pytest.raises(PowerLostError):
                history.check(again)
            history.check(again.power_loss(survive))


# --- torn and rotten bytes ----------------------------------------------------------------------------


def grown(*, closed: bool) -> tuple[MemoryDisk, Stored, Stored]:
    """A log of a snapshot and three appends, what it holds, and what it held before the last append."""
    disk = MemoryDisk()
    storage = FileStorage.open(disk, DIRECTORY)
    for operation in (Append(1, 3, 1), Compact(2, 1), Append(4, 5, 1), Append(6, 6, 2)):
        operation.perform(storage)
    before = storage.load()
    Append(7, 7, 2).perform(storage)
    found = storage.load()
    if closed:
        storage.close()
    return disk, found, before


def log_path(disk: MemoryDisk) -> str:
    (name,) = (name for name in disk.listdir(DIRECTORY) if name.endswith(".wal"))
    return f"{DIRECTORY}/{name}"


def content(disk: MemoryDisk, path: str) -> bytes:
    file = disk.open(path)
    return file.read(0, file.size())


def disk_with(log: bytes, mark: bytes | None, path: str) -> MemoryDisk:
    disk = MemoryDisk()
    disk.mkdir(DIRECTORY)
    disk.create(path).write((log,), 0)
    if mark is not None:
        disk.create(f"{DIRECTORY}/{MARK_NAME}").write((mark,), 0)
    return disk


def recovered(disk: MemoryDisk) -> Stored:
    storage = FileStorage.open(disk, DIRECTORY, create=False)
    found = storage.load()
    storage.close()
    return found


@pytest.mark.parametrize("has_mark", [True, False])
def test_an_append_torn_at_any_byte_is_cut(*, has_mark: bool) -> None:
    disk, after, before = grown(closed=False)
    path = log_path(disk)
    whole = content(disk, path)
    storage = FileStorage.open(disk_with(whole, None, path), DIRECTORY)
    assert storage.recovery.torn_bytes_cut == 0
    end = last_frame_start(whole)
    mark = content(disk_before_last_append(), f"{DIRECTORY}/{MARK_NAME}") if has_mark else None
    for length in range(end, len(whole)):
        for torn in (whole[:length], whole[:length] + bytes(len(whole) - length)):
            if torn == whole:
                continue
            torn_disk = disk_with(torn, mark, path)
            storage = FileStorage.open(torn_disk, DIRECTORY, create=False)
            assert storage.load() == before
            assert storage.recovery.torn_bytes_cut == len(torn) - end
            storage.close()
            assert recovered(torn_disk) == before
    assert recovered(disk_with(whole, mark, path)) == after


def disk_before_last_append() -> MemoryDisk:
    disk = MemoryDisk()
    storage = FileStorage.open(disk, DIRECTORY)
    for operation in (Append(1, 3, 1), Compact(2, 1), Append(4, 5, 1), Append(6, 6, 2)):
        operation.perform(storage)
    return disk


def last_frame_start(log: bytes) -> int:
    return log.rindex(b"\xf7JSM")


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every single flipped bit."""
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            yield position, bytes(damaged)


@pytest.mark.parametrize("closed", [True, False])
def test_every_flipped_bit_is_refused_after_a_clean_close_and_after_a_kill(*, closed: bool) -> None:
    disk, _, _ = grown(closed=closed)
    path = log_path(disk)
    mark = content(disk, f"{DIRECTORY}/{MARK_NAME}")
    for _, damaged in flips(content(disk, path)):
        damaged_disk = disk_with(damaged, mark, path)
        with pytest.raises(CorruptDataError):
            FileStorage.open(damaged_disk, DIRECTORY)
        assert content(damaged_disk, path) == damaged, "a refusal changes nothing"


def test_a_clean_close_makes_the_mark_outlive_a_power_loss() -> None:
    disk, _, _ = grown(closed=True)
    path = log_path(disk)
    survived = disk.power_loss(nothing_survives)
    mark = content(survived, f"{DIRECTORY}/{MARK_NAME}")
    whole = content(survived, path)
    for _, damaged in flips(whole[last_frame_start(whole) :]):
        with pytest.raises(CorruptDataError):
            FileStorage.open(disk_with(whole[: last_frame_start(whole)] + damaged, mark, path), DIRECTORY)


def test_without_the_mark_only_damage_to_the_very_last_append_is_taken_for_a_torn_one() -> None:
    """The documented limit: a power loss that took the mark, then damage at rest in the last append."""
    disk, _, before = grown(closed=False)
    path = log_path(disk)
    whole = content(disk, path)
    last = last_frame_start(whole)
    for position, damaged in flips(whole):
        if position < last:
            with pytest.raises(CorruptDataError):
                FileStorage.open(disk_with(damaged, None, path), DIRECTORY)
        else:
            assert recovered(disk_with(damaged, None, path)) == before


def test_a_damaged_mark_harms_nothing() -> None:
    disk, after, _ = grown(closed=True)
    path = log_path(disk)
    mark = content(disk, f"{DIRECTORY}/{MARK_NAME}")
    for _, damaged in flips(mark):
        assert recovered(disk_with(content(disk, path), damaged, path)) == after
    for length in range(len(mark)):
        assert recovered(disk_with(content(disk, path), mark[:length], path)) == after


def test_a_log_cut_anywhere_below_the_mark_is_refused() -> None:
    disk, _, _ = grown(closed=True)
    path = log_path(disk)
    whole = content(disk, path)
    mark = content(disk, f"{DIRECTORY}/{MARK_NAME}")
    for length in range(len(whole)):
        with pytest.raises(CorruptDataError):
            FileStorage.open(disk_with(whole[:length], mark, path), DIRECTORY)


# --- the catalogue on top -----------------------------------------------------------------------------

PROPOSALS: tuple[Command, ...] = (
    register(),
    create("a", "l1"),
    create("b", "l2"),
    create("a", "l3", ack="none"),
    update("a", labels={"x": "1"}),
    *(update("b", labels={"turn": str(turn)}) for turn in range(4)),
    DeleteStream(StreamName("a")),
    create("a", "l4"),
    register(),
)
_STARTS = 2


def states_after_each_proposal() -> list[tuple[object, ...]]:
    catalog = Catalog()
    states = [rows(catalog)]
    for command in PROPOSALS:
        catalog.apply(LogIndex(catalog.applied + 1), command)
        states.append(rows(catalog))
    return states


class Run:
    """A group of one takes the proposals, one after the other, in two runs of its process."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.acked = 0
        self.failure: BaseException | None = None
        self._disk = disk
        try:
            for start in range(1, _STARTS + 1):
                run(self._start(len(PROPOSALS) * start // _STARTS))
        except* (JetstreamError, PowerLostError) as failures:
            self.failure = failures

    async def _start(self, last: int) -> None:
        try:
            storage = FileStorage.open(self._disk, DIRECTORY)
        except DiskFull:
            storage = FileStorage.open(self._disk, DIRECTORY)
        group = opened(storage, snapshot_log_bytes_min=1500)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(group.run(None))
            for command in PROPOSALS[self.acked : last]:
                await group.propose(command, deadline_seconds=None)
                self.acked += 1
            running.cancel()


def replayed(disk: MemoryDisk, *, create: bool) -> Catalog:
    """What a restart makes of the disk: a voter that is alone commits all that it finds."""
    storage = FileStorage.open(disk, DIRECTORY, create=create)
    found = storage.load()
    storage.close()
    state = ReplicatedCatalog(found.snapshot)
    state.apply(found.entries)
    return state.catalog


@pytest.mark.parametrize(
    "step", [9, pytest.param(1, marks=pytest.mark.slow("tests/crash/test_metadata_storage.py"))]
)
@pytest.mark.parametrize("kind", list(FaultKind))
def test_no_fault_at_any_call_loses_a_proposal_or_splits_one(
    kind: FaultKind, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voter_disk, "FULL_DISK_RETRY_SECONDS", 0.001)
    states = states_after_each_proposal()
    whole = MemoryDisk()
    assert (Run(whole).acked, Run(MemoryDisk()).failure) == (len(PROPOSALS), None)
    failed = 0
    for number in struck_calls(whole.trace, kind, step):
        disk = MemoryDisk({number: Fault(kind, bytes_kept=30)})
        done = Run(disk)
        assert done.failure is not None or done.acked == len(PROPOSALS)
        failed += done.failure is not None
        for survive in (nothing_survives, everything_survives, random_survival(number)):
            catalog = replayed(disk.power_loss(survive), create=done.acked == 0)
            catalog.audit()
            assert rows(catalog) in states[done.acked : done.acked + 2], (number, done.failure)
    is_waited_out = kind in (FaultKind.DISK_FULL, FaultKind.SHORT_WRITE, FaultKind.EXHAUSTED)
    assert is_waited_out == (failed == 0)
