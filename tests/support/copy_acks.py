"""A follower's replica on a disk in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from envelope.types import Incarnation, LeaderEpoch, NodeEpoch, NodeId, Offset
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.group_commit import GroupCommit
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.disk.open_log import begin_reign, open_log
from jetstream.node.disk.thread import DiskThread
from jetstream.node.replicas.context import NodeServices, ReplicaContext, log_state
from jetstream.node.replicas.followed_stream import FollowingStream
from jetstream.node.replicas.led_stream import LeadingStream
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.replica.leader import Leader
from jetstream.replica.leader_events import Appointment
from metadata.catalog.commands import Command
from metadata.node.catalogue.replicated_catalog import Applied
from metadata.stream_config import StreamConfig
from tests.support.held_disk import HeldDisk
from tests.support.ingest_machine import outcomes
from tests.support.lone_streams import lone_services
from tests.support.messages import answers_in
from tests.support.recorded_sessions import RecordedSessions
from tests.support.replica_cluster import A, B, C

CONFIG = StreamConfig(name="orders", subject="orders.>", replicas=3)


EPOCH = LeaderEpoch(3)


START = NodeEpoch(1)


@dataclass
class Replica:
    """One replica's disk, and what its node is given and says."""

    disk: HeldDisk
    said: RecordedSessions
    services: NodeServices
    parts: ReplicaContext
    heard: dict[str, object]

    def lead(self) -> LeadingStream:
        """Begin the first reign, with two followers in sync."""
        opened, now = self.parts.opened, self.services.clock.monotonic()
        begin_reign(opened, EPOCH, self.services.clock.wall())
        isr = (A, B, C)
        appointment = Appointment(A, START, EPOCH, isr, isr, isr_version=1, min_insync_replicas=2)
        lease = self.services.cluster.lease
        leader = Leader(appointment, log_state(opened.log), Offset(0), now, lease)
        leading = LeadingStream(self.parts, leader, self.services)
        leading.begin()
        return leading

    def follow(self) -> FollowingStream:
        """Follow whoever leads that reign."""
        following = FollowingStream(self.parts, Offset(0), self.services)
        following.follow(A, EPOCH)
        return following


@asynccontextmanager
async def replica(node: NodeId, config: StreamConfig = CONFIG) -> AsyncIterator[Replica]:
    clock, crash, disk, said = SystemClock(), Crash(), HeldDisk(), RecordedSessions()
    thread = DiskThread(SyncScheduler(disk), crash)
    heard: dict[str, object] = {}

    def hear(commands: bytes, lost: object) -> None:
        del lost
        heard.update(outcomes(answers_in(commands)))

    async def propose(command: Command) -> Applied:
        raise AssertionError(f"nobody lags or joins here: {command}")

    alone = lone_services(clock, thread, GroupCommit(thread, lambda: None, crash), crash, hear)
    cluster = replace(alone.cluster, node_id=node, sessions=said, propose=propose, node_epoch=START)
    services = replace(alone, cluster=cluster)
    opened = open_log(disk, "stream", config, clock.wall(), "tail")
    upkeep = Upkeep(opened.log, clock, lambda: Offset(0), lambda: opened.note)
    parts = ReplicaContext(config, Incarnation("incarnation"), opened, upkeep)
    try:
        async with asyncio.timeout(20):
            yield Replica(disk, said, services, parts, heard)
    finally:
        disk.let_go.set()
        await thread.stop()
        opened.log.close()
