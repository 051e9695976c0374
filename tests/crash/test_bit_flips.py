"""Damage anywhere in synced bytes is found, never served, never cut away."""

from collections.abc import Callable, Iterator

import pytest

from envelope.errors import CorruptDataError, OffsetOutOfRange, StreamOffline
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import BatchFlags, encode
from jetstream.log.inspection import inspect_stream
from jetstream.log.log import Log, LogConfig
from jetstream.log.segments.index import decode_index
from jetstream.log.segments.segment import segment_path
from tests.support.logs import (
    DIRECTORY,
    NOW,
    append,
    begun,
    file_content,
    flipped,
    opened,
    overwrite,
    stored_values,
    values_batch,
)
from tests.support.memory_disk import MemoryDisk, everything_survives, nothing_survives

CONFIG = LogConfig(segment_bytes=3000)
FIRST = segment_path(DIRECTORY, Offset(0))
SECOND = segment_path(DIRECTORY, Offset(3))
SAMPLED = 5
"""Every fifth byte; the deep test flips every bit of every byte."""
VALUES = {0: b"zero", 1: b"one", 2: b"two", 3: b"three", 4: b"four", 5: b"five"}


def closed_cleanly() -> MemoryDisk:
    """Two segments of two batches each: [0, 2) [2, 3) and [3, 5) [5, 6)."""
    disk = MemoryDisk()
    log = filled(disk)
    log.close()
    return disk.power_loss(everything_survives)


def crashed_after_checkpoint() -> MemoryDisk:
    disk = MemoryDisk()
    log = filled(disk)
    log.checkpoint()
    return disk.power_loss(everything_survives)


def crashed_without_indexes() -> MemoryDisk:
    """Indexes are not synced: a power loss may take them."""
    disk = MemoryDisk()
    log = filled(disk)
    log.checkpoint()
    return disk.power_loss(nothing_survives)


def filled(disk: MemoryDisk) -> Log:
    log = begun(disk, CONFIG)
    for values in ([b"zero", b"one"], [b"two"], [b"three", b"four"], [b"five"]):
        append(log, values)
        log.writer.sync()
    assert len(log.reader.segments) == 2
    return log


def read_every_offset(log: Log) -> dict[int, bytes]:
    """Ask for each offset by itself; what is refused as corrupt is left out."""
    found: dict[int, bytes] = {}
    for offset, value in VALUES.items():
        try:
            log.reader.read(Offset(offset), 1, log.log_end_offset)
        except CorruptDataError:
            continue
        except OffsetOutOfRange:
            pytest.fail(f"offset {offset} was cut away")
        found[offset] = value
    return found


def positions(disk: MemoryDisk) -> Iterator[tuple[str, int]]:
    for path in (FIRST, SECOND):
        for position in range(len(file_content(disk, path))):
            yield path, position


def check_flip(pristine: MemoryDisk, path: str, position: int, *, full: bool, bit: int | None = None) -> None:
    disk = pristine.power_loss(everything_survives)
    damaged = flipped(file_content(disk, path), position, position % 8 if bit is None else bit)
    overwrite(disk, path, damaged)
    if full:
        assert not inspect_stream(disk, DIRECTORY).healthy, "inspection finds it"
    log = opened(disk, CONFIG, full=full)
    if full:
        assert log.recovery.problems, "opening finds it"
    if not full:
        read_every_offset(log)
    served = stored_values(log)
    assert served.items() <= VALUES.items(), "nothing wrong is served"
    refused = {
        offset for offset in VALUES for start, end in log.reader.corrupt_ranges if start <= offset < end
    }
    assert served.keys() | refused == VALUES.keys(), "nothing is cut away"
    assert len(refused) <= 2, "what is refused is one batch"
    assert file_content(disk, path) == damaged, "the bytes are kept"
    assert (log.log_start_offset, log.log_end_offset) == (0, 6)


def check_flips(pristine: MemoryDisk, step: int, *, full: bool) -> None:
    for path, position in list(positions(pristine))[::step]:
        check_flip(pristine, path, position, full=full)


@pytest.mark.slow(
    "tests/crash/test_bit_flips.py::test_after_a_crash_a_read_finds_a_flip_in_any_byte",
    "tests/crash/test_misleading_index.py",
)
def test_after_a_clean_close_opening_in_full_and_inspection_find_a_flip_in_any_byte() -> None:
    check_flips(closed_cleanly(), SAMPLED, full=True)
    check_flips(closed_cleanly(), 29, full=False)


def test_after_a_crash_a_read_finds_a_flip_in_any_byte() -> None:
    check_flips(crashed_after_checkpoint(), SAMPLED, full=False)
    check_flips(crashed_after_checkpoint(), 29, full=True)
    check_flips(crashed_without_indexes(), 29, full=False)


def test_damage_that_opening_does_not_look_at_is_found_by_the_first_read() -> None:
    disk = closed_cleanly()
    log = opened(disk, CONFIG)
    damaged_at_batch(disk, log, 0, 0)
    damaged_at_batch(disk, log, 1, 0)
    for offset in (0, 3):
        fresh = opened(disk.power_loss(everything_survives), CONFIG)
        assert fresh.recovery.problems == (), "it is in front of what the indexes cover"
        file_range = fresh.reader.plan_read(Offset(offset), 1 << 20, Offset(6))
        with pytest.raises(CorruptDataError):
            fresh.reader.verify_range(file_range)
        assert fresh.reader.corrupt_ranges == ((offset, offset + 2),)
        with pytest.raises(CorruptDataError):
            fresh.reader.plan_read(Offset(offset), 1 << 20, Offset(6))
    log = opened(disk.power_loss(everything_survives), CONFIG)
    assert read_every_offset(log).keys() == {2, 5}
    log.close()
    again = opened(log._disk, CONFIG)
    assert again.reader.corrupt_ranges == ((0, 2), (3, 5)), "what was found is found again at the next start"


@pytest.mark.deep
@pytest.mark.parametrize("bit", range(8))
def test_a_flip_of_any_bit_is_found(bit: int) -> None:
    for pristine in (closed_cleanly(), crashed_after_checkpoint(), crashed_without_indexes()):
        for path, position in list(positions(pristine)):
            for full in (True, False):
                check_flip(pristine, path, position, full=full, bit=bit)


# --- what decides between torn and corrupt ----------------------------------------------------------


def damaged_at_batch(disk: MemoryDisk, log: Log, segment: int, row: int) -> None:
    """Overwrite the middle of a batch with zeros."""
    found = log.reader.segments[segment]
    entry = found.load_index()[row]
    content = bytearray(file_content(disk, found.path))
    content[entry.position + 200 : entry.position + 300] = bytes(100)
    overwrite(disk, found.path, bytes(content))


def test_a_later_group_start_proves_that_damage_was_synced() -> None:
    disk = MemoryDisk()
    log = filled(disk)  # no checkpoint since
    damaged_at_batch(disk, log, 1, 0)
    again = opened(disk.power_loss(nothing_survives), CONFIG)
    assert again.reader.corrupt_ranges == ((3, 5),)
    assert again.failed is None, "the end is certain: a good batch follows the damage"
    assert stored_values(again).keys() == {0, 1, 2, 5}


def test_without_a_witness_the_last_group_counts_as_torn() -> None:
    disk = MemoryDisk()
    log = filled(disk)  # no checkpoint since
    damaged_at_batch(disk, log, 1, 1)
    again = opened(disk.power_loss(nothing_survives), CONFIG)
    assert again.reader.corrupt_ranges == ()
    assert stored_values(again).keys() == {0, 1, 2, 3, 4}


def test_the_start_of_the_newest_epoch_is_a_witness() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.writer.begin_epoch(LeaderEpoch(2), NOW)
    damaged_at_batch(disk, log, 1, 1)
    again = opened(disk.power_loss(nothing_survives), CONFIG)
    assert again.reader.corrupt_ranges == ((5, 6),)
    assert isinstance(again.failed, CorruptDataError), "whether more had followed is not known"


def test_damage_in_the_last_batch_after_a_clean_close_leaves_the_end_certain() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.close()
    damaged_at_batch(disk, log, 1, 1)
    again = opened(disk, CONFIG, full=True)
    assert again.reader.corrupt_ranges == ((5, 6),)
    assert again.failed is None
    again.writer.begin_epoch(LeaderEpoch(2), NOW)
    append(again, [b"six"])
    again.writer.sync()
    found = opened(disk.power_loss(nothing_survives), CONFIG)
    assert found.reader.corrupt_ranges == ((5, 6),), "the damage is still there, and still refused"
    assert stored_values(found) == {**{offset: VALUES[offset] for offset in range(5)}, 6: b"six"}


@pytest.mark.parametrize("length", [0, 5, 576, 1000, 1001])
def test_a_log_that_lost_its_tail_after_a_clean_close_goes_on_behind_the_loss(length: int) -> None:
    disk = closed_cleanly()
    overwrite(disk, SECOND, file_content(disk, SECOND)[:length])
    again = opened(disk, CONFIG)
    assert (again.failed, again.reader.corrupt_ranges) == (None, ((3, 6),))
    again.writer.begin_epoch(LeaderEpoch(2), NOW)
    append(again, [b"six"])
    again.close()
    found = opened(disk, CONFIG, full=True)
    assert found.reader.corrupt_ranges == ((3, 6),)
    assert stored_values(found) == {**{offset: VALUES[offset] for offset in range(3)}, 6: b"six"}


@pytest.mark.parametrize("row", [0, 1])
def test_a_sealed_segment_that_is_cut_short_under_a_running_log_is_corrupt(row: int) -> None:
    disk = closed_cleanly()
    log = opened(disk, CONFIG)
    _, index = decode_index(file_content(disk, FIRST.replace(".arrows", ".index")))
    overwrite(disk, FIRST, file_content(disk, FIRST)[: index[row].position])
    with pytest.raises(CorruptDataError):
        log.reader.read(Offset(2), 1 << 20, Offset(6))
    assert log.reader.corrupt_ranges == ((index[row].base, 3),)


def test_an_index_does_not_outlive_the_batches_that_were_cut_off() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.checkpoint()
    for name in ("checkpoint", "epochs"):
        disk.unlink(f"{DIRECTORY}/{name}")
    damaged_at_batch(disk, log, 1, 1)
    again = opened(disk, CONFIG)
    assert again.recovery.cut_bytes > 0
    assert not disk.exists(SECOND.replace(".arrows", ".index"))


def test_a_log_with_a_damaged_end_serves_the_rest_and_takes_nothing() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.checkpoint()
    damaged_at_batch(disk, log, 1, 1)
    again = opened(disk.power_loss(nothing_survives), CONFIG, full=True)
    assert stored_values(again).keys() == {0, 1, 2, 3, 4}
    with pytest.raises(CorruptDataError, match=r"\[5, 6\)"):
        again.reader.read(Offset(5), 1, Offset(6))
    with pytest.raises(StreamOffline):
        again.writer.begin_epoch(LeaderEpoch(2), NOW)
    again.close()


@pytest.mark.parametrize("tail", [b"", bytes(1500)])
def test_a_missing_or_zeroed_tail_below_the_checkpoint_is_corruption(tail: bytes) -> None:
    disk = crashed_after_checkpoint()
    whole = file_content(disk, SECOND)
    overwrite(disk, SECOND, whole[:600] + tail)
    again = opened(disk, CONFIG)
    assert again.reader.corrupt_ranges == ((3, 6),)
    assert again.log_end_offset == 6
    assert isinstance(again.failed, CorruptDataError)
    assert stored_values(again).keys() == {0, 1, 2}


@pytest.mark.parametrize(
    ("names", "corrupt", "failed"),
    [((SECOND,), ((3, 6),), True), ((FIRST,), ((0, 3),), False), ((FIRST, SECOND), ((0, 6),), True)],
)
def test_missing_segment_files_are_corruption(
    names: tuple[str, ...], corrupt: tuple[tuple[int, int], ...], failed: bool
) -> None:
    disk = crashed_after_checkpoint()
    for name in names:
        disk.unlink(name)
    assert not inspect_stream(disk, DIRECTORY).healthy
    again = opened(disk, CONFIG)
    assert again.reader.corrupt_ranges == corrupt
    assert (again.failed is not None) is failed
    assert (again.log_start_offset, again.log_end_offset) == (0, 6)


def test_a_hole_between_segments_is_refused_and_the_rest_served() -> None:
    disk = MemoryDisk()
    log = begun(disk, LogConfig(segment_bytes=1000))
    for value in VALUES.values():
        append(log, [value])
    log.close()
    for path in (segment_path(DIRECTORY, Offset(2)), segment_path(DIRECTORY, Offset(3))):
        disk.unlink(path)
    again = opened(disk, CONFIG)
    assert again.reader.corrupt_ranges == ((2, 4),)
    assert stored_values(again).keys() == {0, 1, 4, 5}
    assert again.failed is None


@pytest.mark.parametrize("row", [0, 1])
def test_a_good_batch_at_the_wrong_place_is_corruption(row: int) -> None:
    disk = crashed_after_checkpoint()
    log = opened(disk, CONFIG)
    index = log.reader.segments[1].load_index()
    whole = file_content(disk, SECOND)
    stray = whole[index[row].position : index[row].end]
    other = index[1 - row]
    moved = whole[: other.position] + stray + whole[other.end :]
    overwrite(disk, SECOND, moved)
    again = opened(disk, CONFIG, full=True)
    assert again.log_end_offset == 6
    served = stored_values(again)
    assert served.items() <= VALUES.items()
    refused = {offset for start, end in again.reader.corrupt_ranges for offset in range(start, end)}
    assert served.keys() | refused == VALUES.keys()
    assert refused == set(range(other.base, other.next))


def test_garbage_behind_a_clean_end_is_cut() -> None:
    disk = closed_cleanly()
    whole = file_content(disk, SECOND)
    overwrite(disk, SECOND, whole + b"garbage!" * 3)
    again = opened(disk, CONFIG)
    assert stored_values(again) == VALUES
    assert file_content(disk, SECOND) == whole


def test_a_batch_inside_a_value_is_not_taken_for_one_when_its_carrier_is_damaged() -> None:
    inner = bytes(
        encode(values_batch([b"forged"], 1), Offset(1), LeaderEpoch(1)).seal(BatchFlags.GROUP_START)
    )
    disk = MemoryDisk()
    log = begun(disk)
    for value in (inner, b"one", b"two"):
        append(log, [value])
        log.writer.sync()
    found = log.reader.segments[0]
    content = bytearray(file_content(disk, found.path))
    content[found.load_index()[0].position + 790] ^= 1
    overwrite(disk, found.path, bytes(content))
    again = opened(disk.power_loss(nothing_survives))
    assert again.reader.corrupt_ranges == ((0, 1),)
    assert stored_values(again) == {1: b"one", 2: b"two"}


def test_a_batch_inside_a_value_does_not_take_the_place_of_its_carrier() -> None:
    inner = bytes(encode(values_batch([b"forged"]), Offset(0), LeaderEpoch(1)).seal(BatchFlags.GROUP_START))
    disk = MemoryDisk()
    log = begun(disk)
    for value in (inner, b"one", b"two"):
        append(log, [value])
        log.writer.sync()
    found = log.reader.segments[0]
    content = bytearray(file_content(disk, found.path))
    content[found.load_index()[0].position] ^= 1
    overwrite(disk, found.path, bytes(content))
    again = opened(disk.power_loss(nothing_survives))
    assert again.reader.corrupt_ranges == ((0, 1),)
    assert stored_values(again) == {1: b"one", 2: b"two"}


def test_a_read_stops_before_damage() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    for value in VALUES.values():
        append(log, [value])
    log.close()
    damaged_at_batch(disk, log, 0, 2)
    again = opened(disk, full=True)
    assert again.reader.corrupt_ranges == ((2, 3),)
    file_range = again.reader.plan_read(Offset(0), 1 << 20, Offset(6))
    assert (file_range.base, file_range.next) == (0, 2)
    assert again.reader.plan_read(Offset(3), 1 << 20, Offset(6)).next == 6
    assert stored_values(again).keys() == {0, 1, 3, 4, 5}


# --- derived files -----------------------------------------------------------------------------------


def derived_files(disk: MemoryDisk) -> list[str]:
    names = [name for name in disk.listdir(DIRECTORY) if not name.endswith(".arrows")]
    assert len(names) == 4, names
    return [f"{DIRECTORY}/{name}" for name in names]


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("situation", [closed_cleanly, crashed_after_checkpoint])
def test_losing_any_derived_files_loses_no_data(situation: Callable[[], MemoryDisk], full: bool) -> None:
    pristine = situation()
    paths = derived_files(pristine.power_loss(everything_survives))
    for chosen in range(1, 1 << len(paths)):
        disk = pristine.power_loss(everything_survives)
        for number, path in enumerate(paths):
            if chosen >> number & 1:
                disk.unlink(path)
        check_all_there(disk, full=full)


@pytest.mark.slow(
    "tests/crash/test_bit_flips.py::test_after_a_crash_a_read_finds_a_flip_in_any_byte",
    "tests/crash/test_misleading_index.py",
)
@pytest.mark.parametrize("situation", [closed_cleanly, crashed_after_checkpoint])
def test_damage_to_any_byte_of_a_derived_file_loses_no_data(situation: Callable[[], MemoryDisk]) -> None:
    pristine = situation()
    for path in derived_files(pristine.power_loss(everything_survives)):
        content = file_content(pristine.power_loss(everything_survives), path)
        for position in range(len(content)):
            disk = pristine.power_loss(everything_survives)
            overwrite(disk, path, flipped(content, position, position % 8))
            assert not inspect_stream(disk, DIRECTORY).healthy
            check_all_there(disk, full=False)


def check_all_there(disk: MemoryDisk, *, full: bool) -> None:
    log = opened(disk, CONFIG, full=full)
    assert stored_values(log) == VALUES
    assert log.failed is None
    assert log.reader.corrupt_ranges == ()
    assert log.reader.last_epoch == 1
    log.writer.begin_epoch(LeaderEpoch(2), NOW)
    append(log, [b"six"])
    log.close()
    assert stored_values(opened(disk, CONFIG)) == {**VALUES, 6: b"six"}


def test_a_checkpoint_rolled_back_to_any_earlier_one_loses_no_data() -> None:
    disk = MemoryDisk()
    path = f"{DIRECTORY}/checkpoint"
    log = begun(disk, CONFIG)
    checkpoints: list[bytes] = []
    for values in ([b"zero", b"one"], [b"two"], [b"three", b"four"], [b"five"]):
        append(log, values)
        log.writer.sync()
        log.checkpoint()
        checkpoints.append(file_content(disk, path))
    pristine = disk.power_loss(nothing_survives)
    for content in checkpoints:
        rolled_back = pristine.power_loss(nothing_survives)
        overwrite(rolled_back, path, content)
        check_all_there(rolled_back, full=False)


def test_an_index_of_another_segment_or_an_older_one_is_not_believed() -> None:
    pristine = closed_cleanly()
    contents = {path: file_content(pristine, path) for path in derived_files(pristine) if "index" in path}
    first, second = contents
    for path, content in ((first, contents[second]), (second, contents[first])):
        disk = pristine.power_loss(everything_survives)
        overwrite(disk, path, content)
        check_all_there(disk, full=False)


def test_an_index_whose_last_entry_is_not_in_the_segment_is_not_believed() -> None:
    disk = crashed_after_checkpoint()
    path = SECOND.replace(".arrows", ".index")
    _, index = decode_index(file_content(disk, path))
    last = index[len(index) - 1]
    index = index.head(len(index) - 1)
    index.append(last._replace(max_timestamp=TimestampUs(last.max_timestamp + 1)), verified=False)
    overwrite(disk, path, index.encode(len(index)))
    log = opened(disk, CONFIG)
    assert log.recovery.scanned_bytes > 0
    assert log.reader.last_timestamp == last.max_timestamp
    assert stored_values(log) == VALUES
