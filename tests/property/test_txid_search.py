"""A txid is found where a look at every record finds it, whatever has become of the log."""

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.batch import decode, iter_frames
from jetstream.log.inspection import inspect_stream
from jetstream.log.log import Log, LogConfig
from jetstream.log.memory_disk import MemoryDisk, everything_survives, nothing_survives, random_survival
from jetstream.log.schema import SCHEMA
from jetstream.log.txid_search import first_with_txid, offset_for_txid
from tests.support.compaction import EAGER, append_records, compact
from tests.support.logs import DIRECTORY, NOW, Record, opened
from tests.support.rewriting import rewrite

CONFIG = LogConfig(segment_bytes=3500, compaction=EAGER)
STEPS = st.lists(
    st.tuples(st.sampled_from((None, None, None, 0, 1, 3)), st.sampled_from((None, b"a", b"b", b"c"))),
    min_size=1,
    max_size=4,
)
"""Of each record how much larger its txid is than the last one, if it has one, and its key."""


def looked_at(log: Log) -> dict[int, int]:
    """Return the txid of each kept record that has one, by offset."""
    batches: list[pa.RecordBatch] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for frame in iter_frames(log.read(offset, 1 << 20, log.log_end_offset)):
            header, records = decode(frame)
            batches.append(records)
            offset = header.next
    rows = pa.Table.from_batches(batches, SCHEMA).to_pylist()
    has_txid = (row for row in rows if row["txid"] is not None and row["offset"] >= log.log_start_offset)
    return {row["offset"]: row["txid"] for row in has_txid}


class TxidModel(RuleBasedStateMachine):
    """The model is what `looked_at` finds."""

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
        self.log.begin_epoch(LeaderEpoch(self.log.last_epoch + 1), NOW)

    @rule(batches=st.lists(STEPS, min_size=1, max_size=6))
    def append(self, batches: list[list[tuple[int | None, bytes | None]]]) -> None:
        last = max(looked_at(self.log).values(), default=-4)
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
        compact(self.disk, self.log, self.now, high_watermark=end, passed_by_all=end)

    @rule(passed=st.sampled_from((1.0, 0.5)))
    def merge_small_batches(self, passed: float) -> None:
        rewrite(self.disk, self.log, passed_by_all=int(passed * self.log.log_end_offset))

    @rule(share=st.sampled_from((0.1, 0.2, 0.3, 1.0)))
    def truncate_before(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.log.truncate_before(Offset(start + int(share * (end - start))), end)

    @rule()
    def remove_what_is_old(self) -> None:
        self.log.config = LogConfig(segment_bytes=3500, retention_messages=15, compaction=EAGER)
        self.log.apply_retention(TimestampUs(self.now), self.log.log_end_offset)
        self.log.config = CONFIG

    @precondition(lambda self: self.log.log_end_offset > self.log.log_start_offset)
    @rule(data=st.data())
    def cut_back(self, data: st.DataObject) -> None:
        bases = {base for segment in self.log.all_segments for base in segment.load_index().bases}
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
        for segment in self.log.all_segments:
            segment.unload_index()

    # --- what holds always ---------------------------------------------------------------------------

    @invariant()
    def finds_what_a_look_at_every_record_finds(self) -> None:
        log = self.log
        txids = looked_at(log)
        start, end = log.log_start_offset, log.log_end_offset
        middle = Offset((start + end) // 2)
        for wanted in {edge for txid in txids.values() for edge in (txid, txid + 1)} | {-9, -(1 << 63)}:
            reached = [at for at, txid in txids.items() if txid >= wanted]
            assert offset_for_txid(log, wanted) == min(reached, default=end)
            for low, high in ((middle, end), (start, middle)):
                inside = [at for at in reached if low <= at < high]
                assert first_with_txid(log, wanted, low, high) == min(inside, default=None)


TestTxidSearch = TxidModel.TestCase
TestTxidSearch.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)


@pytest.mark.deep
class TestTxidSearchForLong(TxidModel.TestCase):  # type: ignore[misc,valid-type]  # made by hypothesis
    """The same, longer."""

    settings = settings(max_examples=1000, stateful_step_count=40, deadline=None)
