"""Cursors: one fetch at a time each, from where the last one ended."""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from envelope.errors import RequestError
from envelope.types import Incarnation, LeaderEpoch, Offset
from jetstream.fetch.cursors import CURSORS_KEPT_MAX, ConnectionCursors, CursorPlace
from tests.support.example_counts import examples


def place(offset: int, stream: str = "s") -> CursorPlace:
    return CursorPlace(stream, Incarnation("one"), Offset(offset), LeaderEpoch(1))


def test_fetches_of_a_cursor_have_their_turn_in_order() -> None:
    cursors = ConnectionCursors[str]()
    assert cursors.enter(7, "a")
    assert not cursors.enter(7, "b")
    assert not cursors.enter(7, "c")
    assert cursors.leave(7, place(10)) == "b"
    assert cursors.place(7, "s") == place(10)
    assert cursors.leave(7, place(20)) == "c"
    assert cursors.place(7, "s") == place(20)
    assert cursors.leave(7, place(30)) is None
    assert cursors.enter(7, "d")
    assert cursors.place(7, "s") == place(30)


def test_cursors_know_nothing_of_each_other() -> None:
    cursors = ConnectionCursors[str]()
    assert cursors.enter(1, "a")
    assert cursors.enter(2, "b")
    assert cursors.leave(2, place(5, "t")) is None
    assert cursors.enter(2, "c")
    assert cursors.place(2, "t") == place(5, "t")


def test_a_cursor_that_failed_stands_nowhere() -> None:
    cursors = ConnectionCursors[str]()
    cursors.enter(1, "a")
    cursors.enter(1, "b")
    assert cursors.leave(1, None) == "b"
    with pytest.raises(RequestError, match="cursor 1 stands nowhere"):
        cursors.place(1, "s")
    assert cursors.leave(1, None) is None
    cursors.enter(1, "c")
    with pytest.raises(RequestError, match="cursor 1 stands nowhere"):
        cursors.place(1, "s")


def test_a_cursor_stands_in_one_stream() -> None:
    cursors = ConnectionCursors[str]()
    cursors.enter(1, "a")
    cursors.leave(1, place(5))
    cursors.enter(1, "b")
    with pytest.raises(RequestError, match="another stream"):
        cursors.place(1, "t")


def test_the_idle_cursor_used_longest_ago_is_forgotten() -> None:
    cursors = ConnectionCursors[int]()
    for number in range(CURSORS_KEPT_MAX):
        cursors.enter(number, number)
        cursors.leave(number, place(number))
    cursors.enter(0, -1)
    cursors.leave(0, place(0))
    cursors.enter(CURSORS_KEPT_MAX, -2)
    cursors.leave(CURSORS_KEPT_MAX, place(1))
    cursors.enter(0, -3)
    assert cursors.place(0, "s") == place(0)
    cursors.enter(1, -4)
    with pytest.raises(RequestError):
        cursors.place(1, "s")


class CursorModel(RuleBasedStateMachine):
    """Every fetch has exactly one turn, in order, at the place the one before it left (F5, F6)."""

    def __init__(self) -> None:
        super().__init__()
        self.cursors = ConnectionCursors[int]()
        self.queues: dict[int, deque[int]] = {}
        self.places: dict[int, CursorPlace | None] = {}
        self.count = 0

    @rule(cursor=st.integers(0, 3))
    def enter(self, cursor: int) -> None:
        self.count += 1
        queue = self.queues.setdefault(cursor, deque())
        queue.append(self.count)
        assert self.cursors.enter(cursor, self.count) == (len(queue) == 1)

    @precondition(lambda self: any(self.queues.values()))
    @rule(data=st.data(), offset=st.none() | st.integers(0, 9))
    def leave(self, data: st.DataObject, offset: int | None) -> None:
        cursor = data.draw(st.sampled_from(sorted(key for key, queue in self.queues.items() if queue)))
        expected = self.places.get(cursor)
        if expected is None:
            with pytest.raises(RequestError):
                self.cursors.place(cursor, "s")
        else:
            assert self.cursors.place(cursor, "s") == expected
        self.places[cursor] = None if offset is None else place(offset)
        self.queues[cursor].popleft()
        turn = self.cursors.leave(cursor, self.places[cursor])
        assert turn == (self.queues[cursor][0] if self.queues[cursor] else None)


TestCursorModel = CursorModel.TestCase
TestCursorModel.settings = settings(max_examples=examples(100), stateful_step_count=40)
