"""A shard's shell on the only replica: what is read first, refused early, told when the reign ends."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from consumer_groups.assignment.partitions import Generation, GroupName, MemberId, Partition, StreamPartitions
from consumer_groups.coordinator.events import Assignment, Beat, ConnectionId, Join, NewCursor, StoreCursors
from consumer_groups.coordinator.group_state import ClientId
from consumer_groups.cursors import CursorPosition
from consumer_groups.shard.events import (
    Answer,
    CursorsCommitted,
    CursorsFound,
    HeartbeatAnswer,
    LookUpCursors,
    RequestFailed,
)
from envelope.errors import DiskFull, NotEnoughReplicas, NotLeader
from envelope.internal_streams import group_shard
from envelope.types import LeaderEpoch, StreamName
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.group_commit import GroupCommit
from jetstream.node.disk.thread import DiskThread
from jetstream.node.groups.shard import GroupShard, ShardServices
from jetstream.node.replicas.context import NodeServices
from jetstream.node.replicas.led_stream import LeadingStream
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from metadata.stream_config import StreamConfig
from tests.support.lone_streams import lead, lone_services, open_led
from tests.support.memory_disk import MemoryDisk
from tests.support.nodes import run

GROUP = GroupName("billing")
ORDERS = StreamName("orders")
CONNECTION = ConnectionId("1")
MEMBER = MemberId("m")
CONFIG = StreamConfig(name=group_shard(GROUP), subject="js.cursors.groups.2")
JOIN = Join(
    connection=CONNECTION,
    client=ClientId("c"),
    request=1,
    fresh_id=MEMBER,
    streams=frozenset({ORDERS}),
    session_timeout_ns=10_000_000_000,
    rebalance_timeout_ns=10_000_000_000,
)


@dataclass
class Lone:
    """A shard that nobody else has, reign after reign."""

    services: NodeServices
    readers: ThreadPoolExecutor
    disk: MemoryDisk
    crash: Crash
    epoch: int = 0
    streams: dict[StreamName, str] = field(default_factory=lambda: {ORDERS: "life"})

    def lead(self) -> tuple[GroupShard, LeadingStream]:
        """Begin another reign; nothing is read yet."""
        self.epoch += 1
        epoch = LeaderEpoch(self.epoch)
        opened = open_led(self.disk, "shard", CONFIG, epoch, self.services.clock.wall())
        leading = lead(opened, CONFIG, epoch, self.services)
        services = ShardServices(
            self.services.clock,
            self.services.cluster.timers,
            self.readers,
            lambda name: StreamPartitions(name, 1) if name in self.streams else None,
            self.streams.get,
        )
        return GroupShard(leading, services), leading


@asynccontextmanager
async def lone() -> AsyncIterator[Lone]:
    crash, disk = Crash(), MemoryDisk()
    thread = DiskThread(SyncScheduler(disk), crash)
    commit = GroupCommit(thread, lambda: None, crash)
    services = lone_services(SystemClock(), thread, commit, crash, lambda _data, _lost: None)
    with ThreadPoolExecutor(1) as readers:
        try:
            yield Lone(services, readers, disk, crash)
        finally:
            await thread.stop()


class Heard:
    """One answer, once it is there."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def __call__(self, answer: Answer) -> None:
        self.answer.set_result(answer)


async def joined(shard: GroupShard) -> Assignment:
    shard.join(GROUP, JOIN, heard := Heard())
    answer = await heard.answer
    assert isinstance(answer, Assignment)
    return answer


def commit(number: int, offset: int) -> StoreCursors:
    cursor = NewCursor(Partition(ORDERS, 0), CursorPosition(offset))
    return StoreCursors(CONNECTION, MEMBER, number, Generation(1), (cursor,))


async def cursor(shard: GroupShard) -> list[int]:
    shard.ask(GROUP, LookUpCursors((Partition(ORDERS, 0),)), heard := Heard())
    answer = await heard.answer
    assert isinstance(answer, CursorsFound)
    return [each.place.offset for each in answer.cursors]


def test_a_reign_reads_first_what_others_have_written() -> None:
    async def test() -> None:
        async with lone() as world:
            shard, leading = world.lead()
            shard.join(GROUP, JOIN, early := Heard())
            assert not early.answer.done()
            await shard.load()
            answer = await early.answer
            assert isinstance(answer, Assignment)
            assert answer.keeps
            shard.ask(GROUP, commit(1, 42), heard := Heard())
            assert await heard.answer == CursorsCommitted()
            leading.depose(LeaderEpoch(2))
            await leading.resign()
            again, _ = world.lead()
            await again.load()
            assert await cursor(again) == [42]
            assert again.machine is not None
            assert (again.machine.groups, again.machine.members, again.machine.cursors) == (1, 1, 1)

    run(test())


def test_who_asked_before_the_groups_were_read_is_told_when_they_never_are() -> None:
    async def test() -> None:
        async with lone() as world:
            shard, leading = world.lead()
            shard.join(GROUP, JOIN, early := Heard())
            leading.depose(LeaderEpoch(2))
            answer = early.answer.result()
            assert isinstance(answer, RequestFailed)
            assert isinstance(answer.error, NotLeader)
            await shard.load()
            assert shard.machine is None
            await leading.resign()

    run(test())


def test_many_commits_at_once_are_all_answered_and_the_last_one_counts() -> None:
    async def test() -> None:
        async with lone() as world:
            shard, _ = world.lead()
            await shard.load()
            await joined(shard)
            heard = [Heard() for _ in range(500)]
            for number, each in enumerate(heard):
                shard.ask(GROUP, commit(number, number), each)
            assert {type(await each.answer) for each in heard} == {CursorsCommitted}
            assert await cursor(shard) == [499]

    run(test())


def test_who_asks_again_while_being_answered_comes_after_what_waits() -> None:
    async def test() -> None:
        async with lone() as world:
            shard, _ = world.lead()
            await shard.load()
            first, behind, nested = Heard(), Heard(), Heard()

            def answered(answer: Answer) -> None:
                first(answer)
                shard.ask(GROUP, commit(2, 20), nested)

            shard.join(GROUP, JOIN, answered)
            shard.ask(GROUP, commit(1, 10), behind)
            assert isinstance(await first.answer, Assignment)
            assert (await behind.answer, await nested.answer) == (CursorsCommitted(), CursorsCommitted())
            assert await cursor(shard) == [20]

    run(test())


def test_a_heartbeat_of_a_closed_connection_waits_no_longer() -> None:
    async def test() -> None:
        async with lone() as world:
            shard, _ = world.lead()
            await shard.load()
            beat = Beat(MEMBER, (await joined(shard)).generation)
            shard.beat(CONNECTION, ((GROUP, beat),), 60_000_000_000, heard := Heard())
            shard.closed(CONNECTION)
            assert heard.answer.result() == HeartbeatAnswer()

    run(test())


def test_who_is_asked_while_the_reign_ends_says_that_nobody_knows() -> None:
    async def test() -> None:
        async with lone() as world:
            shard, leading = world.lead()
            await shard.load()
            assignment = await joined(shard)
            shard.ask(GROUP, commit(1, 42), outcome := Heard())
            beat = Beat(MEMBER, assignment.generation)
            shard.beat(CONNECTION, ((GROUP, beat),), 60_000_000_000, parked := Heard())
            leading.depose(LeaderEpoch(2))
            for each in (outcome, parked):
                answer = await each.answer
                assert isinstance(answer, RequestFailed)
                assert not isinstance(answer.error, NotLeader), "it may have been stored"
                assert answer.error.retriable
            with pytest.raises(NotLeader):
                shard.ask(GROUP, commit(2, 43), Heard())
            shard.streams_changed(None)
            shard.closed(CONNECTION)
            assert shard.machine is None
            await leading.resign()

    run(test())


def test_without_replicas_what_must_be_written_is_refused_at_once() -> None:
    async def test() -> None:
        async with lone() as world:
            shard, leading = world.lead()
            await shard.load()
            await joined(shard)
            leading.path.suspend(NotEnoughReplicas("one is left"))
            with pytest.raises(NotEnoughReplicas):
                shard.require_writable()
            shard.ask(GROUP, commit(1, 42), heard := Heard())
            answer = await heard.answer
            assert isinstance(answer, RequestFailed)
            assert isinstance(answer.error, NotEnoughReplicas)
            leading.path.suspend(None)
            shard.require_writable()
            shard.ask(GROUP, commit(2, 43), heard := Heard())
            assert await heard.answer == CursorsCommitted()

    run(test())


def test_a_full_disk_refuses_and_the_next_commit_is_stored() -> None:
    async def test() -> None:
        async with lone() as world:
            shard, _ = world.lead()
            await shard.load()
            await joined(shard)
            world.disk.capacity_bytes = 0
            shard.ask(GROUP, commit(1, 42), heard := Heard())
            answer = await heard.answer
            assert isinstance(answer, RequestFailed)
            assert isinstance(answer.error, DiskFull)
            world.disk.capacity_bytes = None
            shard.ask(GROUP, commit(2, 43), heard := Heard())
            assert await heard.answer == CursorsCommitted()
            assert await cursor(shard) == [43]

    run(test())


def test_a_stream_that_was_made_again_is_a_new_one_to_its_members() -> None:
    async def test() -> None:
        async with lone() as world:
            shard, _ = world.lead()
            await shard.load()
            before = await joined(shard)
            world.streams[ORDERS] = "another life"
            beat = Beat(MEMBER, before.generation)
            shard.beat(CONNECTION, ((GROUP, beat),), 60_000_000_000, heard := Heard())
            shard.streams_changed(frozenset({StreamName("payments")}))
            assert not heard.answer.done()
            shard.streams_changed(frozenset({ORDERS}))
            answer = await heard.answer
            assert isinstance(answer, HeartbeatAnswer)
            [(_, after)] = answer.assignments
            assert after.generation > before.generation

    run(test())
