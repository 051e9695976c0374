"""Compaction of a log whose batches are damaged and repaired at any time, against all records ever written.

What must hold is asked of the log as it would be with its damage repaired at this moment.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envelope.errors import CorruptDataError
from envelope.types import LeaderEpoch
from jetstream.log.format.batch import iter_frames, verified_batches
from jetstream.log.format.schema import END_OF_STREAM
from jetstream.log.rewriting.compaction_plan import Detour
from jetstream.log.rewriting.latest_offsets import ENTRY_BYTES
from jetstream.log.rewriting.segment_chunks import check_segment
from jetstream.log.segments.scan import FIRST_BATCH
from tests.support.compaction import (
    COMPACTED,
    EAGER,
    Stored,
    append_records,
    compact_around,
    latest,
    no_pace,
    stored_in,
)
from tests.support.example_counts import examples
from tests.support.logs import NOW, Record, file_content, flipped, opened, overwrite
from tests.support.memory_disk import MemoryDisk
from tests.support.rewriting import rewrite

KEYS = (None, b"a", b"b", b"c", b"d", b"e", b"f", b"g")
BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), min_size=1, max_size=3), min_size=1, max_size=8
)


class DamagedLog(RuleBasedStateMachine):
    """``records`` is all that was ever written, ``good`` what was in the damaged files, by base."""

    @initialize(
        batches=st.lists(st.tuples(st.sampled_from(KEYS[1:]), st.booleans()), min_size=20, max_size=20)
    )
    def create(self, batches: list[tuple[bytes | None, bool]]) -> None:
        self.disk = MemoryDisk()
        self.log = opened(self.disk, COMPACTED)
        self.now = int(NOW)
        self.records: list[Stored] = []
        self.good: dict[int, bytes] = {}
        self.detours: list[Detour] = []
        self.log.writer.begin_epoch(LeaderEpoch(1), NOW)
        self.append([[each] for each in batches])

    @rule(batches=BATCHES)
    def append(self, batches: list[list[tuple[bytes | None, bool]]]) -> None:
        for batch in batches:
            self.now += 1
            written = [
                Record(None if deletes else b"%d" % len(self.records), key=key, timestamp=self.now)
                for key, deletes in batch
            ]
            append_records(self.log, written)
            epoch = self.log.reader.last_epoch
            self.records.extend(Stored(r.key, r.value, r.timestamp, epoch) for r in written)

    @rule(passes=st.sampled_from((1, 4)), keys=st.sampled_from((1, 1000)))
    def compact(self, passes: int, keys: int) -> None:
        """With four passes tombstones that are not held up are gone."""
        damaged = {base: file_content(self.disk, self.path(base)) for base in self.good}
        for _ in range(passes):
            self.now += EAGER.tombstone_retention_us
            compact_around(self.disk, self.log, self.now, self.detours, keys * ENTRY_BYTES)
        assert {base: file_content(self.disk, self.path(base)) for base in self.good} == damaged

    @rule()
    def merge_small_batches(self) -> None:
        rewrite(self.disk, self.log)

    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        whole = [segment for segment in self.log.reader.segments[:-1] if segment.base not in self.good]
        if not whole:
            return
        segment = data.draw(st.sampled_from(whole))
        self.good[segment.base] = content = file_content(self.disk, segment.path)
        index = segment.load_index()
        row = data.draw(st.integers(0, len(index) - 1))
        overwrite(self.disk, segment.path, flipped(content, index[row].end - 40, 3))
        with pytest.raises(CorruptDataError):
            check_segment(self.log.reader, segment, no_pace)

    @precondition(lambda self: self.good)
    @rule(data=st.data())
    def repair(self, data: st.DataObject) -> None:
        base = data.draw(st.sampled_from(sorted(self.good)))
        good = self.good.pop(base)
        for hole in [hole for hole in self.log.holes() if hole.segment.base == base]:
            end = len(good) - len(END_OF_STREAM) if hole.length is None else hole.position + hole.length
            self.log.fill(hole, verified_batches(good[hole.position : end]))
        assert base not in self.log.reader.damaged

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.log = opened(self.disk, COMPACTED, full=True)
        self.log.writer.begin_epoch(LeaderEpoch(self.log.reader.last_epoch + 1), NOW)
        self.detours.clear()
        assert self.log.reader.damaged == set(self.good)

    def path(self, base: int) -> str:
        return next(segment.path for segment in self.log.reader.segments if segment.base == base)

    @invariant()
    def keeps_the_last_state_of_every_key_and_brings_none_back(self) -> None:
        repaired: dict[int, Stored] = {}
        for segment in self.log.reader.segments:
            content = self.good.get(segment.base) or file_content(self.disk, segment.path)
            end = len(content) - (len(END_OF_STREAM) if segment.sealed else 0)
            for frame in iter_frames(content[FIRST_BATCH:end]):
                repaired.update(stored_in(frame)[1])
        for offset, record in repaired.items():
            assert record == self.records[offset]
        written = dict(enumerate(self.records))
        assert latest(repaired) == latest(written)
        assert {at for at, record in written.items() if record.key is None} <= set(repaired)


TestDamagedLog = DamagedLog.TestCase
TestDamagedLog.settings = settings(max_examples=examples(150), stateful_step_count=25)
