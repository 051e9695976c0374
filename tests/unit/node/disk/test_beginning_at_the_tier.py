"""Who is elected uncleanly, and has other records than the object store: whatever the disk and others do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count

import pytest

from envelope.types import Incarnation, LeaderEpoch, NodeId, Offset
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.group_commit import GroupCommit
from jetstream.node.disk.stream_files import StreamFiles
from jetstream.node.disk.thread import DiskThread
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.replica.wire import BatchesMessage
from metadata.catalog.tables import InSyncReplica, Stream, TierMark, TxidSet, UncleanElection
from metadata.stream_config import StreamConfig
from tests.support.logs import NOW, append
from tests.support.lone_streams import lone_services
from tests.support.memory_disk import Fault, FaultKind, MemoryDisk
from tests.support.recorded_sessions import RecordedSessions

ME, OTHER = NodeId("sole"), NodeId("c")
CONFIG = StreamConfig(name="orders", subject="orders.>", tier=True, replicas=2)
TIER_END = Offset(4)
HIGHEST = (1 << 63) - 1
FOLLOWED = Stream(
    config=CONFIG,
    incarnation=Incarnation("one"),
    created=NOW,
    replicas=(ME, OTHER),
    leader=OTHER,
    leader_epoch=LeaderEpoch(2),
    isr=(InSyncReplica(OTHER, "e"),),
    isr_version=2,
    tier=TierMark(
        version=2, start=Offset(0), end=TIER_END, last_epoch=LeaderEpoch(2), last_txid=None, manifest="m"
    ),
)
ELECTED = replace(
    FOLLOWED,
    leader=ME,
    leader_epoch=LeaderEpoch(3),
    isr=(InSyncReplica(ME, "d"),),
    isr_version=3,
    last_unclean=UncleanElection(ME, LeaderEpoch(3), None, (OTHER,)),
)


@asynccontextmanager
async def followed(disk: MemoryDisk) -> AsyncIterator[tuple[StreamReplica, RecordedSessions]]:
    """A replica with nine records of epoch 1, of which its leader has said that all are committed."""
    clock, crash, fetched = SystemClock(), Crash(), RecordedSessions()
    thread = DiskThread(SyncScheduler(disk), crash)
    services = lone_services(clock, thread, GroupCommit(thread, lambda: None, crash), crash, lambda *_: None)
    services = replace(services, cluster=replace(services.cluster, sessions=fetched))
    files = StreamFiles(disk, clock, "tail")
    log = files.open(FOLLOWED).log
    log.writer.begin_epoch(LeaderEpoch(1), NOW)
    for number in range(9):
        append(log, [b"%d" % number])
    log.close()
    try:
        replica = StreamReplica(FOLLOWED, services, files, lambda _: None)
        await replica.open(FOLLOWED)
        assert replica.following is not None
        replica.following.follow(OTHER, LeaderEpoch(2))
        end = Offset(9)
        replica.following.answered(OTHER, BatchesMessage(LeaderEpoch(2), LeaderEpoch(1), end, end, end))
        assert replica.high_watermark == end
        yield replica, fetched
    finally:
        await thread.stop()


def test_who_knew_of_more_commits_than_the_store_has_leads() -> None:
    async def scenario() -> None:
        async with followed(MemoryDisk()) as (replica, _):
            await replica.take_over(ELECTED, lambda: ELECTED)
            assert replica.leading is not None
            assert replica.high_watermark == replica.log.log_start_offset == TIER_END

    asyncio.run(scenario())


def test_who_is_replaced_before_its_reign_begins_asks_for_what_follows_its_new_log() -> None:
    async def scenario() -> None:
        async with followed(MemoryDisk()) as (replica, fetched):
            await replica.take_over(ELECTED, lambda: None)
            assert replica.following is not None
            assert replica.standing().leader_epoch == 3
            replica.following.follow(OTHER, LeaderEpoch(4))
            asked = fetched.fetches[-1]
            assert (asked.log_end, asked.high_watermark, asked.last_epoch) == (TIER_END, TIER_END, 3)

    asyncio.run(scenario())


def test_whatever_the_disk_refuses_its_fetches_tell_the_log_that_it_has() -> None:
    async def scenario() -> None:
        outcomes: set[tuple[bool, Offset]] = set()
        for number in count(1):
            disk = MemoryDisk()
            async with followed(disk) as (replica, fetched):
                struck = disk.calls + number
                disk.faults[struck] = Fault(FaultKind.IO_ERROR)
                await replica.take_over(ELECTED, lambda: ELECTED)
                if disk.calls < struck:
                    break
                if replica.following is not None:
                    replica.following.follow(OTHER, LeaderEpoch(4))
                    asked = fetched.fetches[-1]
                    assert asked.log_end == replica.log.log_end_offset
                    assert asked.last_epoch == replica.log.reader.last_epoch
                outcomes.add((replica.leading is not None, replica.log.log_end_offset))
        assert {(False, 9), (False, 4)} <= outcomes

    asyncio.run(scenario())


@pytest.mark.parametrize(("place", "last_txid"), [(None, HIGHEST), (TIER_END, 5), (TIER_END - 1, HIGHEST)])
def test_the_last_txid_of_the_store_counts_unless_one_was_set_behind_it(
    place: int | None, last_txid: int
) -> None:
    """Of a store that has records from there on, the mark is of after it was set."""
    assert ELECTED.tier is not None
    row = replace(
        ELECTED,
        tier=replace(ELECTED.tier, last_txid=HIGHEST),
        txid_set=None if place is None else TxidSet(LeaderEpoch(2), Offset(place), 5),
    )

    async def scenario() -> None:
        async with followed(MemoryDisk()) as (replica, _):
            await replica.take_over(row, lambda: row)
            assert replica.leading is not None
            assert replica.leading.last_txid == last_txid

    asyncio.run(scenario())
