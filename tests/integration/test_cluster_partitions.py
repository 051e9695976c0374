"""A partitioned stream on three nodes: order by key through a killed leader, partitions that are added."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

import jetstream
from envelope.errors import JetstreamError
from envelope.partitions import partition_of
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.nodes import WAIT_SECONDS, request, run

KEYS = tuple(f"device-{number}" for number in range(12))
COUNT = 30
"""Messages of each key."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("partitions")) as started:
        yield started


@dataclass
class Publishers:
    """One publisher for each key; what they were told."""

    js: jetstream.JetstreamClient
    stream: str
    acked: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    """Which partition has a value, and where."""
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    timeout_s: float = 1
    """For an ack, before a message is sent again."""
    goes_on: bool = False
    """Whether there is more to come than was asked for."""

    async def one_by_one(self, key: str, count: int) -> None:
        """Publish values of a key, each until it is acked, with a message id."""
        for number in itertools.count():
            if number >= count and not self.goes_on:
                return
            value = f"{key} {number}".encode()
            while value not in self.acked:
                try:
                    ack = await self.js.publish(
                        f"{self.stream}.x", value, key=key, message_id=value.decode(), timeout=self.timeout_s
                    )
                except JetstreamError:
                    continue
                self.acked[value] = (ack.stream, ack.offset)
            self.progress.set()

    async def in_a_session(self, key: str, count: int) -> None:
        """Publish values of a key in a session: many at once, in order."""
        async with self.js.session(f"of {key}", stream=self.stream, window=10, timeout_s=0.5) as session:
            sent = []
            for number in range(count):
                value = f"{key} {number}".encode()
                sent.append((value, await session.publish(f"{self.stream}.x", value, key=key)))
                self.progress.set()
            for value, future in sent:
                ack = await future
                assert ack.offset is not None
                self.acked[value] = (ack.stream, ack.offset)


@dataclass
class Stored:
    """All records of a partitioned stream."""

    places: dict[bytes, list[tuple[str, int]]] = field(default_factory=dict)
    """Where each value is."""
    by_key: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """Of each key in which partition the n-th value is, partition after partition."""


async def stored(js: jetstream.JetstreamClient, stream: str, partitions: int) -> Stored:
    found = Stored()
    for number in range(partitions):
        name = f"{stream}/{number}"
        async for record in js.read(name):
            assert record.value is not None
            key, _, count = record.value.decode().partition(" ")
            found.places.setdefault(record.value, []).append((name, record.offset))
            found.by_key.setdefault(key, []).append((name, int(count)))
    return found


async def until_whole(
    scene: ClusterScene, js: jetstream.JetstreamClient, stream: str, partitions: int
) -> Counter[str]:
    """Wait until every partition is led and has all replicas in sync; return how many each node leads."""
    infos = [await scene.cluster.until_whole(js.nats, f"{stream}/{number}") for number in range(partitions)]
    return Counter(str(info["leader"]) for info in infos)


def test_the_order_of_each_key_holds_through_a_killed_leader(scene: ClusterScene) -> None:
    async def scenario() -> None:
        async with scene.client() as js:
            made = await request(
                js.nats,
                "stream.create",
                name="orders",
                subject="orders.>",
                partitions=6,
                partition_by="key",
                replicas=3,
            )
            assert made["effective_partitions"] == 6
            assert await until_whole(scene, js, "orders", 6) == {"a": 2, "b": 2, "c": 2}
            publishers = Publishers(js, "orders")
            leader = str(
                (await scene.cluster.info(js.nats, f"orders/{partition_of(KEYS[0].encode(), 6)}"))["leader"]
            )
            async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as tasks:
                for place, key in enumerate(KEYS):
                    publish = publishers.one_by_one if place % 2 == 0 else publishers.in_a_session
                    tasks.create_task(publish(key, COUNT))
                while len(publishers.acked) < len(KEYS):
                    publishers.progress.clear()
                    await publishers.progress.wait()
                scene.cluster[leader].kill()
            found = await stored(js, "orders", 6)
            for key in KEYS:
                own = f"orders/{partition_of(key.encode(), 6)}"
                assert found.by_key[key] == [(own, number) for number in range(COUNT)]
            assert found.places == {value: [place] for value, place in publishers.acked.items()}
            scene.cluster[leader].start()
            await until_whole(scene, js, "orders", 6)

    run(scenario())


def test_partitions_are_added_while_messages_come(scene: ClusterScene) -> None:
    async def scenario() -> None:
        async with scene.client() as js:
            config = {"name": "grown", "subject": "grown.>", "partition_by": "key", "replicas": 3}
            await request(js.nats, "stream.create", **config, partitions=2)
            publishers = Publishers(js, "grown", goes_on=True)
            async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as tasks:
                for key in KEYS:
                    tasks.create_task(publishers.one_by_one(key, COUNT))
                while len(publishers.acked) < len(KEYS):
                    publishers.progress.clear()
                    await publishers.progress.wait()
                grown = await request(js.nats, "stream.update", name="grown", partitions=5)
                assert grown["effective_partitions"] == 5
                publishers.goes_on = False
            leaders = await until_whole(scene, js, "grown", 5)
            assert sorted(leaders.values()) == [1, 2, 2]
            found = await stored(js, "grown", 5)
            # Nobody was told of a record that is not there; one of the moment may be in two partitions.
            assert all(place in found.places[value] for value, place in publishers.acked.items())
            assert len(publishers.acked) >= len(KEYS) * COUNT
            for key in KEYS:
                await publishers.one_by_one(f"{key}-later", 1)
                name, _ = publishers.acked[f"{key}-later 0".encode()]
                assert name == f"grown/{partition_of(f'{key}-later'.encode(), 5)}"

    run(scenario())


@pytest.mark.slow("tests/integration/test_partition_feeds.py")
def test_by_queue_every_message_is_in_one_partition(scene: ClusterScene) -> None:
    async def scenario() -> None:
        async with scene.client() as js:
            config = {"name": "jobs", "subject": "jobs.>", "partition_by": "queue", "replicas": 3}
            await request(js.nats, "stream.create", **config, partitions=3)
            # What is sent again may go to another partition, which does not know its id.
            publishers = Publishers(js, "jobs", timeout_s=WAIT_SECONDS)
            await asyncio.gather(*(publishers.one_by_one(key, 20) for key in KEYS))
            found = await stored(js, "jobs", 3)
            assert {name for places in found.places.values() for name, _ in places} == {
                f"jobs/{n}" for n in range(3)
            }
            assert found.places == {value: [place] for value, place in publishers.acked.items()}
            gone = await request(js.nats, "stream.delete", name="jobs")
            assert len(gone["partitions"]) == 3
            assert await js.streams.list("jobs") == []

    run(scenario())
