"""The power goes at every call, and writes are torn at every byte; nothing acknowledged is lost."""

import pytest

from envelope.types import Offset, SyncMode
from jetstream.log.log import LogConfig
from jetstream.log.segments.segment import segment_path
from tests.support.log_workload import CALLS, check_restart, strike
from tests.support.logs import DIRECTORY, append, begun, file_content, opened, stored_values
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    everything_survives,
    nothing_survives,
    random_survival,
)
from tests.support.struck_calls import struck_calls

SEGMENT = segment_path(DIRECTORY, Offset(0))
SURVIVALS = {
    FaultKind.POWER_LOSS: (nothing_survives, everything_survives, random_survival(1), random_survival(2)),
    FaultKind.POWER_LOSS_AFTER: (nothing_survives, random_survival(3)),
}


@pytest.mark.parametrize(
    "step", [9, pytest.param(1, marks=pytest.mark.slow("tests/crash/test_power_loss.py"))]
)
@pytest.mark.parametrize("kind", SURVIVALS)
def test_power_loss_at_every_call_loses_nothing_acked(kind: FaultKind, step: int) -> None:
    for number in struck_calls(CALLS, kind, step):
        disk, oracle = strike(number, Fault(kind, bytes_kept=300 * (number % 4)))
        for survival in SURVIVALS[kind]:
            check_restart(disk.power_loss(survival), oracle)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10, 60))
def test_power_loss_at_every_call_with_any_sectors_surviving_loses_nothing_acked(seed: int) -> None:
    for number in range(1, len(CALLS) + 1):
        for kind in (FaultKind.POWER_LOSS, FaultKind.POWER_LOSS_AFTER):
            disk, oracle = strike(number, Fault(kind, bytes_kept=seed * 37 % 2000))
            check_restart(disk.power_loss(random_survival(seed * 1000 + number)), oracle)


def test_a_write_torn_at_every_byte_is_cut() -> None:
    pristine = MemoryDisk()
    log = begun(pristine)
    append(log, [b"first"])
    log.writer.sync()
    append(log, [b"second"])
    log.writer.sync()
    size = log.reader.size
    append(log, [b"torn" * 20, b"group"])
    torn = log.reader.size - size
    content = file_content(pristine, SEGMENT)
    for kept in range(torn):
        disk = pristine.power_loss(nothing_survives)
        file = disk.open(SEGMENT)
        file.write([content[size : size + kept]], size)
        file.close()
        found = opened(disk)
        assert list(stored_values(found).values()) == [b"first", b"second"]
        assert found.failed is None
        assert found.reader.corrupt_ranges == ()
        assert found.reader.size == size
        assert found.recovery.cut_bytes == kept


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("mode", list(SyncMode))
def test_a_group_of_several_unsynced_batches_is_cut_where_it_is_torn(
    mode: SyncMode, checkpointed: bool
) -> None:
    config = LogConfig(sync=mode)
    disk = MemoryDisk()
    log = begun(disk, config)
    append(log, [b"synced"])
    log.writer.sync()
    for value in (b"kept", b"torn", b"whole"):
        append(log, [value])
    if checkpointed:
        log.checkpoint()
    found = disk.power_loss(everything_survives)
    position = log.reader.segments[0].load_index()[2].position
    file = found.open(SEGMENT)
    file.write([bytes(100)], position + 200)
    file.close()
    again = opened(found, config)
    assert list(stored_values(again).values()) == [b"synced", b"kept"]
    assert again.reader.corrupt_ranges == ()
    assert again.failed is None


def test_a_tail_of_zeros_is_cut() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    append(log, [b"first"])
    log.writer.sync()
    file = disk.open(SEGMENT)
    file.write([bytes(4096)], log.reader.size)
    file.close()
    found = disk.power_loss(everything_survives)
    again = opened(found)
    assert again.recovery.cut_bytes == 4096
    trace = found.trace
    assert trace[trace.index(f"truncate {SEGMENT}") + 1] == f"sync {SEGMENT}", "the cut is durable at once"
    assert list(stored_values(again).values()) == [b"first"]
