"""Truncation and retention."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from envelope.errors import DiskFull, OffsetOutOfRange, UnavailableError
from envelope.limits import SEGMENT_BYTES_MIN
from envelope.types import Offset, TimestampUs
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.disk.port import Disk
from jetstream.log.format.batch import decode, iter_frames
from jetstream.log.log import Log, LogConfig
from tests.support.log_files import check_files_owned
from tests.support.logs import (
    DIRECTORY,
    NOW,
    SMALL,
    append,
    begun,
    file_content,
    filled,
    opened,
    overwrite,
    stored_values,
)
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    Survival,
    everything_survives,
    nothing_survives,
)

# --- removing --------------------------------------------------------------------------------------------


def test_truncating_frees_whole_segments_and_survives() -> None:
    disk = MemoryDisk()
    log = filled(disk, 7)
    before = log.reader.size
    log.truncate_before(Offset(3), Offset(7))
    assert (log.log_start_offset, log.reader.segments[0].base) == (3, 2)
    assert log.reader.size < before
    check_files_owned(log)
    found = opened(disk.power_loss(nothing_survives), SMALL)
    assert found.log_start_offset == 3
    assert min(stored_values(found)) == 3
    assert found.reader.corrupt_ranges == ()


def test_a_removal_that_a_crash_interrupted_is_finished_at_the_next_start() -> None:
    disk = MemoryDisk()
    log = filled(disk, 7)
    disk.faults[disk.calls + 9] = Fault(FaultKind.POWER_LOSS)
    with pytest.raises(PowerLostError):
        log.truncate_before(Offset(6), Offset(7))
    assert disk.trace[-1] == f"unlink {DIRECTORY}/{0:020d}.arrows", (
        "the checkpoint is written, nothing removed"
    )
    found = disk.power_loss(everything_survives)
    again = opened(found, SMALL)
    assert (again.log_start_offset, len(again.reader.segments)) == (6, 1)
    assert [name for name in found.listdir(DIRECTORY) if name.endswith(".arrows")] == [f"{6:020d}.arrows"]


@pytest.mark.parametrize("left", [".index", ".arrows"])
def test_whatever_a_crash_has_left_of_a_segment_goes_at_the_next_start(left: str) -> None:
    """Nothing orders on the medium that a segment goes, and that its index does."""
    disk = MemoryDisk()
    log = filled(disk, 7)
    content = file_content(disk, f"{DIRECTORY}/{0:020d}{left}")
    log.truncate_before(Offset(6), Offset(7))
    disk.create(f"{DIRECTORY}/{0:020d}{left}").close()
    overwrite(disk, f"{DIRECTORY}/{0:020d}{left}", content)
    again = opened(disk, SMALL)
    assert stored_values(again) == {6: b"6"}
    check_files_owned(again, is_just_opened=True)


@pytest.mark.parametrize("kind", ["memory", "real"])
@pytest.mark.parametrize("gone", [(".arrows",), (".index",), (".arrows", ".index")])
@pytest.mark.parametrize("removal", ["truncate", "retention", "cut"])
def test_a_removal_that_finds_files_gone_already_goes_on_with_the_rest(
    tmp_path: Path, kind: str, gone: tuple[str, ...], removal: str
) -> None:
    disk: Disk = MemoryDisk() if kind == "memory" else OsDisk(tmp_path)
    log = filled(disk, 7)
    for suffix in gone:
        disk.unlink(f"{DIRECTORY}/{2:020d}{suffix}")
    match removal:
        case "truncate":
            log.truncate_before(Offset(6), Offset(7))
        case "retention":
            log.writer.config = replace(SMALL, retention_messages=1)
            log.apply_retention(TimestampUs(NOW), Offset(7))
        case _:
            log.truncate_to(Offset(1))
    assert log.failed is None, "what was to go is gone"
    kept = 0 if removal == "cut" else 6
    assert [name for name in disk.listdir(DIRECTORY) if name.endswith(".arrows")] == [f"{kept:020d}.arrows"]
    append(log, [b"next"])
    log.writer.sync()
    wanted = {0: b"0", 1: b"next"} if removal == "cut" else {6: b"6", 7: b"next"}
    assert stored_values(log) == wanted
    log.close()
    assert stored_values(opened(disk, SMALL)) == wanted


@pytest.mark.parametrize("kind", ["memory", "real"])
def test_a_log_of_which_files_are_gone_already_is_deleted(tmp_path: Path, kind: str) -> None:
    disk: Disk = MemoryDisk() if kind == "memory" else OsDisk(tmp_path)
    filled(disk, 5).close()
    for name in disk.listdir(DIRECTORY)[::2]:
        disk.unlink(f"{DIRECTORY}/{name}")
    Log.delete(disk, DIRECTORY)
    Log.delete(disk, DIRECTORY)
    assert not disk.exists(DIRECTORY)


def test_truncating_is_idempotent_and_never_goes_back() -> None:
    log = filled(MemoryDisk(), 7)
    for offset in (3, 3, 1, 0):
        log.truncate_before(Offset(offset), Offset(7))
        assert log.log_start_offset == 3


def test_truncating_above_the_high_watermark_is_refused() -> None:
    log = filled(MemoryDisk(), 7)
    with pytest.raises(OffsetOutOfRange):
        log.truncate_before(Offset(6), Offset(5))
    assert log.log_start_offset == 0


def test_truncating_to_the_end_leaves_an_empty_log_that_remembers_its_end() -> None:
    disk = MemoryDisk()
    log = filled(disk, 4)
    log.truncate_before(Offset(4), Offset(4))
    assert (len(log.reader.segments), log.reader.size) == (1, 0), "what was truncated is off the disk"
    found = opened(disk.power_loss(nothing_survives), SMALL)
    assert (found.log_start_offset, found.log_end_offset) == (4, 4)
    assert stored_values(found) == {}


def test_a_reader_keeps_a_segment_that_is_removed() -> None:
    disk = MemoryDisk()
    log = filled(disk, 5)
    file_range = log.reader.plan_read(Offset(0), 1 << 20, Offset(5))
    file = file_range.segment.acquire()
    log.truncate_before(Offset(4), Offset(5))
    assert not disk.exists(file_range.segment.path)
    body = file.read(file_range.position, file_range.length)
    assert [decode(frame)[0].base for frame in iter_frames(body)] == [0, 1]
    file_range.segment.release()
    assert not file_range.segment.is_open
    with pytest.raises(UnavailableError):
        file_range.segment.acquire()


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"retention_messages": 1}, 6),
        ({"retention_messages": 3}, 4),
        ({"retention_messages": 4}, 2),
        ({"retention_messages": 100}, 0),
        ({"retention_bytes": 1}, 6),
        ({"retention_bytes": 5000}, 2),
        ({"retention_age_us": 4}, 2),
        ({"retention_age_us": 100}, 0),
        ({"retention_age_us": 100, "retention_messages": 3}, 4),
        ({"retention_age_us": 2, "retention_messages": 4}, 4),
        ({"retention_age_us": 1, "retention_bytes": 5000, "retention_messages": 3}, 6),
        ({"retention_age_us": 4, "retention_bytes": 1, "retention_messages": 100}, 6),
        ({"retention_age_us": 4, "retention_bytes": 5000, "retention_messages": 3}, 4),
        ({"retention_age_us": 100, "retention_bytes": 1 << 20, "retention_messages": 100}, 0),
        ({"retention_bytes": 1, "retention_lag_us": 4}, 2),
        ({"retention_messages": 1, "retention_lag_us": 4}, 2),
        ({"retention_age_us": 2, "retention_lag_us": 4}, 4),
    ],
)
def test_retention_removes_whole_segments_from_the_start(changes: dict[str, int], start: int) -> None:
    log = filled(MemoryDisk(), 7)
    log.writer.config = replace(log.writer.config, **changes)  # type: ignore[arg-type]  # the numeric fields
    log.apply_retention(TimestampUs(NOW + 7), Offset(7))
    assert log.log_start_offset == start
    assert log.reader.segments[0].base == start


def test_a_clock_that_was_set_back_removes_nothing_early() -> None:
    """The clock had gone too fast: records are stamped by it, and those that follow not before them."""
    log = filled(MemoryDisk(), 7, replace(SMALL, retention_age_us=100))
    newest = log.reader.last_timestamp
    for now in (0, newest - 1_000_000, newest, newest + 94):
        log.apply_retention(TimestampUs(now), Offset(7))
        assert log.log_start_offset == 0, now
    append(log, [b"after"], newest)
    log.writer.sync()
    log.apply_retention(TimestampUs(newest + 101), Offset(8))
    assert log.log_start_offset == 8, "by the time of the records"


def test_retention_leaves_what_is_not_committed() -> None:
    log = filled(MemoryDisk(), 7, replace(SMALL, retention_messages=1))
    log.apply_retention(NOW, Offset(5))
    assert log.log_start_offset == 4


def test_an_idle_log_whose_records_are_all_too_old_is_emptied() -> None:
    disk = MemoryDisk()
    config = LogConfig(retention_age_us=1000)
    log = begun(disk, config)
    append(log, [b"old"])
    log.writer.sync()
    log.apply_retention(TimestampUs(NOW + 1001), Offset(1))
    assert (log.log_start_offset, log.log_end_offset, log.reader.size) == (1, 1, 0)
    append(log, [b"new"], NOW + 1002)
    log.close()
    assert stored_values(opened(disk, config)) == {1: b"new"}


def test_a_full_disk_can_be_freed_by_retention() -> None:
    disk = MemoryDisk()
    log = filled(disk, 7)
    disk.capacity_bytes = 1
    log.writer.config = replace(log.writer.config, retention_messages=1)
    disk.capacity_bytes = sum(
        len(file_content(disk, f"{DIRECTORY}/{name}")) for name in disk.listdir(DIRECTORY)
    )
    log.apply_retention(NOW, Offset(7))
    assert log.log_start_offset == 6
    assert stored_values(log) == {6: b"6"}


# --- what the active segment holds up --------------------------------------------------------------------


LARGE = b"v" * SEGMENT_BYTES_MIN


def all_in_one(disk: MemoryDisk, count: int, config: LogConfig | None = None) -> Log:
    """Return a log with ``count`` large records, all of them in the active segment."""
    log = begun(disk, config or LogConfig(segment_bytes=64 * SEGMENT_BYTES_MIN))
    for _ in range(count):
        append(log, [LARGE])
    log.writer.sync()
    return log


@pytest.mark.parametrize("limit", [{"retention_bytes": 2 * SEGMENT_BYTES_MIN}, {"retention_messages": 2}])
def test_an_active_segment_that_is_more_than_is_kept_goes_as_soon_as_enough_follows(
    limit: dict[str, int],
) -> None:
    disk = MemoryDisk()
    log = all_in_one(disk, 8)
    log.writer.config = replace(log.writer.config, **limit)  # type: ignore[arg-type]  # the numeric fields
    log.apply_retention(NOW, Offset(8))
    assert (log.log_start_offset, [segment.base for segment in log.reader.segments]) == (0, [0, 8])
    for end in (9, 10):
        append(log, [LARGE])
        log.writer.sync()
        log.apply_retention(NOW, Offset(end))
    assert (log.log_start_offset, [segment.base for segment in log.reader.segments]) == (8, [8, 10])
    check_files_owned(log)
    assert stored_values(opened(disk.power_loss(nothing_survives))) == {8: LARGE, 9: LARGE}


@pytest.mark.parametrize("limit", [{"retention_bytes": 1}, {"retention_messages": 1}])
def test_retention_that_is_asked_again_and_again_begins_no_small_segments(limit: dict[str, int]) -> None:
    config = LogConfig(segment_bytes=64 * SEGMENT_BYTES_MIN, **limit)  # type: ignore[arg-type]  # the numeric fields
    log = begun(MemoryDisk(), config)
    for end in range(1, 5):
        append(log, [b"small"])
        log.writer.sync()
        for _ in range(3):
            log.apply_retention(NOW, Offset(end))
    assert [segment.base for segment in log.reader.segments] == [0]
    append(log, [LARGE])
    for _ in range(3):
        log.apply_retention(NOW, Offset(5))
    assert [segment.base for segment in log.reader.segments] == [0, 5], "and no empty ones"


def test_what_a_truncation_inside_the_active_segment_leaves_goes_with_the_next_one() -> None:
    disk = MemoryDisk()
    log = all_in_one(disk, 8)
    for offset in (6, 6, 7):
        log.truncate_before(Offset(offset), Offset(8))
        assert [segment.base for segment in log.reader.segments] == [0, 8]
    append(log, [b"after"])
    log.writer.sync()
    log.truncate_before(Offset(8), Offset(9))
    assert [segment.base for segment in log.reader.segments] == [8]
    check_files_owned(log)
    assert stored_values(opened(disk.power_loss(nothing_survives))) == {8: b"after"}


def test_truncations_in_small_steps_begin_no_small_segments() -> None:
    log = begun(MemoryDisk(), LogConfig(segment_bytes=64 * SEGMENT_BYTES_MIN))
    for end in range(1, 20):
        append(log, [b"a", b"b"])
        log.truncate_before(Offset(2 * end - 1), Offset(2 * end))
    assert [segment.base for segment in log.reader.segments] == [0]


def test_a_truncation_that_a_full_disk_held_up_frees_the_active_segment_when_asked_again() -> None:
    held_up = 0
    for call in range(1, 100):
        disk = MemoryDisk()
        log = all_in_one(disk, 8)
        disk.faults[disk.calls + call] = Fault(FaultKind.DISK_FULL)
        with contextlib.suppress(DiskFull):
            log.truncate_before(Offset(8), Offset(8))
        if log.failed is not None:
            continue  # no refusal that could be undone
        held_up += log.reader.size > 0 and log.log_start_offset == 8
        log.truncate_before(Offset(8), Offset(8))
        assert (log.log_start_offset, log.reader.size) == (8, 0), call
        check_files_owned(log)
    assert held_up > 0


def test_a_full_disk_is_freed_of_an_active_segment_whose_index_is_on_it() -> None:
    disk = MemoryDisk()
    log = all_in_one(disk, 8)
    log.note_committed(Offset(8))
    log.checkpoint()
    disk.capacity_bytes = sum(
        len(file_content(disk, f"{DIRECTORY}/{name}")) for name in disk.listdir(DIRECTORY)
    )
    log.truncate_before(Offset(8), Offset(8))
    assert (log.log_start_offset, log.reader.size) == (8, 0)
    append(log, [b"fits"])
    log.writer.sync()
    assert stored_values(opened(disk.power_loss(nothing_survives))) == {8: b"fits"}


@pytest.mark.parametrize("keep", [nothing_survives, everything_survives])
@pytest.mark.parametrize("start", [6, 8])
def test_a_power_loss_while_the_active_segment_is_sealed_early_loses_nothing(
    start: int, keep: Survival
) -> None:
    survived = 0
    for call in range(1, 100):
        disk = MemoryDisk()
        log = all_in_one(disk, 8)
        disk.faults[disk.calls + call] = Fault(FaultKind.POWER_LOSS)
        try:
            log.truncate_before(Offset(start), Offset(8))
        except PowerLostError:
            found = opened(disk.power_loss(keep))
            assert found.log_start_offset in (0, start)
            assert found.log_end_offset == 8
            assert list(stored_values(found)) == list(range(found.log_start_offset, 8))
            assert (found.failed, found.reader.corrupt_ranges) == (None, ())
            survived = call
    assert 5 < survived < 99
