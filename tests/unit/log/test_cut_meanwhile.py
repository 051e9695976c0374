"""A log is cut, and filled again, below those who look at it: an unclean election does not wait for them."""

import pytest

from envelope.types import Compression, LeaderEpoch, Offset, TimestampUs
from jetstream.log.log import Log, LogConfig
from jetstream.log.rewriting.compaction import CompactionPass
from jetstream.log.rewriting.compaction_plan import CompactionBounds, plan_compaction
from jetstream.log.rewriting.sealed_rewrite import rewritten
from jetstream.log.rewriting.segment_chunks import chunks_of
from jetstream.log.segments.segment import PlanAgain, SegmentReplaced
from tests.support.compaction import COMPACTED, EAGER, append_records, latest, no_pace, stored_records
from tests.support.logs import DIRECTORY, NOW, Record, append, begun, filled, opened, stored_values
from tests.support.memory_disk import MemoryDisk

CONFIG = LogConfig(segment_bytes=12_000)
COUNT = 45


def cut_and_filled_again(log: Log, offset: int) -> None:
    """Put as many and as large records, of a later epoch, in the place of those from ``offset`` on."""
    end = log.log_end_offset
    log.truncate_to(Offset(offset))
    log.writer.begin_epoch(LeaderEpoch(log.reader.last_epoch + 1), NOW)
    for number in range(offset, end):
        append(log, [b"%d" % number], NOW + number)
        log.writer.sync()


@pytest.mark.parametrize("offset", range(20))
def test_who_writes_a_segment_anew_calls_nothing_damaged(
    offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetstream.log.rewriting.segment_chunks._BATCHES", 2)
    for number in (0, 1):
        log = filled(MemoryDisk(), COUNT, CONFIG)
        segment = log.reader.segments[number]
        chunks = chunks_of(log.reader, segment, segment.base)
        next(chunks)
        cut_and_filled_again(log, offset)
        if segment.base < offset < segment.next:
            with pytest.raises(SegmentReplaced):
                list(chunks)
        else:
            list(chunks)  # of before, or of a file that has no name any more
        assert log.reader.corrupt_ranges == ()
        assert len(stored_values(log)) == COUNT


@pytest.mark.parametrize("offset", range(10))
def test_what_was_written_anew_does_not_come_back(offset: int) -> None:
    disk = MemoryDisk()
    log = filled(disk, COUNT, CONFIG)
    first = log.reader.segments[0]
    found = rewritten(log.reader, disk, first, no_pace)
    assert found is not None
    cut_and_filled_again(log, offset)
    now = log.reader.segments[0]
    assert (now.sealed, now.base, now.next) == (True, first.base, first.next), "looks like it"
    expected = stored_values(log)
    assert not log.replace_segment(found)
    assert stored_values(log) == stored_values(opened(disk, CONFIG, full=True)) == expected


def test_what_was_superseded_by_records_that_are_cut_stays() -> None:
    disk = MemoryDisk()
    log = begun(disk, COMPACTED)
    append_records(log, [Record(key=b"k", value=b"kept")])
    for number in range(20):
        append_records(log, [Record(key=b"%d" % number, value=b"x" * 1000)])
    append_records(log, [Record(key=b"k", value=b"to be cut")])
    last = log.log_end_offset - 1
    for number in range(20):
        append_records(log, [Record(key=b"%d" % number, value=b"x" * 1000)])
    end, state = log.log_end_offset, log.compaction
    plan = plan_compaction(log.reader.segments, state, CompactionBounds(end, end, TimestampUs(NOW)), EAGER)
    assert plan is not None
    run = CompactionPass(log.reader, disk, plan, Compression.NONE, no_pace)
    run.gather()
    found = run.rewritten(log.reader.segments[0])
    assert found is not None
    log.truncate_to(Offset(last))
    assert not log.replace_segment(found, since=state)
    assert latest(stored_records(log))[b"k"] == (0, b"kept")
    assert not [path for path in disk.listdir(DIRECTORY) if path.endswith(".new")]


@pytest.mark.parametrize("number", [0, -1])
def test_who_has_planned_a_read_of_what_is_cut_plans_again_and_calls_nothing_damaged(number: int) -> None:
    log = filled(MemoryDisk(), COUNT, CONFIG)
    segment = log.reader.segments[number]
    planned = log.reader.plan_read(segment.base, 1 << 20, log.log_end_offset)
    planned.index.verified[:] = bytes(len(planned.index))
    cut_and_filled_again(log, segment.base + 2)
    with pytest.raises(PlanAgain):
        log.reader.verify_range(planned)
    assert log.reader.corrupt_ranges == ()
    assert len(stored_values(log)) == COUNT


def test_who_has_looked_at_the_end_before_it_was_cut_plans_again() -> None:
    log = filled(MemoryDisk(), COUNT, CONFIG)
    end = log.log_end_offset
    log.truncate_to(Offset(30))
    log.reader.log_end_offset = end  # as it was seen a moment ago
    with pytest.raises(PlanAgain):
        log.reader.locate(Offset(40))
