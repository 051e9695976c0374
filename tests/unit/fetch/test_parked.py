"""Parked fetches: woken by offset, by time, or by leaving."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from envelope.types import MonotonicNs, Offset, StreamName
from jetstream.fetch.parked import _DEAD_ENTRIES_MIN, ParkedFetches
from tests.support.example_counts import examples

S, T = StreamName("s"), StreamName("t")


def parked(*places: tuple[str, StreamName, int, int]) -> ParkedFetches[str]:
    fetches = ParkedFetches[str]()
    for token, stream, offset, deadline in places:
        fetches.park(token, stream, Offset(offset), MonotonicNs(deadline))
    return fetches


def audit(fetches: ParkedFetches[Any]) -> None:
    """Check F3 and F4 in full."""
    queued = [entry for heap in fetches._by_offset.values() for entry in heap]
    for entries in (queued, fetches._by_deadline):
        living = {token for _, number, token in entries if fetches._lives(token, number)}
        assert living == fetches._places.keys(), "F3"
    assert len(queued) == fetches._offset_entries, "F4"
    longest = max(len(queued), len(fetches._by_deadline))
    assert longest <= 2 * len(fetches._places) + _DEAD_ENTRIES_MIN, "F4"


def test_a_high_watermark_wakes_only_those_it_has_passed() -> None:
    fetches = parked(("a", S, 5, 100), ("b", S, 3, 100), ("c", S, 6, 100), ("d", T, 0, 100))
    assert fetches.advance(S, Offset(3)) == []
    assert fetches.advance(S, Offset(6)) == ["b", "a"]
    assert fetches.advance(S, Offset(6)) == []
    assert len(fetches) == 2


def test_waiters_at_one_offset_keep_their_order() -> None:
    fetches = parked(*((str(number), S, 7, 100) for number in range(20)))
    assert fetches.advance(S, Offset(8)) == [str(number) for number in range(20)]


def test_a_deadline_is_met_to_the_nanosecond() -> None:
    fetches = parked(("late", S, 1, 11), ("early", T, 1, 10))
    assert fetches.next_deadline == 10
    assert fetches.expire(MonotonicNs(9)) == []
    assert fetches.expire(MonotonicNs(10)) == ["early"]
    assert fetches.next_deadline == 11


def test_one_who_left_is_not_woken() -> None:
    fetches = parked(("a", S, 1, 10), ("b", S, 1, 20))
    fetches.drop("a")
    fetches.drop("a")
    assert fetches.next_deadline == 20
    assert fetches.advance(S, Offset(9)) == ["b"]
    assert fetches.next_deadline is None


def test_all_of_a_deleted_stream_are_released() -> None:
    fetches = parked(("a", S, 1, 10), ("b", S, 900, 20), ("c", T, 1, 10))
    assert fetches.release(S) == ["a", "b"]
    assert not fetches.waits_on(S)
    assert fetches.waits_on(T)


def test_memory_follows_what_waits() -> None:
    fetches = parked(("stays", S, 0, 10**9))
    for number in range(10_000):
        fetches.park(str(number), S, Offset(10 + number), MonotonicNs(number))
        if number % 2:
            fetches.drop(str(number))
        fetches.expire(MonotonicNs(number))
        audit(fetches)
    assert len(fetches) == 1


class ParkedMachine(RuleBasedStateMachine):
    """Compare with a plain dict of what is parked."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches = ParkedFetches[int]()
        self.model: dict[int, tuple[StreamName, int, int]] = {}
        self.number = 0

    @rule(stream=st.sampled_from([S, T]), offset=st.integers(0, 9), deadline=st.integers(0, 9))
    def park(self, stream: StreamName, offset: int, deadline: int) -> None:
        self.number += 1
        self.fetches.park(self.number, stream, Offset(offset), MonotonicNs(deadline))
        self.model[self.number] = (stream, offset, deadline)

    @rule(stream=st.sampled_from([S, T]), high_watermark=st.integers(0, 10))
    def advance(self, stream: StreamName, high_watermark: int) -> None:
        ready = {t for t, (s, offset, _) in self.model.items() if s == stream and offset < high_watermark}
        self.leave(self.fetches.advance(stream, Offset(high_watermark)), ready)

    @rule(now=st.integers(0, 10))
    def expire(self, now: int) -> None:
        due = {t for t, (_, _, deadline) in self.model.items() if deadline <= now}
        self.leave(self.fetches.expire(MonotonicNs(now)), due)

    @rule(stream=st.sampled_from([S, T]))
    def release(self, stream: StreamName) -> None:
        self.leave(self.fetches.release(stream), {t for t, (s, _, _) in self.model.items() if s == stream})

    @rule(token=st.integers(1, 30))
    def drop(self, token: int) -> None:
        self.fetches.drop(token)
        self.model.pop(token, None)

    @invariant()
    def agrees(self) -> None:
        audit(self.fetches)
        assert len(self.fetches) == len(self.model)
        deadlines = [deadline for _, _, deadline in self.model.values()]
        assert self.fetches.next_deadline == min(deadlines, default=None)

    def leave(self, taken: list[int], expected: set[int]) -> None:
        assert sorted(taken) == sorted(expected)
        for token in taken:
            del self.model[token]


ParkedMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestParkedFetches = ParkedMachine.TestCase
