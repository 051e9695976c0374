"""How much goes to one reader before the others have their turn, and when the next turn may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.limits import MIB
from jetstream.fetch.catch_up_scheduler import SHORT_TURN_BYTES, TURN_BYTES, CatchUpScheduler

SAVED_S = 0.002
COST_S_MAX = 0.05
PATIENCE_S = 0.005
LONG_S = 1e6


def storing(share: float = 0.25, cores: int = 1, done_s: float = LONG_S) -> CatchUpScheduler:
    """Have something stored for very long, and all appends done since then: turns begin when they are due."""
    turns = CatchUpScheduler(share, cores)
    turns.appending(LONG_S)
    assert turns.appended(1, done_s)
    return turns


def test_turns_are_short_from_an_append_until_its_ack_may_have_left() -> None:
    turns = CatchUpScheduler()
    assert turns.length(100.0) == TURN_BYTES
    turns.appending(100.0)
    assert turns.length(100.0) == turns.length(100.09) == SHORT_TURN_BYTES < TURN_BYTES
    turns.appending(100.05)
    assert turns.length(100.149) == SHORT_TURN_BYTES
    assert turns.length(100.151) == TURN_BYTES


def test_while_nothing_is_stored_nobody_waits() -> None:
    turns = CatchUpScheduler(0.1)
    turns.taken(1.0, 100.0)
    assert turns.wait_s(100.0) == 0
    turns.appending(100.0)
    assert turns.wait_s(100.0) > 0, "what was taken counts once something is"
    assert turns.wait_s(100.11) == 0


def test_a_thread_that_works_for_readers_rests_while_something_is_stored() -> None:
    turns = CatchUpScheduler(0.1)
    assert turns.rest_s(0.004, 100.0) == 0
    turns.appending(100.0)
    assert turns.rest_s(0.004, 100.0) == pytest.approx(0.036)
    assert turns.rest_s(30.0, 100.0) == pytest.approx(9 * COST_S_MAX)
    assert turns.rest_s(0.004, 100.11) == 0
    assert storing(share=1.0).rest_s(0.004, LONG_S) == 0


def test_there_are_readers_until_nobody_has_taken_a_turn_for_a_while() -> None:
    turns = CatchUpScheduler()
    assert turns.taken_until_s < 0.0
    turns.taken(0.001, 100.0)
    assert 100.09 < turns.taken_until_s < 100.11


def test_what_was_taken_while_nothing_was_stored_is_not_owed() -> None:
    turns = CatchUpScheduler(0.05)
    for step in range(10_000):  # ten seconds at full speed
        turns.taken(0.001, 100.0 + step / 1000)
    turns.appending(110.0)
    assert turns.wait_s(110.0) <= 0.001 / 0.05 + PATIENCE_S, "no more than for the last turn"


def test_who_took_a_quarter_leaves_three() -> None:
    turns = storing(0.25)
    turns.taken(0.004, 100.0)
    assert abs(turns.wait_s(100.0) - (0.016 - SAVED_S)) < 1e-9
    assert turns.wait_s(100.0 + 0.016) == 0


def test_with_the_whole_time_for_them_readers_wait_for_nobody() -> None:
    turns = storing(1.0)
    turns.taken(0.01, 100.0, local_bytes=512 * MIB)
    assert turns.wait_s(100.0) == 0


@pytest.mark.parametrize("cores", [1, 2, 64])
def test_what_is_read_on_this_machine_counts_the_less_the_more_cores_it_has(cores: int) -> None:
    turns = storing(0.5, cores)
    turns.taken(0.0, 100.0, local_bytes=4 * MIB)
    assert abs(turns.wait_s(100.0) - max(0.0, 4 / (96 * cores) / 0.5 - SAVED_S)) < 1e-9


def test_a_process_that_was_stopped_does_not_let_readers_wait_as_long_again() -> None:
    turns = storing(0.25)
    turns.taken(3600.0, 100.0)
    assert turns.wait_s(100.0) <= COST_S_MAX / 0.25


def test_a_turn_that_is_due_begins_when_the_last_append_is_done() -> None:
    turns = storing(0.1, done_s=0.0)
    turns.taken(0.001, 100.0)
    due_s = 100.0 - SAVED_S + 0.01
    turns.appending(due_s)
    turns.appending(due_s)
    assert not turns.appended(1, due_s + 0.001)
    assert turns.wait_s(due_s + 0.001) == pytest.approx(PATIENCE_S - 0.001), "another one is under way"
    assert turns.appended(1, due_s + 0.002)
    assert turns.wait_s(due_s + 0.002) == turns.wait_s(due_s + 0.0022) == 0
    assert turns.wait_s(due_s + 0.0024) == pytest.approx(PATIENCE_S - 0.0024), (
        "the next message may be coming"
    )


def test_a_turn_is_not_put_off_for_ever() -> None:
    turns = storing(0.1)
    turns.taken(0.001, 100.0)
    due_s = 100.0 - SAVED_S + 0.01
    turns.appending(due_s)
    assert turns.wait_s(due_s) == pytest.approx(PATIENCE_S)
    assert turns.wait_s(due_s + PATIENCE_S) == pytest.approx(0)


def test_the_moment_after_an_append_does_not_make_a_turn_due() -> None:
    turns = storing(0.1)
    turns.taken(0.001, 100.0)
    assert turns.wait_s(100.0) == pytest.approx(0.01 - SAVED_S)


@given(
    st.floats(0.05, 0.99),
    st.lists(st.tuples(st.floats(1e-6, 0.01), st.floats(0, 0.02)), min_size=1, max_size=60),
    st.sampled_from([0.0, LONG_S]),
)
def test_turns_take_their_share_and_no_more(
    share: float, steps: list[tuple[float, float]], done_s: float
) -> None:
    """Readers take a turn whenever they may; timers ring late by any time."""
    turns = storing(share, done_s=done_s)
    begun_s = now_s = 100.0
    taken_s = longest_s = 0.0
    for cost_s, late_s in steps:
        now_s += turns.wait_s(now_s) + late_s
        assert turns.wait_s(now_s) <= 1e-9
        now_s += cost_s
        taken_s, longest_s = taken_s + cost_s, max(longest_s, cost_s)
        turns.taken(cost_s, now_s)
        assert taken_s <= share * (now_s - begun_s + SAVED_S) + longest_s + 1e-9, "F9"
