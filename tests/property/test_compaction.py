"""Compaction, and the sealed rewrite between its passes, against a list of all records ever written.

By the five guarantees of Kafka's documentation, which the assertions name:

1. Who keeps up with the head sees every record; the head is what no pass has cleaned. 2. The order never
changes. 3. Offsets never change. 4. Who reads from the start sees at least the last state of every key, in
order. 5. And every tombstone, if he comes to the head within the tombstones' retention.

Source: Kafka's documentation, "Log Compaction", "What guarantees does log compaction provide?".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import iter_frames
from jetstream.log.inspection import inspect_stream
from jetstream.log.log import Log
from jetstream.log.rewriting.latest_offsets import ENTRY_BYTES
from tests.support.compaction import (
    COMPACTED,
    EAGER,
    Stored,
    append_records,
    compact,
    latest,
    stored_in,
    stored_records,
)
from tests.support.example_counts import examples
from tests.support.log_files import check_files_owned
from tests.support.logs import DIRECTORY, NOW, Record, opened
from tests.support.memory_disk import MemoryDisk, everything_survives, nothing_survives, random_survival
from tests.support.rewriting import rewrite

KEYS = (None, b"", b"a", b"b", b"c", b"d" * 300)
BATCHES = st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), min_size=1, max_size=4)
CONFIG = replace(COMPACTED, segment_bytes=2500)
MEANWHILE_MAX = 8
"""Steps of a compaction between which something is appended."""
RETENTION = EAGER.tombstone_retention_us


def read_batch(log: Log, offset: int) -> tuple[dict[int, Stored], int]:
    """What a reader that stands at ``offset`` is given next, and where it stands then."""
    header, records = stored_in(next(iter_frames(log.reader.read(Offset(offset), 1, log.log_end_offset))))
    assert_in_order(records)
    return {at: record for at, record in records.items() if at >= offset}, header.next


def assert_in_order(offsets: Iterable[int]) -> None:
    offsets = list(offsets)
    assert offsets == sorted(set(offsets)), "guarantee 2: the order never changes"


def assert_in_place(found: Mapping[int, Stored], written: Sequence[Stored]) -> None:
    for offset, record in found.items():
        assert record == written[offset], f"guarantee 3: the record at {offset} is the one that was written"


class HeadReader:
    """Reads whatever is published at once."""

    def __init__(self) -> None:
        self.seen: list[Stored] = []

    def read(self, log: Log, written: Sequence[Stored]) -> None:
        """Read to the end, and compare with all that was ever written."""
        while len(self.seen) < log.log_end_offset:
            start = len(self.seen)
            found, end = read_batch(log, start)
            assert_in_place(found, written)
            assert list(found) == list(range(start, end)), "guarantee 1: who keeps up sees every record"
            self.seen.extend(found.values())
        assert len(self.seen) == len(written), "guarantee 1: who keeps up sees every record"


class SlowReader:
    """Reads from the start, now and then, and keeps the last state of each key."""

    def __init__(self, start: int, now: int) -> None:
        self.begun_at = now
        self.offset = start
        self.offsets: list[int] = []
        self.state: dict[bytes, tuple[int, bytes]] = {}

    def read(self, log: Log, written: Sequence[Stored], batches: int) -> None:
        """Go on where it stands."""
        for _ in range(batches):
            if self.offset >= log.log_end_offset:
                break
            found, self.offset = read_batch(log, self.offset)
            assert_in_place(found, written)
            self.offsets.extend(found)
            for offset, record in found.items():
                if record.key is None:
                    continue
                self.state.pop(record.key, None)
                if record.value is not None:
                    self.state[record.key] = (offset, record.value)
        assert_in_order(self.offsets)


class CompactionModel(RuleBasedStateMachine):
    """``records`` is all that was ever written, by offset from 0."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.log: Log
        self.now = int(NOW)
        self.records: list[Stored] = []
        self.committed = 0
        self.cleaned_max = 0
        self.purgeable = 0
        self.reader: SlowReader | None = None
        self.head_reader = HeadReader()

    @initialize(batches=st.lists(BATCHES, min_size=20, max_size=20))
    def create(self, batches: list[list[tuple[bytes | None, bool]]]) -> None:
        self.log = opened(self.disk, CONFIG)
        self.begin_epoch()
        self.append(batches, 1)

    # --- writing -------------------------------------------------------------------------------------

    def append(self, batches: list[list[tuple[bytes | None, bool]]], later: int) -> None:
        for batch in batches:
            self.now += later
            base = len(self.records)
            written = [
                Record(None if deletes else b"%d" % (base + row), key=key, timestamp=self.now + row)
                for row, (key, deletes) in enumerate(batch)
            ]
            self.now += len(batch)
            append_records(self.log, written)
            self.records.extend(
                Stored(r.key, r.value, r.timestamp, self.log.reader.last_epoch) for r in written
            )
            self.head_reader.read(self.log, self.records)

    @rule()
    def begin_epoch(self) -> None:
        self.log.writer.begin_epoch(LeaderEpoch(self.log.reader.last_epoch + 1), NOW)

    @precondition(lambda self: len(self.records) > self.committed)
    @rule(data=st.data())
    def cut_back(self, data: st.DataObject) -> None:
        bases = {base for segment in self.log.reader.segments for base in segment.load_index().bases}
        above = sorted(base for base in bases if base >= max(self.committed, self.log.log_start_offset))
        if not above:
            return
        offset = data.draw(st.sampled_from(above))
        self.log.truncate_to(Offset(offset))
        del self.records[offset:]
        del self.head_reader.seen[offset:]
        self.reader = None
        self.begin_epoch()

    @rule(batches=st.lists(BATCHES, min_size=1, max_size=8), later=st.integers(0, 60))
    def append_only(self, batches: list[list[tuple[bytes | None, bool]]], later: int) -> None:
        self.append(batches, later)

    # --- compacting ----------------------------------------------------------------------------------

    @rule(
        committed=st.sampled_from((1.0, 0.9, 0.5)),
        passed=st.sampled_from((1.0, 0.6, 0)),
        keys=st.sampled_from((1, 2, 1000)),
        later=st.sampled_from((0, 50, 150, -1000)),
        more=st.lists(BATCHES, max_size=6),
        meanwhile=st.lists(BATCHES, max_size=1),
    )
    def compact(
        self,
        committed: float,
        passed: float,
        keys: int,
        later: int,
        more: list[list[tuple[bytes | None, bool]]],
        meanwhile: list[list[tuple[bytes | None, bool]]],
    ) -> None:
        # Not for each of its segments: the log would be twice as long after each compaction.
        coming = iter([meanwhile] * MEANWHILE_MAX)

        def go_on() -> None:
            self.append(next(coming, []), 0)
            if self.reader is not None:
                self.reader.read(self.log, self.records, 1)

        self.append(more, 1)
        self.committed = max(self.committed, int(committed * len(self.records)))
        self.now += max(later, 0)
        min_synced_end = int(passed * self.committed)
        self.purgeable = max(self.purgeable, min_synced_end)
        self.cleaned_max = self.committed
        compact(
            self.disk,
            self.log,
            self.now + min(later, 0),
            high_watermark=self.committed,
            min_synced_end=min_synced_end,
            key_bytes=keys * ENTRY_BYTES,
            meanwhile=go_on,
        )

    @rule(passed=st.sampled_from((1.0, 0.6)))
    def merge_small_batches(self, passed: float) -> None:
        before, end = stored_records(self.log), self.log.rewritten_end
        min_synced_end = int(passed * self.committed)
        rewrite(self.disk, self.log, high_watermark=self.committed, min_synced_end=min_synced_end)
        assert stored_records(self.log) == before
        assert end <= self.log.rewritten_end <= max(end, min_synced_end)

    @rule(data=st.data())
    def truncate_before(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.committed))
        self.log.truncate_before(Offset(offset), Offset(self.committed))
        self.reader = None

    # --- reading -------------------------------------------------------------------------------------

    @rule(batches=st.integers(1, 8))
    def read(self, batches: int) -> None:
        reader = self.reader = self.reader or SlowReader(self.log.log_start_offset, self.now)
        reader.read(self.log, self.records, batches)
        if reader.offset < len(self.records):
            return
        states, expected = list(reader.state.items()), self.expected()
        last = [(key, state) for key, state in states if key in expected]
        assert last == list(expected.items()), "guarantee 4: the last state of every key, in order"
        if self.now - reader.begun_at < RETENTION:
            assert last == states, "guarantee 5: every tombstone"
        self.reader = None

    @rule(batches=st.integers(1, 20))
    def overtake_a_reader(self, batches: int) -> None:
        """All that it has read is deleted and cleaned, twice, within the tombstones' retention."""
        self.reader = None
        self.read(batches)
        self.append([[(key, key is not None)] for key in (*KEYS, None, None, None, None)], 0)
        reader, self.reader = self.reader, None  # it stands still meanwhile
        for _ in range(2):
            self.compact(committed=1.0, passed=1.0, keys=1000, later=0, more=[], meanwhile=[])
        self.reader = reader
        self.read(len(self.records))

    def expected(self) -> dict[bytes, tuple[int, bytes]]:
        """What is left of the log's keys, of what is not truncated."""
        start = self.log.log_start_offset
        return latest({offset: record for offset, record in enumerate(self.records) if offset >= start})

    @rule(at=st.integers(0, 1000))
    def look_up_a_time(self, at: int) -> None:
        timestamp = TimestampUs(NOW + at)
        found = self.log.reader.offset_for_timestamp(timestamp)
        stored = stored_records(self.log)
        wanted = next((o for o in sorted(stored) if stored[o].timestamp >= timestamp), len(self.records))
        assert found == wanted or (found == self.log.log_start_offset and found <= wanted)

    # --- starting again ------------------------------------------------------------------------------

    @rule(full=st.booleans())
    def restart(self, full: bool) -> None:
        self.log.close()
        assert inspect_stream(self.disk, DIRECTORY).healthy
        self.log = opened(self.disk, CONFIG, full=full)
        check_files_owned(self.log, is_just_opened=True)
        self.begin_epoch()

    @rule(survival=st.sampled_from((nothing_survives, everything_survives, random_survival(7))))
    def lose_power(self, survival: object) -> None:
        self.disk = self.disk.power_loss(survival)  # type: ignore[arg-type]  # one of three of that type
        self.log = opened(self.disk, CONFIG)
        assert self.log.reader.corrupt_ranges == ()
        check_files_owned(self.log, is_just_opened=True)
        self.begin_epoch()

    # --- what holds always ---------------------------------------------------------------------------

    @invariant()
    def keeps_what_it_must(self) -> None:
        if not self.records:
            return
        stored = stored_records(self.log)
        start = self.log.log_start_offset
        assert start == len(self.records) or len(self.records) - 1 in stored, "the log's last record stays"
        assert_in_order(stored)
        assert_in_place(stored, self.records)
        assert list(latest(stored).items()) == list(self.expected().items()), "guarantee 4: the last states"
        last = {record.key: offset for offset, record in enumerate(self.records[: self.cleaned_max])}
        for offset in range(start, len(self.records)):
            record = self.records[offset]
            if offset in stored:
                continue
            assert offset < self.log.compaction.cleaned_end, "guarantee 1: the head has every record"
            assert offset < self.cleaned_max, "guarantee 1: what is not committed is there"
            assert record.key is not None, "records without a key stay"
            is_purged = record.value is None and offset < self.purgeable
            assert last[record.key] > offset or is_purged, f"{offset} is the last of its key"


TestCompaction = CompactionModel.TestCase
TestCompaction.settings = settings(max_examples=examples(50), stateful_step_count=25)


@pytest.mark.deep
class TestCompactionForLong(CompactionModel.TestCase):  # type: ignore[misc,valid-type]  # made by hypothesis
    """The same, longer."""

    settings = settings(max_examples=1500, stateful_step_count=60, deadline=None)
