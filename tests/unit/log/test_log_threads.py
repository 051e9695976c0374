"""Readers on one thread while the writer appends, rolls and removes on another."""

import threading
from collections.abc import Callable

import pytest

from envelope.errors import CorruptDataError, OffsetOutOfRange, UnavailableError
from envelope.types import Offset
from jetstream.log.format.batch import decode, iter_frames
from jetstream.log.log import Log, LogConfig
from jetstream.log.reader import FileRange, LogReader
from jetstream.log.segments.corrupt_ranges import CorruptRanges, OffsetRange
from jetstream.log.segments.loaded_indexes import LoadedIndexes
from jetstream.log.segments.segment import Segment
from tests.support.logs import DIRECTORY, NOW, SMALL, append, begun, file_content, filled, opened, overwrite
from tests.support.memory_disk import MemoryDisk

BATCHES = 600


def write(log: Log, done: threading.Event) -> None:
    try:
        for number in range(BATCHES):
            append(log, [b"%d" % offset for offset in range(number * 3, number * 3 + 3)], NOW + number)
            log.writer.sync()
            if number % 50 == 49:
                log.checkpoint()
                log.truncate_before(Offset(number - number % 3), log.log_end_offset)
    finally:
        done.set()


def check_reads(log: Log) -> int:
    """Read once around the log; return how many records were seen."""
    seen = 0
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            body = log.reader.read(offset, 4000, log.log_end_offset)
        except (OffsetOutOfRange, UnavailableError):
            offset = log.log_start_offset  # removed meanwhile
            continue
        for frame in iter_frames(body):
            header, records = decode(frame)
            assert header.base <= offset < header.next
            values = records.column(6).to_pylist()
            assert values == [b"%d" % number for number in range(header.base, header.next)]
            offset = header.next
            seen += len(values)
    return seen


def test_readers_see_whole_batches_in_order_while_the_writer_works() -> None:
    log = begun(MemoryDisk(), LogConfig(segment_bytes=20_000))
    done = threading.Event()
    writer = threading.Thread(target=write, args=(log, done))
    writer.start()
    seen = 0
    while not done.is_set():
        seen += check_reads(log)
    writer.join()
    assert log.failed is None
    assert log.log_end_offset == 3 * BATCHES
    assert check_reads(log) == 3 * BATCHES - log.log_start_offset
    assert seen > 0


# --- two threads at the same moment --------------------------------------------------------------------


class InterruptibleRanges(CorruptRanges):
    """Lets another thread act once, when somebody has looked at the ranges and goes on with them."""

    then: Callable[[], None] | None = None

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        found = super().ranges
        act, self.then = self.then, None
        if act is not None:
            on_a_thread(act)
        return found


class InterruptibleReader(LogReader):
    """Lets another thread act once, when somebody is about to look at the segments."""

    before: Callable[[], None] | None = None
    _tuple: tuple[Segment, ...] = ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        act, self.before = self.before, None
        if act is not None:
            on_a_thread(act)
        return self._tuple

    @segments.setter
    def segments(self, segments: tuple[Segment, ...]) -> None:
        self._tuple = segments


def on_a_thread(act: Callable[[], None]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def damaged(*offsets: int) -> MemoryDisk:
    """Return a disk with a log of eight one-record batches, two in a segment, some of them damaged."""
    disk = MemoryDisk()
    log = filled(disk, 8)
    places = [log.reader.locate(Offset(offset)) for offset in offsets]
    log.close()
    for place in places:
        content = bytearray(file_content(disk, place.segment.path))
        content[place.entry.position + 200 : place.entry.position + 300] = bytes(100)
        overwrite(disk, place.segment.path, bytes(content))
    return disk


def test_damage_that_is_found_while_the_log_is_truncated_stays_refused() -> None:
    log = opened(damaged(4), SMALL)
    log.reader.corrupt = ranges = InterruptibleRanges(DIRECTORY)
    file_range = log.reader.plan_read(Offset(4), 1, Offset(8))

    def find_damage() -> None:
        with pytest.raises(CorruptDataError):
            log.reader.verify_range(file_range)

    log.reader.indexes = LoadedIndexes(ranges.add)
    ranges.then = find_damage
    log.truncate_before(Offset(2), Offset(8))
    assert (log.log_start_offset, log.reader.corrupt_ranges) == (2, ((4, 5),))


def test_an_offset_whose_segment_is_removed_while_it_is_looked_for_is_out_of_range() -> None:
    log = opened(damaged(), SMALL)
    reader = InterruptibleReader(DIRECTORY, log.reader.segments)
    reader.log_end_offset = log.log_end_offset
    log.reader = log.writer._reader = reader
    reader.before = lambda: log.truncate_before(Offset(4), Offset(8))
    with pytest.raises(OffsetOutOfRange):
        reader.locate(Offset(1))


def test_damage_is_refused_before_the_entries_that_leave_it_out_are_used() -> None:
    log = opened(damaged(2), SMALL)
    log.reader.corrupt = ranges = InterruptibleRanges(DIRECTORY)
    log.reader.indexes = LoadedIndexes(ranges.add)
    planned = log.reader.plan_read(Offset(2), 1, Offset(8))
    looked: list[FileRange] = []

    def look_before_it_is_refused() -> None:
        looked.append(log.reader.plan_read(Offset(2), 1, Offset(8), load=False))

    ranges.then = look_before_it_is_refused
    with pytest.raises(CorruptDataError):
        log.reader.verify_range(planned)
    assert looked == [planned], "by the entries from before, and it would be verified like this one"
    with pytest.raises(CorruptDataError):
        log.reader.plan_read(Offset(2), 1, Offset(8), load=False)
