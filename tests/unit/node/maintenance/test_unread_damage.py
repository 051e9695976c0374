"""Damage that nobody has read yet is found when another node is to have it, and not sent."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sized
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from envelope.types import Incarnation, LeaderEpoch, NodeId, Offset, StreamName
from jetstream.log.segments.segment import segment_path
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.group_commit import GroupCommit
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.disk.open_log import open_log
from jetstream.node.disk.thread import DiskThread
from jetstream.node.replicas.context import NodeServices, ReplicaContext
from jetstream.node.replicas.follower_responses import FollowerResponses
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.node.streams.repair_exchange import RepairExchange
from jetstream.replica.leader_events import ServeFollower
from jetstream.replica.wire import (
    BatchesMessage,
    FetchRefusal,
    RefusedMessage,
    RepairAnswer,
    RepairMessage,
)
from metadata.stream_config import StreamConfig
from tests.support.logs import append, file_content, flipped, overwrite
from tests.support.lone_streams import lone_services
from tests.support.memory_disk import MemoryDisk
from tests.support.recorded_sessions import RecordedSessions
from tests.support.sockets import until

CONFIG = StreamConfig(name="orders", subject="orders.>", replicas=2)
EPOCH, PEER = LeaderEpoch(1), NodeId("b")
NAME, INCARNATION = StreamName("orders"), Incarnation("incarnation")
END = Offset(3)


@dataclass
class Scene:
    """A log of three batches of which the second one is damaged, and its node."""

    parts: ReplicaContext
    services: NodeServices
    said: RecordedSessions

    def refused(self) -> tuple[tuple[int, int], ...]:
        return self.parts.log.reader.corrupt_ranges


@asynccontextmanager
async def damaged() -> AsyncIterator[Scene]:
    clock, crash, disk, said = SystemClock(), Crash(), MemoryDisk(), RecordedSessions()
    thread = DiskThread(SyncScheduler(disk), crash)
    alone = lone_services(
        clock, thread, GroupCommit(thread, lambda: None, crash), crash, lambda commands, lost: None
    )
    services = replace(alone, cluster=replace(alone.cluster, sessions=said))
    opened = open_log(disk, "stream", CONFIG, clock.wall(), "tail")
    log = opened.log
    log.writer.begin_epoch(EPOCH, clock.wall())
    for value in (b"zero", b"one", b"two"):
        append(log, [value], log.reader.last_timestamp + 1)
    log.writer.sync()
    [segment] = log.reader.segments
    index, path = segment.load_index(), segment_path("stream", Offset(0))
    overwrite(disk, path, flipped(file_content(disk, path), index[1].position + 300, 1))
    index.verified[:] = bytes(len(index))  # as a start leaves it
    parts = ReplicaContext(CONFIG, INCARNATION, opened, Upkeep(log, clock, lambda: END, lambda: opened.note))
    try:
        async with asyncio.timeout(20):
            yield Scene(parts, services, said)
    finally:
        await thread.stop()
        log.close()


def has(said: Sized, count: int) -> bool:
    return len(said) == count


def asked_of(scene: Scene, replica: SimpleNamespace) -> RepairExchange:
    return RepairExchange(
        lambda incarnation: cast("StreamReplica", replica), lambda name, life: None, scene.services
    )


def test_a_leader_finds_its_damage_when_a_follower_is_to_have_it() -> None:
    async def test() -> None:
        async with damaged() as scene:
            answers, said = FollowerResponses(scene.parts, EPOCH, scene.services), scene.said.answers
            answers.serve(ServeFollower(PEER, EPOCH, Offset(1), END, END))
            await until(partial(has, said, 1))
            assert said == [(PEER, RefusedMessage(EPOCH, FetchRefusal.CANNOT_READ), None)]
            assert scene.refused() == ((1, 2),)
            answers.serve(ServeFollower(PEER, EPOCH, Offset(0), END, END))
            await until(partial(has, said, 2))
            _, message, _ = said[1]
            assert isinstance(message, BatchesMessage)
            assert (message.base, message.next) == (0, 1), "what lies before it"

    asyncio.run(test())


@pytest.mark.parametrize("known", [END, Offset(2), Offset(0)])
def test_who_is_asked_for_a_repair_gives_what_it_has_and_finds_its_own_damage(known: Offset) -> None:
    """Whatever it knows to be committed."""

    async def test() -> None:
        async with damaged() as scene:
            log, said = scene.parts.log, scene.said.answers
            exchange = asked_of(scene, SimpleNamespace(is_open=True, high_watermark=known, log=log))
            for offset in (1, 2):
                exchange.asked(PEER, NAME, INCARNATION, RepairMessage(Offset(offset), END))
                await until(partial(has, said, offset))
            answers = [answer for _, answer, _ in said if isinstance(answer, RepairAnswer)]
            assert [(answer.base, answer.next) for answer in answers] == [(1, 1), (2, 3)]
            assert scene.refused() == ((1, 2),)

    asyncio.run(test())


def test_what_may_be_cut_is_looked_at_between_two_appends_and_what_is_committed_at_once() -> None:
    async def test() -> None:
        async with damaged() as scene:
            said, gate = scene.said.answers, threading.Event()
            replica = SimpleNamespace(is_open=True, high_watermark=Offset(0), log=scene.parts.log)
            exchange = asked_of(scene, replica)
            append_under_way = scene.services.disk.call(gate.wait)
            try:
                exchange.asked(PEER, NAME, INCARNATION, RepairMessage(Offset(0), Offset(1)))
                replica.high_watermark = END
                exchange.asked(PEER, NAME, INCARNATION, RepairMessage(Offset(2), END))
                await until(partial(has, said, 1))
            finally:
                gate.set()
            await append_under_way
            await until(partial(has, said, 2))
            assert [cast("RepairAnswer", answer).base for _, answer, _ in said] == [2, 0]

    asyncio.run(test())
