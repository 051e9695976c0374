"""Readers that wait for their turns, on a real loop."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from jetstream.fetch.catch_up_scheduler import CatchUpScheduler
from jetstream.node.runtime.catch_up_queue import CatchUpQueue, ReaderTurn
from jetstream.node.runtime.clock import SystemClock
from tests.support.sockets import LOOPS, run, until

pytestmark = pytest.mark.parametrize("loop", sorted(LOOPS))

LONG_S = 1e9
"""Longer than any machine has run: the loop counts from when it started."""


def queue_while_storing(share: float = 0.5) -> tuple[CatchUpScheduler, CatchUpQueue]:
    loop = asyncio.get_running_loop()
    turns = CatchUpScheduler(share)
    turns.appending(loop.time() + LONG_S)
    return turns, CatchUpQueue(turns, SystemClock(), loop)


def test_readers_have_their_turns_in_the_order_they_came(loop: str) -> None:
    async def test() -> None:
        turns, queue = queue_while_storing()
        had: list[tuple[str, bool]] = []

        def reader(name: str) -> Callable[[], None]:
            def resume() -> None:
                had.append((name, turns.wait_s(asyncio.get_running_loop().time()) == 0))
                turns.taken(0.005, asyncio.get_running_loop().time())
                if len(had) < 6:
                    queue.wait(resume, goes_on=False)

            return resume

        assert queue.is_due(goes_on=False)
        turns.taken(0.005, asyncio.get_running_loop().time())
        readers = [reader(name) for name in "abc"]
        for resume in (*readers, *readers):  # asking twice is one turn
            queue.wait(resume, goes_on=False)
        await until(lambda: len(had) == 8)
        assert had == [(name, True) for name in "abcabcab"]
        assert queue.awaited == 8

    run(test(), loop)


def test_there_are_readers_while_one_waits_or_has_just_had_a_turn(loop: str) -> None:
    async def test() -> None:
        turns, queue = queue_while_storing()
        found = [queue.are_taken]
        queue.wait(print, goes_on=False)
        found.append(queue.are_taken)
        queue.leave(print)
        found.append(queue.are_taken)
        turns.taken(0.0, asyncio.get_running_loop().time())
        found.append(queue.are_taken)
        assert found == [False, True, False, True]

    run(test(), loop)


def test_who_waits_goes_on_when_the_last_append_is_done(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        turns, queue = queue_while_storing()
        had: list[str] = []
        queue.wait(partial(had.append, "a"), goes_on=False)
        queue.wait(partial(had.append, "b"), goes_on=False)
        turns.appending(asyncio.get_running_loop().time() + LONG_S)
        queue.appended(1)
        await asyncio.sleep(0)
        assert had == []
        queue.appended(1)
        await asyncio.sleep(0)  # and no timer
        assert had == ["a", "b"]

    monkeypatch.setattr("jetstream.fetch.catch_up_scheduler._PATIENCE_S", LONG_S)
    monkeypatch.setattr("jetstream.fetch.catch_up_scheduler._MOMENT_S", LONG_S)
    run(test(), loop)


def test_nobody_overtakes_those_who_wait(loop: str) -> None:
    async def test() -> None:
        turns, queue = queue_while_storing()
        turns.taken(0.005, asyncio.get_running_loop().time())
        had: list[str] = []
        queue.wait(partial(had.append, "a"), goes_on=False)
        turns.appending(0.0)  # the time has come, and the timer has not rung yet
        assert not queue.is_due(goes_on=False)
        assert queue.is_due(goes_on=True)
        await until(lambda: bool(had))
        assert queue.is_due(goes_on=False)

    run(test(), loop)


def test_who_is_in_the_middle_of_a_body_goes_first(loop: str) -> None:
    async def test() -> None:
        turns, queue = queue_while_storing()
        turns.taken(0.005, asyncio.get_running_loop().time())
        had: list[str] = []
        for name, goes_on in (("a", False), ("b", False), ("c", True), ("d", False)):
            queue.wait(partial(had.append, name), goes_on=goes_on)
        await until(lambda: turns.wait_s(asyncio.get_running_loop().time()) == 0)
        assert had or queue.is_due(goes_on=True), "before all who wait"
        await until(lambda: len(had) == 4)
        assert had == ["c", "a", "b", "d"]

    run(test(), loop)


def test_who_has_left_is_not_called(loop: str) -> None:
    async def test() -> None:
        turns, queue = queue_while_storing()
        turns.taken(0.005, asyncio.get_running_loop().time())
        had: list[str] = []

        def gone() -> None:
            had.append("gone")

        def first() -> None:
            had.append("first")
            queue.leave(gone)  # while both are due

        queue.wait(first, goes_on=False)
        queue.wait(gone, goes_on=False)
        queue.wait(lambda: had.append("last"), goes_on=False)
        await until(lambda: "last" in had)
        assert had == ["first", "last"]
        queue.leave(gone)

    run(test(), loop)


def test_everybody_goes_on_once_nothing_is_stored_any_more(loop: str) -> None:
    async def test() -> None:
        turns, queue = queue_while_storing(share=1e-9)
        turns.taken(0.01, asyncio.get_running_loop().time())  # due in months
        had: list[int] = []
        for number in range(3):
            queue.wait(partial(had.append, number), goes_on=False)
        await asyncio.sleep(0)
        assert had == []
        turns.appending(0.0)
        await until(lambda: len(had) == 3)
        assert had == [0, 1, 2]

    run(test(), loop)


def test_a_turn_is_used_once(loop: str) -> None:
    async def test() -> None:
        turns, queue = queue_while_storing()
        turns.taken(0.005, asyncio.get_running_loop().time())
        sent: list[str] = []
        waits: list[bool] = []

        def resumed() -> None:
            assert not turn.is_awaited
            for name in ("first", "second"):
                if turn.comes():
                    sent.append(name)
                    turn.took(SystemClock().monotonic(), 1 << 24)
            waits.append(turn.is_awaited)

        turn = ReaderTurn(queue, resumed, is_local=True)
        assert not turn.comes()
        assert turn.is_awaited
        await until(lambda: bool(sent))
        assert sent == ["first"]
        assert waits == [True], "the second one waits for the next turn"
        turn.leave()

    run(test(), loop)


def test_a_turn_that_is_not_awaited_any_more_does_not_come(loop: str) -> None:
    async def test() -> None:
        turns, queue = queue_while_storing()
        turns.taken(0.005, asyncio.get_running_loop().time())
        had: list[str] = []
        leaving, staying = (
            ReaderTurn(queue, partial(had.append, name), is_local=True) for name in ("leaving", "staying")
        )
        assert not leaving.comes()
        assert not staying.comes()
        leaving.leave()
        await until(lambda: bool(had))
        assert had == ["staying"]

    run(test(), loop)
