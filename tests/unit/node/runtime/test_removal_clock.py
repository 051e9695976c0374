"""Removal by age goes by a clock that believes no jump at once."""

import logging
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.types import MonotonicNs, TimestampUs
from jetstream.node.runtime.removal_clock import HOLD_NS, JUMP_US, JumpGuard, RemovalClock

NOW = 1_700_000_000_000_000
YEAR = 365 * 24 * 3_600_000_000
PASS_NS = 5_000_000_000


@dataclass(slots=True)
class SetClock:
    """Clocks that a test sets."""

    wall_us: int = NOW
    monotonic_ns: int = 7

    def wall(self) -> TimestampUs:
        return TimestampUs(self.wall_us)

    def monotonic(self) -> MonotonicNs:
        return MonotonicNs(self.monotonic_ns)

    def run(self, duration_ns: int) -> None:
        self.monotonic_ns += duration_ns
        self.wall_us += duration_ns // 1000


def test_a_clock_that_is_put_right_in_time_has_removed_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock = SetClock()
    removal = RemovalClock(clock)
    with caplog.at_level(logging.WARNING):
        assert removal.wall() == NOW
        clock.run(PASS_NS)
        clock.wall_us += 9 * YEAR
        for _ in range(HOLD_NS // PASS_NS):
            assert removal.wall() == clock.wall_us - 9 * YEAR
            assert removal.ahead_us == 9 * YEAR
            clock.run(PASS_NS)
        clock.wall_us -= 9 * YEAR
        assert removal.wall() == clock.wall_us
        assert removal.ahead_us == 0
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"clock jumped ahead seconds={9 * YEAR // 1_000_000}",
        "clock is believed again, retention by age goes on",
    ]


def test_a_jump_before_the_first_look_for_old_records_is_noticed() -> None:
    clock = SetClock()
    removal = RemovalClock(clock)
    clock.wall_us += YEAR
    assert removal.wall() == NOW
    assert removal.ahead_us == YEAR


def test_a_clock_that_stays_ahead_is_believed_in_the_end() -> None:
    clock = SetClock()
    removal = RemovalClock(clock)
    removal.wall()
    clock.wall_us += YEAR
    assert removal.wall() == NOW
    clock.run(HOLD_NS - 1)
    assert removal.wall() < clock.wall_us
    clock.run(1)
    assert removal.wall() == clock.wall_us
    assert removal.ahead_us == 0


def test_a_pause_of_the_process_is_no_jump() -> None:
    clock = SetClock()
    removal = RemovalClock(clock)
    removal.wall()
    clock.run(24 * HOLD_NS)
    assert removal.wall() == clock.wall_us


def test_a_clock_that_is_set_back_is_believed_at_once() -> None:
    clock = SetClock()
    removal = RemovalClock(clock)
    removal.wall()
    clock.wall_us -= YEAR
    assert removal.wall() == NOW - YEAR


def test_as_the_node_starts_a_log_goes_on_from_its_newest_record() -> None:
    """Nothing tells then whether the clock is right."""
    clock = SetClock()
    removal, found = RemovalClock(clock), TimestampUs(NOW - YEAR)
    assert removal.wall_for(found) == found + JUMP_US
    assert removal.wall_for(TimestampUs(NOW - 1)) == NOW, "a stream that is in use waits for nothing"
    assert removal.wall_for(TimestampUs(NOW + YEAR)) == NOW
    assert removal.wall_for(TimestampUs(0)) == NOW, "a stream that is new has no record before"
    clock.run(HOLD_NS - 1000)
    assert removal.wall_for(found) == found + JUMP_US + HOLD_NS // 1000 - 1
    clock.run(1000)
    assert removal.wall_for(found) == clock.wall_us


readings = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 2 * HOLD_NS), st.integers(0, 10 * PASS_NS)),
        st.one_of(st.just(0), st.integers(-2 * JUMP_US, 2 * JUMP_US), st.integers(-YEAR, YEAR)),
    ),
    max_size=30,
)


@given(readings)
def test_the_time_gains_little_on_the_monotonic_clock_until_a_jump_has_lasted(
    steps: list[tuple[int, int]],
) -> None:
    guard, clock = JumpGuard(), SetClock()
    before = guard.handle(clock.wall(), clock.monotonic())
    held_since: int | None = None
    for duration, jump in steps:
        clock.run(duration)
        clock.wall_us += jump
        now = guard.handle(clock.wall(), clock.monotonic())
        assert now <= clock.wall_us, "J1: never later than the wall clock"
        assert guard.ahead_us == clock.wall_us - now
        gained = now - before - duration // 1000
        if gained > JUMP_US + 1:
            assert held_since is not None, "J2: a jump is not believed at once"
            assert clock.monotonic_ns - held_since >= HOLD_NS, "J2: nor soon"
        if not guard.ahead_us:
            held_since = None
        elif held_since is None:
            held_since = clock.monotonic_ns
        before = now
