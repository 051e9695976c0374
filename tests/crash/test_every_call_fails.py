"""Every call to the disk fails in every way, once; what was acknowledged is there, or the log refuses."""

from collections.abc import Callable

import pytest

from envelope.errors import DiskFull, JetstreamError, OutOfResources, StorageError
from envelope.types import Offset
from jetstream.log.format.batch import encode
from jetstream.log.inspection import inspect_stream
from tests.support.log_workload import CALLS, CONFIG, Oracle, check_restart, strike, workload
from tests.support.logs import DIRECTORY, NOW, append, begun, opened, stored_values, values_batch
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    everything_survives,
    nothing_survives,
    random_survival,
)
from tests.support.passed_checks import once_for_each_state
from tests.support.struck_calls import struck_calls

_SLOW = pytest.mark.slow("tests/crash/test_every_call_fails.py")
SAMPLES = pytest.mark.parametrize("step", [9, pytest.param(1, marks=_SLOW)])
"""Some of the calls, others in each test, and all calls."""


def test_the_workload_covers_every_kind_of_call() -> None:
    operations = {call.split()[0] for call in CALLS}
    assert operations >= {"create", "mkdir", "write", "sync", "sync_dir", "rename", "unlink", "read", "open"}
    assert len(CALLS) > 100


@SAMPLES
def test_a_full_disk_at_every_call_refuses_and_goes_on(step: int) -> None:
    for number in struck_calls(CALLS, FaultKind.SHORT_WRITE, step):
        disk, oracle = strike(number, Fault(FaultKind.SHORT_WRITE, (0, 1, 600, 1500)[number % 4]))
        assert oracle.sent > 0 or number < 12, "a full disk stops nothing but what needs space"
        check_restart(disk.power_loss(everything_survives), oracle)


@SAMPLES
@pytest.mark.parametrize("calls", [1, pytest.param(2, marks=_SLOW), pytest.param(7, marks=_SLOW)])
def test_no_descriptor_for_any_calls_refuses_and_goes_on(calls: int, step: int) -> None:
    """For one call, or for several in a row, as other threads or connections would leave it."""
    for number in range(1 + calls % step, len(CALLS) + 1, step):
        exhausted = Fault(FaultKind.EXHAUSTED, (0, 1, 600, 1500)[number % 4])
        disk, oracle = MemoryDisk(dict.fromkeys(range(number, number + calls), exhausted)), Oracle()
        opens = 0
        while True:  # as the node does: a log that does not open for this is opened again later
            try:
                workload(disk, oracle)
            except OutOfResources:
                opens += 1
                assert opens <= calls, "it passes"
            else:
                break
        check_restart(disk.power_loss(everything_survives), oracle)


@SAMPLES
def test_an_io_error_at_every_call_loses_nothing_acked(step: int) -> None:
    for number in struck_calls(CALLS, FaultKind.IO_ERROR, step):
        disk, oracle = strike(number, Fault(FaultKind.IO_ERROR, bytes_kept=300 * (number % 4)))
        for survival in (everything_survives, nothing_survives, random_survival(number)):
            check_restart(disk.power_loss(survival), oracle)


@SAMPLES
def test_a_sync_that_fails_once_and_then_succeeds_is_not_believed(step: int) -> None:
    for number in struck_calls(CALLS, FaultKind.SYNC_ERROR, step):
        disk, oracle = strike(number, Fault(FaultKind.SYNC_ERROR))
        check_reopened_process(disk, oracle)


@SAMPLES
@pytest.mark.parametrize(
    "kept", [300, pytest.param(2500, marks=pytest.mark.slow("tests/crash/test_every_call_fails.py"))]
)
def test_what_a_killed_process_left_in_the_cache_is_durable_before_it_is_served(kept: int, step: int) -> None:
    for number in struck_calls(CALLS, FaultKind.POWER_LOSS, step):
        disk, oracle = strike(number, Fault(FaultKind.POWER_LOSS, kept))
        disk.process_loss()
        check_reopened_process(disk, oracle)


def test_no_batch_of_a_refused_group_comes_back() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    append(log, [b"kept"])
    log.writer.sync()
    batches = [
        encode(values_batch([value], offset), Offset(offset), log.reader.last_epoch)
        for offset, value in ((1, b"whole"), (2, b"torn"))
    ]
    disk.faults[disk.calls + 1] = Fault(FaultKind.SHORT_WRITE, batches[0].size + 100)
    with pytest.raises(DiskFull):
        log.writer.append_group(batches, NOW)

    def all_but_truncations(length: int) -> int:
        return 0 if length == 1 else length

    found = opened(disk.power_loss(all_but_truncations))
    assert list(stored_values(found).values()) == [b"kept"]


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("batches", [0, 1])
def test_nothing_of_a_write_whose_sync_failed_is_built_upon(batches: int, checkpointed: bool) -> None:
    disk, oracle = MemoryDisk(), Oracle()
    log = begun(disk)
    for _ in range(batches):
        oracle.group(log, 1)
    append(log, [b"lost"])
    if checkpointed:
        log.checkpoint()
    disk.faults[disk.calls + 1] = Fault(FaultKind.SYNC_ERROR)
    with pytest.raises(StorageError):
        log.writer.sync()
    disk.process_loss()
    again = begun(disk)
    oracle.group(again, 2)
    found = disk.power_loss(nothing_survives)
    assert inspect_stream(found, DIRECTORY).healthy
    assert len(oracle.check(opened(found))) == batches + 2


@once_for_each_state
def check_reopened_process(disk: MemoryDisk, oracle: Oracle) -> None:
    """The process starts again on the running machine, whose cache shows more than the medium holds."""
    log = opened(disk, CONFIG)
    kept = oracle.check(log)
    again = opened(disk.power_loss(nothing_survives), CONFIG)
    assert stored_values(again) == kept, "what the log found after a failed sync is really there"
    check_restart(again._disk, oracle)  # type: ignore[arg-type]  # these logs lie on memory disks


def test_a_failed_log_stays_failed() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    append(log, [b"one"])
    disk.faults[disk.calls + 1] = Fault(FaultKind.SYNC_ERROR)
    with pytest.raises(StorageError):
        log.writer.sync()
    assert log.failed is not None
    assert log.writer.synced_end == 0
    steps: list[Callable[[], None]] = [lambda: append(log, [b"two"]), log.writer.sync, log.checkpoint]
    for step in steps:
        with pytest.raises(JetstreamError, match="nothing can be written"):
            step()
