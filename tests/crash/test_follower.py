"""Any call to a follower's disk fails, or is its last: what was reported as synced is there, the leader's.

The follower copies one leader's log, is cut back to what a second leader shares with it, copies that one's,
is reset, and copies again. `Copy` is what the leaders have heard of it.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, TypeVar

import pytest

from envelope.errors import DiskFull, JetstreamError, StorageError
from envelope.types import NO_OFFSET, LeaderEpoch, Offset
from jetstream.log.format.batch import BatchHeader, decode, iter_frames, read_header, verified_batches
from jetstream.log.inspection import ProblemKind, inspect_stream
from jetstream.log.log import Log, LogConfig
from tests.support.log_files import check_files_owned
from tests.support.logs import DIRECTORY, NOW, append, begun, file_content, opened, stored_values
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

T = TypeVar("T")

CONFIG: Final = LogConfig(segment_bytes=7000)
CHUNKS: Final = (1, 3, 2, 6, 1)
"""How many batches an answer of the leader has, in turn."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The log of a leader, as it is to be copied."""

    log: Log
    frames: tuple[tuple[BatchHeader, bytes], ...]

    @classmethod
    def of(cls, log: Log) -> "Leader":
        log.writer.sync()
        frames = [bytes(frame) for frame in _read(log)]
        return cls(log, tuple((read_header(frame), frame) for frame in frames))

    def after(self, offset: Offset) -> list[bytes]:
        """Return the batches from the one that holds ``offset``."""
        return [frame for header, frame in self.frames if header.next > offset]

    def values(self, start: int, end: int) -> dict[int, bytes]:
        """Return the values of ``[start, end)``."""
        return {offset: value for offset, value in stored_values(self.log).items() if start <= offset < end}


def _read(log: Log) -> Iterator[memoryview]:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for frame in iter_frames(log.reader.read(offset, 1 << 20, log.log_end_offset)):
            yield frame
            offset = decode(frame)[0].next


@cache
def leaders() -> tuple[Leader, Leader, Offset]:
    """Return the first leader, the second, and where their logs part, which is not where an epoch begins."""
    first = begun(MemoryDisk(), CONFIG)
    for number in range(13):
        append(first, [b"one%d" % number] * (1 + number % 3), NOW + number)
        if number % 4 != 1:
            first.writer.sync()  # so that groups have one batch or two
        if number == 5:
            first.writer.begin_epoch(LeaderEpoch(2), NOW)
    one = Leader.of(first)
    shared = one.frames[8][0].next
    second = opened(MemoryDisk(), CONFIG)
    second.writer.append_sealed(
        verified_batches(b"".join(frame for header, frame in one.frames if header.next <= shared)), NOW
    )
    second.writer.begin_epoch(LeaderEpoch(4), NOW)
    for number in range(14):
        append(second, [b"two%d" % number] * (1 + number % 2), NOW + 100 + number)
        if number % 3:
            second.writer.sync()
    return one, Leader.of(second), shared


@dataclass
class Copy:
    """What a follower has told: the leaders it is a copy of, and how far it is durable."""

    synced_end: Offset = NO_OFFSET
    of: tuple[Leader, ...] = ()
    starts: set[int] = field(default_factory=lambda: {0})
    """Where it may begin."""

    def __getstate__(self) -> object:
        """What tells two apart; the leaders are there once."""
        return self.synced_end, [id(leader) for leader in self.of], sorted(self.starts)

    def follow(self, log: Log, leader: Leader, chunks: Sequence[int] = CHUNKS) -> None:
        """Copy everything, syncing behind each answer but the second of each round."""
        self.of = (leader,)
        number = 0
        while log.log_end_offset < leader.log.log_end_offset:
            count = chunks[number % len(chunks)]
            log.writer.append_sealed(
                verified_batches(b"".join(leader.after(log.log_end_offset)[:count])), NOW
            )
            if number % len(chunks) != 1:
                self.sync(log)
            number += 1
        self.sync(log)

    def sync(self, log: Log) -> None:
        log.writer.sync()
        self.synced_end = log.writer.durable_end

    def cut(self, log: Log, offset: Offset, leader: Leader) -> None:
        """Cut back to what is shared with another leader."""
        self.of = (*self.of, leader)
        self.synced_end = min(self.synced_end, offset)
        log.truncate_to(offset)
        assert log.writer.durable_end == log.log_end_offset <= offset

    def reset(self, log: Log, offset: Offset) -> None:
        """Begin anew."""
        self.starts.add(offset)
        before, self.synced_end = self.synced_end, Offset(0)
        try:
            log.reset_to(offset)
        except DiskFull:
            self.synced_end = before
            raise
        self.starts = {offset}
        self.synced_end = offset

    def check(self, log: Log) -> None:
        """Compare a log that was opened again with what was told."""
        assert log.failed is None, log.recovery
        assert log.reader.corrupt_ranges == ()
        start, end = log.log_start_offset, log.log_end_offset
        assert start in self.starts
        assert end >= self.synced_end, "what was reported as synced is there"
        stored, copied = stored_values(log), self.of or leaders()[:1]
        assert stored in [leader.values(start, end) for leader in copied]
        known = {
            (begins.epoch, begins.start) for leader in copied for begins in leader.log.reader.epochs.starts
        }
        assert {(begins.epoch, max(begins.start, start)) for begins in log.reader.epochs.starts} <= {
            (epoch, max(begin, start)) for epoch, begin in known
        }


def resets() -> tuple[Offset, Offset]:
    """Return a batch that begins no segment, and an offset inside a batch."""
    frames = leaders()[1].frames
    inside = next(header for header, _ in frames[12:] if header.next - header.base > 1)
    return frames[7][0].base, Offset(inside.base + 1)


def retried(work: Callable[[], T], attempts: int) -> T:
    """Do ``work``, again while there is no room for it."""
    for _ in range(attempts - 1):
        with contextlib.suppress(DiskFull):
            return work()
    return work()


def life(disk: MemoryDisk, copy: Copy, attempts: int = 2) -> None:
    """Do everything a follower can do; what is refused for lack of room is tried again."""
    one, two, shared = leaders()
    backwards, inside = resets()
    log = retried(lambda: opened(disk, CONFIG), attempts)
    steps: list[Callable[[], None]] = [
        lambda: copy.follow(log, one),
        log.checkpoint,
        lambda: copy.cut(log, shared, two),
        lambda: copy.follow(log, two, (2, 5)),
        log.checkpoint,
        lambda: copy.reset(log, backwards),
        lambda: copy.follow(log, two, (30,)),
        lambda: copy.reset(log, inside),
        lambda: copy.follow(log, two, (1, 2)),
        log.close,
    ]
    for step in steps:
        retried(step, attempts)


@cache
def calls() -> list[str]:
    """Return the calls of a life without faults."""
    disk = MemoryDisk()
    life(disk, Copy())
    return disk.trace


def strike(number: int, fault: Fault) -> tuple[MemoryDisk, Copy]:
    """Live with one fault; it ends where the log gives up."""
    disk, copy = MemoryDisk({number: fault}), Copy()
    with contextlib.suppress(JetstreamError, PowerLostError):
        life(disk, copy)
    disk.faults.clear()
    return disk, copy


@once_for_each_state
def check_restart(disk: MemoryDisk, copy: Copy) -> None:
    """Open, find what was told, find it again after the power is lost, and copy the rest."""
    if disk.exists(DIRECTORY):
        kinds = {problem.kind for problem in inspect_stream(disk, DIRECTORY).problems}
        assert kinds <= {ProblemKind.TORN, ProblemKind.DERIVED}
    log = opened(disk, CONFIG)
    copy.check(log)
    found = stored_values(log)
    check_files_owned(log, is_just_opened=True)
    again = opened(disk.power_loss(nothing_survives), CONFIG)
    assert stored_values(again) == found, "opening makes durable what it finds"
    go_on(again)


def go_on(log: Log) -> None:
    """Copy the rest of the second leader's log, and have the same files."""
    two, shared = leaders()[1:]
    start, end = log.log_start_offset, log.log_end_offset
    if stored_values(log) != two.values(start, end) or log.reader.last_epoch not in (0, *_epochs(two)):
        log.truncate_to(shared)
    Copy().follow(log, two)
    log.close()
    check_files_owned(log)
    problems = inspect_stream(log._disk, DIRECTORY).problems
    assert {problem.kind for problem in problems} <= {ProblemKind.DERIVED}, problems
    leader_files = {segment.path: segment for segment in two.log.reader.segments}
    for segment in log.reader.segments:
        if segment.base > log.log_start_offset or segment.base == 0:
            content = file_content(two.log._disk, leader_files[segment.path].path)
            assert file_content(log._disk, segment.path) == content, "the files are the leader's"
    assert (log.reader.last_epoch, log.log_end_offset) == (two.log.reader.last_epoch, two.log.log_end_offset)


def _epochs(leader: Leader) -> list[LeaderEpoch]:
    return [begins.epoch for begins in leader.log.reader.epochs.starts]


def test_the_life_has_every_kind_of_call_and_of_batch() -> None:
    operations = {call.split()[0] for call in calls()}
    assert operations >= {"create", "write", "truncate", "unlink", "rename", "sync"}
    one, two, shared = leaders()
    assert len(one.log.reader.segments) > 2
    assert len(two.log.reader.segments) > 3
    assert 0 < shared < one.log.log_end_offset
    assert len(_epochs(one)) == 2


SAMPLES = pytest.mark.parametrize(
    "step", [9, pytest.param(1, marks=pytest.mark.slow("tests/crash/test_follower.py"))]
)
"""Some of the calls, others in each test, and all calls."""

SURVIVALS: Final[dict[FaultKind, tuple[Survival, ...]]] = {
    FaultKind.POWER_LOSS: (nothing_survives, everything_survives, random_survival(1)),
    FaultKind.POWER_LOSS_AFTER: (random_survival(2),),
}


@SAMPLES
@pytest.mark.parametrize("kind", SURVIVALS)
def test_power_loss_at_every_call_loses_nothing_reported_as_synced(kind: FaultKind, step: int) -> None:
    for number in struck_calls(calls(), kind, step):
        disk, copy = strike(number, Fault(kind, bytes_kept=700 * (number // 5 % 5)))
        for survival in SURVIVALS[kind]:
            check_restart(disk.power_loss(survival), copy)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10, 50))
def test_power_loss_at_every_call_with_any_sectors_surviving_loses_nothing_reported(seed: int) -> None:
    for number in range(1, len(calls()) + 1):
        for kind in (FaultKind.POWER_LOSS, FaultKind.POWER_LOSS_AFTER):
            disk, copy = strike(number, Fault(kind, bytes_kept=seed * 131 % 9000))
            check_restart(disk.power_loss(random_survival(seed * 1000 + number)), copy)


@pytest.mark.slow(
    "tests/crash/test_follower.py::test_power_loss_at_every_call_loses_nothing_reported_as_synced",
    "tests/crash/test_every_call_fails.py",
)
def test_an_io_error_at_every_call_loses_nothing_reported_as_synced() -> None:
    for number in range(1, len(calls()) + 1):
        disk, copy = strike(number, Fault(FaultKind.IO_ERROR, bytes_kept=700 * (number % 5)))
        for survival in (everything_survives, nothing_survives):
            check_restart(disk.power_loss(survival), copy)


@pytest.mark.slow(
    "tests/crash/test_follower.py::test_power_loss_at_every_call_loses_nothing_reported_as_synced",
    "tests/crash/test_every_call_fails.py",
)
def test_a_full_disk_at_every_call_refuses_and_goes_on() -> None:
    for number in struck_calls(calls(), FaultKind.SHORT_WRITE):
        disk, copy = strike(number, Fault(FaultKind.SHORT_WRITE, (0, 1, 700, 2500)[number % 4]))
        check_restart(disk.power_loss(everything_survives), copy)


@SAMPLES
@pytest.mark.parametrize("exhausted", [1, 3])
def test_no_descriptor_for_any_calls_refuses_and_goes_on(exhausted: int, step: int) -> None:
    """A log whose old one is gone, and the new one not begun, alone gives up; opening it finishes that."""
    given_up = 0
    struck = range(exhausted, len(calls()) + 1, step)
    for number in struck:
        fault = Fault(FaultKind.EXHAUSTED, (0, 1, 700, 2500)[number % 4])
        disk, copy = MemoryDisk(dict.fromkeys(range(number, number + exhausted), fault)), Copy()
        try:
            life(disk, copy, attempts=exhausted + 1)
        except StorageError:
            given_up += 1
        disk.faults.clear()
        check_restart(disk.power_loss(everything_survives), copy)
    assert 0 < given_up < len(struck) / 4


@pytest.mark.slow(
    "tests/crash/test_follower.py::test_power_loss_at_every_call_loses_nothing_reported_as_synced",
    "tests/crash/test_every_call_fails.py",
)
def test_a_process_that_is_killed_at_every_call_is_followed_by_one_that_serves_what_is_durable() -> None:
    for number in range(1, len(calls()) + 1):
        disk, copy = strike(number, Fault(FaultKind.POWER_LOSS, 2500))
        disk.process_loss()
        check_restart(disk, copy)


# --- truncation at the end ---------------------------------------------------------------------------------


@cache
def truncated_leader() -> tuple[Leader, Offset]:
    """A leader whose log was truncated at its end and went on, and where that was."""
    log = begun(MemoryDisk(), CONFIG)
    for number in range(4):
        append(log, [b"one%d" % number] * 2, NOW + number)
    end = log.log_end_offset
    log.writer.sync()
    before = Leader.of(log)
    log.truncate_before(end, end)
    for number in range(4, 7):
        append(log, [b"one%d" % number] * 2, NOW + number)
    after = Leader.of(log)
    return Leader(log, before.frames + after.frames), end


def truncated_life(disk: MemoryDisk, copy: Copy) -> None:
    """Copy, drop all of that, and copy what comes behind it, which begins a segment."""
    leader, end = truncated_leader()
    log = opened(disk, CONFIG)
    log.writer.append_sealed(
        verified_batches(b"".join(frame for header, frame in leader.frames if header.next <= end)), NOW
    )
    copy.sync(log)
    copy.starts.add(end)
    log.truncate_before(end, end)
    copy.follow(log, leader)
    log.close()


@pytest.mark.parametrize("kind", [FaultKind.POWER_LOSS, FaultKind.POWER_LOSS_AFTER, FaultKind.IO_ERROR])
def test_what_was_truncated_at_the_end_goes_without_what_comes_after_it(kind: FaultKind) -> None:
    leader, end = truncated_leader()
    rehearsal = MemoryDisk()
    truncated_life(rehearsal, Copy())
    assert [call for call in rehearsal.trace if call.startswith("unlink") and call.endswith(".arrows")]
    for number in range(1, rehearsal.calls + 1):
        disk, copy = MemoryDisk({number: Fault(kind, bytes_kept=700 * (number % 5))}), Copy()
        with contextlib.suppress(JetstreamError, PowerLostError):
            truncated_life(disk, copy)
        for survival in (everything_survives, nothing_survives, random_survival(number)):
            found = disk.power_loss(survival)
            log = opened(found, CONFIG)
            assert (log.failed, log.reader.corrupt_ranges) == (None, ())
            assert log.log_start_offset in copy.starts
            assert log.log_end_offset >= copy.synced_end, "what was reported as synced is there"
            log.truncate_before(min(end, log.log_end_offset), log.log_end_offset)
            Copy().follow(log, leader)
            assert stored_values(log).items() >= leader.values(end, log.log_end_offset).items()
            log.close()
            check_files_owned(log)
            assert inspect_stream(found, DIRECTORY).healthy
