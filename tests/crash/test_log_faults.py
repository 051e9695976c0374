"""Every call to the disk fails in every way, once; what was acknowledged is there, or the log refuses."""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from envelope.errors import DiskFull, JetstreamError, StorageError
from envelope.types import LeaderEpoch, Offset, SyncMode
from jetstream.log.inspection import ProblemKind, inspect_stream
from jetstream.log.log import Log, LogConfig
from jetstream.log.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    Survival,
    everything_survives,
    nothing_survives,
    random_survival,
)
from jetstream.log.segment import segment_path
from tests.support.logs import DIRECTORY, NOW, append, begun, file_content, opened, stored_values

SEGMENT = segment_path(DIRECTORY, Offset(0))
CONFIG = LogConfig(segment_bytes=4000)
SURVIVALS = (nothing_survives, everything_survives, random_survival(1), random_survival(2))


@dataclass
class Oracle:
    """What a publisher knows: every value is unique, and is sent to one offset."""

    acked: dict[int, bytes] = field(default_factory=dict)
    attempted: dict[int, set[bytes]] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    log_start_max: int = 0
    sent: int = 0

    def group(self, log: Log, count: int, size: int = 10) -> None:
        """Append one batch and acknowledge it if it could be synced."""
        values = [b"%d " % (self.sent + number) + b"x" * size for number in range(count)]
        self.sent += count
        base = log.log_end_offset
        for number, value in enumerate(values):
            self.attempted.setdefault(base + number, set()).add(value)
        try:
            append(log, values)
        except DiskFull:
            self.refused.update(values)
            return
        log.sync()
        self.acked.update({base + number: value for number, value in enumerate(values)})

    def truncate(self, log: Log, offset: int) -> None:
        """Move the log's start."""
        self.log_start_max = max(self.log_start_max, offset)
        log.truncate_before(Offset(offset), log.synced_end)

    def check(self, log: Log) -> dict[int, bytes]:
        """Compare a log that was opened again with what the publisher knows."""
        stored = stored_values(log)
        assert list(stored) == list(range(log.log_start_offset, log.log_end_offset)), "offsets are dense"
        assert log.log_start_offset <= self.log_start_max
        for offset, value in self.acked.items():
            assert offset < log.log_start_offset or stored.get(offset) == value, f"acked {offset} is lost"
        for offset, value in stored.items():
            assert value in self.attempted[offset], f"offset {offset} holds what was never sent to it"
            assert value not in self.refused, f"offset {offset} holds what was refused"
        return stored


def workload(disk: MemoryDisk, oracle: Oracle) -> None:
    """Do everything a log can do; a step that is refused for lack of space is left out."""
    steps: list[Callable[[Log], None]] = [
        lambda log: oracle.group(log, 3),
        lambda log: oracle.group(log, 1, 700),
        Log.checkpoint,
        lambda log: oracle.group(log, 2),
        lambda log: oracle.group(log, 5),
        lambda log: oracle.group(log, 1, 2000),
        lambda log: oracle.truncate(log, min(7, log.synced_end)),
        lambda log: oracle.group(log, 1),
        lambda log: oracle.truncate(log, min(11, log.synced_end)),
        Log.checkpoint,
        lambda log: oracle.group(log, 2, 900),
        Log.close,
    ]
    for _ in range(2):
        log = begun(disk, CONFIG)
        oracle.check(log)
        for step in steps:
            try:
                step(log)
            except DiskFull:
                continue


def calls_of_workload() -> list[str]:
    disk = MemoryDisk()
    workload(disk, Oracle())
    return disk.trace


CALLS = calls_of_workload()


def strike(number: int, fault: Fault) -> tuple[MemoryDisk, Oracle]:
    """Run the workload with one fault; it ends where the log gives up."""
    disk, oracle = MemoryDisk({number: fault}), Oracle()
    with contextlib.suppress(JetstreamError, PowerLostError):
        workload(disk, oracle)
    disk.faults.clear()
    return disk, oracle


def check_restart(disk: MemoryDisk, oracle: Oracle) -> None:
    """Open, find everything, go on, and find that durable."""
    oracle = copy.deepcopy(oracle)
    report = inspect_stream(disk, DIRECTORY) if disk.exists(DIRECTORY) else None
    log = opened(disk, CONFIG)
    assert log.failed is None, log.recovery
    assert log.corrupt_ranges == ()
    if report is not None:
        assert {problem.kind for problem in report.problems} <= {ProblemKind.TORN, ProblemKind.DERIVED}, (
            report
        )
    kept = oracle.check(log)
    again = opened(disk.power_loss(nothing_survives), CONFIG)
    assert stored_values(again) == kept, "opening makes durable what it finds"
    again.begin_epoch(LeaderEpoch(again.last_epoch + 1), NOW)
    oracle.group(again, 2)
    again.close()
    check_files(again)
    assert oracle.check(opened(again._disk, CONFIG, full=True)).items() >= kept.items()


def check_files(log: Log) -> None:
    """A foreign reader opens every sealed segment as it lies."""
    for segment in log._segments[:-1]:
        table = pa.ipc.open_stream(file_content(log._disk, segment.path)).read_all()
        assert table.column(0).to_pylist() == list(range(segment.base, segment.next))


def test_the_workload_covers_every_kind_of_call() -> None:
    operations = {call.split()[0] for call in CALLS}
    assert operations >= {"create", "mkdir", "write", "sync", "sync_dir", "rename", "unlink", "read", "open"}
    assert len(CALLS) > 100


@pytest.mark.parametrize(
    ("kind", "survival"),
    [
        *((FaultKind.POWER_LOSS, survival) for survival in SURVIVALS),
        (FaultKind.POWER_LOSS_AFTER, nothing_survives),
        (FaultKind.POWER_LOSS_AFTER, random_survival(3)),
    ],
)
def test_power_loss_at_every_call_loses_nothing_acked(kind: FaultKind, survival: Survival) -> None:
    for number in range(1, len(CALLS) + 1):
        disk, oracle = strike(number, Fault(kind, bytes_kept=300 * (number % 4)))
        check_restart(disk.power_loss(survival), oracle)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10, 60))
def test_power_loss_at_every_call_with_any_sectors_surviving_loses_nothing_acked(seed: int) -> None:
    for number in range(1, len(CALLS) + 1):
        for kind in (FaultKind.POWER_LOSS, FaultKind.POWER_LOSS_AFTER):
            disk, oracle = strike(number, Fault(kind, bytes_kept=seed * 37 % 2000))
            check_restart(disk.power_loss(random_survival(seed * 1000 + number)), oracle)


def test_a_full_disk_at_every_call_refuses_and_goes_on() -> None:
    for number in range(1, len(CALLS) + 1):
        disk, oracle = strike(number, Fault(FaultKind.SHORT_WRITE, (0, 1, 600, 1500)[number % 4]))
        assert oracle.sent > 0 or number < 10, "a full disk stops nothing but what needs space"
        check_restart(disk.power_loss(everything_survives), oracle)


def test_an_io_error_at_every_call_loses_nothing_acked() -> None:
    for number in range(1, len(CALLS) + 1):
        disk, oracle = strike(number, Fault(FaultKind.IO_ERROR, bytes_kept=300 * (number % 4)))
        for survival in (everything_survives, nothing_survives, random_survival(number)):
            check_restart(disk.power_loss(survival), oracle)


def test_a_sync_that_fails_once_and_then_succeeds_is_not_believed() -> None:
    for number in range(1, len(CALLS) + 1):
        disk, oracle = strike(number, Fault(FaultKind.SYNC_ERROR))
        check_reopened_process(disk, oracle)


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
        log.sync()
    assert log.failed is not None
    assert log.synced_end == 0
    steps: list[Callable[[], None]] = [lambda: append(log, [b"two"]), log.sync, log.checkpoint]
    for step in steps:
        with pytest.raises(JetstreamError, match="nothing can be written"):
            step()


def test_a_write_torn_at_every_byte_is_cut() -> None:
    pristine = MemoryDisk()
    log = begun(pristine)
    append(log, [b"first"])
    log.sync()
    append(log, [b"second"])
    log.sync()
    size = log.bytes
    append(log, [b"torn" * 20, b"group"])
    torn = log.bytes - size
    content = file_content(pristine, SEGMENT)
    for kept in range(torn):
        disk = pristine.power_loss(nothing_survives)
        file = disk.open(SEGMENT)
        file.write([content[size : size + kept]], size)
        file.close()
        found = opened(disk)
        assert list(stored_values(found).values()) == [b"first", b"second"]
        assert found.failed is None
        assert found.corrupt_ranges == ()
        assert found.bytes == size
        assert found.recovery.cut_bytes == kept


@pytest.mark.parametrize("mode", list(SyncMode))
def test_a_group_of_several_unsynced_batches_is_cut_where_it_is_torn(mode: SyncMode) -> None:
    config = LogConfig(sync=mode)
    disk = MemoryDisk()
    log = begun(disk, config)
    append(log, [b"synced"])
    log.sync()
    for value in (b"kept", b"torn", b"whole"):
        append(log, [value])
    found = disk.power_loss(everything_survives)
    position = log._segments[0].load_index()[2].position
    file = found.open(SEGMENT)
    file.write([bytes(100)], position + 200)
    file.close()
    again = opened(found, config)
    assert list(stored_values(again).values()) == [b"synced", b"kept"]
    assert again.corrupt_ranges == ()
    assert again.failed is None


def test_a_tail_of_zeros_is_cut() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    append(log, [b"first"])
    log.sync()
    file = disk.open(SEGMENT)
    file.write([bytes(4096)], log.bytes)
    file.close()
    again = opened(disk.power_loss(everything_survives))
    assert again.recovery.cut_bytes == 4096
    assert list(stored_values(again).values()) == [b"first"]
