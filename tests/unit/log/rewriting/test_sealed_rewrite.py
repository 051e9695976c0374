"""The sealed rewrite of one log: small batches become large, and everything else is as it was."""

import random
from dataclasses import replace

import pyarrow as pa
import pytest

from envelope.errors import CorruptDataError, OffsetOutOfRange
from envelope.limits import KIB, MIB
from envelope.types import Compression, LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import (
    BatchFlags,
    BatchHeader,
    UnsealedBatch,
    decode,
    encode,
    encode_kept,
    iter_frames,
    read_header,
    tail_of,
    verified_batches,
    with_header,
)
from jetstream.log.format.message import find_frame, record_batch_fields
from jetstream.log.format.plain_batch_encoder import PlainRecords, encode_plain
from jetstream.log.inspection import inspect_stream
from jetstream.log.log import Log, LogConfig
from jetstream.log.rewriting.sealed_rewrite import MERGED_BYTES, rewritten
from jetstream.log.rewriting.segment_chunks import chunks_of
from jetstream.log.segments.segment import SegmentReplaced
from jetstream.log.state.rewrite_state import REWRITTEN_FILE
from tests.support.compaction import COMPACTED, append_records, compact, latest, no_pace, stored_records
from tests.support.logs import (
    DIRECTORY,
    NOW,
    Record,
    begun,
    file_content,
    filled,
    flipped,
    opened,
    overwrite,
    stored_values,
    values_batch,
)
from tests.support.memory_disk import MemoryDisk, nothing_survives
from tests.support.rewriting import rewrite

CONFIG = LogConfig(segment_bytes=12_000)


def ten_a_segment(disk: MemoryDisk, count: int = 45) -> Log:
    """A log of batches of one record, ten of them in each segment or so."""
    return filled(disk, count, CONFIG)


def headers_of(log: Log) -> list[BatchHeader]:
    """Of all batches."""
    headers: list[BatchHeader] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for frame in iter_frames(log.reader.read(offset, 1 << 20, log.log_end_offset)):
            headers.append(decode(frame)[0])
            offset = headers[-1].next
    return headers


def plain(log: Log, count: int, value: bytes, *, at: int = 1) -> None:
    """Append batches of as many equal records, a microsecond later each."""
    for _ in range(count):
        base = log.log_end_offset
        records = PlainRecords(base, TimestampUs(NOW + base), (b"orders.new",) * at, (value,) * at)
        log.writer.append_group((encode_plain(records, log.reader.last_epoch),), TimestampUs(NOW + base))
    log.writer.sync()


def sealed(log: Log) -> Log:
    """Begin a segment behind all others."""
    log.writer.roll()
    plain(log, 1, b"last")
    return log


# --- what becomes of batches ---------------------------------------------------------------------------


def test_each_sealed_segment_has_one_batch_and_all_its_records() -> None:
    disk = MemoryDisk()
    log = ten_a_segment(disk)
    before, bounds = stored_records(log), [(s.base, s.next) for s in log.reader.segments]
    active = log.reader.segments[-1]
    size = log.reader.size - active.size
    assert rewrite(disk, log) == len(bounds) - 1 > 2
    assert stored_records(log) == before
    assert [(s.base, s.next) for s in log.reader.segments] == bounds
    assert log.reader.size - active.size < size / 4
    assert log.rewritten_end == active.base
    merged = headers_of(log)[: len(bounds) - 1]
    assert [(header.base, header.next) for header in merged] == bounds[:-1]
    assert {header.flags for header in merged} == {BatchFlags.ROLL | BatchFlags.GROUP_START}
    assert [header.max_timestamp for header in merged] == [NOW + end - 1 for _, end in bounds[:-1]]
    again = opened(disk, CONFIG, full=True)
    assert stored_records(again) == before
    assert again.rewritten_end == log.rewritten_end
    assert inspect_stream(disk, DIRECTORY).healthy
    for segment in again.reader.segments[:-1]:
        table = pa.ipc.open_stream(file_content(disk, segment.path)).read_all()
        assert table.column(0).to_pylist() == list(range(segment.base, segment.next)), "by a foreign reader"


def test_what_was_rewritten_is_not_rewritten_again() -> None:
    disk = MemoryDisk()
    log = ten_a_segment(disk)
    assert rewrite(disk, log)
    calls = disk.calls
    assert rewrite(disk, log) == 0
    assert disk.calls == calls, "nor looked at"
    assert rewrite(disk, opened(disk, CONFIG)) == 0
    log = opened(disk, CONFIG)
    disk.unlink(f"{DIRECTORY}/{REWRITTEN_FILE}")
    log = opened(disk, CONFIG)
    assert log.rewritten_end == 0
    assert rewrite(disk, log) == 0, "though the mark was lost"


def test_epochs_are_not_merged_with_each_other() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    for count in (3, 1, 4):
        plain(log, count, b"v")
        log.writer.begin_epoch(LeaderEpoch(log.reader.last_epoch + 1), NOW)
    sealed(log)
    epochs = log.reader.epochs.starts
    assert rewrite(disk, log) == 1
    ranges = [(header.base, header.next, header.leader_epoch) for header in headers_of(log)]
    assert ranges == [(0, 3, 1), (3, 4, 2), (4, 8, 3), (8, 9, 4)]
    assert opened(disk, full=True).reader.epochs.starts == epochs
    for epoch in range(1, 5):
        assert log.reader.epochs.end_of(LeaderEpoch(epoch), log.log_end_offset) == (3, 4, 8, 9)[epoch - 1]


def test_merged_batches_are_as_large_as_they_are_to_be_and_no_larger() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    plain(log, 5000, b"x" * 1000)
    plain(log, 1, b"y" * (3 * MIB))
    plain(log, 3, b"z" * (300 * KIB))
    sealed(log)
    before = stored_values(log)
    large = next(bytes(frame) for frame in iter_frames(log.reader.read(Offset(5000), 1, Offset(5001))))
    assert rewrite(disk, log) == 1
    assert stored_values(log) == before
    sizes: list[int] = []
    for frame in iter_frames(log.reader.read(Offset(0), 64 * MIB, log.log_end_offset)):
        header, records = decode(frame)
        sizes.append(sum(len(value.as_py()) for value in records.column(6)))
        assert header.next - header.base == records.num_rows
        if header.base == 5000:
            assert bytes(frame) == large, "a batch that stays alone keeps its bytes"
    assert sizes[-1] == 3 * 300 * KIB
    assert sizes[-2] == 3 * MIB
    assert all(0.9 * MERGED_BYTES < size <= MERGED_BYTES for size in sizes[:-3])


def test_all_parts_of_a_record_count() -> None:
    disk, part = MemoryDisk(), bytes(10_000)
    log = begun(disk)
    for record in (
        Record(part),
        Record(b"", key=part),
        Record(b"", subject=part.decode()),
        Record(b"", headers=[("a", part), (None, None)]),
        Record(b"", headers=[(part.decode(), b"a")]),
        Record(b"", headers=[]),
        Record(None),
    ):
        append_records(log, [record] * 2)
        append_records(log, [record] * 2)
    sealed(log)
    found = rewritten(log.reader, disk, log.reader.segments[0], no_pace, 25_000)
    assert found is not None
    assert log.replace_segment(found)
    bases = [header.base for header in headers_of(log)]
    assert bases == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 28], "two to a batch, and what is small with the last"


def test_what_takes_little_on_disk_is_decoded_a_little_at_a_time() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    for number in range(40):
        records = PlainRecords(Offset(number), NOW, (b"s",), (bytes(MIB),)).to_records()
        log.writer.append_group(
            (encode(records, Offset(number), log.reader.last_epoch, Compression.ZSTD),), NOW
        )
    log.writer.sync()
    sealed(log)
    segment = log.reader.segments[0]
    assert segment.size < 100_000
    rows = [chunk.records.num_rows for chunk in chunks_of(log.reader, segment, segment.base)]
    assert sum(rows) == 40
    assert max(rows) <= 17


def test_ranges_that_compaction_has_emptied_stay_in_a_merged_batch() -> None:
    disk = MemoryDisk()
    config = replace(COMPACTED, segment_bytes=12_000)
    log = begun(disk, config)
    for turn in range(60):
        append_records(log, [Record(b"%d" % turn, key=b"k%d" % (turn % 23), timestamp=NOW + turn)])
    assert rewrite(disk, log)
    assert compact(disk, log, NOW)
    stored = stored_records(log)
    assert len(stored) < 45
    assert log.rewritten_end < log.reader.segments[-1].base, "what compaction wrote is to be looked at again"
    rewrite(disk, log)
    assert stored_records(log) == stored
    assert inspect_stream(disk, DIRECTORY).healthy
    for turn in range(60, 100):
        append_records(log, [Record(b"%d" % turn, key=b"k%d" % (turn % 23), timestamp=NOW + turn)])
    before = latest(stored_records(log))
    assert rewrite(disk, log)
    assert compact(disk, log, NOW)
    assert latest(stored_records(log)) == before
    assert stored_records(opened(disk, config, full=True)) == stored_records(log)


def test_segments_of_large_batches_are_not_written() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    plain(log, 8, b"x" * 100, at=1000)
    sealed(log)
    calls = len(disk.trace)
    assert rewrite(disk, log) == 0
    assert not [call for call in disk.trace[calls:] if ".arrows" in call and call.startswith("create")]
    assert log.rewritten_end == log.reader.segments[-1].base


def test_what_would_not_become_smaller_stays_and_leaves_no_file() -> None:
    disk, chance = MemoryDisk(), random.Random(7)
    log = begun(disk)
    for _ in range(8):
        plain(log, 1, chance.randbytes(60_000))
    sealed(log)
    content = file_content(disk, log.reader.segments[0].path)
    assert rewrite(disk, log) == 0
    assert file_content(disk, log.reader.segments[0].path) == content
    assert not [name for name in disk.listdir(DIRECTORY) if name.endswith(".new")]
    assert log.rewritten_end == 8, "and it is not tried again"


def test_damage_is_refused_and_not_given_a_new_checksum() -> None:
    disk = MemoryDisk()
    log = ten_a_segment(disk)
    found = log.reader.locate(Offset(4))
    content = flipped(file_content(disk, found.segment.path), found.entry.end - 40, 3)
    overwrite(disk, found.segment.path, content)
    with pytest.raises(CorruptDataError):
        rewrite(disk, log)
    assert log.reader.corrupt_ranges == ((4, 5),)
    assert file_content(disk, found.segment.path) == content
    assert log.failed is None
    assert not [name for name in disk.listdir(DIRECTORY) if name.endswith(".new")]


def test_an_intact_batch_that_is_not_arrow_of_ours_stops_the_rewrite() -> None:
    disk = MemoryDisk()
    log = ten_a_segment(disk)
    found = log.reader.locate(Offset(4))
    frame = bytearray(log.reader.read(Offset(4), 1, Offset(5)))
    at = find_frame(frame)
    assert at is not None
    rows = record_batch_fields(bytes(frame)).row_count
    frame[rows : rows + 8] = (2).to_bytes(8, "little")
    header = read_header(frame)
    resealed = UnsealedBatch(memoryview(frame), at.digits, header).seal(header.flags)
    content = file_content(disk, found.segment.path)
    changed = content[: found.entry.position] + bytes(resealed) + content[found.entry.end :]
    overwrite(disk, found.segment.path, changed)
    with pytest.raises(CorruptDataError, match="batch 4"):
        rewrite(disk, log)
    assert file_content(disk, found.segment.path) == changed


def test_a_batch_with_more_records_than_offsets_stops_the_rewrite() -> None:
    disk = MemoryDisk()
    log = ten_a_segment(disk, 5)
    base = log.log_end_offset
    frame = encode(values_batch([b"a", b"b"], base, NOW + 5), base, log.reader.last_epoch).seal(BatchFlags(0))
    header = replace(read_header(frame), next=Offset(base + 1))
    copy, found = with_header(frame, header), find_frame(frame)
    assert found is not None
    log.writer.append_group((UnsealedBatch(copy, found.digits, header),), NOW)
    sealed(log)
    with pytest.raises(CorruptDataError, match="more records than offsets"):
        rewrite(disk, log)


def follow(log: Log, *parts: tuple[int, bytes | None, int]) -> None:
    """Append as a follower a batch for each offset, with a record of that value or none, and a timestamp."""
    for offset, value, timestamp in parts:
        records = values_batch([value or b""], offset, timestamp)
        batch = encode(records, Offset(offset), LeaderEpoch(1))
        flags = BatchFlags.ROLL if offset == 0 else BatchFlags(0)
        header = replace(read_header(batch.seal(flags)), max_timestamp=TimestampUs(timestamp))
        kept = records if value is not None else records.slice(1)
        frame = encode_kept(kept, header, Compression.NONE)
        log.writer.append_sealed([(read_header(frame), frame)], NOW)
    log.writer.sync()


@pytest.mark.parametrize("first", [b"small", b"x" * (MERGED_BYTES - 976)])
def test_the_largest_timestamp_of_a_merged_batch_is_that_of_its_last_record(first: bytes) -> None:
    """What a follower gets of a range that compaction has emptied is a batch without records."""
    disk = MemoryDisk()
    log = opened(disk)
    follow(log, (0, first, NOW), (1, None, NOW + 5), (2, first, NOW + 7), (3, None, NOW + 9))
    follow(log, *((offset, b"v", NOW + 10) for offset in range(4, 60)), (60, None, NOW + 11))
    log.writer.roll()
    assert rewrite(disk, log) == 1
    assert list(stored_values(log)) == [0, 2, *range(4, 60)]
    assert headers_of(log)[-1].next == 61
    assert headers_of(log)[-1].max_timestamp == NOW + 10
    log.close()
    assert inspect_stream(disk, DIRECTORY).healthy


# --- who reads, follows and cuts -----------------------------------------------------------------------


def test_a_reader_with_a_lease_ends_on_the_bytes_it_began_with() -> None:
    disk = MemoryDisk()
    log = ten_a_segment(disk)
    planned = log.reader.plan_read(Offset(0), 1 << 20, log.log_end_offset)
    expected = log.reader.read_range(planned)
    file = planned.segment.acquire()
    assert rewrite(disk, log)
    assert file.read(planned.position, planned.length) == expected
    planned.segment.release()
    with pytest.raises(SegmentReplaced):
        planned.segment.acquire()


def test_any_offset_inside_a_merged_batch_is_found_and_can_be_gone_on_from() -> None:
    disk = MemoryDisk()
    log = ten_a_segment(disk)
    assert rewrite(disk, log)
    for offset in range(log.log_end_offset):
        data = log.reader.read(Offset(offset), 1, log.log_end_offset)
        header, frame = tail_of(data, Offset(offset), log.reader.last_timestamp)
        _, records = decode(frame)
        assert records.column(0).to_pylist() == list(range(offset, header.next))
        assert log.reader.offset_for_timestamp(TimestampUs(NOW + offset)) == offset


@pytest.mark.parametrize("start", range(13))
def test_a_follower_goes_on_inside_a_merged_batch(start: int) -> None:
    """As the leader sends it: the rest of that batch, then the others as they are."""
    disk, followers_disk = MemoryDisk(), MemoryDisk()
    log = ten_a_segment(disk)
    follower = opened(followers_disk, CONFIG)
    while follower.log_end_offset < start:
        follower.writer.append_sealed(
            verified_batches(log.reader.read(follower.log_end_offset, 1, Offset(start))), NOW
        )
    assert rewrite(disk, log)
    while follower.log_end_offset < log.log_end_offset:
        data = log.reader.read(follower.log_end_offset, 1, log.log_end_offset)
        batches = verified_batches(data)
        if follower.log_end_offset > batches[0][0].base:
            batches = [tail_of(data, follower.log_end_offset, log.reader.last_timestamp)]
        follower.writer.append_sealed(batches, NOW)
    follower.close()
    again = opened(followers_disk, CONFIG, full=True)
    assert stored_records(again) == stored_records(log)
    assert [segment.base for segment in again.reader.segments] == [
        segment.base for segment in log.reader.segments
    ]
    assert inspect_stream(followers_disk, DIRECTORY).healthy
    assert rewrite(followers_disk, again) <= 1, "what came merged stays as it came"


@pytest.mark.parametrize("offset", [1, 9, 12])
def test_a_log_is_truncated_before_an_offset_inside_a_merged_batch(offset: int) -> None:
    disk = MemoryDisk()
    log = ten_a_segment(disk)
    before = stored_values(log)
    assert rewrite(disk, log)
    log.truncate_before(Offset(offset), log.log_end_offset)
    kept = {at: value for at, value in before.items() if at >= offset}
    assert stored_values(log) == kept
    log.close()
    again = opened(disk, CONFIG)
    assert again.log_start_offset == offset
    assert stored_values(again) == kept
    with pytest.raises(OffsetOutOfRange):
        again.reader.read(Offset(offset - 1), 1, again.log_end_offset)


@pytest.mark.parametrize("offset", [1, 2, 11])
def test_what_begins_before_the_logs_start_is_rewritten_too(offset: int) -> None:
    disk = MemoryDisk()
    log = ten_a_segment(disk)
    log.truncate_before(Offset(offset), log.log_end_offset)
    before = stored_records(log)
    assert rewrite(disk, log)
    assert stored_records(log) == before
    assert log.log_start_offset == offset


def test_a_log_that_is_cut_inside_a_merged_batch_loses_all_of_it_and_goes_on() -> None:
    disk = MemoryDisk()
    log = ten_a_segment(disk)
    assert rewrite(disk, log)
    base = log.reader.locate(Offset(14)).entry.base
    log.truncate_to(Offset(14))
    assert log.log_end_offset == log.rewritten_end == base < 14
    assert opened(disk, CONFIG).rewritten_end == base
    log.writer.begin_epoch(LeaderEpoch(2), NOW)
    for _ in range(30):
        plain(log, 1, b"v")
    before = stored_records(log)
    assert rewrite(disk, log) > 1
    assert stored_records(opened(disk, CONFIG, full=True)) == before


def test_a_log_that_begins_anew_has_not_been_rewritten() -> None:
    disk = MemoryDisk()
    log = ten_a_segment(disk)
    assert rewrite(disk, log)
    log.reset_to(Offset(3))
    assert log.rewritten_end == 0
    assert opened(disk, CONFIG).rewritten_end == 0


def test_a_mark_beyond_the_logs_end_is_taken_back_durably() -> None:
    disk = MemoryDisk()
    log = ten_a_segment(disk, 5)
    log.note_rewritten(Offset(40))
    log.close()
    log = begun(disk, CONFIG)
    assert log.rewritten_end == 5
    plain(log, 50, b"v")
    assert opened(disk.power_loss(nothing_survives), CONFIG).rewritten_end == 5


def test_without_a_usable_mark_all_is_looked_at_again() -> None:
    disk = MemoryDisk()
    log = ten_a_segment(disk)
    assert rewrite(disk, log)
    log.close()
    overwrite(disk, f"{DIRECTORY}/{REWRITTEN_FILE}", b"nonsense")
    again = opened(disk, CONFIG)
    assert again.rewritten_end == 0
    assert "the file of the sealed rewrite is unusable" in again.recovery.problems[0]
