"""When a log is compacted, how far, and when tombstones go."""

from dataclasses import replace

import pytest

from envelope.errors import CorruptDataError
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.rewriting.compaction_plan import CompactionBounds, CompactionPlan, plan_compaction
from jetstream.log.segments.log_config import CompactionConfig
from jetstream.log.segments.segment import Segment
from jetstream.log.state.compaction_state import CompactionState, decode_compaction
from tests.support.memory_disk import MemoryDisk

DAY = 1000
CONFIG = CompactionConfig(dirty_ratio=0.5, age_us=DAY, tombstone_retention_us=DAY)


def segments(count: int = 5) -> tuple[Segment, ...]:
    """Sealed ones of ten records and 100 bytes each, at times 10, 20…, and one that is written."""
    made: list[Segment] = []
    for number in range(count):
        segment = Segment(MemoryDisk(), "log", Offset(10 * number))
        segment.next, segment.size = Offset(10 * number + 10), 100
        segment.max_timestamp, segment.last_epoch = TimestampUs(10 * number + 10), LeaderEpoch(1)
        segment.sealed = number < count - 1
        made.append(segment)
    return tuple(made)


def plan(
    state: CompactionState,
    config: CompactionConfig = CONFIG,
    *,
    high_watermark: int = 50,
    passed: int = 50,
    now: int = 50,
    log: tuple[Segment, ...] | None = None,
) -> CompactionPlan | None:
    bounds = CompactionBounds(Offset(high_watermark), Offset(passed), TimestampUs(now))
    return plan_compaction(segments() if log is None else log, state, bounds, config)


def ends(found: CompactionPlan | None) -> tuple[int, int, int, int] | None:
    """How many segments, from where to where keys are gathered, up to where tombstones go."""
    if found is None:
        return None
    return len(found.segments), found.dirty_start, found.end, found.purge_end


def cleaned(end: int) -> CompactionState:
    return CompactionState(Offset(end))


def test_a_log_is_compacted_when_enough_of_it_is_dirty() -> None:
    assert ends(plan(cleaned(0))) == (4, 0, 40, 0)
    assert ends(plan(cleaned(20))) == (4, 20, 40, 0)
    assert plan(cleaned(30)) is None
    assert plan(cleaned(40)) is None
    assert ends(plan(cleaned(30), replace(CONFIG, dirty_ratio=0.25))) == (4, 30, 40, 0)


def test_what_is_dirty_for_long_is_compacted_however_little_it_is() -> None:
    assert plan(cleaned(30), now=40 + DAY) is None
    assert ends(plan(cleaned(30), now=40 + DAY + 1)) == (4, 30, 40, 0)
    assert plan(cleaned(40), now=100 * DAY) is None


@pytest.mark.parametrize(("high_watermark", "wanted"), [(40, 40), (39, 30), (10, 10), (9, None)])
def test_only_what_is_committed_is_compacted(high_watermark: int, wanted: int | None) -> None:
    found = plan(cleaned(0), high_watermark=high_watermark)
    assert (None if found is None else found.end) == wanted


@pytest.mark.parametrize(("lag", "wanted"), [(0, 40), (10, 40), (11, 30), (41, None)])
def test_what_is_young_in_the_logs_own_time_is_not_compacted(lag: int, wanted: int | None) -> None:
    found = plan(cleaned(0), replace(CONFIG, lag_us=lag))
    assert (None if found is None else found.end) == wanted


def test_the_segment_with_the_last_record_is_not_compacted() -> None:
    log = segments()
    log[-1].next = log[-1].base
    assert ends(plan(cleaned(0), log=log)) == (3, 0, 30, 0)
    assert plan(cleaned(0), log=log[-1:]) is None


def test_damage_is_not_compacted_nor_what_is_behind_it() -> None:
    log = segments()
    log[2].sealed = False
    assert ends(plan(cleaned(0), log=log)) == (2, 0, 20, 0)


def test_what_is_below_the_logs_start_is_clean() -> None:
    assert ends(plan(cleaned(0), log=segments()[2:])) == (2, 20, 40, 0)


WAITING = CompactionState(Offset(40), Offset(0), Offset(40), TimestampUs(50))


@pytest.mark.parametrize(
    ("now", "passed", "wanted"),
    [
        (50 + DAY - 1, 50, None),
        (50 + DAY, 50, (4, 40, 40, 40)),
        (50 + DAY, 39, (4, 40, 40, 39)),
        (50 + DAY, 12, (2, 40, 40, 12)),
        (50 + DAY, 9, None),
        (0, 50, None),
    ],
)
def test_tombstones_go_once_they_have_waited_and_all_have_passed_them(
    now: int, passed: int, wanted: tuple[int, int, int, int] | None
) -> None:
    assert ends(plan(WAITING, replace(CONFIG, age_us=10**9), now=now, passed=passed)) == wanted


def test_tombstones_go_with_the_next_compaction_too() -> None:
    state = replace(WAITING, cleaned_end=Offset(20), waiting_end=Offset(20))
    assert ends(plan(state, now=50 + DAY)) == (4, 20, 40, 20)


def test_the_wait_of_tombstones_begins_when_what_they_delete_is_gone() -> None:
    state = CompactionState().cleaned(Offset(40), TimestampUs(50), tombstones=True)
    assert state == WAITING
    later = state.cleaned(Offset(60), TimestampUs(70), tombstones=True)
    assert (later.waiting_end, later.waiting_since) == (40, 50), "those before do not wait anew"
    purged = later.purged(Offset(40)).cleaned(Offset(60), TimestampUs(2000), tombstones=True)
    assert purged == CompactionState(Offset(60), Offset(40), Offset(60), TimestampUs(2000))
    none_left = purged.cleaned(Offset(60), TimestampUs(2000), tombstones=False)
    assert none_left == CompactionState(Offset(60), Offset(40))


def test_a_state_that_contradicts_itself_is_refused() -> None:
    state = {**WAITING.encode(), "waiting_end": 41}
    with pytest.raises(CorruptDataError, match="contradicts"):
        decode_compaction(state)
    assert decode_compaction(WAITING.encode()) == WAITING
    with pytest.raises(AssertionError, match="K1"):
        CompactionState(waiting_end=Offset(1))
