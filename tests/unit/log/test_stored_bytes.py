"""How far so many stored bytes reach: always what adding up every batch finds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import CorruptDataError, OffsetOutOfRange, UnavailableError
from envelope.types import FilePosition, LeaderEpoch, Offset
from jetstream.log.format.plain_batch_encoder import PlainRecords, encode_plain
from jetstream.log.format.schema import END_OF_STREAM
from jetstream.log.log import Log, LogConfig
from jetstream.log.search import batches_within, joined
from jetstream.log.segments.index import ENTRY_BYTES, HEADER_BYTES, StoredBatches
from tests.support.counting_disk import CountingDisk
from tests.support.log_life import added_up, batches_of
from tests.support.logs import NOW, SMALL, append, begun, file_content, filled, flipped, opened, overwrite
from tests.support.memory_disk import MemoryDisk

END = 9
HUGE = 2**63 - 1


def within(log: Log, offset: int, max_bytes: int, end: int | None = None) -> StoredBatches:
    return batches_within(
        log.reader, Offset(offset), max_bytes, log.log_end_offset if end is None else Offset(end)
    )


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=12),
    st.sampled_from((SMALL, LogConfig())),
    st.data(),
)
def test_batches_are_counted_across_segments_and_epochs(
    sizes: list[int], config: LogConfig, data: st.DataObject
) -> None:
    log = begun(MemoryDisk(), config)
    for number, size in enumerate(sizes):
        if number == len(sizes) // 2:
            log.writer.begin_epoch(LeaderEpoch(log.reader.last_epoch + 1), NOW)
        append(log, [b"v" * (100 * size)] * size)
    log.writer.sync()
    batches = batches_of(log)
    offset = data.draw(st.integers(0, log.log_end_offset - 1))
    end = data.draw(st.integers(offset, log.log_end_offset))
    whole = sum(batch.bytes for batch in batches)
    max_bytes = data.draw(st.integers(1, whole + 1) | st.just(HUGE))
    assert within(log, offset, max_bytes, end) == added_up(batches, offset, max_bytes, end)


def test_one_byte_decides() -> None:
    log = filled(MemoryDisk(), END)
    sizes = [batch.bytes for batch in batches_of(log)]
    for count in range(1, END + 1):
        whole = sum(sizes[:count])
        assert within(log, 0, whole) == (count, whole)
        assert within(log, 0, whole - 1) == (max(count - 1, 1), sum(sizes[: max(count - 1, 1)]))


def test_an_offset_inside_a_batch_counts_it_whole() -> None:
    log = begun(MemoryDisk())
    append(log, [b"a", b"b", b"c"])
    log.writer.sync()
    assert within(log, 2, 1) == within(log, 0, 1) == (3, batches_of(log)[0].bytes)


def test_a_batch_that_reaches_beyond_the_end_is_not_counted() -> None:
    log = begun(MemoryDisk())
    append(log, [b"a", b"b"])
    append(log, [b"c", b"d"])
    log.writer.sync()
    assert within(log, 0, HUGE, 3).next == 2
    assert within(log, 2, HUGE, 3) == (2, 0)


def test_an_offset_outside_the_log_is_out_of_range() -> None:
    log = filled(MemoryDisk(), END)
    log.truncate_before(Offset(5), Offset(END))
    with pytest.raises(OffsetOutOfRange):
        within(log, 4, HUGE)
    with pytest.raises(OffsetOutOfRange):
        within(log, END, HUGE, END + 1)
    assert within(log, 5, HUGE).next == END


def test_a_closed_log_tells_nothing() -> None:
    log = filled(MemoryDisk(), END)
    for segment in log.reader.segments:
        segment.unload_index()
    log.close()
    with pytest.raises(UnavailableError):
        within(log, 1, 1)


# --- what it costs -----------------------------------------------------------------------------------------


def test_of_a_thousand_batches_two_indexes_are_read_and_no_batch() -> None:
    disk = CountingDisk()
    log = begun(disk, LogConfig(segment_bytes=100_000))
    for _ in range(1000):
        plain = PlainRecords(log.log_end_offset, NOW, (b"orders.new",) * 10, (b"value",) * 10)
        log.writer.append_group((encode_plain(plain, log.reader.last_epoch),), NOW)
    log.writer.sync()
    batches = batches_of(log)
    log.close()
    log = opened(disk)
    segments = log.reader.segments
    assert len(segments) > 8
    disk.read_bytes.clear()
    stop = segments[-3].base + 25
    wanted = sum(batch.bytes for batch in batches if 10 < batch.next <= stop)
    assert within(log, 15, wanted) == (stop - 5, wanted)
    sealed = (segments[0], segments[-3])
    assert {path for path in disk.read_bytes if path.endswith(".index")} == {
        segment.index_path for segment in sealed
    }
    for segment in sealed:
        entries = len(segment.load_index())
        assert disk.read_bytes[segment.index_path] == HEADER_BYTES + ENTRY_BYTES * entries
        # The last batch tells whether the index file fits its segment.
        last = segment.load_index()[entries - 1].length
        assert disk.read_bytes[segment.path] == last + len(END_OF_STREAM)
    disk.read_bytes.clear()
    assert within(log, 0, HUGE).next == log.log_end_offset
    assert not disk.read_bytes, "segments that are taken whole count by their length"


# --- what happens meanwhile --------------------------------------------------------------------------------


def test_what_is_being_appended_does_not_count() -> None:
    log = filled(MemoryDisk(), END)
    active = log.reader.segments[-1]
    active.data_end = FilePosition(active.data_end + 100)  # as its writer does before it tells where it ends
    assert within(log, 0, HUGE) == (END, sum(batch.bytes for batch in batches_of(log)))
    assert within(log, active.base, HUGE).bytes == batches_of(log)[-1].bytes


def test_what_retention_removes_meanwhile_is_told() -> None:
    disk = CountingDisk()
    filled(disk, END).close()
    log = opened(disk, SMALL)
    disk.trigger = ".index"
    disk.before_read = lambda: log.truncate_before(Offset(4), log.log_end_offset)
    with pytest.raises(OffsetOutOfRange):
        within(log, 1, HUGE)
    assert disk.before_read is None


# --- damage ------------------------------------------------------------------------------------------------


def damaged(row: int, *, knows: bool, config: LogConfig = SMALL) -> Log:
    """Return a log of nine batches of one record of which one is damaged, as it ``knows`` or not."""
    disk = MemoryDisk()
    log = filled(disk, END, config)
    found = log.reader.locate(Offset(row))
    entry, path = found.entry, found.segment.path
    log.close()
    overwrite(disk, path, flipped(file_content(disk, path), entry.end - 9, 3))
    return opened(disk, config, full=knows)


@pytest.mark.parametrize("config", [SMALL, LogConfig()])
@pytest.mark.parametrize("row", [2, 3, 4])
def test_batches_end_before_what_is_known_to_be_damaged(row: int, config: LogConfig) -> None:
    log = damaged(row, knows=True, config=config)
    assert log.reader.corrupt_ranges == ((row, row + 1),)
    assert within(log, 0, HUGE).next == row
    assert within(log, row + 1, HUGE).next == END
    for max_bytes in (1, HUGE):
        with pytest.raises(CorruptDataError):
            within(log, row, max_bytes)


def test_damage_that_is_not_known_yet_is_for_the_reader_to_find() -> None:
    log = damaged(2, knows=False)
    assert within(log, 0, HUGE).next == END


def test_damage_that_an_index_is_derived_around_ends_them() -> None:
    """The index file of the second segment is gone, and its first batch is damaged."""
    log = damaged(2, knows=False)
    segment = log.reader.segments[1]
    segment.unload_index()
    segment.index_doubtful = True
    first = within(log, 0, 1).bytes
    assert within(log, 0, 3 * first + 10) == (2, 2 * first)
    assert log.reader.corrupt_ranges == ((2, 3),)


# --- the putting together ----------------------------------------------------------------------------------


def test_pieces_are_joined_as_long_as_they_fit() -> None:
    pieces = {
        0: StoredBatches(Offset(3), 30),
        3: StoredBatches(Offset(5), 20),
        5: StoredBatches(Offset(9), 40),
    }

    def reach(max_bytes: int, end: int = 9) -> StoredBatches:
        return joined(Offset(0), max_bytes, Offset(end), lambda taken: pieces[taken.next])

    assert [reach(limit) for limit in (1, 30, 49, 50, 89, 90)] == [
        (3, 30), (3, 30), (3, 30), (5, 50), (5, 50), (9, 90),
    ]  # fmt: skip
    assert reach(90, end=5) == (5, 50)
    assert reach(90, end=0) == (0, 0)
