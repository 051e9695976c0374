"""What a follower does that has nothing to build on: it begins its log anew."""

import pytest

from envelope.errors import DiskFull, StorageError
from envelope.types import LeaderEpoch, Offset
from jetstream.log.inspection import ProblemKind, inspect_stream
from jetstream.log.state.reset import RESET_FILE
from tests.support.logs import DIRECTORY, NOW, SMALL, append, filled, opened, stored_values
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    nothing_survives,
    random_survival,
)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("offset", [0, 2, 3, 7, 20])
def test_a_log_begins_anew_anywhere_and_goes_on(offset: int, restarted: bool) -> None:
    disk = MemoryDisk()
    log = filled(disk, 7)
    log.truncate_before(Offset(3), Offset(7))
    log.checkpoint()
    held = log.reader.segments[-1].acquire()
    log.reset_to(Offset(offset))
    assert held.size() > 0, "who reads keeps what it holds"
    assert (log.log_start_offset, log.log_end_offset, log.writer.durable_end) == (offset, offset, offset)
    assert (log.reader.last_epoch, log.reader.last_timestamp, len(log.reader.segments), log.reader.size) == (
        0,
        0,
        1,
        0,
    )
    if restarted:
        log = opened(disk.power_loss(nothing_survives), SMALL)
        assert (log.log_start_offset, log.log_end_offset, log.reader.last_epoch) == (offset, offset, 0)
        assert (log.failed, log.reader.corrupt_ranges, log.recovery.problems) == (None, (), ())
    log.writer.begin_epoch(LeaderEpoch(9), NOW)
    append(log, [b"new"])
    log.writer.sync()
    assert stored_values(log) == {offset: b"new"}
    assert log.reader.epoch_at(Offset(offset)) == 9
    assert log._disk.listdir(DIRECTORY) == [f"{offset:020d}.arrows", "checkpoint", "epochs"]


_SLOW = pytest.mark.slow("tests/unit/log/state/test_resetting.py")
_FAULTS = (
    FaultKind.POWER_LOSS,
    FaultKind.POWER_LOSS_AFTER,
    FaultKind.IO_ERROR,
    FaultKind.DISK_FULL,
    FaultKind.EXHAUSTED,
)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=_SLOW)])
@pytest.mark.parametrize("offset", [2, 20])
def test_at_any_fault_a_log_is_the_old_one_whole_or_the_new_one(offset: int, every: int) -> None:
    pristine = MemoryDisk()
    filled(pristine, 7).close()
    counted = pristine.power_loss(nothing_survives)
    opened(counted, SMALL).reset_to(Offset(offset))
    ends = set()
    for number in range(1, counted.calls + 1):
        for kind in _FAULTS[(number + (offset > 7)) % every :: every]:
            disk = pristine.power_loss(nothing_survives)
            disk.faults[number] = Fault(kind)
            refused = False
            try:
                opened(disk, SMALL).reset_to(Offset(offset))
            except DiskFull:
                refused = True
            except (PowerLostError, StorageError):
                pass
            found = disk.power_loss(random_survival(number))
            kinds = {problem.kind for problem in inspect_stream(found, DIRECTORY).problems}
            assert kinds <= {ProblemKind.TORN, ProblemKind.DERIVED}
            log = opened(found, SMALL)
            assert (log.failed, log.reader.corrupt_ranges) == (None, ())
            is_old = log.log_start_offset == 0
            assert stored_values(log) == ({row: b"%d" % row for row in range(7)} if is_old else {})
            assert (log.log_end_offset, log.reader.last_epoch) == ((7, 1) if is_old else (offset, 0))
            assert is_old or not refused, "what was refused has not happened"
            ends.add(log.log_end_offset)
    assert ends == {7, offset}


def test_a_reset_that_cannot_be_finished_fails_the_log() -> None:
    disk = MemoryDisk()
    log = filled(disk, 3)
    create = next(
        number
        for number, call in enumerate(trace_of_reset(), 1)
        if call.startswith("create") and call.endswith(".arrows")
    )
    disk.faults[disk.calls + create] = Fault(FaultKind.DISK_FULL)
    with pytest.raises(StorageError, match="does not begin anew"):
        log.reset_to(Offset(9))
    assert isinstance(log.failed, StorageError)
    assert opened(disk.power_loss(nothing_survives)).log_end_offset == 9


def trace_of_reset() -> list[str]:
    disk = MemoryDisk()
    log = filled(disk, 3)
    calls = disk.calls
    log.reset_to(Offset(9))
    return disk.trace[calls:]


def test_a_damaged_reset_file_is_told_and_left() -> None:
    disk = MemoryDisk()
    filled(disk, 3).close()
    disk.create(f"{DIRECTORY}/{RESET_FILE}").close()
    log = opened(disk)
    assert list(stored_values(log)) == [0, 1, 2]
    assert any("reset file" in problem for problem in log.recovery.problems)
