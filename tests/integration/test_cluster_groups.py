"""Consumer groups in a cluster of three: what a coordinator has said outlives it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from nats.aio.client import Client

from envelope.errors import (
    ConnectionLost,
    DeadlinePassed,
    Fenced,
    JetstreamError,
    NotEnoughReplicas,
    UnavailableError,
)
from envelope.group_errors import CursorBehind
from envelope.internal_streams import group_shard
from jetstream.client.nodes.socket_access import SocketAccess
from jetstream.client.nodes.socket_link import SocketLink
from tests.support.cluster_scene import ClusterScene
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.pauses import pause
from tests.support.raw_member import RawMember, coordinator

T = TypeVar("T")

GROUP = "billing"
ATTEMPT_SECONDS = 1.0


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ClusterScene]:
    with NatsServer(tmp_path / "nats") as server:
        cluster = NodeCluster(tmp_path, server.url, size=3, data=0)
        try:
            cluster.start()
            yield ClusterScene(cluster, server.url)
        finally:
            cluster.close()


@dataclass
class Roaming:
    """A member that finds its coordinator again and repeats what was not answered."""

    scene: ClusterScene
    member: RawMember | None = None
    streams: tuple[str, ...] = ("orders",)
    asked: list[str] = field(default_factory=list)

    async def _linked(self) -> RawMember:
        """The member with an open connection to whoever coordinates now."""
        if self.member is not None and not self.member.link.closed:
            return self.member
        alive = [node for node in self.scene.cluster.nodes.values() if node.is_running]
        where = await coordinator(("127.0.0.1", alive[0].socket_port), GROUP)
        link = await SocketLink.open(*where, ATTEMPT_SECONDS, SocketAccess())
        if self.member is None:
            self.member = RawMember(link, GROUP, list(self.streams))
        self.member.link = link
        return self.member

    async def until_done(self, act: Callable[[RawMember], Awaitable[T]]) -> T:
        """Try until it is answered by something that is no passing failure; what it counts is the same."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                counts = (0, 0) if self.member is None else (self.member.joins, self.member.commits)
                try:
                    async with asyncio.timeout(ATTEMPT_SECONDS):
                        return await act(await self._linked())
                except (UnavailableError, ConnectionLost, DeadlinePassed, TimeoutError) as error:
                    self.asked.append(repr(error))
                    if self.member is not None:
                        self.member.joins, self.member.commits = counts
                        self.member.link.close()
                    await pause()


@asynccontextmanager
async def one_member(scene: ClusterScene) -> AsyncIterator[tuple[Client, Roaming, str]]:
    """A member that owns the only partition, its shard whole; with the node that coordinates."""
    async with scene.client() as js:
        await js.streams.create("orders", "orders.>", replicas=3)
        roaming = Roaming(scene)
        await roaming.until_done(lambda member: member.join())
        info = await scene.cluster.until_whole(js.nats, group_shard(GROUP))
        try:
            yield js.nats, roaming, info["leader"]
        finally:
            if roaming.member is not None:
                roaming.member.link.close()


def test_a_killed_coordinator_loses_no_cursor_and_moves_nothing(scene: ClusterScene) -> None:
    async def test() -> None:
        async with one_member(scene) as (client, roaming, leader):
            assert roaming.member is not None
            before = (roaming.member.member, dict(roaming.member.keeps))
            acked = 0

            async def commit_until(end: int) -> None:
                nonlocal acked
                for offset in range(acked + 1, end + 1):
                    await roaming.until_done(partial(RawMember.commit, offset=offset))
                    acked = offset

            await commit_until(20)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(commit_until(60))
                while acked < 40:
                    await pause()
                scene.cluster[leader].kill()
            assert await roaming.until_done(lambda member: member.cursors()) == {0: 60}
            assert roaming.asked, "the coordinator was killed in the midst of the commits"
            await roaming.until_done(lambda member: member.heartbeat())
            assert (roaming.member.member, roaming.member.keeps) == before
            with pytest.raises(CursorBehind):
                await roaming.until_done(lambda member: member.commit(59))
            scene.cluster[leader].start()
            await scene.cluster.until_whole(client, group_shard(GROUP))

    run(test())


def test_a_coordinator_that_stood_still_stores_nothing_when_it_goes_on(scene: ClusterScene) -> None:
    async def test() -> None:
        async with one_member(scene) as (_, roaming, leader):
            await roaming.until_done(lambda member: member.commit(10))
            assert roaming.member is not None
            former = roaming.member.link
            deposed = RawMember(
                await SocketLink.open(
                    "127.0.0.1", scene.cluster[leader].socket_port, WAIT_SECONDS, SocketAccess()
                ),
                GROUP,
                ["orders"],
            )
            deposed.member, deposed.generation = roaming.member.member, roaming.member.generation
            scene.cluster[leader].stand_still()

            async def takes_over() -> None:
                try:
                    former.close()
                    await roaming.until_done(lambda member: member.commit(20))
                finally:
                    scene.cluster[leader].send(signal.SIGCONT)

            late, taken_over = await asyncio.gather(
                deposed.commit(11, number=1_000, reset=True), takes_over(), return_exceptions=True
            )
            assert taken_over is None
            assert isinstance(late, UnavailableError | ConnectionLost)
            assert await roaming.until_done(lambda member: member.cursors()) == {0: 20}
            deposed.link.close()

    run(test())


def test_a_shard_without_enough_replicas_refuses_and_nothing_moves(scene: ClusterScene) -> None:
    async def test() -> None:
        async with one_member(scene) as (client, roaming, leader):
            await roaming.until_done(lambda member: member.commit(10))
            others = [name for name in scene.cluster.nodes if name != leader]
            for name in others:
                scene.cluster[name].stand_still()
            refused: JetstreamError | None = None
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    while not isinstance(refused, NotEnoughReplicas | UnavailableError):
                        assert roaming.member is not None
                        try:
                            async with asyncio.timeout(ATTEMPT_SECONDS):
                                await roaming.member.commit(11)
                        except JetstreamError as error:
                            refused = error
                        except TimeoutError:
                            roaming.member.commits -= 1
            finally:
                for name in others:
                    scene.cluster[name].send(signal.SIGCONT)
            assert not isinstance(refused, Fenced)
            await scene.cluster.until_whole(client, group_shard(GROUP))
            assert await roaming.until_done(lambda member: member.cursors()) in ({0: 10}, {0: 11})
            await roaming.until_done(lambda member: member.commit(12))
            assert await roaming.until_done(lambda member: member.cursors()) == {0: 12}

    run(test())
