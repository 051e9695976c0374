"""A log that cannot be opened, and a reign that cannot begin, because the disk is full."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from envelope.errors import DiskFull
from envelope.types import LeaderEpoch
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.group_commit import GroupCommit
from jetstream.node.disk.stream_files import StreamFiles
from jetstream.node.disk.thread import DiskThread
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.replicas.replica_controller import ReplicaController
from jetstream.node.runtime.crash import Crash
from tests.support.clocks import ForwardClock
from tests.support.lone_streams import LONE_ROW, SOLE, lone_services
from tests.support.memory_disk import Fault, FaultKind, MemoryDisk
from tests.support.messages import block_of, message
from tests.support.sockets import until


@asynccontextmanager
async def lone_replica(clock: ForwardClock, disk: MemoryDisk) -> AsyncIterator[ReplicaController]:
    """A replica of a stream without others, and what moves it."""
    crash = Crash()
    thread = DiskThread(SyncScheduler(disk), crash)
    services = lone_services(clock, thread, GroupCommit(thread, lambda: None, crash), crash, lambda *_: None)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        services = replace(services, tasks=tasks)
        timers = tasks.create_task(services.cluster.timers.run())
        replica = StreamReplica(LONE_ROW, services, StreamFiles(disk, clock, "tail"), lambda _: None)
        mover = ReplicaController(replica, services)
        yield mover
        await mover.end()
        timers.cancel()
    await thread.stop()


def test_a_log_is_opened_once_there_is_space_and_until_then_the_stream_says_why_it_is_not() -> None:
    async def test() -> None:
        clock, no_space = ForwardClock(), Fault(FaultKind.DISK_FULL)
        disk = MemoryDisk({1: no_space})
        async with lone_replica(clock, disk) as mover:
            mover.changed(LONE_ROW)
            await mover.settled()
            calls = disk.calls
            disk.faults = {calls + 1: no_space}
            assert not mover.replica.is_open
            assert "the disk is full" in str(mover.replica.health_error)
            mover.changed(LONE_ROW)
            await mover.settled()
            assert disk.calls == calls, "it is not time to try again"
            clock.put_forward(1)
            await until(lambda: disk.calls > calls)
            await mover.settled()
            assert not mover.replica.is_open
            clock.put_forward(1)
            await until(lambda: mover.replica.is_open)
            await mover.settled()
            assert mover.replica.health_error is None

    asyncio.run(test())


def test_a_reign_begins_once_there_is_space_and_until_then_the_stream_says_why_it_has_no_leader() -> None:
    async def test() -> None:
        clock, disk = ForwardClock(), MemoryDisk()
        async with lone_replica(clock, disk) as mover:
            replica = mover.replica
            mover.changed(LONE_ROW)
            await mover.settled()
            disk.capacity_bytes = 0
            mover.changed(replace(LONE_ROW, leader=SOLE, leader_epoch=LeaderEpoch(2)))
            await mover.settled()
            calls = disk.calls
            assert (replica.leading, type(replica.health_error)) == (None, DiskFull)
            mover.changed(replace(LONE_ROW, leader=SOLE, leader_epoch=LeaderEpoch(2)))
            await mover.settled()
            assert disk.calls == calls, "it is not time to try again"
            clock.put_forward(1)
            await until(lambda: disk.calls > calls)
            await mover.settled()
            assert (replica.leading, type(replica.health_error)) == (None, DiskFull)
            disk.capacity_bytes = None
            clock.put_forward(1)
            await until(lambda: replica.leading is not None)
            await mover.settled()
            assert replica.log.reader.last_epoch == 2
            assert not isinstance(replica.health_error, DiskFull)

    asyncio.run(test())


def test_the_id_of_a_message_that_was_refused_at_the_end_of_a_reign_is_not_remembered() -> None:
    """Whoever publishes it again would be acked, and it would be stored nowhere."""

    async def test() -> None:
        clock, disk = ForwardClock(), MemoryDisk()
        async with lone_replica(clock, disk) as mover:
            row = replace(LONE_ROW, leader=SOLE, leader_epoch=LeaderEpoch(2))
            mover.changed(row)
            await mover.settled()
            assert mover.replica.leading is not None
            leading, opened = mover.replica.leading, mover.replica.context.opened
            disk.capacity_bytes = 0
            leading.deliver(block_of([message(b"v", Nats_Msg_Id="a")]))
            await until(lambda: opened.history.dedupe.lookup(b"a") == 0)
            mover.changed(replace(row, leader=None))
            await mover.settled()
            assert mover.replica.following is not None
            assert (opened.history.dedupe.lookup(b"a"), opened.history.end) == (None, 0)

    asyncio.run(test())
