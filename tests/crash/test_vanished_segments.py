"""A log whose newest segment file is gone: missed if it may have held records, however young it was."""

import pytest

from envelope.errors import CorruptDataError, StreamOffline
from envelope.types import LeaderEpoch, Offset
from jetstream.log.inspection import inspect_stream
from jetstream.log.segments.segment import segment_path
from tests.support.logs import DIRECTORY, NOW, SMALL, append, filled, opened, stored_values
from tests.support.memory_disk import MemoryDisk, everything_survives


def test_an_active_segment_that_vanishes_after_its_roll_is_missed() -> None:
    disk = MemoryDisk()
    log = filled(disk, 4)
    log.checkpoint()
    append(log, [b"4"])
    log.writer.sync()
    assert [segment.base for segment in log.reader.segments] == [0, 2, 4]
    disk = disk.power_loss(everything_survives)
    disk.unlink(segment_path(DIRECTORY, Offset(4)))
    problems = inspect_stream(disk, DIRECTORY).problems
    assert [problem.description for problem in problems] == ["segment 4 is missing"]
    again = opened(disk, SMALL)
    assert isinstance(again.failed, CorruptDataError), "what followed is not known"
    assert stored_values(again).keys() == {0, 1, 2, 3}, "the rest is served"
    with pytest.raises(StreamOffline):
        again.writer.begin_epoch(LeaderEpoch(2), NOW)


def test_an_empty_segment_that_vanishes_after_a_clean_close_is_begun_again() -> None:
    disk = MemoryDisk()
    log = filled(disk, 4)
    log.writer.roll()
    log.close()
    disk.unlink(segment_path(DIRECTORY, Offset(4)))
    again = opened(disk, SMALL)
    assert again.recovery.problems == ("segment 4 is missing",)
    append(again, [b"4"])
    assert stored_values(again).keys() == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("offset", [2, 3, 4])
def test_segments_that_were_cut_off_are_not_missed(offset: int) -> None:
    disk = MemoryDisk()
    log = filled(disk, 5)
    log.truncate_to(Offset(offset))
    again = opened(disk.power_loss(everything_survives), SMALL)
    assert (again.failed, again.recovery.problems) == (None, ())
