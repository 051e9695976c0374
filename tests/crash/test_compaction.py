"""Every disk call of a log that is compacted, or has its small batches merged, fails in every way.

And the power goes at each.

No record that must stay is lost, no deleted key comes back, nothing appears twice, no file is left over.
"""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from envelope.errors import DiskFull, JetstreamError
from envelope.types import LeaderEpoch, Offset
from jetstream.log.inspection import ProblemKind, inspect_stream
from jetstream.log.log import Log
from tests.support.compaction import COMPACTED, EAGER, append_records, compact, stored_records
from tests.support.log_files import check_files_owned
from tests.support.logs import DIRECTORY, NOW, Record, begun, opened
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
from tests.support.rewriting import rewrite
from tests.support.struck_calls import struck_calls

CONFIG = replace(COMPACTED, segment_bytes=3000)
RETENTION = EAGER.tombstone_retention_us


@dataclass
class Publisher:
    """Sends one record at a time, and knows which were acked."""

    acked: dict[int, tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    attempted: dict[int, set[tuple[bytes | None, bytes | None]]] = field(default_factory=dict)
    start_max: int = 0
    sent: int = 0

    def send(self, log: Log, key: bytes | None, *, deletes: bool = False) -> None:
        """Append one record and have it synced."""
        self.sent += 1
        value = None if deletes else b"%d" % self.sent
        offset = log.log_end_offset
        self.attempted.setdefault(offset, set()).add((key, value))
        append_records(log, [Record(value, key=key, timestamp=NOW + self.sent)])
        self.acked[offset] = (key, value)

    def truncate(self, log: Log, offset: int) -> None:
        """Move the log's start."""
        self.start_max = max(self.start_max, offset)
        log.truncate_before(Offset(offset), log.writer.synced_end)

    def check(self, log: Log) -> dict[int, tuple[bytes | None, bytes | None]]:
        """Compare a log that was opened again with what the publisher knows."""
        stored = {at: (record.key, record.value) for at, record in stored_records(log).items()}
        assert log.log_start_offset <= self.start_max
        for at, record in stored.items():
            assert record in self.attempted[at], f"offset {at} holds what was never sent to it"
        last_stored = {record[0]: at for at, record in sorted(stored.items())}
        last_acked = {record[0]: at for at, record in sorted(self.acked.items()) if record[0] is not None}
        for key, at in last_acked.items():
            found = last_stored.get(key)
            is_purged = self.acked[at][1] is None and found is None
            if at >= log.log_start_offset:
                assert is_purged or (found is not None and found >= at), f"{key!r} is lost, or is back"
        for at, record in self.acked.items():
            if record[0] is None and at >= log.log_start_offset:
                assert at in stored, "records without a key stay"
        return stored


def workload(disk: MemoryDisk, publisher: Publisher) -> None:
    """Fill, compact, delete, compact, purge, open again; a step for which there is no space is left out."""
    log = begun(disk, CONFIG)
    steps: list[Callable[[], object]] = [
        *(partial(publisher.send, log, key) for key in (b"a", b"b", None, b"a", b"b")),
        partial(compact, disk, log, NOW),
        partial(publisher.send, log, b"a", deletes=True),
        *(partial(publisher.send, log, key) for key in (b"c", b"c", b"b")),
        partial(compact, disk, log, NOW + 2),
        log.checkpoint,
        partial(publisher.send, log, b"c"),
        partial(compact, disk, log, NOW + 3 * RETENTION),
        partial(publisher.truncate, log, 1),
        log.close,
    ]
    for step in steps:
        with contextlib.suppress(DiskFull):
            step()
    log = begun(disk, CONFIG)
    publisher.check(log)
    log.close()


def merging_workload(disk: MemoryDisk, publisher: Publisher) -> None:
    """Fill, merge, go on, truncate, merge, compact, merge; nearly no record has a key, so they stay."""
    log = begun(disk, CONFIG)
    steps: list[Callable[[], object]] = [
        *(partial(publisher.send, log, key) for key in (None, None, b"a", None, None)),
        partial(rewrite, disk, log),
        *(partial(publisher.send, log, key) for key in (b"a", None, None)),
        log.checkpoint,
        partial(publisher.truncate, log, 1),
        partial(rewrite, disk, log),
        partial(compact, disk, log, NOW),
        partial(rewrite, disk, log),
        log.close,
    ]
    for step in steps:
        with contextlib.suppress(DiskFull):
            step()
    log = begun(disk, CONFIG)
    publisher.check(log)
    rewrite(disk, log)
    log.close()


def calls_of_merging() -> list[str]:
    """Return the calls of a run without faults, after checking that it merges."""
    disk, publisher = MemoryDisk(), Publisher()
    merging_workload(disk, publisher)
    log = opened(disk, CONFIG)
    publisher.check(log)
    assert log.rewritten_end == log.reader.segments[-1].base > 4
    assert max(batches_of(log)) > 1, "batches were merged"
    assert sum(call.startswith("rename") and call.endswith(".arrows") for call in disk.trace) > 2
    return disk.trace


def batches_of(log: Log) -> list[int]:
    """How many offsets each batch of the sealed segments has."""
    indexes = [segment.load_index() for segment in log.reader.segments[:-1]]
    return [end - base for index in indexes for base, end in zip(index.bases, index.nexts, strict=True)]


def calls_of_workload() -> list[str]:
    """Return the calls of a run without faults, after checking that it compacts and purges."""
    disk, publisher = MemoryDisk(), Publisher()
    workload(disk, publisher)
    log = opened(disk, CONFIG)
    stored = publisher.check(log)
    assert len(stored) < len(publisher.acked) - 4, "records went"
    assert log.compaction.purged_end > 0, "tombstones went"
    assert sum(call.startswith("rename") and call.endswith(".arrows") for call in disk.trace) > 3
    return disk.trace


Workload = Callable[[MemoryDisk, Publisher], None]
CALLS: dict[Workload, list[str]] = {workload: calls_of_workload(), merging_workload: calls_of_merging()}


def strike(run: Workload, number: int, fault: Fault) -> tuple[MemoryDisk, Publisher]:
    """Run a workload with one fault; it ends where the log gives up."""
    disk, publisher = MemoryDisk({number: fault}), Publisher()
    with contextlib.suppress(JetstreamError, PowerLostError):
        run(disk, publisher)
    disk.faults.clear()
    return disk, publisher


@once_for_each_state
def check_restart(disk: MemoryDisk, publisher: Publisher) -> None:
    """Open, find everything, compact on, and find that durable."""
    publisher = copy.deepcopy(publisher)
    if disk.exists(DIRECTORY):
        report = inspect_stream(disk, DIRECTORY)
        assert {problem.kind for problem in report.problems} <= {ProblemKind.TORN, ProblemKind.DERIVED}, (
            report.problems
        )
    log = opened(disk, CONFIG)
    assert log.failed is None, log.recovery
    assert log.reader.corrupt_ranges == ()
    check_files_owned(log, is_just_opened=True)
    kept = publisher.check(log)
    again_disk = disk.power_loss(nothing_survives)
    again = opened(again_disk, CONFIG)
    assert publisher.check(again) == kept, "opening makes durable what it finds"
    again.writer.begin_epoch(LeaderEpoch(again.reader.last_epoch + 1), NOW)
    publisher.send(again, b"a")
    compact(again_disk, again, NOW + 100 * RETENTION)
    rewrite(again_disk, again)
    publisher.check(again)
    check_files_owned(again)
    again.close()
    check_files_owned(again)
    assert {problem.kind for problem in inspect_stream(again_disk, DIRECTORY).problems} <= {
        ProblemKind.DERIVED
    }
    last = opened(again_disk, CONFIG, full=True)
    publisher.check(last)
    check_files_owned(last, is_just_opened=True)


@pytest.mark.parametrize(
    "step",
    [
        39,
        pytest.param(
            1, marks=pytest.mark.slow("tests/crash/test_compaction.py", "tests/property/test_compaction.py")
        ),
    ],
)
@pytest.mark.parametrize(
    ("kind", "survival"),
    [
        (FaultKind.POWER_LOSS, nothing_survives),
        (FaultKind.POWER_LOSS_AFTER, random_survival(2)),
        (FaultKind.IO_ERROR, random_survival(3)),
        (FaultKind.SHORT_WRITE, everything_survives),
        (FaultKind.EXHAUSTED, everything_survives),
    ],
)
@pytest.mark.parametrize("run", CALLS)
def test_a_fault_at_every_call_of_a_compacted_log_loses_nothing_that_must_stay(
    kind: FaultKind, survival: Survival, run: Workload, step: int
) -> None:
    """The power goes between any two calls, and each call fails in one way; the deep test has all ways."""
    for number in struck_calls(CALLS[run], kind, step):
        disk, publisher = strike(run, number, Fault(kind, bytes_kept=300 * (number % 4)))
        check_restart(disk.power_loss(survival), publisher)


@pytest.mark.deep
@pytest.mark.parametrize("kind", list(FaultKind))
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("run", CALLS)
def test_any_fault_at_every_call_with_any_sectors_surviving_loses_nothing_that_must_stay(
    kind: FaultKind, seed: int, run: Workload
) -> None:
    for number in struck_calls(CALLS[run], kind):
        disk, publisher = strike(run, number, Fault(kind, bytes_kept=seed * 37 % 2000))
        for survival in (everything_survives, nothing_survives, random_survival(1000 * seed + number)):
            check_restart(disk.power_loss(survival), publisher)


def full_from(first: int, disk: MemoryDisk) -> dict[int, Fault]:
    """Faults of a disk that has no space left from its ``first`` call on."""
    return {disk.calls + number: Fault(FaultKind.SHORT_WRITE, 100) for number in range(first, first + 300)}


COMPACT = partial(compact, now=NOW)


@pytest.mark.parametrize(("before", "work"), [(None, COMPACT), (rewrite, COMPACT), (None, rewrite)])
def test_a_disk_that_is_full_from_any_call_on_is_left_without_what_was_begun(
    before: Callable[[MemoryDisk, Log], object] | None, work: Callable[[MemoryDisk, Log], object]
) -> None:
    refusals = 0
    for first in range(1, 300):
        disk, publisher = MemoryDisk(), Publisher()
        log = begun(disk, CONFIG)
        for key in (b"a", b"a", None, None, b"b", b"a", b"b"):
            publisher.send(log, key)
        if before is not None:
            before(disk, log)
        disk.faults = full_from(first, disk)
        try:
            work(disk, log)
        except DiskFull:
            refusals += 1
        else:
            break
        disk.faults.clear()
        assert log.failed is None
        check_files_owned(log)
        publisher.check(log)
        work(disk, log)
        publisher.check(log)
    assert refusals > 10, "it was full in the middle of many things"


def test_a_full_disk_leaves_the_log_as_it_is_and_no_file() -> None:
    disk, publisher = MemoryDisk(), Publisher()
    log = begun(disk, CONFIG)
    for key in (b"a", b"a", b"b", b"a", b"b"):
        publisher.send(log, key)
    before = publisher.check(log)
    disk.faults = {disk.calls + number: Fault(FaultKind.SHORT_WRITE, 100) for number in range(1, 200)}
    with pytest.raises(DiskFull):
        compact(disk, log, NOW)
    disk.faults.clear()
    assert log.failed is None
    assert publisher.check(log) == before
    check_files_owned(log)
    assert compact(disk, log, NOW)
    assert len(publisher.check(log)) < len(before)


def test_a_full_disk_leaves_a_log_that_was_to_be_merged_as_it_is_and_no_file() -> None:
    disk, publisher = MemoryDisk(), Publisher()
    log = begun(disk, CONFIG)
    for _ in range(9):
        publisher.send(log, None)
    before, batches = publisher.check(log), batches_of(log)
    disk.faults = {disk.calls + number: Fault(FaultKind.SHORT_WRITE, 100) for number in range(1, 200)}
    with pytest.raises(DiskFull):
        rewrite(disk, log)
    disk.faults.clear()
    assert log.failed is None
    assert (publisher.check(log), batches_of(log)) == (before, batches)
    check_files_owned(log)
    assert rewrite(disk, log)
    assert publisher.check(log) == before
