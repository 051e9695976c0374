"""A scripted life of a log, what its publisher knows, and what a restart must find after a fault."""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from envelope.errors import DiskFull, JetstreamError
from envelope.types import LeaderEpoch, Offset
from jetstream.log.inspection import ProblemKind, inspect_stream
from jetstream.log.log import Log, LogConfig
from tests.support.log_files import check_files_owned
from tests.support.logs import DIRECTORY, NOW, append, begun, file_content, opened, stored_values
from tests.support.memory_disk import Fault, MemoryDisk, PowerLostError, nothing_survives
from tests.support.passed_checks import once_for_each_state

CONFIG = LogConfig(segment_bytes=4000)


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
        log.writer.sync()
        self.acked.update({base + number: value for number, value in enumerate(values)})

    def truncate(self, log: Log, offset: int) -> None:
        """Move the log's start."""
        self.log_start_max = max(self.log_start_max, offset)
        log.truncate_before(Offset(offset), log.writer.synced_end)

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
        lambda log: oracle.truncate(log, min(7, log.writer.synced_end)),
        lambda log: oracle.group(log, 1),
        lambda log: oracle.truncate(log, min(11, log.writer.synced_end)),
        Log.checkpoint,
        lambda log: oracle.group(log, 2, 900),
        lambda log: oracle.truncate(log, log.writer.synced_end),
        lambda log: oracle.group(log, 2),
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
        if not disk.faults:
            check_files_owned(log)


def calls_of_workload() -> list[str]:
    """Return the calls of a run without faults."""
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


@once_for_each_state
def check_restart(disk: MemoryDisk, oracle: Oracle) -> None:
    """Open, find everything, go on, and find that durable."""
    oracle = copy.deepcopy(oracle)
    report = inspect_stream(disk, DIRECTORY) if disk.exists(DIRECTORY) else None
    log = opened(disk, CONFIG)
    assert log.failed is None, log.recovery
    assert log.reader.corrupt_ranges == ()
    if report is not None:
        assert {problem.kind for problem in report.problems} <= {ProblemKind.TORN, ProblemKind.DERIVED}, (
            report
        )
    kept = oracle.check(log)
    check_files_owned(log, is_just_opened=True)
    again = opened(disk.power_loss(nothing_survives), CONFIG)
    assert stored_values(again) == kept, "opening makes durable what it finds"
    again.writer.begin_epoch(LeaderEpoch(again.reader.last_epoch + 1), NOW)
    oracle.group(again, 2)
    again.close()
    check_files_owned(again)
    check_files(again)
    assert oracle.check(opened(again._disk, CONFIG, full=True)).items() >= kept.items()


def check_files(log: Log) -> None:
    """A foreign reader opens every sealed segment as it lies."""
    for segment in log.reader.segments[:-1]:
        table = pa.ipc.open_stream(file_content(log._disk, segment.path)).read_all()
        assert table.column(0).to_pylist() == list(range(segment.base, segment.next))
