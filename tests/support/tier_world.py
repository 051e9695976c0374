"""One stream with a tier, led by the only node there is: real log and catalogue, no node around it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from envelope.errors import TierUnavailable
from envelope.types import (
    Incarnation,
    LeaderEpoch,
    LogIndex,
    MonotonicNs,
    NodeEpoch,
    NodeId,
    Offset,
    StreamName,
    TimestampUs,
)
from jetstream.log.disk.port import Disk
from jetstream.log.format.batch import decode, iter_frames
from jetstream.log.log import Log
from jetstream.log.segments.log_config import LogConfig
from jetstream.node.replicas.context import ClusterServices, NoSessions
from jetstream.node.runtime.removal_clock import RemovalClock
from jetstream.node.runtime.timers import Timers
from jetstream.node.tiers.segment_cache import Tier
from jetstream.node.tiers.tiered_stream import Readable, TieredStream
from jetstream.node.tiers.upload_round import TierProgress, TierTurn
from jetstream.tier.object_store import ObjectStore
from jetstream.tier.tiered_log import SegmentAway
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import ChangeLeader, Command
from metadata.catalog.tables import Stream
from metadata.lease import unlimited
from metadata.node.catalogue.replicated_catalog import Applied
from metadata.stream_config import StreamConfig
from tests.support.catalogs import catalog_of, create, register
from tests.support.logs import NOW, append

NAME = StreamName("orders")
NODE = NodeId("n1")
LOG = LogConfig(segment_bytes=2500)
"""Two batches of one small record fit a segment."""
TURNS_MAX = 40


def catalog() -> Catalog:
    """A catalogue with the stream, which this node leads."""
    return catalog_of(register(), create("orders", tier=True))


def next_reign(catalog: Catalog) -> None:
    """Have the node lead anew, as after a start."""
    row = catalog.stream(NAME)
    assert row is not None
    command = ChangeLeader(NAME, row.incarnation, NODE, NodeEpoch(1), row.leader_epoch)
    catalog.apply(LogIndex(catalog.applied + 1), command)


@dataclass
class TestClock:
    """Stands still unless it is put forward."""

    __test__ = False
    now_ns: int = 1_000_000_000

    def wall(self) -> TimestampUs:
        return NOW

    def monotonic(self) -> MonotonicNs:
        return MonotonicNs(self.now_ns)


@dataclass
class LocalReign:
    """What truncates the log."""

    leader_epoch: LeaderEpoch
    log: Log
    high_watermark: Offset
    last_txid: int | None = None

    async def truncate_before(self, offset: Offset) -> None:
        self.log.truncate_before(offset, self.high_watermark)


@dataclass
class TierWorld:
    """The stream's leader, and how it reads."""

    catalog: Catalog
    log: Log
    tier: Tier
    clock: TestClock
    tiered: TieredStream
    leader_epoch: LeaderEpoch
    leads: bool = True
    answers_get_lost: bool = False
    """What is proposed is applied, and the proposer does not hear of it."""
    told_txid: int | None = None
    """The last txid, as the leader knows it."""
    progress: TierProgress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = TierProgress(self.leader_epoch)

    @property
    def row(self) -> Stream:
        row = self.catalog.stream(NAME)
        assert row is not None
        return row

    @property
    def name(self) -> StreamName:
        return NAME

    @property
    def incarnation(self) -> Incarnation:
        return self.row.incarnation

    @property
    def config(self) -> StreamConfig:
        return self.row.config

    @property
    def high_watermark(self) -> Offset:
        return self.log.writer.synced_end

    @property
    def leading(self) -> LocalReign:
        return LocalReign(self.leader_epoch, self.log, self.high_watermark, self.told_txid)

    @property
    def readable(self) -> Readable:
        return self.tiered.view(self.log.reader, leads=True)

    def publish(self, count: int) -> None:
        """Append records that tell their offset, each durable."""
        for _ in range(count):
            append(self.log, [b"%d" % self.log.log_end_offset], NOW + self.log.log_end_offset)
            self.log.writer.sync()

    async def turn(self) -> None:
        """Do all that is due; whatever fails is raised."""
        while await TierTurn(self, self.progress, self.tier, RemovalClock(self.clock)).run():
            pass

    async def turn_until_quiet(self) -> None:
        """Do all that is due, as often as it takes."""
        for _ in range(TURNS_MAX):
            try:
                await self.turn()
            except TierUnavailable:
                self.clock.now_ns += 10**9
            else:
                return
        raise AssertionError("the store never came back")

    def drop(self) -> None:
        """Drop here what is in the store, as retention does."""
        mark = self.tiered.mark
        if mark is not None:
            rules = replace(self.log.writer.config, retention_bytes=1)
            self.log.writer.config, before = rules, self.log.writer.config
            self.log.apply_retention(NOW, self.high_watermark, droppable_end=mark.end)
            self.log.writer.config = before

    async def read(self, start: int | None = None, attempts: int = TURNS_MAX) -> dict[int, bytes]:
        """Every value by offset, from the stream's start unless told otherwise."""
        found: dict[int, bytes] = {}
        offset = Offset(self.readable.log_start_offset if start is None else start)
        while offset < self.log.log_end_offset:
            try:
                file_range = self.readable.plan_read(offset, 4096, self.high_watermark)
                with file_range.segment.leased() as file:
                    data = file.read(file_range.position, file_range.length)
            except SegmentAway as away:
                try:
                    await self.tiered.bring_in(away)
                except TierUnavailable:
                    attempts -= 1
                    if attempts <= 0:
                        raise
                    self.clock.now_ns += 10**10
                continue
            for frame in iter_frames(data):
                header, records = decode(frame)
                for at, value in zip(records.column(0), records.column(6), strict=True):
                    if at.as_py() >= offset:
                        assert at.as_py() not in found, f"offset {at} came twice"
                        found[at.as_py()] = value.as_py()
                offset = header.next
            while transfers := self.tier._known.transfers:  # so that every run makes the same calls
                await asyncio.wait([transfer.task for transfer in transfers.values()])
        return found


@asynccontextmanager
async def tier_world(
    disk: Disk, store: ObjectStore | None, catalog: Catalog, held_bytes_max: int = 6000
) -> AsyncIterator[TierWorld]:
    """Open the log, and lead."""
    clock = TestClock()

    async def propose(command: Command) -> Applied:
        index = LogIndex(catalog.applied + 1)
        events = catalog.apply(index, command)
        return Applied(index, None if world.answers_get_lost else events)

    async def confirm(*_: object) -> None:
        """Nobody else can be elected."""

    cluster = ClusterServices(
        node_id=NODE,
        lease=unlimited(),
        sessions=NoSessions(),
        timers=Timers(clock),
        propose=propose,
        epoch_of=lambda _node: NodeEpoch(1),
        confirm_leadership=confirm,
    )
    row = catalog.stream(NAME)
    assert row is not None
    log = Log.open(disk, "orders", LOG, NOW)
    if log.reader.last_epoch < row.leader_epoch:
        log.writer.begin_epoch(row.leader_epoch, NOW)
    async with asyncio.TaskGroup() as tasks:
        tier = Tier(store, disk, clock, tasks, held_bytes_max)
        try:
            tiered = TieredStream(row, tier, cluster.node_id, cluster.propose)
            world = TierWorld(
                catalog=catalog, log=log, tier=tier, clock=clock, tiered=tiered, leader_epoch=row.leader_epoch
            )
            yield world
        finally:
            await tier.stop()
