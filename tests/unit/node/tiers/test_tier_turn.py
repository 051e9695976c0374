"""What becomes of a tier's turn when something happens to the stream while it waits for the store."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest

from envelope.errors import StreamOffline
from envelope.types import MonotonicNs, Offset
from jetstream.log.format.batch import encode
from jetstream.node.runtime.removal_clock import RemovalClock
from jetstream.node.tiers.upload_round import SILENT_NS, TierTurn, silence, truncate_before
from jetstream.tier.tiered_log import SegmentAway
from metadata.catalog.catalog import Catalog
from tests.support.catalogs import apply, update
from tests.support.logs import NOW, Record, records_batch
from tests.support.memory_disk import MemoryDisk
from tests.support.object_stores import HeldStore
from tests.support.sockets import until
from tests.support.tier_world import TierWorld, catalog, next_reign, tier_world


async def with_a_list(disk: MemoryDisk, objects: HeldStore) -> Catalog:
    """A catalogue with a stream of which the store has some, in a new reign, which does not know the list."""
    known = catalog()
    async with tier_world(disk, objects.store, known) as world:
        world.publish(4)
        await world.turn()
        world.log.close()
    next_reign(known)
    return known


async def turn_while(world: TierWorld, objects: HeldStore, happens: Callable[[], Awaitable[None]]) -> None:
    """Take a turn, in which something happens before the store answers its first read."""
    asked = objects.asked

    async def meanwhile() -> None:
        await until(lambda: objects.asked > asked)
        await happens()
        objects.answers.set()

    objects.answers.clear()
    await asyncio.gather(world.turn(), meanwhile())


def test_a_truncation_beyond_the_tier_while_the_list_is_read() -> None:
    async def scenario() -> None:
        disk, objects = MemoryDisk(), HeldStore()
        known = await with_a_list(disk, objects)
        async with tier_world(disk, objects.store, known) as world:
            world.publish(12)
            await turn_while(world, objects, partial(truncate_before, world, Offset(9)))
            mark = world.tiered.mark
            assert mark is not None
            assert (mark.start, mark.end) == (9, world.log.reader.segments[-1].base)
            world.drop()
            assert list(await world.read()) == list(range(9, 16))

    asyncio.run(scenario())


def test_segments_that_go_while_one_is_uploaded_are_passed_over_without_an_error() -> None:
    async def scenario() -> None:
        objects = HeldStore()
        async with tier_world(MemoryDisk(), objects.store, catalog()) as world:
            world.publish(9)
            assert [segment.base for segment in world.log.reader.segments] == [0, 2, 4, 6, 8]
            await turn_while(world, objects, partial(truncate_before, world, Offset(5)))
            world.drop()
            assert list(await world.read()) == [5, 6, 7, 8]
            manifest = world.tiered.manifest
            assert manifest is not None
            assert [segment.base for segment in manifest.segments] == [4, 6]
            assert len(objects.objects) == len(manifest.segments) + 1

    asyncio.run(scenario())


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_log_that_is_closed_meanwhile_is_asked_nothing(*, is_listed: bool) -> None:
    async def scenario() -> None:
        disk, objects = MemoryDisk(), HeldStore()
        known = await with_a_list(disk, objects) if is_listed else catalog()
        async with tier_world(disk, objects.store, known) as world:
            world.publish(3)

            async def resign() -> None:
                world.leads = False
                del world.log  # as after a repair

            with pytest.raises(StreamOffline):
                await turn_while(world, objects, resign)

    asyncio.run(scenario())


def test_damage_that_uploads_wait_for_is_told_until_it_is_gone() -> None:
    async def scenario() -> None:
        async with tier_world(MemoryDisk(), HeldStore().store, catalog()) as world:
            world.publish(9)
            world.log.reader.corrupt_ranges = ((Offset(5), Offset(6)),)
            await world.turn()
            assert world.tiered.mark is not None
            assert world.tiered.mark.end == 4
            problem = world.progress.damage
            assert problem is not None
            assert problem.description == "uploads wait for a repair: offsets 4 to 6 are damaged here"
            world.log.reader.corrupt_ranges = ()
            await world.turn()
            assert world.progress.damage is None
            assert world.tiered.mark.end == 8

    asyncio.run(scenario())


def test_retention_alone_asks_the_store_for_nothing() -> None:
    async def scenario() -> None:
        disk, objects = MemoryDisk(), HeldStore()
        known = await with_a_list(disk, objects)
        async with tier_world(disk, objects.store, known) as world:
            world.publish(6)
            apply(known, update(retention={"messages": 3}))
            asked = len(objects.trace)
            turn = TierTurn(world, world.progress, world.tier, RemovalClock(world.clock))
            await turn.retain()
            assert world.log.log_start_offset == 0, "what is in the store is not known yet"
            assert len(objects.trace) == asked
            await world.tiered.bring_in(SegmentAway(None))
            asked = len(objects.trace)
            await turn.retain()
            assert world.log.log_start_offset == 6
            assert len(objects.trace) == asked

    asyncio.run(scenario())


def test_a_txid_that_was_set_to_less_than_a_segment_has_is_the_last_one_in_the_store() -> None:
    async def scenario() -> None:
        disk, objects = MemoryDisk(), HeldStore()
        async with tier_world(disk, objects.store, catalog()) as world:
            base, epoch = world.log.log_end_offset, world.log.reader.last_epoch
            records = records_batch([Record(txid=(1 << 63) - 1)], base)
            world.log.writer.append_group((encode(records, base, epoch),), NOW)
            for told, wanted in ((None, (1 << 63) - 1), (7, 7)):
                world.told_txid = told
                world.publish(12)
                await world.turn()
                assert world.tiered.mark is not None
                assert world.tiered.mark.last_txid == wanted

    asyncio.run(scenario())


def test_a_store_is_silent_once_nothing_has_moved_for_long() -> None:
    since = MonotonicNs(5 * 10**9)
    assert silence(since, MonotonicNs(since + SILENT_NS - 1)) is None
    problem = silence(since, MonotonicNs(since + SILENT_NS))
    assert problem is not None
    assert problem.description == "the object store has not answered for 30 s: uploads wait"


def test_a_long_write_moves_as_long_as_its_bytes_do() -> None:
    async def scenario() -> None:
        objects = HeldStore()
        async with tier_world(MemoryDisk(), objects.store, catalog()) as world:
            moved_at: list[int] = []

            def chunks() -> Iterator[bytes]:
                for _ in range(3):
                    world.clock.now_ns += 10**9
                    yield b"x"
                    moved_at.append(world.tier.answered_at)

            await world.tier.write(lambda store: store.put("d/object", chunks()))
            assert moved_at == [2 * 10**9, 3 * 10**9, 4 * 10**9]

    asyncio.run(scenario())
