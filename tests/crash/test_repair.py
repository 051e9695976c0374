"""What is damaged in a log is put back from another replica's bytes, or stays refused."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache

import pytest

from envelope.errors import CorruptDataError, DiskFull, JetstreamError, StorageError, StreamOffline
from envelope.types import LeaderEpoch, Offset
from jetstream.log.format.batch import BatchFlags, SealedBatch, encode, verified_batches
from jetstream.log.inspection import inspect_stream
from jetstream.log.log import Log, LogConfig
from jetstream.log.rewriting.repair import Hole
from jetstream.log.segments.scan import FIRST_BATCH
from jetstream.log.segments.segment import PlanAgain, segment_path
from tests.support.logs import (
    DIRECTORY,
    NOW,
    Record,
    append,
    begun,
    file_content,
    flipped,
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
    MemoryFile,
    PowerLostError,
    everything_survives,
    nothing_survives,
)
from tests.support.passed_checks import once_for_each_state

CONFIG = LogConfig(segment_bytes=3000)
FIRST = segment_path(DIRECTORY, Offset(0))
SECOND = segment_path(DIRECTORY, Offset(3))
VALUES = {0: b"zero", 1: b"one", 2: b"two", 3: b"three", 4: b"four", 5: b"five"}
END = Offset(6)


@cache
def written(config: LogConfig = CONFIG) -> MemoryDisk:
    """Two segments of two batches each, closed: [0, 2) [2, 3) and [3, 5) [5, 6)."""
    disk = MemoryDisk()
    log = begun(disk, config)
    for values in ([b"zero", b"one"], [b"two"], [b"three", b"four"], [b"five"]):
        append(log, values)
        log.writer.sync()
    log.close()
    return disk


def replica() -> MemoryDisk:
    """A disk of its own with those."""
    return written().power_loss(everything_survives)


@pytest.fixture
def other() -> Log:
    """Another replica, which is intact."""
    return opened(replica(), CONFIG)


CONTENT = {path: file_content(replica(), path) for path in (FIRST, SECOND)}


def damaged(path: str, content: bytes | None = None) -> MemoryDisk:
    """Return a replica one of whose files has other content: a bit flipped in its first batch."""
    disk = replica()
    overwrite(disk, path, flipped(CONTENT[path], FIRST_BATCH + 300, 1) if content is None else content)
    return disk


def looked_at(disk: MemoryDisk, *, full: bool) -> Log:
    """Open a log and have it find all damage."""
    log = opened(disk, CONFIG, full=full)
    for offset in VALUES:
        with suppress(CorruptDataError):
            log.reader.read(Offset(offset), 1, log.log_end_offset)
    return log


def batches_of(other: Log, start: int, end: int) -> list[SealedBatch]:
    found: list[SealedBatch] = []
    while start < end:
        found += verified_batches(other.reader.read(Offset(start), 1, other.log_end_offset))
        start = found[-1][0].next
    return found


def repair(log: Log, other: Log) -> int:
    """Fill every hole; return how many there were."""
    count = 0
    while hole := next(log.holes(), None):
        log.fill(hole, batches_of(other, hole.base, hole.next))
        count += 1
    return count


def check_whole(log: Log, path: str) -> Log:
    """Look at it, and at what a power loss leaves of it; return that, opened again."""
    assert log.reader.corrupt_ranges == ()
    assert stored_values(log) == VALUES
    assert [segment.next for segment in log.reader.segments] == [3, 6], "they tile"
    disk = log._disk
    assert isinstance(disk, MemoryDisk)
    after_power_loss = disk.power_loss(nothing_survives)
    assert file_content(after_power_loss, path) == CONTENT[path]
    again = looked_at(after_power_loss, full=True)
    assert again.reader.corrupt_ranges == ()
    assert stored_values(again) == VALUES
    return again


def flips(step: int) -> Iterator[MemoryDisk]:
    for path, content in CONTENT.items():
        for position in range(FIRST_BATCH, len(content) - 8, step):
            yield damaged(path, flipped(content, position, position % 8))


@pytest.mark.parametrize("full", [True, False])
def test_a_flip_of_any_byte_is_repaired_to_the_byte(other: Log, full: bool) -> None:
    repaired = 0
    for disk in flips(29):
        log = looked_at(disk, full=full)
        assert log.reader.corrupt_ranges
        repaired += repair(log, other)
        again = check_whole(log, FIRST)
        again.writer.begin_epoch(LeaderEpoch(2), NOW)
        append(again, [b"six"])
        again.close()
        assert inspect_stream(again._disk, DIRECTORY).healthy
    assert repaired > 100


def test_what_an_index_leaves_out_is_in_it_again(other: Log) -> None:
    """Neighbours, a segment's first batch with the schema before it, and the end of one that is sealed."""
    content = CONTENT[FIRST]
    index = other.reader.segments[0].load_index()
    for start, end, count in (
        (0, index[0].end, 1),
        (index[1].position, len(content), 1),
        (0, len(content), 1),
        (FIRST_BATCH, index[1].position + 8, 1),
    ):
        disk = damaged(FIRST, content[:start] + bytes(end - start) + content[end:])
        disk.unlink(FIRST.replace(".arrows", ".index"))
        log = looked_at(disk, full=True)
        assert repair(log, other) == count
        assert log.reader.segments[0].read_index() is not None, "its index file is good again"
        check_whole(log, FIRST)


def test_what_was_behind_the_end_of_a_sealed_file_is_cut(other: Log) -> None:
    index = other.reader.segments[0].load_index()
    longer = CONTENT[FIRST][: index[1].position] + bytes(5000)
    log = looked_at(damaged(FIRST, longer), full=True)
    assert repair(log, other) == 1
    check_whole(log, FIRST)


def test_transaction_ids_that_come_back_are_found_again() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    for offset, txid in enumerate((5, 9, 7)):
        records = records_batch([Record(txid=txid)], offset)
        log.writer.append_group((encode(records, Offset(offset), log.reader.last_epoch),), NOW)
    log.close()
    intact = opened(disk.power_loss(everything_survives))
    lacking = disk.power_loss(everything_survives)
    content = file_content(lacking, FIRST)
    position = intact.reader.segments[0].load_index()[1].position
    overwrite(lacking, FIRST, flipped(content, position + 300, 0))
    log = opened(lacking, full=True)
    assert log.reader.segments[0].last_txid != 9
    assert repair(log, intact) == 1
    assert log.reader.segments[0].last_txid == 9
    assert file_content(lacking, FIRST) == content


def test_much_that_is_damaged_is_put_back_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    log = begun(disk)
    for value in VALUES.values():
        append(log, [value])
    log.close()
    intact = opened(disk.power_loss(everything_survives))
    damaged_disk = disk.power_loss(everything_survives)
    index = intact.reader.segments[0].load_index()
    whole = file_content(damaged_disk, FIRST)
    content = bytearray(whole)
    for row in (1, 2, 3):
        content[index[row].position + 300] ^= 1
    overwrite(damaged_disk, FIRST, bytes(content))
    log = opened(damaged_disk)
    for row in (1, 2, 3):
        with pytest.raises(CorruptDataError):
            log.reader.read(Offset(row), 1, END)
    assert [(hole.base, hole.next) for hole in log.holes()] == [(1, 4)]
    monkeypatch.setattr("jetstream.log.rewriting.repair.HOLE_BYTES_MAX", index[2].end - index[1].position)
    assert [(hole.base, hole.next) for hole in log.holes()] == [(1, 3), (3, 4)]
    assert repair(log, intact) == 2
    assert file_content(damaged_disk, FIRST) == whole
    assert stored_values(log) == VALUES


@pytest.mark.parametrize("length", [0, FIRST_BATCH, 700])
def test_a_sealed_file_that_was_cut_short_is_as_long_as_before(other: Log, length: int) -> None:
    disk = damaged(FIRST, CONTENT[FIRST][:length])
    log = looked_at(disk, full=True)
    assert repair(log, other) == 1
    check_whole(log, FIRST)


def test_damage_in_the_segment_that_is_written_is_repaired_while_it_grows(other: Log) -> None:
    for full in (True, False):
        log = looked_at(damaged(SECOND), full=full)
        log.writer.begin_epoch(LeaderEpoch(2), NOW)
        append(log, [b"six"])
        assert list(log.reader.corrupt_ranges) == [(3, 5)]
        assert repair(log, other) == 1
        append(log, [b"seven"])
        log.writer.sync()
        assert not log.reader.corrupt_ranges
        assert stored_values(log) == {**VALUES, 6: b"six", 7: b"seven"}
        disk = log._disk
        assert isinstance(disk, MemoryDisk)
        again = looked_at(disk.power_loss(nothing_survives), full=True)
        assert stored_values(again) == {**VALUES, 6: b"six", 7: b"seven"}


def test_what_is_damaged_is_a_hole_unless_the_log_has_failed() -> None:
    disk = damaged(FIRST)
    log = looked_at(disk, full=False)
    assert [(hole.base, hole.next) for hole in log.holes()] == [(0, 2)]
    log.writer.fail(StorageError("broken"))
    assert not list(log.holes())


def test_a_missing_segment_is_not_put_into_the_one_before_it() -> None:
    disk = MemoryDisk()
    config = LogConfig(segment_bytes=1000)
    log = begun(disk, config)
    for value in VALUES.values():
        append(log, [value])
    log.close()
    lacking = disk.power_loss(everything_survives)
    lacking.unlink(segment_path(DIRECTORY, Offset(2)))
    intact, log = opened(disk.power_loss(everything_survives), config), opened(lacking, config)
    (hole,) = log.holes()
    before = file_content(lacking, hole.segment.path)
    with pytest.raises(CorruptDataError, match="segments do not begin where"):
        log.fill(hole, batches_of(intact, 2, 3))
    assert file_content(lacking, hole.segment.path) == before
    assert log.reader.corrupt_ranges == ((2, 3),)


# --- what does not fit -------------------------------------------------------------------------------


def sealed(
    values: list[bytes], base: int, epoch: int = 1, time: int = NOW, roll: bool = False
) -> SealedBatch:
    records = values_batch(values, base, time)
    batch = encode(records, Offset(base), LeaderEpoch(epoch))
    frame = batch.seal(BatchFlags.ROLL if roll else BatchFlags(0))
    return verified_batches(frame)[0]


Wrong = list[SealedBatch]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ([], "end at 0"),
        ([sealed([b"zero", b"one"], 0, roll=False)], "segments do not begin"),
        ([sealed([b"zero"], 0, roll=True)], "end at 1"),
        ([sealed([b"zero", b"one", b"two"], 0, roll=True)], "end at 3"),
        ([sealed([b"zero", b"one"], 1)], "where 0 was expected"),
        ([sealed([b"zero", b"one"], 0, epoch=2, roll=True)], "of epoch 2"),
        ([sealed([b"zero", b"much longer than one"], 0, roll=True)], "do not fill"),
        ([sealed([b"zero", b"one"], 0, time=NOW + 1, roll=True)], "newer than it"),
        ([sealed([b"zero"], 0, roll=True), sealed([b"one"], 1, time=NOW - 1)], "older than the one before"),
    ],
)
@pytest.mark.parametrize("full", [True, False])
def test_batches_that_were_not_there_are_refused(wrong: Wrong, reason: str, full: bool) -> None:
    disk = damaged(FIRST)
    if full:
        disk.unlink(FIRST.replace(".arrows", ".index"))
    log = looked_at(disk, full=full)
    before = file_content(disk, FIRST)
    (hole,) = log.holes()
    with pytest.raises(CorruptDataError, match=reason):
        log.fill(hole, wrong)
    assert file_content(disk, FIRST) == before
    assert log.reader.corrupt_ranges == ((0, 2),)


def test_batches_of_the_same_length_with_other_bounds_are_refused() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    for values in ([b"a", b"b"], [b"c"], [b"end"]):
        append(log, values)
    log.close()
    swapped = MemoryDisk()
    wrong = begun(swapped)
    for values in ([b"a"], [b"b", b"c"], [b"end"]):
        append(wrong, values)
    wrong.close()
    log = opened(disk)
    content = bytearray(file_content(disk, FIRST))
    index = log.reader.segments[0].load_index()
    for row in (0, 1):
        content[index[row].position + 300] ^= 1
    overwrite(disk, FIRST, bytes(content))
    for offset in (0, 2):
        with pytest.raises(CorruptDataError):
            log.reader.read(Offset(offset), 1, Offset(4))
    (hole,) = log.holes()
    assert (hole.base, hole.next, hole.rows) == (0, 3, 2)
    with pytest.raises(CorruptDataError, match="other batches"):
        log.fill(hole, batches_of(opened(swapped), 0, 3))


def test_a_hole_that_is_none_any_more_is_planned_again(other: Log) -> None:
    changes: list[Callable[[Log, Hole], object]] = [
        lambda log, hole: log.fill(hole, batches_of(other, 0, 2)),
        lambda log, hole: log.truncate_before(Offset(3), END),
        lambda log, hole: log.reset_to(Offset(9)),
    ]
    for change in changes:
        disk = damaged(FIRST)
        log = looked_at(disk, full=False)
        (hole,) = log.holes()
        change(log, hole)
        with pytest.raises(PlanAgain):
            log.fill(hole, batches_of(other, 0, 2))


def test_a_log_that_has_failed_is_not_repaired(other: Log) -> None:
    log = looked_at(damaged(FIRST), full=False)
    (hole,) = log.holes()
    log.writer.fail(StorageError("broken"))
    with pytest.raises(StreamOffline):
        log.fill(hole, batches_of(other, 0, 2))


# --- faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(FaultKind))
@pytest.mark.parametrize("path", [FIRST, SECOND])
@pytest.mark.parametrize("kept", [0, 300, 5000])
def test_a_fault_at_every_call_leaves_damage_or_a_repaired_log(
    other: Log, kind: FaultKind, path: str, kept: int
) -> None:
    finished = 0
    for number in range(1, 30):
        disk = damaged(path)
        log = looked_at(disk, full=True)
        disk.faults[disk.calls + number] = Fault(kind, kept)
        with suppress(JetstreamError, PowerLostError):
            repair(log, other)
            finished += 1
        disk.faults.clear()
        if kind not in (FaultKind.POWER_LOSS, FaultKind.POWER_LOSS_AFTER):
            assert stored_values(log).items() <= VALUES.items()
        for survival in (everything_survives, nothing_survives):
            check_left(disk.power_loss(survival))
    assert finished >= 10, "the calls of a repair are fewer than the ones that were struck"


@once_for_each_state
def check_left(disk: MemoryDisk) -> None:
    """The next start finds what was not damaged, and repairs the rest."""
    again = looked_at(disk, full=False)
    left = stored_values(again)
    assert left.items() <= VALUES.items()
    assert VALUES.keys() - left.keys() <= {0, 1, 3, 4}, "nothing but what was damaged is lacking"
    repair(again, opened(replica(), CONFIG))
    assert stored_values(again) == VALUES


def test_bytes_that_the_medium_shows_otherwise_are_refused(
    other: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = batches_of(other, 0, 2)
    log = looked_at(damaged(FIRST), full=False)
    (hole,) = log.holes()
    read = MemoryFile.read
    monkeypatch.setattr(MemoryFile, "read", lambda *at: flipped(read(*at), 0, 0))
    with pytest.raises(StorageError, match="does not keep what is written"):
        log.fill(hole, batches)
    monkeypatch.undo()
    assert log.reader.corrupt_ranges == ((0, 2),)


def test_a_disk_without_space_leaves_the_hole_as_it_is(other: Log) -> None:
    disk = damaged(FIRST)
    log = looked_at(disk, full=False)
    (hole,) = log.holes()
    disk.faults[disk.calls + 2] = Fault(FaultKind.SHORT_WRITE, 100)
    with pytest.raises(DiskFull):
        log.fill(hole, batches_of(other, 0, 2))
    assert log.reader.corrupt_ranges == ((0, 2),)
    assert log.failed is None
    with pytest.raises(CorruptDataError):
        log.reader.read(Offset(0), 1, END)
    repair(log, other)
    check_whole(log, FIRST)


def test_damage_that_is_found_after_its_repair_is_refused_and_repaired_again(other: Log) -> None:
    """A reader may have read the old bytes, and say so when the new ones are there."""
    disk = damaged(FIRST)
    log = looked_at(disk, full=False)
    repair(log, other)
    log.reader.corrupt.add(Offset(0), Offset(2))
    assert log.reader.corrupt_ranges == ((0, 2),)
    assert repair(log, other) == 1
    check_whole(log, FIRST)


# --- cutting ----------------------------------------------------------------------------------------


def one_segment(full: bool) -> tuple[MemoryDisk, Log, Log]:
    """Return a disk with [0, 2) [2, 3) [3, 5) [5, 6), the second one damaged, its log, and an intact one."""
    intact, hurt = (written(LogConfig()).power_loss(everything_survives) for _ in range(2))
    entry = opened(intact).reader.locate(Offset(2)).entry
    overwrite(hurt, FIRST, flipped(file_content(hurt, FIRST), entry.position + 300, 1))
    log = opened(hurt, full=full)
    if not full:
        with pytest.raises(CorruptDataError):
            log.reader.read(Offset(2), 1, END)
    assert log.reader.corrupt_ranges == ((2, 3),)
    return hurt, log, opened(intact)


@pytest.mark.parametrize("full", [True, False])
def test_a_log_is_cut_where_its_damage_begins(full: bool) -> None:
    disk, log, _ = one_segment(full)
    log.truncate_to(Offset(2))
    assert (log.log_end_offset, log.reader.corrupt_ranges) == (2, ())
    append(log, [b"another"])
    log.writer.sync()
    found = opened(disk.power_loss(nothing_survives), full=True)
    assert stored_values(found) == {0: b"zero", 1: b"one", 2: b"another"}


@pytest.mark.parametrize("full", [True, False])
def test_damage_before_the_place_where_a_log_is_cut_stays_and_is_repaired(full: bool) -> None:
    disk, log, other = one_segment(full)
    log.truncate_to(Offset(3))
    assert (log.log_end_offset, log.reader.corrupt_ranges) == (3, ((2, 3),))
    assert [(hole.base, hole.next) for hole in log.holes()] == [(2, 3)]
    append(log, [b"another"])
    log.writer.sync()
    assert repair(log, other) == 1
    whole = {0: b"zero", 1: b"one", 2: b"two", 3: b"another"}
    assert stored_values(log) == whole
    assert stored_values(opened(disk.power_loss(nothing_survives), full=True)) == whole


def test_what_is_left_damaged_at_the_end_of_a_cut_log_is_repaired() -> None:
    disk, log, other = one_segment(full=True)
    log.truncate_to(Offset(3))
    assert repair(log, other) == 1
    append(log, [b"another"])
    log.close()
    whole = {0: b"zero", 1: b"one", 2: b"two", 3: b"another"}
    assert stored_values(opened(disk.power_loss(nothing_survives), full=True)) == whole


@pytest.mark.parametrize("full", [True, False])
def test_damage_at_the_end_of_a_segment_stays_when_the_next_one_is_cut_off(other: Log, full: bool) -> None:
    disk = replica()
    entry = other.reader.locate(Offset(2)).entry
    overwrite(disk, FIRST, flipped(CONTENT[FIRST], entry.position + 300, 1))
    log = looked_at(disk, full=full)
    assert (len(log.reader.segments), log.reader.corrupt_ranges) == (2, ((2, 3),))
    log.truncate_to(Offset(3))
    assert (log.log_end_offset, log.reader.corrupt_ranges) == (3, ((2, 3),))
    log.writer.config = LogConfig()  # what is appended goes into the same segment
    append(log, [b"another"])
    log.writer.sync()
    assert len(log.reader.segments) == 1
    assert repair(log, other) == 1
    assert stored_values(log) == {0: b"zero", 1: b"one", 2: b"two", 3: b"another"}
    assert file_content(disk, FIRST).startswith(CONTENT[FIRST][: entry.end])
