"""What a follower does: sealed batches, and cutting back."""

import pytest

from envelope.errors import (
    CorruptDataError,
    OffsetOutOfRange,
)
from envelope.types import LeaderEpoch, Offset
from jetstream.log.batch import iter_frames
from jetstream.log.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    everything_survives,
    nothing_survives,
    random_survival,
)
from tests.support.logs import (
    NOW,
    SMALL,
    append,
    begun,
    file_content,
    filled,
    opened,
    stored_values,
)

# --- following -------------------------------------------------------------------------------------------


def test_a_follower_has_equal_files() -> None:
    leader_disk, follower_disk = MemoryDisk(), MemoryDisk()
    leader = filled(leader_disk, 5)
    leader.begin_epoch(LeaderEpoch(2), NOW)
    append(leader, [b"5"], NOW + 5)
    leader.sync()
    follower = opened(follower_disk)
    while follower.log_end_offset < leader.log_end_offset:
        body = leader.read(follower.log_end_offset, 1 << 20, leader.log_end_offset)
        for frame in iter_frames(body):
            follower.append_sealed(frame, NOW)
        follower.sync()
    for segment in leader._segments:
        assert file_content(follower_disk, segment.path) == file_content(leader_disk, segment.path)
    assert follower.last_epoch == 2
    assert follower.epoch_end(LeaderEpoch(1)) == 5


def test_a_follower_refuses_what_does_not_follow() -> None:
    leader = filled(MemoryDisk(), 3)
    follower = opened(MemoryDisk())
    frames = list(iter_frames(leader.read(Offset(0), 1 << 20, Offset(3))))
    with pytest.raises(CorruptDataError, match="does not follow"):
        follower.append_sealed(frames[1], NOW)
    damaged = bytearray(frames[0])
    damaged[-1] ^= 1
    with pytest.raises(CorruptDataError):
        follower.append_sealed(damaged, NOW)
    assert (follower.log_end_offset, follower.failed) == (0, None)


@pytest.mark.parametrize("offset", range(7))
def test_a_log_is_cut_back_at_a_batch_and_goes_on(offset: int) -> None:
    disk = MemoryDisk()
    log = filled(disk, 7)
    log.checkpoint()
    log.truncate_to(Offset(offset))
    assert log.log_end_offset == offset
    found = opened(disk.power_loss(nothing_survives), SMALL)
    assert stored_values(found) == {kept: b"%d" % kept for kept in range(offset)}
    assert (found.failed, found.corrupt_ranges) == (None, ())
    found.begin_epoch(LeaderEpoch(9), NOW)
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
            assert found.corrupt_ranges == ()
            assert list(stored_values(found)) == list(range(found.log_end_offset))
            assert 3 <= found.log_end_offset <= 7


def test_cutting_back_forgets_the_epochs_that_began_behind_the_cut() -> None:
    disk = MemoryDisk()
    log = filled(disk, 4)
    log.begin_epoch(LeaderEpoch(2), NOW)
    append(log, [b"4"])
    log.truncate_to(Offset(3))
    assert log.last_epoch == 1
    found = opened(disk.power_loss(nothing_survives), SMALL)
    assert (found.last_epoch, found.log_end_offset) == (1, 3)
    assert (found.failed, found.corrupt_ranges) == (None, ())


def test_a_log_is_not_cut_inside_a_batch_or_below_its_start() -> None:
    log = begun(MemoryDisk(), SMALL)
    for _ in range(4):
        append(log, [b"a" * 500, b"b" * 500])
    log.sync()
    log.truncate_before(Offset(2), Offset(8))
    for offset in (1, 3, 9):
        with pytest.raises(OffsetOutOfRange):
            log.truncate_to(Offset(offset))
    assert log.log_end_offset == 8
