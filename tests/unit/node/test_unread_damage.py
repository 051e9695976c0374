"""Damage that nobody has read yet is found when another node is to have it, and not sent."""

import asyncio
from collections.abc import AsyncIterator, Sized
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import cast

from envelope.types import Incarnation, LeaderEpoch, NodeId, Offset, StreamName
from jetstream.log.batch import Buffer
from jetstream.log.memory_disk import MemoryDisk
from jetstream.log.readable_log import FileRange
from jetstream.log.segment import segment_path
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.clock import SystemClock
from jetstream.node.crash import Crash
from jetstream.node.disk_thread import DiskThread
from jetstream.node.group_commit import GroupCommit
from jetstream.node.recovery import open_log
from jetstream.node.repair_exchange import RepairExchange
from jetstream.node.replica import StreamReplica
from jetstream.node.replica_answers import Answers
from jetstream.node.replica_parts import NoSessions, ReplicaParts, StreamServices
from jetstream.node.upkeep import Upkeep
from jetstream.replica.leader_events import FetchRefusal, Serve
from jetstream.replica.wire import Answer, BatchesMessage, RefusedMessage, RepairAnswer, RepairMessage
from metadata.stream_config import StreamConfig
from tests.support.logs import append, file_content, flipped, overwrite
from tests.support.lone_streams import lone_services
from tests.support.sockets import until

CONFIG = StreamConfig(name="orders", subject="orders.>", replicas=2)
EPOCH, PEER = LeaderEpoch(1), NodeId("b")
NAME, INCARNATION = StreamName("orders"), Incarnation("incarnation")
END = Offset(3)


class Said(NoSessions):
    """What a node answers."""

    def __init__(self) -> None:
        self.answers: list[Answer | RepairAnswer] = []

    def answer(
        self,
        peer: NodeId,
        name: StreamName,
        incarnation: Incarnation,
        message: Answer | RepairAnswer,
        body: Buffer | FileRange | None = None,
    ) -> None:
        """See `Sessions.answer`."""
        del peer, name, incarnation, body
        self.answers.append(message)


@dataclass
class Scene:
    """A log of three batches of which the second one is damaged, and its node."""

    parts: ReplicaParts
    services: StreamServices
    said: Said

    def refused(self) -> tuple[tuple[int, int], ...]:
        return self.parts.log.corrupt_ranges


@asynccontextmanager
async def damaged() -> AsyncIterator[Scene]:
    clock, crash, disk, said = SystemClock(), Crash(), MemoryDisk(), Said()
    thread = DiskThread(SyncScheduler(disk), crash)
    alone = lone_services(
        clock, thread, GroupCommit(thread, lambda: None, crash), crash, lambda commands, lost: None
    )
    services = replace(alone, cluster=replace(alone.cluster, sessions=said))
    opened = open_log(disk, "stream", CONFIG, clock.wall(), "tail")
    log = opened.log
    log.begin_epoch(EPOCH, clock.wall())
    for value in (b"zero", b"one", b"two"):
        append(log, [value], log.last_timestamp + 1)
    log.sync()
    [segment] = log.all_segments
    index, path = segment.load_index(), segment_path("stream", Offset(0))
    overwrite(disk, path, flipped(file_content(disk, path), index[1].position + 300, 1))
    index.verified[:] = bytes(len(index))  # as a start leaves it
    parts = ReplicaParts(CONFIG, INCARNATION, opened, Upkeep(log, clock, lambda: END, opened.note))
    try:
        async with asyncio.timeout(20):
            yield Scene(parts, services, said)
    finally:
        await thread.stop()
        log.close()


def has(said: Sized, count: int) -> bool:
    return len(said) == count


def test_a_leader_finds_its_damage_when_a_follower_is_to_have_it() -> None:
    async def test() -> None:
        async with damaged() as scene:
            answers, said = Answers(scene.parts, EPOCH, scene.services), scene.said.answers
            answers.serve(Serve(PEER, EPOCH, Offset(1), END, END), in_sync=True, joins=False)
            await until(partial(has, said, 1))
            assert said == [RefusedMessage(0, EPOCH, FetchRefusal.CANNOT_READ)]
            assert scene.refused() == ((1, 2),)
            answers.serve(Serve(PEER, EPOCH, Offset(0), END, END), in_sync=True, joins=False)
            await until(partial(has, said, 2))
            assert isinstance(said[1], BatchesMessage)
            assert (said[1].base, said[1].next) == (0, 1), "what lies before it"

    asyncio.run(test())


def test_who_is_asked_for_a_repair_finds_its_own_damage() -> None:
    async def test() -> None:
        async with damaged() as scene:
            log, said = scene.parts.log, scene.said.answers
            asked = cast("StreamReplica", SimpleNamespace(is_open=True, high_watermark=END, log=log))
            exchange = RepairExchange(
                lambda incarnation: asked, lambda name, life: None, scene.services.cluster, Crash()
            )
            for offset in (1, 2):
                exchange.asked(PEER, NAME, INCARNATION, RepairMessage(0, Offset(offset), END))
                await until(partial(has, said, offset))
            assert isinstance(said[0], RepairAnswer)
            assert isinstance(said[1], RepairAnswer)
            assert [(answer.base, answer.next) for answer in (said[0], said[1])] == [(1, 1), (2, 3)]
            assert scene.refused() == ((1, 2),)

    asyncio.run(test())
