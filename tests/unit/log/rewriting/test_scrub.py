"""A sealed segment is read again, from the medium, and whatever is damaged in it is refused from then on."""

import pytest

from envelope.errors import CorruptDataError, FsyncFailed, StreamOffline, UnavailableError
from envelope.types import Offset
from jetstream.log.log import Log, LogConfig
from jetstream.log.rewriting.segment_chunks import check_segment
from jetstream.log.segments.segment import Segment
from tests.support.compaction import no_pace
from tests.support.logs import append, file_content, filled, flipped, overwrite, stored_values
from tests.support.memory_disk import Fault, FaultKind, MemoryDisk

COUNT = 9


def place(segment: Segment, offset: int) -> int:
    """Return a position in the middle of the batch that holds ``offset``."""
    index = segment.index
    assert index is not None
    row = index.find(Offset(offset))
    return int(index.positions[row]) + int(index.lengths[row]) // 2


def damage(disk: MemoryDisk, segment: Segment, *offsets: int) -> bytes:
    """Flip a bit of each batch, behind the log's back; return the file as it was."""
    good = content = file_content(disk, segment.path)
    for offset in offsets:
        content = flipped(content, place(segment, offset), 3)
    overwrite(disk, segment.path, content)
    return good


def scrubbed(log: Log) -> list[int]:
    """Check every sealed segment; return the bases of those that are damaged."""
    found = []
    for segment in log.reader.segments[:-1]:
        try:
            check_segment(log.reader, segment, no_pace)
        except CorruptDataError:
            found.append(int(segment.base))
    return found


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def log(disk: MemoryDisk) -> Log:
    """Of nine batches of one record, two in each segment."""
    log = filled(disk, COUNT)
    assert [segment.base for segment in log.reader.segments] == [0, 2, 4, 6, 8]
    return log


def test_a_log_that_is_whole_stays_as_it_is(log: Log) -> None:
    assert scrubbed(log) == []
    assert log.reader.corrupt_ranges == ()
    assert len(stored_values(log)) == COUNT


def test_every_damaged_batch_of_a_segment_is_refused_at_once(disk: MemoryDisk, log: Log) -> None:
    damage(disk, log.reader.segments[1], 2, 3)
    damage(disk, log.reader.segments[3], 7)
    assert scrubbed(log) == [2, 6]
    assert log.reader.corrupt_ranges == ((2, 4), (7, 8))
    assert sorted(stored_values(log)) == [0, 1, 4, 5, 6, 8]


def test_what_is_damaged_behind_what_is_refused_already_is_found(disk: MemoryDisk) -> None:
    log = filled(disk, 12, LogConfig(segment_bytes=6000))
    segment = log.reader.segments[0]
    assert segment.next >= 5
    damage(disk, segment, 1)
    assert scrubbed(log) == [0]
    assert scrubbed(log) == []
    damage(disk, segment, 3)
    assert scrubbed(log) == [0]
    assert log.reader.corrupt_ranges == ((1, 2), (3, 4))


def test_the_medium_is_read_not_the_page_cache(disk: MemoryDisk, log: Log) -> None:
    segment = log.reader.segments[0]
    good = damage(disk, segment, 1)
    disk.faults = {disk.calls + call: Fault(FaultKind.SYNC_ERROR) for call in range(1, 9)}
    with pytest.raises(FsyncFailed):
        overwrite(disk, segment.path, good)  # programs see it all the same
    disk.faults = {}
    assert file_content(disk, segment.path) == good
    assert scrubbed(log) == [0]
    assert log.reader.corrupt_ranges == ((1, 2),)


def test_a_file_that_has_become_shorter_is_damaged(disk: MemoryDisk, log: Log) -> None:
    segment = log.reader.segments[1]
    overwrite(disk, segment.path, file_content(disk, segment.path)[: place(segment, 3)])
    assert scrubbed(log) == [2]
    assert log.reader.corrupt_ranges == ((3, 4),)


def test_what_lies_below_the_start_of_the_log_is_not_looked_at(disk: MemoryDisk) -> None:
    log = filled(disk, 0)
    for values in ([b"0", b"1"], [b"2", b"3"], [b"4", b"5"]):
        append(log, values)
        log.writer.sync()
    assert log.reader.segments[0].next == 4
    log.truncate_before(Offset(3), log.log_end_offset)
    good = damage(disk, log.reader.segments[0], 0)
    assert scrubbed(log) == []
    overwrite(disk, log.reader.segments[0].path, good)
    damage(disk, log.reader.segments[0], 3)
    assert scrubbed(log) == [0]
    assert log.reader.corrupt_ranges == ((2, 4),)


def test_a_segment_that_is_gone_is_given_up(log: Log) -> None:
    segment = log.reader.segments[0]
    log.truncate_before(Offset(2), log.log_end_offset)
    with pytest.raises(UnavailableError):
        check_segment(log.reader, segment, no_pace)


def test_a_stopping_node_is_not_waited_for(log: Log) -> None:
    def stopping(size: int) -> None:
        assert size > 0
        raise StreamOffline("the node is stopping")

    with pytest.raises(StreamOffline):
        check_segment(log.reader, log.reader.segments[0], stopping)
