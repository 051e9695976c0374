"""What the end of a reign leaves: nothing that the stop of the node would wait for."""

import asyncio
from dataclasses import replace

from envelope.types import Incarnation, LeaderEpoch, NodeEpoch, NodeId, Offset
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.group_commit import GroupCommit
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.disk.thread import DiskThread
from jetstream.node.replicas.context import ReplicaContext, log_state
from jetstream.node.replicas.led_stream import LeadingStream
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.replica.leader import Leader
from jetstream.replica.leader_events import Appointment, FollowerLost
from metadata.catalog.commands import Command
from metadata.lease import unlimited
from metadata.node.catalogue.replicated_catalog import Applied
from metadata.stream_config import StreamConfig
from tests.support.lone_streams import SOLE, lone_services, open_led
from tests.support.memory_disk import MemoryDisk

EPOCH = LeaderEpoch(3)
OTHER = NodeId("other")
CONFIG = StreamConfig(name="orders", subject="orders.>", replicas=2)


def test_a_smaller_isr_that_nobody_is_left_to_decide_on_holds_up_no_stop() -> None:
    async def scenario() -> None:
        proposed, crash, disk, clock = asyncio.Event(), Crash(), MemoryDisk(), SystemClock()

        async def propose(_: Command) -> Applied:
            proposed.set()
            outcome: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
            return await outcome

        thread = DiskThread(SyncScheduler(disk), crash)
        try:
            async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
                commit = GroupCommit(thread, lambda: None, crash)
                alone = lone_services(clock, thread, commit, crash, lambda _data, _sent: None)
                services = replace(alone, cluster=replace(alone.cluster, propose=propose), tasks=tasks)
                opened = open_led(disk, "orders", CONFIG, EPOCH, clock.wall())
                upkeep = Upkeep(opened.log, clock, lambda: Offset(0), lambda: opened.note)
                context = ReplicaContext(CONFIG, Incarnation("life"), opened, upkeep)
                appointment = Appointment(
                    node_id=SOLE,
                    node_epoch=NodeEpoch(1),
                    leader_epoch=EPOCH,
                    replicas=(SOLE, OTHER),
                    isr=(SOLE, OTHER),
                    isr_version=1,
                    min_insync_replicas=1,
                )
                leader = Leader(
                    appointment=appointment,
                    log=log_state(opened.log),
                    high_watermark=Offset(0),
                    now=clock.monotonic(),
                    lease=unlimited(),
                )
                leading = LeadingStream(context, leader, services)
                leading.begin()
                leading.driver.handle(FollowerLost(OTHER))
                await proposed.wait()
                leading.driver.end(EPOCH)
        finally:
            await thread.stop()

    asyncio.run(scenario())
