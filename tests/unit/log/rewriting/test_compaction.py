"""Compaction of one log: what stays, what goes, and that everything else is as it was."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest

from envelope.errors import CorruptDataError
from envelope.types import LeaderEpoch, Offset
from jetstream.log.format.batch import decode, iter_frames, tail_of, verified_batches
from jetstream.log.inspection import inspect_stream
from jetstream.log.log import Log
from jetstream.log.reader import read_tail
from jetstream.log.rewriting.latest_offsets import ENTRY_BYTES
from jetstream.log.segments.segment import SegmentReplaced
from jetstream.log.state.compaction_state import COMPACTION_FILE, CompactionState
from tests.support.compaction import COMPACTED, append_records, compact, latest, stored_records
from tests.support.logs import DIRECTORY, NOW, Record, begun, file_content, flipped, opened, overwrite
from tests.support.memory_disk import MemoryDisk


def keyed(disk: MemoryDisk, count: int = 30, keys: int = 3) -> Log:
    """A log with a record a batch, their keys in turn, two batches a segment."""
    log = begun(disk, COMPACTED)
    append_keyed(log, range(count), keys)
    return log


def append_keyed(log: Log, turns: range, keys: int = 3) -> None:
    for turn in turns:
        append_records(log, [Record(b"%d" % turn, key=b"k%d" % (turn % keys), timestamp=NOW + turn)])


def frames_of(log: Log) -> dict[int, bytes]:
    """The batches' bytes by their bases."""
    data = log.reader.read(Offset(0), 1 << 20, log.log_end_offset)
    return {decode(frame)[0].base: bytes(frame) for frame in iter_frames(data)}


def test_the_last_record_of_each_key_stays_where_it_was() -> None:
    disk = MemoryDisk()
    log = keyed(disk)
    before, size = stored_records(log), log.reader.size
    assert compact(disk, log, NOW)
    after = stored_records(log)
    assert latest(after) == latest(before)
    assert after.items() <= before.items()
    assert len(after) < 10
    assert log.reader.size < size
    again = opened(disk, COMPACTED, full=True)
    assert stored_records(again) == after
    assert again.compaction == log.compaction
    assert inspect_stream(disk, DIRECTORY).healthy
    for segment in again.reader.segments[:-1]:
        table = pa.ipc.open_stream(file_content(disk, segment.path)).read_all()
        assert set(table.column(0).to_pylist()) <= set(after), "a foreign reader opens it as it lies"


def test_a_log_that_was_truncated_at_its_end_is_compacted_from_there() -> None:
    disk = MemoryDisk()
    log = keyed(disk, 30)
    log.truncate_before(log.log_end_offset, log.log_end_offset)
    append_keyed(log, range(30, 60))
    before = stored_records(log)
    assert compact(disk, log, NOW)
    assert latest(stored_records(log)) == latest(before)
    assert len(stored_records(log)) < 10


def test_a_log_of_which_nothing_goes_is_not_written() -> None:
    disk = MemoryDisk()
    log = keyed(disk, keys=100)
    calls = len(disk.trace)
    assert compact(disk, log, NOW)
    assert not [call for call in disk.trace[calls:] if ".arrows" in call and call.startswith("create")]
    assert not compact(disk, log, NOW), "and it is clean now"


def test_a_batch_of_which_nothing_goes_keeps_its_bytes() -> None:
    disk = MemoryDisk()
    log = begun(disk, replace(COMPACTED, segment_bytes=10_000))
    for first in ("x", "a", "b"):
        append_records(log, [Record(b"1", key=first.encode()), Record(b"2", key=b"y" + first.encode())])
    append_records(log, [Record(key=b"x"), Record(key=b"z")])
    log.writer.roll()
    append_records(log, [Record()])
    frames = frames_of(log)
    assert compact(disk, log, NOW)
    after = frames_of(log)
    assert after[0] != frames.pop(0)
    assert frames.items() <= after.items()


def test_epochs_without_records_keep_an_empty_batch_each() -> None:
    disk = MemoryDisk()
    log = begun(disk, replace(COMPACTED, segment_bytes=100_000))
    for _ in range(3):
        append_records(log, [Record(key=b"k")])
        append_records(log, [Record(key=b"k")])
        log.writer.begin_epoch(LeaderEpoch(log.reader.last_epoch + 1), NOW)
    append_records(log, [Record(b"last", key=b"k")])
    log.writer.roll()
    append_records(log, [Record()])
    assert compact(disk, log, NOW)
    ranges = [
        (batch.base, batch.next, batch.leader_epoch, batch.records)
        for segment in inspect_stream(disk, DIRECTORY).segments[:1]
        for batch in segment.batches
    ]
    assert ranges == [(0, 2, 1, 0), (2, 4, 2, 0), (4, 6, 3, 0), (6, 7, 4, 1)]
    assert inspect_stream(disk, DIRECTORY).healthy


def test_a_reader_with_a_lease_ends_on_the_bytes_it_began_with() -> None:
    disk = MemoryDisk()
    log = keyed(disk)
    planned = log.reader.plan_read(Offset(0), 1 << 20, log.log_end_offset)
    expected = log.reader.read_range(planned)
    file = planned.segment.acquire()
    assert compact(disk, log, NOW)
    assert file.read(planned.position, planned.length) == expected
    planned.segment.release()
    for read in (planned.segment.acquire, lambda: log.reader.read_range(planned)):
        with pytest.raises(SegmentReplaced):
            read()
    assert log.reader.read(Offset(0), 1 << 20, log.log_end_offset) != expected


class WatchedDisk(MemoryDisk):
    """Lets somebody look before and after each rename."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Callable[[], None] = lambda: None

    def rename(self, source: str, target: str) -> None:
        self.look()
        super().rename(source, target)
        self.look()


def test_whoever_reads_while_a_segment_is_replaced_reads_one_file_or_the_other() -> None:
    disk = WatchedDisk()
    log = keyed(disk)
    before = stored_records(log)
    planned = log.reader.plan_read(Offset(0), 1 << 20, log.log_end_offset)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        found = stored_records(log)
        assert found.items() <= before.items()
        assert latest(found) == latest(before)
        try:
            assert log.reader.read_range(planned) == expected
        except SegmentReplaced:
            assert log.reader.plan_read(Offset(0), 1, log.log_end_offset).segment is not planned.segment

    expected = log.reader.read_range(planned)
    disk.look = look
    assert compact(disk, log, NOW)
    assert looks > 10


def test_memory_is_bounded_and_several_passes_do_what_one_does() -> None:
    disk, other_disk = MemoryDisk(), MemoryDisk()
    log, other = keyed(disk, 60, 20), keyed(other_disk, 60, 20)
    assert compact(disk, log, NOW)
    ends: list[Offset] = []
    while compact(other_disk, other, NOW, key_bytes=7 * ENTRY_BYTES):
        ends.append(other.compaction.cleaned_end)
    assert ends == sorted(set(ends))
    assert len(ends) > 5
    assert all(end - start <= 10 for start, end in pairwise(ends)), "seven keys, and what a chunk has more"
    assert stored_records(other) == stored_records(log)


def test_damage_is_refused_and_not_given_a_new_checksum() -> None:
    disk = MemoryDisk()
    log = keyed(disk)
    entry = log.reader.locate(Offset(4)).entry
    path = log.reader.locate(Offset(4)).segment.path
    content = flipped(file_content(disk, path), entry.end - 40, 3)
    overwrite(disk, path, content)
    with pytest.raises(CorruptDataError):
        compact(disk, log, NOW)
    assert log.reader.corrupt_ranges == ((4, 5),)
    assert file_content(disk, path) == content
    assert log.failed is None


def test_a_batch_can_be_cut_before_any_of_its_offsets() -> None:
    disk = MemoryDisk()
    log = keyed(disk, 40, 7)
    assert compact(disk, log, NOW)
    stored = stored_records(log)
    for offset in range(log.log_end_offset):
        data = log.reader.read(Offset(offset), 1, log.log_end_offset)
        header, frame = tail_of(data, Offset(offset), log.reader.last_timestamp)
        found, records = decode(frame)
        assert (found.base, found.next, found.leader_epoch) == (offset, header.next, header.leader_epoch)
        assert records.column(0).to_pylist() == [at for at in stored if offset <= at < header.next]


def test_a_follower_goes_on_where_all_that_is_left_of_a_batch_is_before_its_end() -> None:
    """Its last record is later than the last that compaction has left in the leader's batch."""
    disk, followers_disk = MemoryDisk(), MemoryDisk()
    log = begun(disk, replace(COMPACTED, segment_bytes=8000))
    follower = opened(followers_disk, COMPACTED)
    append_records(log, [Record(b"kept")])
    for turn in range(1, 30):
        append_records(log, [Record(b"%d" % turn, key=b"k", timestamp=NOW + turn)])
    while follower.log_end_offset < 3:
        data = log.reader.read(follower.log_end_offset, 1, Offset(3))
        follower.writer.append_sealed(verified_batches(data), NOW)
    assert compact(disk, log, NOW)
    found = log.reader.locate(Offset(3)).entry
    assert (found.base, found.max_timestamp) == (0, NOW)
    follower.writer.append_sealed([read_tail(log.reader, Offset(3), log.log_end_offset)], NOW)
    while follower.log_end_offset < log.log_end_offset:
        data = log.reader.read(follower.log_end_offset, 1, log.log_end_offset)
        follower.writer.append_sealed(verified_batches(data), NOW)
    follower.close()
    assert inspect_stream(followers_disk, DIRECTORY).healthy
    again = opened(followers_disk, COMPACTED, full=True)
    assert latest(stored_records(again)) == latest(stored_records(log))


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_follower_goes_on_where_what_follows_such_a_batch_is_compacted_before_it_asks(
    is_empty: bool,
) -> None:
    """Or where another replica leads by then, on which that was done already."""
    disk = MemoryDisk()
    config = replace(COMPACTED, segment_bytes=1 << 20)
    log, follower = begun(disk, config), opened(MemoryDisk(), config)
    append_records(log, [Record(b"kept", timestamp=NOW)])
    for turn in (1, 2):
        append_records(log, [Record(b"%d" % turn, key=b"k", timestamp=NOW + turn)])
    log.writer.roll()
    kept = [] if is_empty else [Record(b"kept", timestamp=NOW + 3)]
    append_records(log, [*kept, Record(b"again", key=b"k", timestamp=NOW + 4)])
    log.writer.roll()
    append_records(log, [Record(b"last", key=b"other", timestamp=NOW + 5)])
    for offset in (0, 1):
        data = log.reader.read(Offset(offset), 1, Offset(offset + 1))
        follower.writer.append_sealed(verified_batches(data), NOW)
    assert compact(disk, log, NOW)
    assert log.reader.locate(Offset(2)).entry[:2] == (0, 3)
    follower.writer.append_sealed([read_tail(log.reader, Offset(2), log.log_end_offset)], NOW)
    append_records(log, [Record(b"once more", key=b"k", timestamp=NOW + 6)])
    log.writer.roll()
    append_records(log, [Record(b"end", timestamp=NOW + 7)])
    assert compact(disk, log, NOW)
    while follower.log_end_offset < log.log_end_offset:
        data = log.reader.read(follower.log_end_offset, 1, log.log_end_offset)
        follower.writer.append_sealed(verified_batches(data), NOW)
    assert latest(stored_records(follower)) == latest(stored_records(log))


def test_a_follower_copies_a_compacted_log_and_goes_on() -> None:
    disk, followers_disk = MemoryDisk(), MemoryDisk()
    log = keyed(disk)
    follower = opened(followers_disk, COMPACTED)
    assert compact(disk, log, NOW)
    while follower.log_end_offset < log.log_end_offset:
        data = log.reader.read(follower.log_end_offset, 1, log.log_end_offset)
        follower.writer.append_sealed(verified_batches(data), NOW)
    follower.writer.sync()
    append_records(log, [Record(key=b"k0", timestamp=NOW + 30)])
    follower.writer.append_sealed(verified_batches(log.reader.read(Offset(30), 1, Offset(31))), NOW)
    follower.close()
    again = opened(followers_disk, COMPACTED, full=True)
    assert stored_records(again) == stored_records(log)
    assert [segment.base for segment in again.reader.segments] == [
        segment.base for segment in log.reader.segments
    ]


def test_a_log_that_is_cut_is_not_clean_above_the_cut() -> None:
    disk = MemoryDisk()
    log = keyed(disk)
    assert compact(disk, log, NOW)
    assert log.compaction.cleaned_end > 20
    base = log.reader.locate(Offset(20)).entry.base
    log.truncate_to(Offset(20))
    assert log.compaction.cleaned_end == base == log.log_end_offset
    assert opened(disk, COMPACTED).compaction == log.compaction


def test_a_log_that_begins_anew_knows_of_what_it_is_copied_from() -> None:
    disk = MemoryDisk()
    log = keyed(disk)
    assert compact(disk, log, NOW)
    log.reset_to(Offset(5), Offset(17))
    assert log.compaction == CompactionState(purged_end=Offset(17))
    assert opened(disk, COMPACTED).compaction == log.compaction
    log.reset_to(Offset(6))
    assert opened(disk, COMPACTED).compaction == log.compaction == CompactionState()


def test_without_a_usable_state_file_tombstones_may_be_missing_anywhere() -> None:
    disk = MemoryDisk()
    log = keyed(disk)
    assert compact(disk, log, NOW)
    log.close()
    overwrite(disk, f"{DIRECTORY}/{COMPACTION_FILE}", b"nonsense")
    again = opened(disk, COMPACTED)
    assert again.compaction == CompactionState(purged_end=Offset(30))
    assert "the compaction file is unusable" in again.recovery.problems[0]
