"""What a follower does: sealed batches, and cutting back."""

import contextlib

import pytest

from envelope.errors import CorruptDataError, DiskFull, OffsetOutOfRange
from envelope.limits import SEGMENT_BYTES_MIN
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import BatchFlags, encode, iter_frames, read_header, verified_batches
from jetstream.log.inspection import ProblemKind, inspect_stream
from jetstream.log.log import Log, LogConfig
from jetstream.log.segments.scan import FOLLOWED_GROUPS_MAX
from tests.support.logs import (
    DIRECTORY,
    NOW,
    SMALL,
    Record,
    append,
    begun,
    file_content,
    filled,
    opened,
    overwrite,
    records_batch,
    stored_values,
    values_batch,
)
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    everything_survives,
    nothing_survives,
    random_survival,
)

# --- following -------------------------------------------------------------------------------------------


def frames_of(log: Log, start: int = 0) -> list[bytes]:
    """Return the batches of a log from the one that holds ``start``."""
    frames: list[bytes] = []
    offset = Offset(start)
    while offset < log.log_end_offset:
        for frame in iter_frames(log.reader.read(offset, 1 << 20, log.log_end_offset)):
            frames.append(bytes(frame))
            offset = read_header(frame).next
    return frames


def leading(count: int = 5, config: LogConfig = SMALL) -> Log:
    """Return a leader's log of two reigns."""
    leader = filled(MemoryDisk(), count, config)
    leader.writer.begin_epoch(LeaderEpoch(2), NOW)
    append(leader, [b"%d" % count], NOW + count)
    leader.writer.sync()
    return leader


def assert_equal_files(follower: Log, leader: Log) -> None:
    for segment in leader.reader.segments:
        content = file_content(leader._disk, segment.path)
        assert file_content(follower._disk, segment.path) == content
    assert len(follower.reader.segments) == len(leader.reader.segments)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
def test_a_follower_has_equal_files_however_much_it_is_given_at_once(count: int) -> None:
    leader = leading()
    frames = frames_of(leader)
    follower = opened(MemoryDisk())
    for start in range(0, len(frames), count):
        follower.writer.append_sealed(verified_batches(b"".join(frames[start : start + count])), NOW)
        follower.writer.sync()
    assert_equal_files(follower, leader)
    assert follower.reader.last_epoch == 2
    assert follower.reader.epochs.end_of(LeaderEpoch(1), follower.log_end_offset) == 5


def test_a_follower_has_equal_files_though_its_leader_seals_segments_early() -> None:
    """By retention and by a truncation: each is where the leader's next batch says so, and nowhere else."""
    config = LogConfig(segment_bytes=64 * SEGMENT_BYTES_MIN, retention_messages=3)
    leader, follower = begun(MemoryDisk(), config), opened(MemoryDisk(), config)
    sent: list[bytes] = []
    for step in range(12):
        append(leader, [bytes(SEGMENT_BYTES_MIN)])
        leader.writer.sync()
        sent.append(frames_of(leader, step)[-1])
        follower.writer.append_sealed(verified_batches(sent[-1]), NOW)
        follower.writer.sync()
        end = leader.log_end_offset
        if step in (5, 8):
            leader.truncate_before(Offset(end - 1), end)
        else:
            leader.apply_retention(NOW, end)
        follower.truncate_before(leader.log_start_offset, end)
        follower.apply_retention(NOW, Offset(0))
    append(leader, [b"last"])
    leader.writer.sync()
    follower.writer.append_sealed(verified_batches(frames_of(leader, 12)[-1]), NOW)
    follower.truncate_before(leader.log_start_offset, leader.log_end_offset)
    assert leader.log_start_offset > 6
    assert_equal_files(follower, leader)


def test_a_followers_index_has_the_txids_of_its_leaders() -> None:
    leader = begun(MemoryDisk(), LogConfig(segment_bytes=3000))
    for txid in (None, 3, 3, None, 8):
        records = records_batch([Record(txid=txid), Record()], leader.log_end_offset)
        leader.writer.append_group((encode(records, leader.log_end_offset, leader.reader.last_epoch),), NOW)
    follower = opened(MemoryDisk())
    follower.writer.append_sealed(verified_batches(b"".join(frames_of(leader))), NOW)
    found = [
        [log.reader.locate(Offset(at)).entry.last_txid for at in range(0, 10, 2)]
        for log in (leader, follower)
    ]
    assert found == [[None, 3, 3, None, 8]] * 2
    assert [segment.last_txid for segment in follower.reader.segments] == [3, 3, 8]
    assert [segment.last_txid for segment in leader.reader.segments] == [3, 3, 8]


def test_batches_of_one_segment_and_epoch_are_written_with_one_call() -> None:
    leader, disk = filled(MemoryDisk(), 9, LogConfig()), MemoryDisk()
    follower = opened(disk)
    frames = frames_of(leader)
    follower.writer.append_sealed(verified_batches(frames[0]), NOW)
    calls = disk.calls
    follower.writer.append_sealed(verified_batches(b"".join(frames[1:])), NOW)
    assert [call.split()[0] for call in disk.trace[calls:]] == ["write"]
    assert (follower.log_end_offset, follower.writer.durable_end) == (9, 0)


def test_a_follower_refuses_all_of_what_does_not_follow() -> None:
    frames = frames_of(leading())
    disk = MemoryDisk()
    follower = opened(disk)
    follower.writer.append_sealed(verified_batches(b""), NOW)
    follower.writer.append_sealed(verified_batches(frames[0]), NOW)
    damaged = bytearray(frames[2])
    damaged[-1] ^= 1
    calls = disk.calls
    for data, reason in (
        (frames[2], "does not follow"),
        (frames[1] + frames[3], "does not follow"),
        (frames[1] + frames[0], "does not follow"),
        (frames[1] + bytes(damaged), "CRC32C"),
        (frames[1] + frames[2][:-8], "not a whole message"),
        (frames[1] + b"garbage", "continuation"),
    ):
        with pytest.raises(CorruptDataError, match=reason):
            follower.writer.append_sealed(verified_batches(data), NOW)
    assert (follower.log_end_offset, follower.failed) == (1, None)
    assert disk.calls == calls, "nothing was written"


def test_a_follower_takes_a_clean_close_back_before_it_writes() -> None:
    frames = frames_of(leading())
    disk = MemoryDisk()
    follower = opened(disk)
    follower.writer.append_sealed(verified_batches(frames[0]), NOW)
    follower.close()
    opened(disk).writer.append_sealed(verified_batches(frames[1]), NOW)
    checkpoint = inspect_stream(disk, DIRECTORY).checkpoint
    assert checkpoint is not None
    assert not checkpoint.clean


@pytest.mark.parametrize("change", ["epoch", "timestamp"])
def test_a_follower_refuses_what_goes_back(change: str) -> None:
    follower = opened(MemoryDisk())
    follower.writer.append_sealed(verified_batches(b"".join(frames_of(leading()))), NOW)
    epoch = LeaderEpoch(1 if change == "epoch" else 2)
    timestamp = NOW + (4 if change == "timestamp" else 9)
    late = encode(values_batch([b"late"], 6, timestamp), Offset(6), epoch)
    with pytest.raises(CorruptDataError, match="does not follow"):
        follower.writer.append_sealed(verified_batches(late.seal(BatchFlags(0))), NOW)
    assert follower.log_end_offset == 6


# --- a torn end, and what a follower can know of it -------------------------------------------------------


def many(disk: MemoryDisk, count: int) -> list[bytes]:
    """Return batches each of which its leader synced before the next."""
    return frames_of(filled(disk, count, LogConfig()))


def damage(log: Log, row: int) -> MemoryDisk:
    """Let the process die, with one batch damaged."""
    position = log.reader.segments[0].load_index()[row].position
    disk = log._disk
    assert isinstance(disk, MemoryDisk)
    found = disk.power_loss(everything_survives)
    content = bytearray(file_content(found, log.reader.segments[0].path))
    content[position + 100 : position + 200] = bytes(100)
    overwrite(found, log.reader.segments[0].path, bytes(content))
    return found


@pytest.mark.parametrize("row", range(1, 6))
def test_a_write_of_several_groups_is_cut_where_it_is_torn(row: int) -> None:
    frames = many(MemoryDisk(), 6)
    follower = opened(MemoryDisk())
    follower.writer.append_sealed(verified_batches(frames[0]), NOW)
    follower.writer.sync()
    follower.writer.append_sealed(verified_batches(b"".join(frames[1:])), NOW)
    disk = damage(follower, row)
    assert {problem.kind for problem in inspect_stream(disk, DIRECTORY).problems} == {ProblemKind.TORN}
    found = opened(disk)
    assert (found.failed, found.reader.corrupt_ranges) == (None, ())
    assert list(stored_values(found)) == list(range(row))


def test_as_much_as_may_be_torn_is_cut_and_damage_before_that_is_corruption() -> None:
    frames = many(MemoryDisk(), 2 * FOLLOWED_GROUPS_MAX + 5)
    disk = MemoryDisk()
    follower = opened(disk)
    follower.writer.append_sealed(verified_batches(frames[0]), NOW)
    calls = disk.calls
    follower.writer.append_sealed(verified_batches(b"".join(frames[1:])), NOW)
    written = [call.split()[0] for call in disk.trace[calls:]]
    assert written == ["sync", "write", "sync", "write", "sync", "write"], "so many are never unsynced"
    last = len(frames) - 1
    found = opened(damage(follower, last - FOLLOWED_GROUPS_MAX))
    assert found.log_end_offset == last - FOLLOWED_GROUPS_MAX, "it may have been of the last write"
    assert found.reader.corrupt_ranges == ()
    disk = damage(follower, last - FOLLOWED_GROUPS_MAX - 1)
    assert ProblemKind.CORRUPT in {problem.kind for problem in inspect_stream(disk, DIRECTORY).problems}
    damaged = opened(disk)
    lost = last - FOLLOWED_GROUPS_MAX - 1
    assert damaged.reader.corrupt_ranges == ((lost, lost + 1),)
    assert damaged.log_end_offset == len(frames)


def test_who_leads_after_following_knows_its_own_groups_again() -> None:
    frames = many(MemoryDisk(), 3)
    log = opened(MemoryDisk())
    log.writer.append_sealed(verified_batches(b"".join(frames)), NOW)
    log.writer.begin_epoch(LeaderEpoch(2), NOW)
    for number in range(3, 6):
        append(log, [b"%d" % number], NOW + number)
        log.writer.sync()
    found = opened(damage(log, 4))
    assert found.reader.corrupt_ranges == ((4, 5),)
    assert found.log_end_offset == 6


def test_who_follows_after_leading_trusts_no_group_of_another() -> None:
    leader = filled(MemoryDisk(), 1, LogConfig())
    log = filled(MemoryDisk(), 1, LogConfig())
    for number in range(1, 4):
        append(leader, [b"%d" % number], NOW + number)
        leader.writer.sync()
    log.writer.append_sealed(verified_batches(b"".join(frames_of(leader, 1))), NOW)
    found = opened(damage(log, 2))
    assert (found.reader.corrupt_ranges, found.log_end_offset) == ((), 2)


# --- where segments begin ---------------------------------------------------------------------------------


def test_a_follower_goes_on_in_a_segment_that_another_leader_has_ended() -> None:
    one, two = leading(7, SMALL), leading(3, LogConfig())
    boundary = one.reader.segments[1].base
    frames = frames_of(two)
    follower = opened(MemoryDisk())
    follower.writer.append_sealed(verified_batches(b"".join(frames_of(one))), NOW)
    assert boundary < 3
    follower.truncate_to(boundary)
    follower.writer.append_sealed(verified_batches(b"".join(frames[boundary:])), NOW)
    follower.writer.sync()
    assert_equal_files(follower, two)
    follower.close()
    assert inspect_stream(follower._disk, DIRECTORY).healthy


def test_a_follower_goes_on_in_a_segment_that_it_ended_before_it_died() -> None:
    one, two = leading(7, SMALL), leading(3, LogConfig())
    boundary = one.reader.segments[1].base
    disk = MemoryDisk()
    follower = opened(disk)
    follower.writer.append_sealed(verified_batches(b"".join(frames_of(one)[:boundary])), NOW)
    ended = disk.calls + 1  # the end is written, the next segment is not created
    disk.faults = {ended + number: Fault(FaultKind.DISK_FULL) for number in range(1, 20)}
    with pytest.raises(DiskFull):
        follower.writer.append_sealed(verified_batches(frames_of(one)[boundary]), NOW)
    assert follower.reader.segments[-1].sealed
    again = opened(disk.power_loss(nothing_survives))
    again.writer.append_sealed(verified_batches(b"".join(frames_of(two)[boundary:])), NOW)
    assert_equal_files(again, two)


def test_retention_does_not_end_a_followers_segment() -> None:
    leader = leading()
    follower = opened(MemoryDisk(), LogConfig(retention_age_us=1))
    follower.writer.append_sealed(verified_batches(b"".join(frames_of(leader))), NOW)
    follower.writer.sync()
    last = follower.reader.segments[-1]
    follower.apply_retention(TimestampUs(NOW + 1000), follower.log_end_offset)
    assert follower.reader.segments == (last,)
    assert not last.sealed


def test_a_log_that_begins_inside_a_batch_takes_that_batch_whole() -> None:
    leader = begun(MemoryDisk())
    for number in range(3):
        append(leader, [b"%d" % number] * 4, NOW + number)
        leader.writer.sync()
    frames = frames_of(leader)
    pristine = opened(MemoryDisk())
    pristine.writer.append_sealed(verified_batches(frames[0]), NOW)
    pristine.reset_to(Offset(6))
    pristine.close()
    start = pristine._disk
    assert isinstance(start, MemoryDisk)
    counted = start.power_loss(nothing_survives)
    follower = opened(counted)
    follower.writer.append_sealed(verified_batches(frames[1] + frames[2]), NOW)
    assert (follower.log_start_offset, follower.log_end_offset) == (6, 12)
    assert stored_values(follower) == {offset: b"%d" % (offset // 4) for offset in range(6, 12)}
    for number in range(1, counted.calls + 1):
        for kind in (FaultKind.POWER_LOSS, FaultKind.SHORT_WRITE, FaultKind.EXHAUSTED):
            disk = start.power_loss(nothing_survives)
            disk.faults[number] = Fault(kind)
            with contextlib.suppress(PowerLostError, DiskFull):
                opened(disk).writer.append_sealed(verified_batches(frames[1] + frames[2]), NOW)
            found = opened(disk.power_loss(random_survival(number)))
            assert (found.failed, found.reader.corrupt_ranges, found.log_start_offset) == (None, (), 6)
            assert found.log_end_offset in (6, 8, 12)
            if found.log_end_offset == 6:
                found.writer.append_sealed(verified_batches(frames[1]), NOW)
            assert list(stored_values(found)) == list(range(6, found.log_end_offset))
            found.close()
            assert inspect_stream(found._disk, DIRECTORY).healthy


# --- a full disk ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FaultKind.SHORT_WRITE, FaultKind.EXHAUSTED])
def test_what_a_full_disk_refuses_is_appended_when_there_is_space(kind: FaultKind) -> None:
    leader = leading()
    frames = frames_of(leader)
    counted = MemoryDisk()
    opened(counted).writer.append_sealed(verified_batches(b"".join(frames)), NOW)
    opening = MemoryDisk()
    opened(opening)
    for number in range(opening.calls + 1, counted.calls + 1):
        disk = MemoryDisk({number: Fault(kind, 700)})
        follower = opened(disk)
        with contextlib.suppress(DiskFull):
            follower.writer.append_sealed(verified_batches(b"".join(frames)), NOW)
        assert follower.failed is None
        end = follower.log_end_offset
        assert list(stored_values(follower)) == list(range(end))
        follower.writer.append_sealed(verified_batches(b"".join(frames[end:])), NOW)
        follower.writer.sync()
        assert_equal_files(follower, leader)


# --- cutting back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(7))
def test_a_log_is_cut_back_at_a_batch_and_goes_on(offset: int) -> None:
    disk = MemoryDisk()
    log = filled(disk, 7)
    log.checkpoint()
    log.truncate_to(Offset(offset))
    assert log.log_end_offset == offset
    found = opened(disk.power_loss(nothing_survives), SMALL)
    assert stored_values(found) == {kept: b"%d" % kept for kept in range(offset)}
    assert (found.failed, found.reader.corrupt_ranges) == (None, ())
    found.writer.begin_epoch(LeaderEpoch(9), NOW)
    append(found, [b"other"], NOW + 100)
    found.close()
    assert stored_values(opened(found._disk, SMALL))[offset] == b"other"


def test_a_log_is_cut_back_wholly_or_harmlessly_at_any_power_loss() -> None:
    pristine = MemoryDisk()
    filled(pristine, 7).close()
    counted = pristine.power_loss(nothing_survives)
    opened(counted, SMALL).truncate_to(Offset(3))
    for number in range(1, counted.calls + 1):
        for survival in (nothing_survives, everything_survives, random_survival(number)):
            disk = pristine.power_loss(nothing_survives)
            disk.faults[number] = Fault(FaultKind.POWER_LOSS)
            with pytest.raises(PowerLostError):
                opened(disk, SMALL).truncate_to(Offset(3))
            found = opened(disk.power_loss(survival), SMALL)
            assert found.failed is None
            assert found.reader.corrupt_ranges == ()
            assert list(stored_values(found)) == list(range(found.log_end_offset))
            assert 3 <= found.log_end_offset <= 7


def test_cutting_back_forgets_the_epochs_that_began_behind_the_cut() -> None:
    disk = MemoryDisk()
    log = filled(disk, 4)
    log.writer.begin_epoch(LeaderEpoch(2), NOW)
    append(log, [b"4"])
    log.truncate_to(Offset(3))
    assert log.reader.last_epoch == 1
    found = opened(disk.power_loss(nothing_survives), SMALL)
    assert (found.reader.last_epoch, found.log_end_offset) == (1, 3)
    assert (found.failed, found.reader.corrupt_ranges) == (None, ())


@pytest.mark.parametrize("records", [0, 3])
def test_an_epoch_that_begins_at_the_end_is_cut_off_though_no_record_is(records: int) -> None:
    disk = MemoryDisk()
    log = filled(disk, records)
    log.writer.begin_epoch(LeaderEpoch(2), NOW)
    log.writer.begin_epoch(LeaderEpoch(3), NOW)
    log.truncate_to(Offset(records))
    kept = 1 if records else 0
    assert (log.reader.last_epoch, log.log_end_offset) == (kept, records)
    calls = disk.calls
    log.truncate_to(Offset(records))
    assert disk.calls == calls, "there is nothing to cut"
    found = opened(disk.power_loss(nothing_survives), SMALL)
    assert (found.reader.last_epoch, found.log_end_offset) == (kept, records)
    assert (found.failed, found.reader.corrupt_ranges) == (None, ())
    assert list(stored_values(found)) == list(range(records))


def test_a_follower_keeps_what_was_truncated_until_its_leader_begins_a_segment() -> None:
    disk = MemoryDisk()
    leader, follower = filled(MemoryDisk(), 3), opened(disk, SMALL)
    follower.writer.append_sealed(verified_batches(b"".join(frames_of(leader))), NOW)
    follower.writer.sync()
    for log in (leader, follower):
        log.truncate_before(Offset(3), Offset(3))
    assert (
        len(leader.reader.segments),
        leader.reader.segments[0].base,
        follower.reader.segments[0].base,
    ) == (
        1,
        3,
        2,
    )
    append(leader, [b"3"], NOW + 3)
    leader.writer.sync()
    follower.writer.append_sealed(verified_batches(b"".join(frames_of(leader, 3))), NOW)
    follower.writer.sync()
    assert_equal_files(follower, leader)
    assert stored_values(opened(disk.power_loss(nothing_survives), SMALL)) == {3: b"3"}


def test_a_log_is_cut_between_batches_and_not_below_its_start() -> None:
    log = begun(MemoryDisk(), SMALL)
    for _ in range(4):
        append(log, [b"a" * 500, b"b" * 500])
    log.writer.sync()
    log.truncate_before(Offset(3), Offset(8))
    for offset in (1, 3, 9):
        with pytest.raises(OffsetOutOfRange):
            log.truncate_to(Offset(offset))
    assert log.log_end_offset == 8
    log.truncate_to(Offset(7))
    assert log.log_end_offset == 6
    log.truncate_to(Offset(4))
    assert log.log_end_offset == 4


def test_a_follower_goes_on_before_a_segment_that_it_began_and_never_wrote_to() -> None:
    one, two = leading(7, SMALL), leading(3, LogConfig())
    boundary = one.reader.segments[1].base
    disk = MemoryDisk()
    follower = opened(disk)
    follower.writer.append_sealed(verified_batches(b"".join(frames_of(one)[:boundary])), NOW)
    follower.writer.sync()
    follower.writer.roll()
    again = opened(disk.power_loss(everything_survives))
    assert (again.reader.segments[-1].base, again.log_end_offset) == (boundary, boundary)
    again.writer.append_sealed(verified_batches(b"".join(frames_of(two)[boundary:])), NOW)
    again.writer.sync()
    assert_equal_files(again, two)
    again.close()
    assert inspect_stream(again._disk, DIRECTORY).healthy
