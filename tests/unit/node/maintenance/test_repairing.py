"""Whose damage is looked after when: what cannot be put back now holds up nothing else."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

from envelope.errors import UnavailableError
from envelope.types import Incarnation, LeaderEpoch, NodeId, Offset, StreamName
from jetstream.log.format.batch import SealedBatch, verified_batches
from jetstream.log.rewriting.repair import Hole
from jetstream.log.segments.segment import segment_path
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.open_log import open_log
from jetstream.node.disk.thread import DiskThread
from jetstream.node.maintenance.repair import REPAIRED, Repairing
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.node.streams.repair_exchange import RepairExchange
from metadata.stream_config import StreamConfig
from tests.support.logs import append, file_content, flipped, overwrite
from tests.support.memory_disk import MemoryDisk
from tests.support.sockets import until

COUNT = 50
LAST = COUNT - 3
CONFIG = StreamConfig(name="orders", subject="orders.>", replicas=2)


@dataclass
class Peer:
    """A replica that has intact the last damaged batch, and none of the others."""

    content: bytes
    asked: list[int] = field(default_factory=list)

    def peers(self, stream: StreamReplica) -> list[NodeId]:
        return [NodeId("b")]

    async def batches(self, stream: StreamReplica, hole: Hole, peer: NodeId) -> list[SealedBatch]:
        self.asked.append(hole.base)
        if hole.base != LAST or hole.length is None:
            raise UnavailableError("it does not have it")
        return verified_batches(self.content[hole.position : hole.position + hole.length])


def test_what_can_be_repaired_does_not_wait_behind_what_cannot() -> None:
    async def test() -> None:
        clock, crash, disk = SystemClock(), Crash(), MemoryDisk()
        thread, path = DiskThread(SyncScheduler(disk), crash), segment_path("stream", Offset(0))
        log = open_log(disk, "stream", CONFIG, clock.wall(), "tail").log
        log.writer.begin_epoch(LeaderEpoch(1), clock.wall())
        for number in range(COUNT):
            append(log, [b"%d" % number], log.reader.last_timestamp + 1)
        log.writer.sync()
        [segment] = log.reader.segments
        index, content = segment.load_index(), file_content(disk, path)
        damaged = range(1, LAST + 1, 2)
        for row in damaged:
            overwrite(disk, path, flipped(file_content(disk, path), index[row].position + 300, 1))
            log.reader.corrupt_ranges = (*log.reader.corrupt_ranges, (index[row].base, index[row].next))
        peer, counts = Peer(content), {REPAIRED: 0}
        context = SimpleNamespace(incarnation=Incarnation("life"), counts=counts)
        stream = cast("StreamReplica", SimpleNamespace(name=StreamName("orders"), log=log, context=context))
        repairing = Repairing(cast("RepairExchange", peer), thread, clock, [stream])
        try:
            async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
                running = tasks.create_task(repairing.run(timedelta(milliseconds=1)))
                await until(lambda: counts[REPAIRED] == 1)
                running.cancel()
        finally:
            await thread.stop()
        assert file_content(disk, path)[index[LAST].position :] == content[index[LAST].position :]
        assert set(peer.asked) == set(damaged)
        assert [start for start, _ in log.reader.corrupt_ranges] == list(damaged)[:-1]
        log.close()

    asyncio.run(test())
