"""Which segments the sealed rewrite looks at, and what it holds to be worth its while."""

import pytest

from envelope.limits import KIB
from envelope.types import FilePosition, LeaderEpoch, Offset, TimestampUs
from jetstream.log.rewriting.rewrite_plan import RewriteBounds, due_segments, has_paid, is_waiting, may_pay
from jetstream.log.segments.index import BatchIndex, IndexEntry
from jetstream.log.segments.scan import Damage
from jetstream.log.segments.segment import Segment
from tests.support.memory_disk import MemoryDisk

AFTER = 100


def segments(count: int = 5) -> tuple[Segment, ...]:
    """Sealed ones of ten records each, at times 10, 20…, and one that is written."""
    made: list[Segment] = []
    for number in range(count):
        segment = Segment(MemoryDisk(), "log", Offset(10 * number))
        segment.next = Offset(10 * number + 10)
        segment.max_timestamp = TimestampUs(10 * number + 10)
        segment.sealed = number < count - 1
        made.append(segment)
    return tuple(made)


def due(
    log: tuple[Segment, ...], *, rewritten: int = 0, committed: int = 50, passed: int = 50, now: int = 1000
) -> list[int]:
    bounds = RewriteBounds(Offset(committed), Offset(passed), TimestampUs(now))
    return [segment.base for segment in due_segments(log, Offset(rewritten), bounds, AFTER)]


@pytest.mark.parametrize(
    ("rewritten", "cold_end", "wanted"),
    [(0, 9, False), (0, 10, True), (20, 29, False), (20, 30, True), (15, 20, True), (40, 1000, False)],
)
def test_a_log_waits_while_its_first_segment_that_was_not_looked_at_is_cold(
    rewritten: int, cold_end: int, wanted: bool
) -> None:
    assert is_waiting(segments(), Offset(rewritten), TimestampUs(cold_end)) is wanted
    assert not is_waiting(segments(1), Offset(0), TimestampUs(1000))


def test_all_that_is_sealed_and_cold_is_looked_at_once() -> None:
    assert due(segments()) == [0, 10, 20, 30]
    assert due(segments(), rewritten=20) == [20, 30]
    assert due(segments(), rewritten=40) == []
    assert due(segments(1)) == []


@pytest.mark.parametrize(
    ("now", "wanted"), [(109, []), (110, [0]), (139, [0, 10, 20]), (140, [0, 10, 20, 30])]
)
def test_a_segment_is_cold_when_its_newest_record_is_so_old(now: int, wanted: list[int]) -> None:
    assert due(segments(), now=now) == wanted


def test_a_clock_that_was_set_back_makes_it_wait() -> None:
    assert due(segments(), now=-1000) == []


@pytest.mark.parametrize(("committed", "passed"), [(29, 50), (50, 29), (29, 29)])
def test_what_is_not_committed_or_not_on_every_disk_stays(committed: int, passed: int) -> None:
    assert due(segments(), committed=committed, passed=passed) == [0, 10]


def test_a_segment_that_was_cut_into_the_mark_is_looked_at_again() -> None:
    assert due(segments(), rewritten=15) == [10, 20, 30]


def test_damage_holds_up_nothing_behind_it() -> None:
    log = segments()
    log[2].damages = (Damage(FilePosition(0), FilePosition(8), Offset(20), None, "gone"),)
    assert due(log) == [0, 10, 20, 30], "whoever reads them passes it over"


def index_of(*batches: tuple[int, int]) -> BatchIndex:
    """Batches of an epoch and a length, a record each."""
    index, position = BatchIndex(), 0
    for number, (epoch, length) in enumerate(batches):
        entry = IndexEntry(
            base=Offset(number),
            next=Offset(number + 1),
            position=FilePosition(position),
            length=length,
            leader_epoch=LeaderEpoch(epoch),
            max_timestamp=TimestampUs(number),
            last_txid=None,
        )
        index.append(entry, verified=True)
        position += length
    return index


@pytest.mark.parametrize(
    ("batches", "wanted"),
    [
        ([(1, 1000)] * 2, True),
        ([(1, 1000)], False),
        ([(1, 1000), (2, 1000)], False),
        ([(1, 1000), (2, 1000), (2, 1000), (2, 1000)], True),
        ([(1, 64 * KIB)] * 9, False),
        ([(1, 64 * KIB - 8)] * 9, True),
        ([(1, 1000)] * 9 + [(1, 8192 * KIB)], False),
        ([], False),
    ],
)
def test_only_many_small_batches_of_one_epoch_are_worth_a_try(
    batches: list[tuple[int, int]], wanted: bool
) -> None:
    assert may_pay(index_of(*batches)) is wanted


@pytest.mark.parametrize(("after", "wanted"), [(0, True), (900, True), (901, False), (1100, False)])
def test_what_saves_less_than_a_tenth_is_not_put_in_place(after: int, wanted: bool) -> None:
    assert has_paid(1000, after) is wanted
