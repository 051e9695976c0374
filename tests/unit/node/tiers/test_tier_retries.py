"""How long uploads and readers leave an object store alone that has failed them."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from envelope.errors import TierUnavailable
from envelope.types import MonotonicNs
from jetstream.node.runtime.removal_clock import RemovalClock
from jetstream.node.tiers.tiering import Tiering
from jetstream.tier.manifest import TieredSegment
from jetstream.tier.retries import failed_again
from jetstream.tier.tiered_log import SegmentAway
from tests.support.memory_disk import MemoryDisk
from tests.support.object_stores import MemoryStore
from tests.support.sockets import until
from tests.support.tier_world import TierWorld, catalog, next_reign, tier_world

HALF_SECOND = 500_000_000
UPLOAD_PAUSES = [HALF_SECOND * times for times in (1, 2, 4, 8, 16, 32, 64, 120, 120, 120)]
"""Up to a minute."""
READ_PAUSES = [HALF_SECOND * times for times in (1, 2, 4, 8, 10, 10, 10)]
"""Up to five seconds: somebody waits."""


async def check_pauses(
    world: TierWorld, objects: MemoryStore, attempt: Callable[[], Awaitable[None]], pauses: list[int]
) -> None:
    """Make attempts at a store that is down: it is asked once after each pause, and not during it."""
    await attempt()
    for pause in pauses:
        asked = len(objects.trace)
        world.clock.now_ns += pause - 1
        await attempt()
        assert len(objects.trace) == asked, f"asked before {pause} ns were over"
        world.clock.now_ns += 1
        await attempt()
        assert len(objects.trace) == asked + 1, f"not asked after {pause} ns"
    world.clock.now_ns += pauses[-1]


def tiering_of(world: TierWorld) -> Tiering:
    return Tiering(world.tier, RemovalClock(world.clock), [world], lambda: None)


def test_uploads_pause_for_longer_and_longer_but_a_minute_at_most_and_anew_after_a_success() -> None:
    async def scenario() -> None:
        objects = MemoryStore()
        async with tier_world(MemoryDisk(), objects.store, catalog()) as world:
            tiering = tiering_of(world)
            world.publish(4)
            objects.is_down = True
            await check_pauses(world, objects, tiering._take_turns, UPLOAD_PAUSES)
            problem = world.tiered.problem
            assert isinstance(problem, TierUnavailable)
            objects.is_down = False
            await tiering._take_turns()
            assert world.tiered.problem is None
            assert world.tiered.mark is not None
            assert world.tiered.mark.end == 2
            world.publish(4)
            objects.is_down = True
            await check_pauses(world, objects, tiering._take_turns, UPLOAD_PAUSES[:3])
            assert world.tier.counters.objects["upload_failed"] == len(UPLOAD_PAUSES) + 1 + 4

    asyncio.run(scenario())


def test_a_new_reign_does_not_wait_for_the_pause_of_the_one_before() -> None:
    async def scenario() -> None:
        objects, known = MemoryStore(is_down=True), catalog()
        async with tier_world(MemoryDisk(), objects.store, known) as world:
            tiering = tiering_of(world)
            world.publish(4)
            await tiering._take_turns()
            asked = len(objects.trace)
            next_reign(known)
            world.leader_epoch = world.row.leader_epoch
            await tiering._take_turns()
            assert len(objects.trace) == asked + 1

    asyncio.run(scenario())


def test_the_loop_leaves_a_store_alone_that_failed_and_goes_on_when_the_pause_is_over() -> None:
    async def scenario() -> None:
        objects, rounds = MemoryStore(is_down=True), 0

        def count_round() -> None:
            nonlocal rounds
            rounds += 1

        async with (
            tier_world(MemoryDisk(), objects.store, catalog()) as world,
            asyncio.TaskGroup() as tasks,
        ):
            world.publish(4)
            tiering = Tiering(world.tier, RemovalClock(world.clock), [world], count_round)
            loop = tasks.create_task(tiering.run(timedelta(0)))
            await until(lambda: world.tiered.problem is not None)
            objects.is_down = False
            asked, seen = len(objects.trace), rounds
            await until(lambda: rounds > seen + 50)
            assert len(objects.trace) == asked
            world.clock.now_ns += HALF_SECOND
            await until(lambda: world.tiered.problem is None)
            assert len(objects.trace) > asked
            loop.cancel()

    asyncio.run(scenario())


def test_readers_pause_for_longer_and_longer_but_five_seconds_at_most_and_anew_after_a_success() -> None:
    async def scenario() -> None:
        objects = MemoryStore()
        async with tier_world(MemoryDisk(), objects.store, catalog(), held_bytes_max=1) as world:
            world.publish(6)
            await world.turn()
            assert world.tiered.manifest is not None
            first, second = world.tiered.manifest.segments

            async def bring_in(segment: TieredSegment = first) -> None:
                with contextlib.suppress(TierUnavailable):
                    await world.tier.bring_in(segment)

            objects.is_down = True
            await check_pauses(world, objects, bring_in, READ_PAUSES)
            objects.is_down = False
            for segment in (first, second):  # of which one is kept
                await bring_in(segment)
            assert world.tier.held(first) is None
            objects.is_down = True
            await check_pauses(world, objects, bring_in, READ_PAUSES[:3])

    asyncio.run(scenario())


def test_who_asks_for_the_list_of_segments_pauses_likewise() -> None:
    async def scenario() -> None:
        disk, objects, known = MemoryDisk(), MemoryStore(), catalog()
        async with tier_world(disk, objects.store, known) as world:
            world.publish(4)
            await world.turn()
            world.log.close()
        async with tier_world(disk, objects.store, known) as world:

            async def bring_in() -> None:
                with contextlib.suppress(TierUnavailable):
                    await world.tiered.bring_in(SegmentAway(None))

            objects.is_down = True
            await check_pauses(world, objects, bring_in, READ_PAUSES)
            objects.is_down = False
            await bring_in()
            assert world.tiered.manifest is not None
            world.tiered.manifest = None  # as after another upload
            objects.is_down = True
            await check_pauses(world, objects, bring_in, READ_PAUSES[:3])

    asyncio.run(scenario())


@pytest.mark.parametrize("times", [8, 32, 5000])
def test_a_pause_stays_at_its_limit_however_often_it_failed(times: int) -> None:
    failed = None
    for _ in range(times):
        failed = failed_again(failed, TierUnavailable("down"), MonotonicNs(7), 60 * 10**9)
    assert failed is not None
    assert (failed.times, failed.again_at) == (times, 7 + 60 * 10**9)
