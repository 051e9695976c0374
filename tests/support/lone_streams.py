"""A stream led by the only node there is, without a node around it."""

import asyncio
from collections.abc import Callable

from envelope.types import Incarnation, LeaderEpoch, NodeEpoch, NodeId, StreamName, TimestampUs
from jetstream.log.disk.port import Disk
from jetstream.node.disk.group_commit import GroupCommit
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.disk.open_log import OpenedLog, begin_reign, open_log
from jetstream.node.disk.thread import DiskThread
from jetstream.node.nats.link import NatsLink
from jetstream.node.nats.subscriptions import Subscriptions
from jetstream.node.nats.watch import LinkWatch
from jetstream.node.replicas.context import ClusterServices, NodeServices, NoSessions, ReplicaContext
from jetstream.node.replicas.led_stream import LeadingStream
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.crash import Crash
from jetstream.node.runtime.timers import Timers
from jetstream.node.settings.node_config import NatsConfig
from jetstream.node.tiers.segment_cache import Tier
from jetstream.replica.leader import sole_replica
from metadata.catalog.commands import Command
from metadata.catalog.tables import InSyncReplica, Stream
from metadata.lease import unlimited
from metadata.node.catalogue.replicated_catalog import Applied
from metadata.stream_config import StreamConfig
from tests.support.memory_disk import MemoryDisk

SOLE = NodeId("sole")
LONE_ROW = Stream(
    config=StreamConfig(name="orders", subject="orders.>"),
    incarnation=Incarnation("life"),
    created=TimestampUs(0),
    replicas=(SOLE,),
    leader=None,
    leader_epoch=LeaderEpoch(1),
    isr=(InSyncReplica(SOLE, "disk-sole"),),
    isr_version=1,
)
"""Of a stream that nobody leads yet."""


def open_led(
    disk: Disk, directory: str, config: StreamConfig, epoch: LeaderEpoch, now: TimestampUs
) -> OpenedLog:
    """Open a log and begin a reign in it, as a node does with its only replica."""
    opened = open_log(disk, directory, config, now, "tail")
    if opened.log.failed is None:
        begin_reign(opened, epoch, now)
    opened.history.high_watermark = opened.log.log_end_offset
    return opened


def lead(
    opened: OpenedLog,
    config: StreamConfig,
    epoch: LeaderEpoch,
    services: NodeServices,
) -> LeadingStream:
    """The reign that has begun in the log."""
    log, clock = opened.log, services.clock
    upkeep = Upkeep(log, clock, lambda: leading.high_watermark, lambda: opened.note)
    parts = ReplicaContext(config, Incarnation("incarnation"), opened, upkeep)
    leader = sole_replica(epoch, log.log_end_offset, log.writer.synced_end, clock.monotonic())
    leading = LeadingStream(parts, leader, services)
    leading.begin()
    return leading


def lone_services(
    clock: Clock,
    disk: DiskThread,
    group_commit: GroupCommit,
    crash: Crash,
    hear: Callable[[bytes, Callable[[], None]], None],
) -> NodeServices:
    """What such a stream needs; ``hear`` takes its answers."""

    async def propose(command: Command) -> Applied:
        raise AssertionError(f"the only replica proposes {command}")

    async def confirm(_incarnation: Incarnation, _name: StreamName, _epoch: LeaderEpoch) -> None:
        """Nobody else can be elected."""

    return NodeServices(
        clock=clock,
        disk=disk,
        group_commit=group_commit,
        subscriptions=Subscriptions(
            NatsLink(NatsConfig(), LinkWatch("ingest", clock), crash), lambda _name: 0, asyncio.TaskGroup()
        ),
        send_acks=hear,
        binds=lambda _stream, _subject: False,
        cluster=ClusterServices(
            node_id=NodeId("sole"),
            lease=unlimited(),
            sessions=NoSessions(),
            timers=Timers(clock),
            propose=propose,
            epoch_of=lambda _node: NodeEpoch(1),
            confirm_leadership=confirm,
        ),
        tasks=asyncio.TaskGroup(),
        crash=crash,
        tier=Tier(None, MemoryDisk(), clock, asyncio.TaskGroup(), 1),
    )
