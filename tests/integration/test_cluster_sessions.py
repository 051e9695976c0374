"""Publisher sessions on three nodes: the next leader, and a replica that comes late, know what was stored."""

import asyncio
from collections.abc import Iterator

import pytest

import jetstream
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.nodes import WAIT_SECONDS, request, run

COUNT = 200


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("cluster")) as started:
        yield started


async def publish_numbers(
    js: jetstream.JetstreamClient, stream: str, count: int
) -> list[jetstream.SessionAck]:
    async with js.session("importer", stream=stream) as session:
        futures = [await session.publish(f"{stream}.new", b"%d" % number) for number in range(count)]
        return [await future for future in futures]


async def values(js: jetstream.JetstreamClient, stream: str) -> list[bytes | None]:
    return [record.value async for record in js.read(stream)]


def test_after_a_failover_repeats_are_answered_with_the_original_offsets(scene: ClusterScene) -> None:
    async def scenario() -> None:
        async with scene.client() as js:
            nats = js.nats
            await js.streams.create("failover", "failover.>", replicas=3)
            leader = str((await scene.cluster.until_whole(nats, "failover"))["leader"])
            await publish_numbers(js, "failover", COUNT)
            scene.cluster[leader].kill()
            await scene.cluster.until_taken_over(nats, "failover", leader)
            again = await publish_numbers(js, "failover", COUNT + 1)
            assert [(ack.offset, ack.duplicate) for ack in again] == [
                (number, number < COUNT) for number in range(COUNT + 1)
            ]
            assert await values(js, "failover") == [b"%d" % number for number in range(COUNT + 1)]
            scene.cluster[leader].start()
            await scene.cluster.until_whole(nats, "failover")

    run(scenario())


def test_a_publisher_goes_on_while_its_leader_is_killed(scene: ClusterScene) -> None:
    async def scenario() -> None:
        async with scene.client() as js:
            nats = js.nats
            await js.streams.create("kill", "kill.>", replicas=3)
            leader = str((await scene.cluster.until_whole(nats, "kill"))["leader"])
            async with js.session(stream="kill", window=20, timeout_s=0.5) as session:
                futures = []
                for number in range(COUNT):
                    futures.append(await session.publish("kill.new", b"%d" % number))
                    if number == COUNT // 2:
                        scene.cluster[leader].kill()
                acks = [await future for future in futures]
            assert [ack.offset for ack in acks] == list(range(COUNT))
            assert await values(js, "kill") == [b"%d" % number for number in range(COUNT)]
            scene.cluster[leader].start()
            await scene.cluster.until_whole(nats, "kill")

    run(scenario())


def test_a_replica_that_begins_where_the_log_begins_knows_the_sessions_before(scene: ClusterScene) -> None:
    """Their records are gone everywhere: only the leader's note tells of them."""

    async def scenario() -> None:
        async with scene.client() as js:
            nats = js.nats
            await js.streams.create("late", "late.>", replicas=1)
            leader = str((await scene.cluster.until_whole(nats, "late", 1))["leader"])
            await publish_numbers(js, "late", COUNT)
            await js.publish("late.new", b"last")
            await js.streams.truncate("late", before=COUNT)
            (other,) = sorted(set(scene.cluster.nodes) - {leader})[:1]
            await request(nats, "stream.reassign", name="late", replicas=[other])
            async with asyncio.timeout(WAIT_SECONDS):
                while (await scene.cluster.info(nats, "late")).get("leader") != other:
                    pass
            await scene.cluster.until_whole(nats, "late", 1)
            again = await publish_numbers(js, "late", COUNT + 1)
            assert all(ack.duplicate for ack in again[:COUNT])
            assert again[COUNT].offset == COUNT + 1
            assert await values(js, "late") == [b"last", b"%d" % COUNT]

    run(scenario())
