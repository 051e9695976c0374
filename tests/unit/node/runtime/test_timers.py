"""One timer for all machines of a node: one that has changed is asked once a turn when it is to wake."""

import asyncio
from dataclasses import dataclass

from envelope.types import MonotonicNs
from jetstream.node.runtime.timers import Timers
from jetstream.replica.settings import NEVER
from tests.support.clocks import StandingClock
from tests.support.nodes import WAIT_SECONDS
from tests.support.recording_loop import run_recorded, until_set

PAST = MonotonicNs(0)


@dataclass(eq=False)
class Machine:
    wake_at: MonotonicNs
    ticks: int = 0

    def tick(self) -> None:
        self.ticks += 1


async def turn(timers: Timers) -> None:
    """Let the timers have a turn: each that is due has had its tick."""
    over = asyncio.Event()
    timers.at(over.set, PAST)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(timers.run())
        await over.wait()
        running.cancel()


def test_a_machine_is_asked_at_the_turn_and_not_when_it_changes() -> None:
    async def test() -> None:
        timers, machine, other = Timers(StandingClock()), Machine(PAST), Machine(NEVER)
        timers.changed(machine.tick, machine)
        timers.changed(other.tick, other)
        machine.wake_at, other.wake_at = NEVER, PAST
        await turn(timers)

        assert (machine.ticks, other.ticks) == (0, 1)

    asyncio.run(test())


def test_a_tick_comes_once_for_all_changes_before_it() -> None:
    async def test() -> None:
        timers, machine = Timers(StandingClock()), Machine(PAST)
        timers.changed(machine.tick, machine)
        timers.changed(machine.tick, machine)
        await turn(timers)
        await turn(timers)

        assert machine.ticks == 1

    asyncio.run(test())


def test_a_machine_that_wants_to_wake_no_more_has_no_tick() -> None:
    async def test() -> None:
        clock = StandingClock()
        timers, machine = Timers(clock), Machine(MonotonicNs(clock.now + 1))
        timers.changed(machine.tick, machine)
        await turn(timers)
        machine.wake_at = NEVER
        timers.changed(machine.tick, machine)
        clock.now = MonotonicNs(clock.now + 2)
        await turn(timers)

        assert machine.ticks == 0

    asyncio.run(test())


def test_with_nothing_to_do_it_rests_until_something_is_due_or_has_changed() -> None:
    async def test() -> None:
        clock, machine, over = StandingClock(), Machine(PAST), asyncio.Event()
        timers = Timers(clock)
        timers.at(machine.tick, MonotonicNs(clock.now + 9_000_000_000_000))
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(timers.run())
            await until_set(8_999.0, 9_000.0)
            timers.changed(over.set, machine)
            async with asyncio.timeout(WAIT_SECONDS):
                await over.wait()
            running.cancel()

        assert machine.ticks == 0

    run_recorded(test())
