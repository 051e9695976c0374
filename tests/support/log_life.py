"""A log that lives through everything that becomes of logs, for state machines; and what its batches are."""

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import decode, iter_frames
from jetstream.log.inspection import inspect_stream
from jetstream.log.log import Log, LogConfig
from tests.support.compaction import EAGER, append_records, compact
from tests.support.logs import DIRECTORY, NOW, Record, opened
from tests.support.memory_disk import MemoryDisk, everything_survives, nothing_survives, random_survival
from tests.support.rewriting import rewrite

CONFIG = LogConfig(segment_bytes=3500, compaction=EAGER)
STEPS = st.lists(
    st.tuples(st.sampled_from((None, None, None, 0, 1, 3)), st.sampled_from((None, b"a", b"b", b"c"))),
    min_size=1,
    max_size=4,
)
"""Of each record how much larger its txid is than the last one, if it has one, and its key."""


class ABatch(NamedTuple):
    """One as it is stored."""

    base: int
    next: int
    bytes: int


def batches_of(log: Log) -> list[ABatch]:
    """Return all batches, as reading every one of them tells."""
    found: list[ABatch] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for frame in iter_frames(log.reader.read(offset, 1 << 20, log.log_end_offset)):
            header, _ = decode(frame)
            found.append(ABatch(header.base, header.next, len(frame)))
            offset = header.next
    return found


def added_up(batches: Sequence[ABatch], offset: int, max_bytes: int, end: int) -> tuple[int, int]:
    """Return where the batches end that take ``max_bytes`` at most, and their bytes: one after the other."""
    reached, total = offset, 0
    for batch in batches:
        if batch.next <= offset:
            continue
        if batch.next > end or (total and total + batch.bytes > max_bytes):
            break
        reached, total = batch.next, total + batch.bytes
    return reached, total


class LogLife(RuleBasedStateMachine):
    """Appends, compacts, merges, cuts and opens again; subclasses say what holds always."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.log: Log
        self.now = int(NOW)

    @initialize(batches=st.lists(STEPS, min_size=8, max_size=12))
    def create(self, batches: list[list[tuple[int | None, bytes | None]]]) -> None:
        self.log = opened(self.disk, CONFIG)
        self.begin_epoch()
        self.append(batches)

    def begin_epoch(self) -> None:
        self.log.writer.begin_epoch(LeaderEpoch(self.log.reader.last_epoch + 1), NOW)

    @rule(batches=st.lists(STEPS, min_size=1, max_size=6))
    def append(self, batches: list[list[tuple[int | None, bytes | None]]]) -> None:
        txids = [segment.last_txid for segment in self.log.reader.segments]
        last = max((txid for txid in txids if txid is not None), default=-4)
        for batch in batches:
            self.now += 1
            records = []
            for step, key in batch:
                last += step or 0
                txid = None if step is None else last
                records.append(Record(b"v", key=key, txid=txid, timestamp=self.now))
            append_records(self.log, records)

    # --- what becomes of it --------------------------------------------------------------------------

    @rule(committed=st.sampled_from((1.0, 0.5)))
    def compact(self, committed: float) -> None:
        end = int(committed * self.log.log_end_offset)
        compact(self.disk, self.log, self.now, high_watermark=end, min_synced_end=end)

    @rule(passed=st.sampled_from((1.0, 0.5)))
    def merge_small_batches(self, passed: float) -> None:
        rewrite(self.disk, self.log, min_synced_end=int(passed * self.log.log_end_offset))

    @rule(share=st.sampled_from((0.1, 0.2, 0.3, 1.0)))
    def truncate_before(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.log.truncate_before(Offset(start + int(share * (end - start))), end)

    @rule()
    def remove_what_is_old(self) -> None:
        self.log.writer.config = LogConfig(segment_bytes=3500, retention_messages=15, compaction=EAGER)
        self.log.apply_retention(TimestampUs(self.now), self.log.log_end_offset)
        self.log.writer.config = CONFIG

    @precondition(lambda self: self.log.log_end_offset > self.log.log_start_offset)
    @rule(data=st.data())
    def cut_back(self, data: st.DataObject) -> None:
        bases = {base for segment in self.log.reader.segments for base in segment.load_index().bases}
        above = sorted(base for base in bases if base >= self.log.log_start_offset)
        if above:
            self.log.truncate_to(Offset(data.draw(st.sampled_from(above))))
            self.begin_epoch()

    # --- starting again ------------------------------------------------------------------------------

    @rule()
    def checkpoint(self) -> None:
        self.log.checkpoint()

    @rule(full=st.booleans())
    def restart(self, full: bool) -> None:
        self.log.close()
        report = inspect_stream(self.disk, DIRECTORY)
        assert report.healthy, report.problems
        self.log = opened(self.disk, CONFIG, full=full)
        self.begin_epoch()

    @rule(survival=st.sampled_from((nothing_survives, everything_survives, random_survival(7))))
    def lose_power(self, survival: object) -> None:
        self.disk = self.disk.power_loss(survival)  # type: ignore[arg-type]  # one of three of that type
        self.log = opened(self.disk, CONFIG)
        self.begin_epoch()

    @rule()
    def forget_indexes(self) -> None:
        for segment in self.log.reader.segments:
            segment.unload_index()
