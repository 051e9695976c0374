"""Followers that are not in sync get what the throttle leaves them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.types import MonotonicNs
from jetstream.replica.throttle import Throttle

SECOND = 1_000_000_000


def test_without_a_rate_nobody_waits() -> None:
    throttle = Throttle(None)
    throttle.spend(1 << 40, MonotonicNs(7))
    assert throttle.ready_at() <= 7


def test_an_answer_is_waited_for_as_long_as_it_costs() -> None:
    throttle = Throttle(1000)
    throttle.spend(500, MonotonicNs(10 * SECOND))
    assert throttle.ready_at() == 10 * SECOND + SECOND // 2
    throttle.spend(500, MonotonicNs(10 * SECOND))
    assert throttle.ready_at() == 11 * SECOND


def test_what_was_not_spent_is_not_saved_up() -> None:
    throttle = Throttle(1000)
    throttle.spend(1000, MonotonicNs(0))
    throttle.spend(1000, MonotonicNs(3600 * SECOND))
    assert throttle.ready_at() == 3601 * SECOND


@given(st.lists(st.tuples(st.integers(0, SECOND), st.integers(0, 4096)), min_size=1, max_size=50))
def test_over_any_time_at_most_the_rate_and_one_answer_is_spent(answers: list[tuple[int, int]]) -> None:
    rate, throttle, now, spent = 10_000, Throttle(10_000), 0, []
    for pause, count in answers:
        now = max(now + pause, throttle.ready_at())
        throttle.spend(count, MonotonicNs(now))
        spent.append((now, count))
    for first, (begun, _) in enumerate(spent):
        for last in range(first, len(spent)):
            before_last = sum(count for _, count in spent[first:last])
            assert before_last * SECOND <= rate * (spent[last][0] - begun) + last * rate


def test_nothing_that_was_spent_is_given_back() -> None:
    with pytest.raises(AssertionError, match="T1"):
        Throttle(1000).spend(-1, MonotonicNs(0))
