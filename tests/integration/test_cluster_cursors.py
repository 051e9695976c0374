"""Cursors in a cluster of three: what was acked is told by whoever leads next, and nothing older ever is."""

import asyncio
import json
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client

import jetstream
from tests.support.cluster_scene import ClusterScene
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster, asked
from tests.support.nodes import WAIT_SECONDS, request, run
from tests.support.pauses import pause

CONSUMERS = 8
COMMITS = 15
"""Of each consumer before the leader is killed, and after it."""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ClusterScene]:
    with NatsServer(tmp_path / "nats") as server:
        cluster = NodeCluster(tmp_path, server.url, size=3, data=0)
        try:
            yield ClusterScene(cluster, server.url)
        finally:
            cluster.close()


@dataclass
class Consumers:
    """Plain NATS clients that commit ever larger offsets, and what they were told."""

    client: Client
    published: list[int] = field(default_factory=lambda: [-1] * CONSUMERS)
    acked: list[int] = field(default_factory=lambda: [-1] * CONSUMERS)
    answers: int = 0
    contradictions: list[str] = field(default_factory=list)

    async def commit(self, consumer: int, until: int) -> None:
        """Commit each offset, again while the outcome is unknown."""
        while self.acked[consumer] < until:
            offset = self.published[consumer] = self.acked[consumer] + 1
            with suppress(nats.errors.NoRespondersError, nats.errors.TimeoutError):
                subject = f"jetstream.api.cursors.plain.c{consumer}.orders"
                answer = json.loads((await self.client.request(subject, b"%d" % offset, timeout=0.5)).data)
                if "error" in answer:
                    await pause()
                else:
                    self.acked[consumer] = offset

    async def ask(self, over: asyncio.Event) -> None:
        """Ask for one after the other, and compare; not to be cancelled, as nats-py may lose that."""
        while not over.is_set():
            await self.check(random.randrange(CONSUMERS))

    async def check(self, consumer: int) -> bool:
        """Compare a cursor with what was acked before it was asked for; False without an answer."""
        acked = self.acked[consumer]
        with suppress(nats.errors.NoRespondersError, nats.errors.TimeoutError):
            asked = json.dumps({"consumer": f"c{consumer}", "stream": "orders"}).encode()
            reply = await self.client.request("jetstream.api.cursor.get", asked, timeout=0.5)
            told = json.loads(reply.data)
            if "error" in told:
                assert told["error"]["retriable"], told
                return False
            offset = -1 if told["offset"] is None else told["offset"]
            self.answers += 1
            if not acked <= offset <= self.published[consumer]:
                self.contradictions.append(f"c{consumer}: {offset} told, {acked} acked before")
            return True
        return False

    async def commit_all(self, until: int) -> None:
        """Have every consumer commit so far, while somebody asks."""
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.ask(over))
            await asyncio.gather(*(self.commit(consumer, until) for consumer in range(CONSUMERS)))
            over.set()

    async def check_all(self) -> None:
        """Compare every cursor, once it is told."""
        for consumer in range(CONSUMERS):
            async with asyncio.timeout(WAIT_SECONDS):
                while not await self.check(consumer):
                    pass
        assert self.contradictions == []


def cursors_told_by(scene: ClusterScene, node: str) -> float:
    """How many cursors a node can tell."""
    return scene.cluster[node].metric("jetstream_cursors")


async def until_told_by(scene: ClusterScene, node: str, number: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while await asyncio.to_thread(cursors_told_by, scene, node) != number:
            await pause()


async def until_made(client: Client) -> dict[str, Any]:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            answer = await asked(client, "cursor.get", consumer="c0", stream="orders")
            if "offset" in answer:
                return answer


@pytest.mark.slow("tests/simulation/test_group_seeds.py", "tests/integration/test_cluster_groups.py")
def test_acked_cursors_outlive_their_leader_and_no_older_one_is_ever_told(scene: ClusterScene) -> None:
    async def test() -> None:
        cluster = scene.cluster
        cluster.start()
        async with scene.client() as js:
            questions = [request(js.nats, "cursor.get", consumer="c0", stream="orders") for _ in range(20)]
            assert {answer["offset"] for answer in await asyncio.gather(*questions)} == {None}
            info = await cluster.until_whole(js.nats, "__cursors")
            leader = info["leader"]
            consumers = Consumers(js.nats)
            await consumers.commit_all(COMMITS)
            before = consumers.answers
            assert before > 0
            async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as tasks:
                tasks.create_task(consumers.commit_all(3 * COMMITS))
                while min(consumers.acked) < 2 * COMMITS:
                    await consumers.check(0)
                cluster[leader].kill()
            await consumers.check_all()
            assert consumers.answers > before
            cluster[leader].start()
            await cluster.until_whole(js.nats, "__cursors")
            await stood_still(scene, js, consumers)

    run(test())


async def stood_still(scene: ClusterScene, js: jetstream.JetstreamClient, consumers: Consumers) -> None:
    """Let another node lead while the leader stands still, which then tells nothing older, and forgets."""
    cluster = scene.cluster
    leader = (await cluster.info(js.nats, "__cursors"))["leader"]
    await until_told_by(scene, leader, CONSUMERS)
    cluster[leader].stand_still()
    try:
        await consumers.commit_all(4 * COMMITS)
    finally:
        cluster[leader].send(signal.SIGCONT)
    await consumers.commit_all(5 * COMMITS)
    await consumers.check_all()
    await until_told_by(scene, leader, 0)


def test_the_stream_of_cursors_waits_for_the_nodes_that_are_to_hold_it(scene: ClusterScene) -> None:
    """Made by the first two of three nodes it had fewer copies for good; so the group waits for all."""

    async def test() -> None:
        scene.cluster.start("ab")
        async with asyncio.timeout(WAIT_SECONDS):
            while not all(scene.logged(node, "no vote before the other voters are heard") for node in "ab"):
                await pause()
        scene.cluster.start("c")
        async with jetstream.connect(scene.url) as js:
            assert (await until_made(js.nats))["offset"] is None
            assert len((await scene.cluster.info(js.nats, "__cursors"))["replicas"]) == 3

    run(test())
