"""Archiving is stopped at every call to the disk, and starts again: every row is there once."""

from pathlib import Path

import pytest

from envelope.errors import JetstreamError, StorageError
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.disk.port import Disk
from jetstream.spark.pipelines.archives.archive_store import read_manifest
from tests.support.archives import (
    FailingDisk,
    batches_of,
    rows_by_listing,
    rows_by_manifest,
    rows_of,
    run_query,
)
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    Survival,
    everything_survives,
    nothing_survives,
    random_survival,
)
from tests.support.passed_checks import once_for_each_state
from tests.support.struck_calls import struck_calls

BATCHES = batches_of([{"orders": 4, "sales/0": 3}, {"sales/0": 1, "sales/1": 2}, {"orders": 5}])
ROWS = rows_of(BATCHES)


def all_calls() -> list[str]:
    disk = MemoryDisk()
    run_query(disk, BATCHES)
    return disk.trace


CALLS = all_calls()


def struck(number: int, fault: Fault) -> MemoryDisk:
    """Run the query on a disk whose call of that number is struck."""
    disk = MemoryDisk({number: fault})
    try:
        run_query(disk, BATCHES)
    except (JetstreamError, PowerLostError):
        pass
    else:
        assert fault.kind in (FaultKind.DISK_FULL, FaultKind.SHORT_WRITE, FaultKind.SYNC_ERROR)
    return disk


@once_for_each_state
def check_restart(disk: Disk) -> None:
    """The query starts again, and archives everything that is missing."""
    run_query(disk, BATCHES)
    assert rows_by_manifest(disk) == ROWS
    assert rows_by_listing(disk) == ROWS
    assert disk.listdir("_work") == []


def test_the_query_covers_every_kind_of_call_and_merges_files() -> None:
    assert {call.split()[0] for call in CALLS} >= {
        "create",
        "mkdir",
        "write",
        "sync",
        "sync_dir",
        "rename",
        "unlink",
    }
    disk = MemoryDisk()
    run_query(disk, BATCHES)
    check_restart(disk)
    names = [file.path.rpartition("/")[2] for file in read_manifest(disk).files]
    assert any(name.startswith("m") for name in names)


SURVIVALS = {
    FaultKind.POWER_LOSS: (nothing_survives, everything_survives, random_survival(1)),
    FaultKind.POWER_LOSS_AFTER: (nothing_survives, random_survival(2)),
}


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow("tests/crash/test_archive.py"))])
@pytest.mark.parametrize("kind", SURVIVALS)
def test_power_loss_at_every_call_leaves_every_row_exactly_once(kind: FaultKind, step: int) -> None:
    for number in struck_calls(CALLS, kind, step):
        disk = struck(number, Fault(kind, bytes_kept=300))
        for survival in SURVIVALS[kind]:
            check_restart(disk.power_loss(survival))


@pytest.mark.slow("tests/crash/test_archive.py::test_power_loss_at_every_call_leaves_every_row_exactly_once")
@pytest.mark.parametrize("kind", [FaultKind.DISK_FULL, FaultKind.IO_ERROR, FaultKind.SYNC_ERROR])
def test_a_call_that_fails_leaves_every_row_exactly_once(kind: FaultKind) -> None:
    for number in struck_calls(CALLS, kind):
        disk = struck(number, Fault(kind))
        disk.process_loss()
        check_restart(disk)


def test_exact_readers_see_whole_batches_and_no_row_twice_at_every_moment() -> None:
    """Whatever a crash leaves is also what a reader meets who comes in that moment."""
    ends = [rows_of(BATCHES[:count]) for count in range(len(BATCHES) + 1)]
    seen: dict[Survival, set[int]] = {
        nothing_survives: set(),
        everything_survives: set(),
        random_survival(3): set(),
    }
    for number in range(1, len(CALLS) + 1):
        struck_disk = struck(number, Fault(FaultKind.POWER_LOSS))
        for survival, batches in seen.items():
            disk = struck_disk.power_loss(survival)
            if disk.exists("_archive/manifest.json"):
                found = rows_by_manifest(disk)
                assert found in ends
                batches.add(ends.index(found))
    for batches in seen.values():
        assert batches >= set(range(1, len(ends)))


def test_a_real_directory_whose_calls_fail_one_after_the_other_has_every_row_exactly_once(
    tmp_path: Path,
) -> None:
    batches = BATCHES[:2]
    failing, failed = 0, True
    while failed:
        failing += 1
        disk = OsDisk(tmp_path / str(failing))
        failed = False
        try:
            run_query(FailingDisk(disk, failing), batches)
        except StorageError:
            failed = True
        run_query(disk, batches)
        assert rows_by_manifest(disk) == rows_by_listing(disk) == rows_of(batches)
        disk.close()
    assert failing > 50
