"""The log against a list: appends, rolls, restarts, power losses, truncation and retention in any order."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envelope.errors import DiskFull, FsyncFailed, OffsetOutOfRange
from envelope.types import LeaderEpoch, Offset, SyncMode, TimestampUs
from jetstream.log.format.batch import decode, iter_frames
from jetstream.log.inspection import inspect_stream
from jetstream.log.log import Log, LogConfig
from tests.support.example_counts import examples
from tests.support.logs import DIRECTORY, NOW, append, begun, opened, stored_values
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    everything_survives,
    nothing_survives,
    random_survival,
)

SEGMENT_BYTES = 4000

Limits = tuple[int | None, int | None, int | None]
"""Age, bytes, messages; None is no limit."""
NUMBERS = (st.integers(0, 60), st.integers(1, 20).map(lambda kb: 1000 * kb), st.integers(1, 15))
LIMITS: st.SearchStrategy[Limits] = st.sampled_from(list(product((False, True), repeat=3))).flatmap(
    lambda which: st.tuples(
        *(each if is_set else st.none() for each, is_set in zip(NUMBERS, which, strict=True))
    )
)


class LogModel(RuleBasedStateMachine):
    """``records`` is what the log should hold: (value, timestamp) by offset, from offset 0."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.log: Log
        self.now: TimestampUs = NOW
        self.records: list[tuple[bytes, int]] = []
        self.epochs: list[tuple[int, int]] = []
        self.written = 0

    @initialize(mode=st.sampled_from(SyncMode), age=st.none() | st.integers(5, 50))
    def create(self, mode: SyncMode, age: int | None) -> None:
        self.config = LogConfig(segment_bytes=SEGMENT_BYTES, segment_age_us=age, sync=mode)
        self.log = opened(self.disk, self.config)
        self.begin_epoch()

    # --- writing -------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 5), size=st.integers(0, 1200), later=st.integers(0, 20))
    def append(self, count: int, size: int, later: int) -> None:
        self.now = TimestampUs(self.now + later)
        values = [b"%d." % (self.written + number) + b"x" * size for number in range(count)]
        self.written += count
        append(self.log, values, self.now)
        self.records.extend((value, self.now) for value in values)

    @rule()
    def refuse_for_lack_of_space(self) -> None:
        before = len(self.disk.faults)
        self.disk.faults = {
            self.disk.calls + number: Fault(FaultKind.SHORT_WRITE, 100) for number in range(1, 30)
        }
        try:
            append(self.log, [b"refused"], self.now)
        except DiskFull:
            pass
        else:
            raise AssertionError("the disk is full")
        self.disk.faults = {}
        assert before == 0

    @rule()
    def sync(self) -> None:
        self.log.writer.sync()
        assert self.log.writer.durable_end == len(self.records)

    @rule()
    def begin_epoch(self) -> None:
        epoch = self.log.reader.last_epoch + 1
        self.log.writer.begin_epoch(LeaderEpoch(epoch), self.now)
        self.epochs.append((epoch, len(self.records)))

    @rule()
    def checkpoint(self) -> None:
        self.log.checkpoint()

    # --- removing ------------------------------------------------------------------------------------

    @rule(data=st.data())
    def truncate_before(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.records)))
        start = self.log.log_start_offset
        self.log.truncate_before(Offset(offset), Offset(len(self.records)))
        assert self.log.log_start_offset == max(start, offset)

    @rule(limits=LIMITS)
    def retain(self, limits: Limits) -> None:
        apply_retention(self.log, self.disk, self.records, self.now, limits)

    @precondition(lambda self: len(self.records) > self.log.log_start_offset)
    @rule(data=st.data())
    def cut_back(self, data: st.DataObject) -> None:
        bases = [
            base
            for segment in self.log.reader.segments
            for base in segment.load_index().bases
            if base >= self.log.log_start_offset
        ]
        if not bases:
            return
        offset = data.draw(st.sampled_from(bases))
        self.log.truncate_to(Offset(offset))
        del self.records[offset:]
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < offset]
        self.begin_epoch()

    # --- starting again ------------------------------------------------------------------------------

    @rule(full=st.booleans())
    def restart(self, full: bool) -> None:
        self.log.close()
        assert inspect_stream(self.disk, DIRECTORY).healthy
        self.open_again(len(self.records), full=full)
        assert self.log.recovery.clean
        assert self.log.recovery.problems == ()

    @rule(full=st.booleans())
    def killed(self, full: bool) -> None:
        self.disk = self.disk.power_loss(everything_survives)
        self.open_again(len(self.records), full=full)

    @rule(seed=st.none() | st.integers(0, 1000), full=st.booleans())
    def power_loss(self, seed: int | None, full: bool) -> None:
        survival = nothing_survives if seed is None else random_survival(seed)
        durable = self.log.writer.durable_end
        self.disk = self.disk.power_loss(survival)
        self.open_again(durable, full=full)

    @rule()
    def failed_sync(self) -> None:
        if not self.log.writer.dirty:
            return
        durable = self.log.writer.durable_end
        self.disk.faults[self.disk.calls + 1] = Fault(FaultKind.SYNC_ERROR)
        try:
            self.log.writer.sync()
        except FsyncFailed:
            pass
        else:
            raise AssertionError("the sync was made to fail")
        self.disk.faults = {}
        self.open_again(durable, full=False)

    def open_again(self, kept_min: int, *, full: bool) -> None:
        start = self.log.log_start_offset
        self.log = opened(self.disk, self.config, full=full)
        end = self.log.log_end_offset
        assert kept_min <= end <= len(self.records), "what was synced is there, and nothing is invented"
        assert self.log.log_start_offset == start
        del self.records[end:]
        self.epochs = [(epoch, min(begin, end)) for epoch, begin in self.epochs]
        self.begin_epoch()

    # --- always --------------------------------------------------------------------------------------

    @invariant()
    def holds_the_list(self) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        assert end == len(self.records)
        assert stored_values(self.log, 3000) == {
            offset: self.records[offset][0] for offset in range(start, end)
        }
        assert self.log.reader.corrupt_ranges == ()
        assert self.log.failed is None

    @invariant()
    def segments_tile(self) -> None:
        segments = self.log.reader.segments
        assert segments[0].base <= self.log.log_start_offset
        for before, after in pairwise(segments):
            assert before.next == after.base
            assert before.sealed
        assert self.log.reader.size == sum(
            len_of(self.disk, f"{DIRECTORY}/{name}")
            for name in self.disk.listdir(DIRECTORY)
            if name.endswith(".arrows")
        )

    @invariant()
    def times_are_found(self) -> None:
        start = self.log.log_start_offset
        for later in (-1, 0, 7, 30):
            wanted = NOW + later
            expected = next(
                (row for row in range(start, len(self.records)) if self.records[row][1] >= wanted),
                len(self.records),
            )
            assert self.log.reader.offset_for_timestamp(TimestampUs(wanted)) == expected

    @invariant()
    def epochs_are_known(self) -> None:
        start = self.log.log_start_offset
        ends = [*(begin for _, begin in self.epochs[1:]), len(self.records)]
        for (epoch, begin), end in zip(self.epochs, ends, strict=True):
            if end > start or epoch == self.epochs[-1][0]:
                assert self.log.reader.epochs.end_of(LeaderEpoch(epoch), self.log.log_end_offset) == end
                if begin < end:
                    assert self.log.reader.epoch_at(Offset(begin)) == epoch

    @invariant()
    def reads_keep_their_limits(self) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        for offset in {start, (start + end) // 2, end - 1}:
            if not start <= offset < end:
                continue
            file_range = self.log.reader.plan_read(Offset(offset), 2000, Offset(end))
            frames = list(iter_frames(self.log.reader.read(Offset(offset), 2000, Offset(end))))
            assert file_range.base <= offset < file_range.next
            assert sum(len(frame) for frame in frames) == file_range.length
            assert len(frames) == 1 or file_range.length <= 2000
            assert {decode(frame)[0].leader_epoch for frame in frames} == {file_range.leader_epoch}
        try:
            self.log.reader.plan_read(Offset(end + 1), 1, Offset(end))
        except OffsetOutOfRange:
            return
        raise AssertionError("an offset beyond the end was planned")


@given(
    st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 8)), min_size=10, max_size=20),
    st.lists(LIMITS, min_size=1, max_size=5),
)
def test_whole_segments_go_as_the_limit_that_asks_for_most_has_it(
    batches: list[tuple[int, int]], several: list[Limits]
) -> None:
    disk, now, records = MemoryDisk(), NOW, list[tuple[bytes, int]]()
    log = begun(disk, LogConfig(segment_bytes=SEGMENT_BYTES))
    for size, later in batches:
        now = TimestampUs(now + later)
        records.append((bytes(size), now))
        append(log, [bytes(size)], now)
    log.writer.sync()
    for limits in several:
        apply_retention(log, disk, records, now, limits)
    assert list(stored_values(log)) == list(range(log.log_start_offset, len(records)))


def test_a_segment_that_was_emptied_from_both_ends_may_go_and_nothing_else_does() -> None:
    disk = MemoryDisk()
    log = begun(disk, LogConfig(segment_bytes=SEGMENT_BYTES))
    for later in (0, 0, 1):
        append(log, [b""], TimestampUs(NOW + later))
    log.truncate_before(Offset(1), Offset(3))
    log.truncate_to(Offset(1))
    apply_retention(log, disk, [(b"", NOW)], TimestampUs(NOW + 1), (0, None, None))
    assert [base for base, _, _ in files_of(disk, 1)] == [1]


def apply_retention(
    log: Log, disk: MemoryDisk, records: Sequence[tuple[bytes, int]], now: TimestampUs, limits: Limits
) -> None:
    """Apply it, and check what goes and what stays against the files and the list of all records."""
    age, size, messages = limits
    before, end = log.log_start_offset, len(records)
    files = files_of(disk, end)
    start, rest = int(before), sum(file_size for _, _, file_size in files)
    for _, next_, file_size in files:
        rest -= file_size
        # Each limit by itself, whatever the others ask for: what is beyond any of them goes.
        beyond = (
            age is not None and next_ > 0 and records[next_ - 1][1] < now - age,
            size is not None and rest >= size,
            messages is not None and end - next_ >= messages,
        )
        start = max(start, next_) if any(beyond) else start
    config = log.writer.config
    log.writer.config = replace(
        config, retention_age_us=age, retention_bytes=size, retention_messages=messages
    )
    log.apply_retention(now, Offset(end))
    log.writer.config = config
    assert log.log_start_offset == start
    left = [base for base, _, _ in files_of(disk, end)]
    if start > before:
        assert left == ([base for base, next_, _ in files if next_ > start] or [end]), "whole files go"
    else:
        kept = [base for base, next_, _ in files if next_ > start]
        assert [base for base in left if base in kept] == kept, "nothing goes that the log has"


def files_of(disk: MemoryDisk, end: int) -> list[tuple[int, int, int]]:
    """Of each segment its first offset, the one after its last, and its bytes; ``end`` is the log's."""
    names = sorted(name for name in disk.listdir(DIRECTORY) if name.endswith(".arrows"))
    bases = [int(name.removesuffix(".arrows")) for name in names]
    sizes = [len_of(disk, f"{DIRECTORY}/{name}") for name in names]
    return list(zip(bases, [*bases[1:], end], sizes, strict=True))


def len_of(disk: MemoryDisk, path: str) -> int:
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(max_examples=examples(150), stateful_step_count=25)


@pytest.mark.deep
class TestLogModelForLong(LogModel.TestCase):  # type: ignore[misc,valid-type]  # made by hypothesis
    """The same, for minutes."""

    settings = settings(max_examples=8000, stateful_step_count=40, deadline=None)
