"""A task that waits for several things at once wakes for each of them, and for what came before it waited."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from envelope.types import MonotonicNs
from metadata.node.timers.movable_timer import now, seconds_until
from metadata.node.timers.wake_event import WakeEvent
from metadata.raft.settings import NEVER


def test_a_wait_ends_for_what_was_set_before_it_and_the_next_one_begins_anew() -> None:
    async def run() -> None:
        event = WakeEvent()
        event.set()
        await event.wait(NEVER)
        await _waits_until(event, event.set)

    uvloop.run(run())


def test_what_is_cleared_wakes_no_task() -> None:
    async def run() -> None:
        event = WakeEvent()
        event.set()
        event.clear()
        await _waits_until(event, event.set)

    uvloop.run(run())


def test_a_wait_ends_with_another_future() -> None:
    async def run() -> None:
        event, other = WakeEvent(), asyncio.get_running_loop().create_future()
        await _waits_until(event, lambda: other.set_result(None), other)
        await event.wait(NEVER, other)  # which is done

    uvloop.run(run())


def test_a_wait_ends_with_time_and_a_cancelled_one_harms_no_other() -> None:
    async def run() -> None:
        event = WakeEvent()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await event.wait(NEVER)
        await event.wait(MonotonicNs(now() + 1))

    uvloop.run(run())


async def _waits_until(event: WakeEvent, cause: Callable[[], None], *others: "asyncio.Future[None]") -> None:
    """Wait for ``event``, which is to last until ``cause`` is called."""
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(event.wait(NEVER, *others))
        await asyncio.sleep(0)
        assert not waiting.done()
        cause()


@pytest.mark.parametrize("nanoseconds", [-5, 0, 1, 999_999, 1_000_001, 40_600_000, 10**12])
def test_timers_are_set_to_whole_milliseconds_and_never_too_early(nanoseconds: int) -> None:
    moment = MonotonicNs(now() + nanoseconds)
    seconds = seconds_until(moment)
    assert seconds == round(seconds, 3)
    assert seconds * 1e9 >= moment - now()
    assert seconds >= 0
