"""Every sealed segment has its turn once in a pass, and not before its share of the interval begins."""

from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.types import Offset, TimestampUs
from jetstream.log.rewriting.scrub_plan import ScrubHand
from jetstream.log.segments.segment import Segment

INTERVAL_US = 1_000_000
START = 1_700_000_000_000_000


@dataclass
class Part:
    """As much of a segment as the plan looks at."""

    base: Offset
    next: Offset
    size: int
    sealed: bool = True


def due(hand: ScrubHand, parts: list[Part], now: int) -> list[Part]:
    """Take every turn that there is at ``now``."""
    found: list[Part] = []
    while (part := hand.due(cast("list[Segment]", parts), TimestampUs(now))) is not None:
        found.append(cast("Part", part))
        hand.skip(part)
        assert len(found) <= len(parts), "a turn is over once it is taken"
    return found


def parts_of(sizes: list[int], base: int = 0) -> list[Part]:
    return [Part(Offset(base + row), Offset(base + row + 1), size) for row, size in enumerate(sizes)]


SIZES = st.lists(st.integers(1, 1_000), min_size=1, max_size=20)
STEPS = st.lists(st.integers(1, INTERVAL_US // 3), min_size=20, max_size=40)
PHASES = st.integers(0, INTERVAL_US - 1)


@given(SIZES, STEPS, PHASES, st.integers(0, INTERVAL_US))
def test_each_segment_has_one_turn_in_each_pass(
    sizes: list[int], steps: list[int], phase: int, begin: int
) -> None:
    parts, hand = parts_of(sizes), ScrubHand(INTERVAL_US, phase)
    now = START + begin
    assert due(hand, parts, now) == [], "what is before the hand at the start comes in the next pass"
    passes: dict[int, list[int]] = {}
    for step in steps:
        last, now = now, now + step
        for part in due(hand, parts, now):
            number, elapsed = divmod(now + phase, INTERVAL_US)
            before, total = sum(sizes[: part.base]), sum(sizes)
            if before * INTERVAL_US > elapsed * total:
                number -= 1  # the rest of the pass that has just ended
                assert (last + phase) // INTERVAL_US == number
            passes.setdefault(number, []).append(part.base)
    whole = range((START + begin + phase) // INTERVAL_US + 1, (now + phase) // INTERVAL_US)
    for number in whole:
        assert passes[number] == [part.base for part in parts]
    assert all(len(set(bases)) == len(bases) for bases in passes.values())


@given(SIZES, STEPS, PHASES, st.data())
def test_a_log_that_grows_and_shrinks_has_no_segment_left_out(
    sizes: list[int], steps: list[int], phase: int, data: st.DataObject
) -> None:
    """Retention takes from the front, publishers add behind: what is there throughout has its turn.

    What is added has none before the next pass.
    """
    parts, hand = parts_of(sizes), ScrubHand(INTERVAL_US, phase)
    now = START - phase  # a pass begins
    seen = [int(part.base) for part in due(hand, parts, now)]
    lasting = {part.base for part in parts}
    sealed_before = parts[-1].next
    for step in steps:
        now += step
        if now + phase >= START + INTERVAL_US:
            break
        parts += parts_of(data.draw(st.lists(st.integers(1, 1_000), max_size=2)), parts[-1].next)
        gone = data.draw(st.integers(0, 1)) if len(parts) > 1 else 0
        lasting -= {part.base for part in parts[:gone]}
        parts = parts[gone:]
        seen += [int(part.base) for part in due(hand, parts, now)]
    *rest, first = due(hand, parts, START - phase + INTERVAL_US)
    seen += [int(part.base) for part in rest]
    assert all(base < sealed_before for base in seen), "what was sealed in this pass comes in the next"
    assert lasting <= {*seen, first.base}
    *rest, _ = due(hand, parts, START - phase + 2 * INTERVAL_US)
    assert [first, *rest] == parts


def test_a_log_that_grows_from_nothing_is_not_read_as_it_is_written() -> None:
    hand, parts = ScrubHand(INTERVAL_US, INTERVAL_US // 2), parts_of([1])
    parts[0].sealed = False
    for tenth in range(4):
        assert due(hand, parts, START + tenth * INTERVAL_US // 10) == []
        parts = [*parts_of([10] * (10 * tenth + 10)), Part(Offset(99), Offset(100), 1, sealed=False)]
    assert due(hand, parts, START + INTERVAL_US) == parts[:21], "half of the next pass is over"


def test_what_is_still_written_has_no_turn() -> None:
    parts, hand = parts_of([10, 10]), ScrubHand(INTERVAL_US, 0)
    parts[1].sealed = False
    assert due(hand, parts, START) == []
    assert due(hand, parts, START + INTERVAL_US) == parts[:1]
    assert due(hand, [], START + 2 * INTERVAL_US) == []


def test_a_clock_that_is_set_brings_no_log_to_be_read_at_once() -> None:
    parts, hand = parts_of([10] * 10), ScrubHand(INTERVAL_US, 0)
    assert due(hand, parts, START) == []
    for jump in (5 * INTERVAL_US, 2 * INTERVAL_US, -4 * INTERVAL_US):
        assert due(hand, parts, START + jump + INTERVAL_US // 2) == []
    assert [part.base for part in due(hand, parts, START - 4 * INTERVAL_US + INTERVAL_US * 7 // 10)] == [6, 7]


def test_a_turn_is_taken_once() -> None:
    hand, (first, *_) = ScrubHand(INTERVAL_US, 0), parts_of([1, 1])
    hand.skip(cast("Segment", first))
    with pytest.raises(AssertionError, match="Y1"):
        hand.skip(cast("Segment", first))
