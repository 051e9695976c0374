"""When a reign refuses the messages of a read-only stream: from its begin, and as soon as it is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from envelope.errors import StreamReadOnly
from envelope.types import Incarnation, LeaderEpoch, NodeId, TimestampUs
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.group_commit import GroupCommit
from jetstream.node.disk.stream_files import StreamFiles
from jetstream.node.disk.thread import DiskThread
from jetstream.node.replicas.context import NodeServices
from jetstream.node.replicas.led_stream import LeadingStream
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from metadata.catalog.tables import InSyncReplica, Stream
from metadata.stream_config import StreamConfig
from tests.support.ingest_machine import outcomes
from tests.support.lone_streams import lead, lone_services, open_led
from tests.support.memory_disk import MemoryDisk
from tests.support.messages import answers_in, block_of, message

EPOCH = LeaderEpoch(3)
CONFIG = StreamConfig(name="orders", subject="orders.>")
REFUSED = f"error {StreamReadOnly.ack_code}"


@asynccontextmanager
async def lone_stream() -> AsyncIterator[tuple[NodeServices, MemoryDisk, dict[str, object]]]:
    """What a stream of the only node needs, its disk, and where its answers go."""
    crash, disk = Crash(), MemoryDisk()
    heard: dict[str, object] = {}
    thread = DiskThread(SyncScheduler(disk), crash)
    commit = GroupCommit(thread, lambda: None, crash)
    try:
        yield (
            lone_services(
                SystemClock(), thread, commit, crash, lambda data, _: heard.update(outcomes(answers_in(data)))
            ),
            disk,
            heard,
        )
    finally:
        await thread.stop()


def row_of(config: StreamConfig) -> Stream:
    me = NodeId("sole")
    isr = (InSyncReplica(me, "disk"),)
    return Stream(
        config=config,
        incarnation=Incarnation("one"),
        created=TimestampUs(0),
        replicas=(me,),
        leader=me,
        leader_epoch=EPOCH,
        isr=isr,
        isr_version=1,
    )


async def told(leading: LeadingStream, heard: dict[str, object]) -> object:
    """What a publisher is answered now."""
    reply = str(len(heard))
    leading.deliver(block_of([message(b"value", reply)]))
    await leading.drained()
    return heard[reply]


def test_it_is_so_from_the_begin_and_changes_when_the_catalogue_says_so() -> None:
    async def test() -> None:
        async with lone_stream() as (services, disk, heard):
            row = row_of(CONFIG.model_copy(update={"read_only": True}))
            opened = open_led(disk, "stream", row.config, EPOCH, services.clock.wall())
            leading = lead(opened, row.config, EPOCH, services)
            assert await told(leading, heard) == REFUSED
            leading.row_changed(row_of(CONFIG))
            assert await told(leading, heard) == 0
            leading.row_changed(row)
            assert await told(leading, heard) == REFUSED

    asyncio.run(test())


def test_it_stays_so_while_an_older_change_is_put_in_force() -> None:
    async def test() -> None:
        async with lone_stream() as (services, disk, heard):
            opened = open_led(disk, "stream", CONFIG, EPOCH, services.clock.wall())
            leading = lead(opened, CONFIG, EPOCH, services)
            older = CONFIG.model_copy(update={"segment_bytes": 1 << 20})
            leading.row_changed(row_of(older))
            leading.context.config = older  # and the disk is busy with it
            leading.row_changed(row_of(older.model_copy(update={"read_only": True})))
            leading.reconfigure()
            assert await told(leading, heard) == REFUSED

    asyncio.run(test())


def test_it_is_so_in_a_reign_that_hears_of_it_while_it_begins() -> None:
    async def test() -> None:
        async with lone_stream() as (services, disk, heard):
            row = row_of(CONFIG)
            newer = row_of(CONFIG.model_copy(update={"read_only": True}))
            files = StreamFiles(disk, services.clock, "tail")
            replica = StreamReplica(row, services, files, lambda _leading: None)
            await replica.open(row)
            await replica.take_over(row, lambda: newer)
            assert replica.leading is not None
            assert await told(replica.leading, heard) == REFUSED

    asyncio.run(test())
