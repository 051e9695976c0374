"""Reading from three nodes that are killed: every replica has the same bytes, every reader sees all once."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import pytest

import jetstream
from envelope.errors import UnavailableError, UnknownStream
from jetstream.client.connection import JetstreamClient
from jetstream.client.nodes.replica_choice import ReadFrom
from jetstream.client.read.reader import BatchReader, RecordReader
from tests.support.cluster_bytes import all_bytes
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.sockets import RawPeer

OTHERS_MAX: Final = 2
_streams = count()


@dataclass(frozen=True)
class Scene:
    """Three nodes on one nats-server."""

    cluster: NodeCluster
    url: str

    @asynccontextmanager
    async def client(self, *nodes: str) -> AsyncIterator[JetstreamClient]:
        """A client that is told of these nodes only; of all by NATS if there are none."""
        addresses = [f"127.0.0.1:{self.cluster[node].socket_port}" for node in nodes]
        async with jetstream.connect(self.url, socket=addresses or None) as js:
            await self.cluster.until_ready(js.nats)
            yield js

    @asynccontextmanager
    async def peer(self, node: str) -> AsyncIterator[RawPeer]:
        """A connection to one node that has said hello."""
        peer = RawPeer(self.cluster[node].socket_port)
        try:
            await peer.ask(op="hello", id=0, protocol=1)
            yield peer
        finally:
            peer.close()

    async def stream(self, js: JetstreamClient, replicas: int = 3) -> str:
        """A stream of its own for one test, whole."""
        name = f"s{next(_streams)}"
        await js.streams.create(name, f"{name}.>", replicas=replicas)
        await self.cluster.until_whole(js.nats, name, replicas)
        return name

    async def leader(self, js: JetstreamClient, stream: str) -> str:
        info = await self.cluster.until_whole(js.nats, stream)
        return str(info["leader"])


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("cluster")
    with NatsServer(directory / "nats") as server:
        cluster = NodeCluster(directory, server.url)
        try:
            cluster.start()
            yield Scene(cluster, server.url)
        finally:
            cluster.close()


async def published(js: JetstreamClient, stream: str, numbers: range) -> None:
    """Publish numbers until each is acked, whoever dies meanwhile."""
    for number in numbers:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    await js.publish(f"{stream}.n", b"%d" % number, message_id=f"{number}", timeout=2)
                except UnavailableError:
                    continue
                break


async def filled(js: JetstreamClient, stream: str, records: int, padding: int = 500) -> None:
    """Publish that many numbers, of ``padding`` bytes and more, all acked; in batches of 100 at most."""
    tail = b" " * padding
    messages = ((f"{stream}.n", b"%d" % number + tail) for number in range(records))
    await js.publish_all(messages, window=100)


async def metadata(peer: RawPeer, stream: str) -> dict[str, Any]:
    answer = await peer.ask(op="metadata", id=1, streams=[stream])
    [found] = answer["streams"]
    return dict(found)


def node_of(reader: BatchReader | RecordReader) -> str:
    """The node that a reader reads from now."""
    batches = reader._batches if isinstance(reader, RecordReader) else reader
    assert batches._route._step is not None
    return batches._route._step.node


def test_every_replica_serves_the_same_bytes(scene: Scene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            stream = await scene.stream(js)
            await filled(js, stream, 2000)
            found = set()
            for node in "abc":
                async with scene.peer(node) as peer:
                    found.add(await all_bytes(peer, stream, 2000))
            assert len(found) == 1
            for read_from in ("auto", "leader", "any"):
                for node in "abc":
                    async with scene.client(node) as through:
                        reader = through.read(stream, end=2000, follow=True, read_from=read_from)
                        assert [int(record.value or b"") async for record in reader] == list(range(2000))

    run(test())


def test_every_node_knows_where_every_stream_is(scene: Scene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            alone, whole = await scene.stream(js, replicas=1), await scene.stream(js)
            owner = (await js.streams.info(alone)).leader
            for node in "abc":
                async with scene.peer(node) as peer:
                    told = await metadata(peer, alone)
                    assert (told["leader"], told["replicas"], told["isr"]) == (owner, [owner], [owner])
                    assert ("high_watermark" in told) == (node == owner)
                    told = await metadata(peer, whole)
                    assert sorted(told["replicas"]) == sorted(told["isr"]) == ["a", "b", "c"]
                    assert told["leader"] in "abc"
                    assert told["high_watermark"] == 0

    run(test())


def test_a_node_without_a_replica_says_who_has_one_and_a_client_goes_there(scene: Scene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            stream = await scene.stream(js, replicas=1)
            owner = str((await js.streams.info(stream)).leader)
            await filled(js, stream, 100)
            for node in set("abc") - {owner}:
                async with scene.peer(node) as peer:
                    for fields in ({"op": "fetch", "offset": 0}, {"op": "list_offsets", "at": "latest"}):
                        error = (await peer.ask(id=1, stream=stream, **fields))["error"]
                        assert (error["err_code"], error["detail"]) == ("not_replica", {"leader": owner})
                        assert error["retriable"]
                async with scene.client(node) as through:
                    assert [record.offset async for record in through.read(stream)] == list(range(100))
                    with pytest.raises(UnknownStream):
                        await anext(through.read("nothing"))

    run(test())


def test_a_follower_serves_nothing_beyond_its_high_watermark_and_waits_beyond_its_end(scene: Scene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            stream = await scene.stream(js)
            await filled(js, stream, 10)
            leader = await scene.leader(js, stream)
            follower, silent = sorted(set("abc") - {leader})
            async with scene.peer(follower) as peer, scene.peer(leader) as leading:
                await all_bytes(peer, stream, 10)
                scene.cluster[silent].send(signal.SIGSTOP)  # nothing is committed without it, for a while
                try:
                    await js.nats.publish(f"{stream}.n", b"not committed yet")
                    told = await metadata(peer, stream)
                    while told["log_end_offset"] == 10:
                        told = await metadata(peer, stream)
                    assert told["high_watermark"] == 10
                    for offset in (10, 11, 12, 1000):
                        answer = await peer.ask(op="fetch", id=3, stream=stream, offset=offset)
                        assert (answer["next_offset"], answer["records"]) == (offset, 0), answer
                        assert (answer["high_watermark"], answer["leads"]) == (10, False)
                    answer = await leading.ask(op="fetch", id=3, stream=stream, offset=1000)
                    assert answer["error"]["err_code"] == "offset_out_of_range"
                finally:
                    scene.cluster[silent].send(signal.SIGCONT)
                await peer.request(op="fetch", id=4, stream=stream, offset=10, max_wait_ms=30_000)
                header, _ = await peer.response()
                assert (header["next_offset"], header["high_watermark"]) == (11, 11)

    run(test())


def test_a_leader_that_nobody_confirms_does_not_tell_the_end(scene: Scene) -> None:
    """It still has a lease, and another may have been elected that acks what it does not know."""

    async def test() -> None:
        async with scene.client() as js:
            stream = await scene.stream(js)
            await filled(js, stream, 10)
            leader = await scene.leader(js, stream)
            others = sorted(set("abc") - {leader})
            async with scene.peer(leader) as peer:
                ask = {"op": "list_offsets", "stream": stream, "at": "latest"}
                told = await peer.ask(id=1, **ask)
                assert (told["offset"], told["leads"]) == (10, True)
                for node in others:
                    scene.cluster[node].send(signal.SIGSTOP)
                try:
                    told = await peer.ask(id=2, **ask)
                    assert told["error"]["err_code"] == "stream_offline", told
                    assert told["error"]["retriable"]
                finally:
                    for node in others:
                        scene.cluster[node].send(signal.SIGCONT)
            await scene.cluster.until_whole(js.nats, stream)

    run(test())


def test_every_question_is_answered_while_a_node_stands_still(scene: Scene) -> None:
    """NATS goes on to hand it a third of them."""

    async def test() -> None:
        async with scene.client() as js:
            stream = await scene.stream(js)
            leader = await scene.leader(js, stream)
            frozen = next(node for node in "abc" if node != leader)
            scene.cluster[frozen].send(signal.SIGSTOP)
            try:
                for _ in range(6):
                    assert (await js.streams.info(stream)).config.name == stream
                    assert len(await js.streams.list(prefix=stream)) == 1
            finally:
                scene.cluster[frozen].send(signal.SIGCONT)
            await scene.cluster.until_whole(js.nats, stream)

    run(test())


@pytest.mark.parametrize(
    "read_from",
    ["auto", pytest.param("any", marks=pytest.mark.slow("tests/integration/test_cluster_reads.py"))],
)
def test_a_reader_that_catches_up_goes_on_elsewhere_when_its_node_is_killed(
    scene: Scene, read_from: ReadFrom
) -> None:
    async def test() -> None:
        async with scene.client() as js:
            stream = await scene.stream(js)
            await filled(js, stream, 5000)
            reader = js.read_batches(
                stream, read_from=read_from, max_bytes=20_000, prefetch_bytes=40_000, follow=True, end=5000
            )
            seen: list[int] = []
            killed: list[str] = []
            async for batch in reader:
                seen += [int(value.as_py()) for value in batch.column("value")]
                if len(killed) < OTHERS_MAX and len(seen) > 1000 * (1 + len(killed)):
                    for node in killed:
                        scene.cluster[node].start()
                        await scene.leader(js, stream)
                    killed.append(node_of(reader))
                    scene.cluster[killed[-1]].kill()
            assert seen == list(range(5000))
            assert len(killed) == OTHERS_MAX
            assert node_of(reader) not in killed[-1:]
            scene.cluster[killed[-1]].start()
            await scene.leader(js, stream)

    run(test())


@pytest.mark.slow(
    "tests/integration/test_cluster_reads.py::test_a_reader_that_catches_up_goes_on_elsewhere_when_its_node_is_killed"
)
def test_readers_follow_while_all_nodes_are_killed_one_after_the_other(scene: Scene) -> None:
    async def test() -> None:
        async with scene.client() as js, scene.client("a", "b", "c") as through:
            stream = await scene.stream(js)
            readers = [
                js.read(stream, follow=True, end=80),
                js.read(stream, follow=True, end=80, read_from="leader"),
                through.read(stream, follow=True, end=80, read_from="any"),
            ]
            seen: list[list[int]] = [[] for _ in readers]

            async def follow(reader: RecordReader, into: list[int]) -> None:
                async for record in reader:
                    into.append(int(record.value or b""))  # noqa: PERF401 - what came before an error counts

            async with asyncio.TaskGroup() as tasks:
                for reader, into in zip(readers, seen, strict=True):
                    tasks.create_task(follow(reader, into))
                await published(js, stream, range(20))
                for number, node in enumerate("abc", 1):
                    assert await scene.leader(js, stream) in "abc"
                    scene.cluster[node].kill()
                    await published(js, stream, range(20 * number, 20 * number + 20))
                    scene.cluster[node].start()
            assert seen == [list(range(80))] * 3
            await scene.leader(js, stream)  # and with it the last node, for the next test

    run(test())


def test_readers_are_spread_until_they_have_caught_up(scene: Scene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            stream = await scene.stream(js)
            await filled(js, stream, 100)
            leader = await scene.leader(js, stream)
            began_at = set()
            for turn in range(3):
                reader = js.read(stream, follow=True)
                reader._batches._route._turn = turn
                assert (await anext(reader)).offset == 0
                began_at.add(node_of(reader))
                while reader.next_offset != 100 + turn:
                    await anext(reader)
                async with asyncio.TaskGroup() as tasks:
                    waiting = tasks.create_task(reader.__anext__())
                    await js.publish(f"{stream}.n", b"more")
                assert waiting.result().offset == 100 + turn
                assert node_of(reader) == leader
                await reader.aclose()
            assert began_at == {"a", "b", "c"}

    run(test())


@pytest.mark.slow("tests/integration/test_cluster_reads.py", "tests/integration/test_blocking_reader.py")
def test_the_reader_without_asyncio_goes_on_elsewhere_too(scene: Scene) -> None:
    async def prepared() -> tuple[str, str]:
        async with scene.client() as js:
            stream = await scene.stream(js)
            await filled(js, stream, 3000)
            return stream, await scene.leader(js, stream)

    stream, leader = run(prepared())
    with jetstream.connect_blocking(scene.url) as js:
        seen = []
        reader = js.read(stream, read_from="leader", max_bytes=20_000, prefetch_bytes=40_000)
        for record in reader:
            seen.append(record.offset)
            if len(seen) == 1000:
                assert node_of(reader._batches) == leader
                scene.cluster[leader].kill()
        assert seen == list(range(3000))
        assert node_of(reader._batches) != leader
    scene.cluster[leader].start()
