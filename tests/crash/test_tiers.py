"""Every call of the object store and of the disk fails in every way while a stream is uploaded and dropped.

No visible record is lost or comes twice, nothing is dropped that the store does not give back, and in the end
no object and no file is left over.
"""

import asyncio
import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from envelope.errors import DeadlinePassed, Fenced, JetstreamError
from envelope.types import Offset
from jetstream.log.log import Log
from jetstream.log.state.checkpoint import CHECKPOINT_FILE
from jetstream.log.state.epochs import EPOCHS_FILE
from jetstream.node.runtime.removal_clock import RemovalClock
from jetstream.node.tiers.upload_round import TierProgress, TierTurn, truncate_before
from jetstream.tier.restore import all_remains
from metadata.catalog.catalog import Catalog
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    everything_survives,
    nothing_survives,
    random_survival,
)
from tests.support.object_stores import MemoryStore, StoreFault
from tests.support.struck_calls import struck_calls
from tests.support.tier_world import TierWorld, catalog, next_reign, tier_world


@dataclass
class History:
    """What was acked, and from where on it is to be kept."""

    acked: int = 0
    start_max: int = 0
    start_min: int = 0

    async def check(self, world: TierWorld) -> None:
        """Every acked record from the stream's start on is there, once."""
        start = world.readable.log_start_offset
        assert self.start_min <= start <= self.start_max
        found = await world.read()
        assert set(range(start, self.acked)) <= found.keys(), "an acked record is lost"
        assert all(value == b"%d" % at for at, value in found.items())


async def workload(world: TierWorld, history: History, *, patient: bool) -> None:
    """Upload, drop, read, truncate, upload more, drop, read again; a patient one tries again what failed."""
    turn = world.turn_until_quiet if patient else world.turn

    def publish(count: int) -> None:
        for _ in range(count):
            world.publish(1)
            history.acked = world.log.writer.synced_end

    publish(6)
    await turn()
    world.drop()
    await history.check(world)
    history.start_max = 3
    await truncate_before(world, Offset(3))
    history.start_min = 3
    publish(5)
    await turn()
    world.drop()
    await history.check(world)


async def check_whole(disk: MemoryDisk, objects: MemoryStore, catalog: Catalog, history: History) -> None:
    """Start again, and let everything come to rest: nothing is lost, nothing is left over."""
    objects.faults.clear()
    objects.is_down = False
    next_reign(catalog)
    async with tier_world(disk, objects.store, catalog) as world:
        await history.check(world)
        world.publish(3)
        history.acked = world.log.writer.synced_end
        await world.turn_until_quiet()
        assert world.tiered.mark is not None
        assert world.log.log_start_offset >= world.tiered.mark.start
        world.drop()
        await history.check(world)
        mark, manifest = world.tiered.mark, world.tiered.manifest
        assert mark is not None
        assert manifest is not None
        listed = {segment.path for segment in manifest.segments} | {mark.manifest}
        assert {f"bucket/{path}" for path in listed} == set(objects.objects), "an object is left over"
        assert mark.end == world.log.log_start_offset
        world.log.close()
    async with tier_world(disk, objects.store, catalog) as world:
        names = {name for name in disk.listdir("") if name != "orders"}
        assert not names, "brought-in files are gone after a start"
        check_files(disk, world.log)
        await history.check(world)
        check_files(disk, world.log)
        world.log.close()


def check_files(disk: MemoryDisk, log: Log) -> None:
    """The log's directory has its segments, their indexes, its state, and no file that nobody owns."""
    segments = {path for segment in log.reader.segments for path in (segment.path, segment.index_path)}
    state = {f"{log.directory}/{name}" for name in (CHECKPOINT_FILE, EPOCHS_FILE)}
    found = {f"{log.directory}/{name}" for name in disk.listdir(log.directory)}
    assert state | {segment.path for segment in log.reader.segments} <= found <= state | segments


async def run(disk: MemoryDisk, objects: MemoryStore, *, patient: bool = False) -> tuple[Catalog, History]:
    """Run the workload, which ends where something fails."""
    known, history = catalog(), History()
    try:
        async with tier_world(disk, objects.store, known) as world:
            await workload(world, history, patient=patient)
            if not disk.faults:
                async with asyncio.timeout(10):  # what is dropped is removed a moment later
                    while len(disk.listdir("tier")) != len(world.tier._known.held):  # noqa: ASYNC110 - of a thread
                        await asyncio.sleep(0)
            world.log.close()
    except* (JetstreamError, PowerLostError):
        pass
    return known, history


def calls_of_workload() -> tuple[list[str], int]:
    """Return the calls that a run without faults makes of the disk, and how many of the store."""
    disk, objects = MemoryDisk(), MemoryStore()

    async def scenario() -> None:
        known, history = await run(disk, objects)
        assert history.acked == 11
        assert len(objects.trace) > 30
        calls.append((list(disk.trace), len(objects.trace)))
        disk.process_loss()
        await check_whole(disk, objects, known, history)

    calls: list[tuple[list[str], int]] = []
    asyncio.run(scenario())
    return calls[0]


DISK_CALLS, STORE_CALLS = calls_of_workload()


STORE_SAMPLES = pytest.mark.parametrize(
    "step", [5, pytest.param(1, marks=pytest.mark.slow("tests/crash/test_tiers.py"))]
)
"""A fifth of the calls of the store, others for each fault, and all."""


def store_calls(fault: StoreFault, step: int) -> range:
    """The numbers of the calls to strike."""
    return range(1 + list(StoreFault).index(fault) % step, STORE_CALLS + 1, step)


@STORE_SAMPLES
@pytest.mark.parametrize("fault", [StoreFault.DOWN, StoreFault.SILENT])
def test_every_store_call_fails_and_the_node_dies_of_nothing_but_starts_again(
    fault: StoreFault, step: int
) -> None:
    async def strike(number: int) -> None:
        disk, objects = MemoryDisk(), MemoryStore(faults={number: fault})
        known, history = await run(disk, objects)
        disk.process_loss()
        await check_whole(disk, objects, known, history)

    for number in store_calls(fault, step):
        asyncio.run(strike(number))


@STORE_SAMPLES
@pytest.mark.parametrize("fault", [fault for fault in StoreFault if fault is not StoreFault.DOWN])
def test_every_store_call_fails_and_is_tried_again(fault: StoreFault, step: int) -> None:
    async def strike(number: int) -> None:
        disk, objects = MemoryDisk(), MemoryStore(faults={number: fault})
        known, history = await run(disk, objects, patient=True)
        assert history.acked == 11
        disk.process_loss()
        await check_whole(disk, objects, known, history)

    for number in store_calls(fault, step):
        asyncio.run(strike(number))


Restart = Callable[[MemoryDisk, int], MemoryDisk]
"""What a start finds of a disk of which the call of that number was struck."""


def killed(disk: MemoryDisk, number: int) -> MemoryDisk:
    """Only the process is gone."""
    del number
    disk.process_loss()
    return disk


def with_nothing(disk: MemoryDisk, number: int) -> MemoryDisk:
    """The power was gone, and what was not synced is."""
    del number
    return disk.power_loss(nothing_survives)


def with_all(disk: MemoryDisk, number: int) -> MemoryDisk:
    """The power was gone, but all was written just before."""
    del number
    return disk.power_loss(everything_survives)


def with_some(disk: MemoryDisk, number: int, seed: int = 7) -> MemoryDisk:
    """The power was gone, and some of what was not synced is."""
    return disk.power_loss(random_survival(1000 * seed + number))


async def strike_disk(number: int, fault: Fault, restart: Restart) -> None:
    """Strike one call of the disk, and start again."""
    disk, objects = MemoryDisk({number: fault}), MemoryStore()
    known, history = await run(disk, objects)
    await check_whole(restart(disk, number), objects, known, history)


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow("tests/crash/test_tiers.py"))])
@pytest.mark.parametrize(
    ("kind", "restart", "case", "more"),
    [
        (FaultKind.POWER_LOSS, with_nothing, 0, 1),
        (FaultKind.POWER_LOSS, with_all, 2, 3),
        (FaultKind.POWER_LOSS_AFTER, with_some, 0, 3),
        (FaultKind.IO_ERROR, killed, 0, 3),
        (FaultKind.IO_ERROR, with_nothing, 1, 5),
        (FaultKind.SYNC_ERROR, with_some, 0, 1),
        (FaultKind.DISK_FULL, killed, 0, 3),
        (FaultKind.SHORT_WRITE, killed, 1, 3),
        (FaultKind.EXHAUSTED, killed, 0, 1),
    ],
)
def test_the_power_goes_at_every_disk_call_and_some_fail(
    kind: FaultKind, restart: Restart, case: int, more: int, step: int
) -> None:
    """Samples, and all calls for some; the deep test strikes every call in every way."""
    for number in struck_calls(DISK_CALLS, kind, step * more, case):
        asyncio.run(strike_disk(number, Fault(kind, 7), restart))


@pytest.mark.deep
@pytest.mark.parametrize("kind", list(FaultKind))
@pytest.mark.parametrize("bytes_kept", [0, 7, 300])
@pytest.mark.parametrize(
    "restart", [killed, with_nothing, with_all, *(partial(with_some, seed=seed) for seed in range(3))]
)
def test_every_disk_call_fails_in_every_way_with_any_sectors_surviving(
    kind: FaultKind, bytes_kept: int, restart: Restart
) -> None:
    for number in struck_calls(DISK_CALLS, kind):
        asyncio.run(strike_disk(number, Fault(kind, bytes_kept), restart))


def test_a_deposed_leader_deletes_and_names_nothing_of_its_successor() -> None:
    async def scenario() -> None:
        disk, objects, known = MemoryDisk(), MemoryStore(), catalog()
        async with tier_world(disk, objects.store, known) as deposed:
            deposed.publish(6)
            await deposed.turn()
            other_disk = copy.deepcopy(disk)
            other_disk.process_loss()
            next_reign(known)
            async with tier_world(other_disk, objects.store, known) as leader:
                leader.publish(6)
                await leader.turn()
                leader.drop()
                before = dict(objects.objects)
                deposed.publish(8)
                with pytest.raises(Fenced):
                    await deposed.turn()
                deposed.progress = TierProgress(deposed.leader_epoch)
                await TierTurn(
                    deposed, deposed.progress, deposed.tier, RemovalClock(deposed.clock)
                )._collect()
                assert before.items() <= objects.objects.items(), "the successor's objects are there"
                assert len(await leader.read()) == 12
                leader.publish(4)
                await leader.turn()
                manifest = leader.tiered.manifest
                assert manifest is not None
                assert len(objects.objects) == len(manifest.segments) + 1, "what was deposed left nothing"

    asyncio.run(scenario())


def test_an_upload_without_an_answer_from_the_catalogue_is_not_collected() -> None:
    async def scenario() -> None:
        disk, objects, known = MemoryDisk(), MemoryStore(), catalog()
        async with tier_world(disk, objects.store, known) as world:
            world.publish(2)
            await world.turn()
            world.publish(4)
            world.answers_get_lost = True
            with pytest.raises(DeadlinePassed):
                await world.turn()
            named = world.row.tier
            assert named is not None
            stored = set(objects.objects)
            assert f"bucket/{named.manifest}" in stored
            await TierTurn(world, world.progress, world.tier, RemovalClock(world.clock))._collect()
            assert set(objects.objects) == stored
            world.answers_get_lost = False
            with pytest.raises(Fenced):  # it has not heard of its own mark yet
                await world.turn()
            assert f"bucket/{named.manifest}" in objects.objects
            world.tiered.changed(world.row)
            world.publish(2)
            await world.turn()
            world.drop()
            assert len(await world.read()) == 8
            opened = [call for call in objects.trace if call.startswith("open ")]
            assert len(opened) == len(set(opened)), "what may be in force is not written again"

    asyncio.run(scenario())


def test_a_truncation_within_a_segment_is_known_to_the_store_alone() -> None:
    async def scenario() -> None:
        objects = MemoryStore()
        async with tier_world(MemoryDisk(), objects.store, catalog()) as world:
            world.publish(4)
            await world.turn()
            await truncate_before(world, Offset(1))
            await world.turn()
            [remains] = all_remains(objects.store)
            assert (remains.manifest.segments[0].base, remains.mark.start) == (0, 1)
            assert remains.mark == world.tiered.mark
            before = set(objects.objects)
            await world.turn()
            assert set(objects.objects) == before, "and is told once"

    asyncio.run(scenario())
