"""Many times of which the next one is wanted."""

from hypothesis import given
from hypothesis import strategies as st

from consumer_groups.coordinator.sessions import NEVER
from consumer_groups.shard.alarms import Alarms
from envelope.types import MonotonicNs

STEPS = st.tuples(st.sampled_from("abcde"), st.integers(0, 20) | st.just(NEVER) | st.none())


@given(st.lists(st.lists(STEPS, max_size=60), max_size=6))
def test_what_has_come_is_what_was_set_last(rounds: list[list[tuple[str, int | None]]]) -> None:
    alarms: Alarms[str] = Alarms()
    model: dict[str, int] = {}
    for now, steps in enumerate(rounds, start=5):
        for key, at in steps:
            model.pop(key, None)
            if at is None:
                alarms.clear(key)
                continue
            alarms.set(key, MonotonicNs(at))
            if at != NEVER:
                model[key] = at
        assert alarms.next() == min(model.values(), default=NEVER)
        due = [key for key, at in model.items() if at <= now]
        found = alarms.due(MonotonicNs(now))
        times = [model.pop(key) for key in found]
        assert sorted(found) == sorted(due)
        assert times == sorted(times)
        assert alarms.next() == min(model.values(), default=NEVER)


def test_a_time_that_is_moved_again_and_again_takes_no_room() -> None:
    alarms: Alarms[str] = Alarms()
    for at in range(10_000):
        alarms.set("a", MonotonicNs(at))
    assert len(alarms._heap) < 100
    assert alarms.due(MonotonicNs(10_000)) == ["a"]
