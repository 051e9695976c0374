"""A reader between two nodes that know different things: it goes where the stream is, and misses nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from envelope.errors import CorruptDataError, NotLeader, StreamRecreated, UnknownStream
from envelope.types import Offset
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.replica_choice import Locality, ReadFrom, ReadPreference
from jetstream.client.nodes.socket_access import FixedAddresses
from jetstream.client.read.fetch_pipeline import FetchSettings
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import BatchReader, ReadSettings, RecordReader
from jetstream.protocol.responses import NodeMetadata
from tests.support.sockets import WAIT_SECONDS, LiveStream, RawPeer, World, asked, run, serving, until
from tests.support.two_nodes import damage_batch, led, placed, two_nodes

FOLLOWING = ReadRange("s", follow=True)


@asynccontextmanager
async def reading(
    world: World,
    wanted: ReadRange = FOLLOWING,
    read_from: ReadFrom = "auto",
    retry_s: float = 600,
    rack: str | None = None,
) -> AsyncIterator[RecordReader]:
    """A reader that is told of one node only."""
    links = NodeLinks(FixedAddresses([("127.0.0.1", world.port)]), WAIT_SECONDS)
    wish = ReadPreference(read_from, Locality(rack=rack))
    settings = ReadSettings(FetchSettings(max_wait_ms=60_000), retry_s, preference=wish)
    try:
        yield RecordReader(BatchReader(links, wanted, settings))
    finally:
        links.close()


async def values(reader: RecordReader, count: int) -> list[int]:
    return [int((await anext(reader)).value or b"") for _ in range(count)]


def test_a_reader_follows_the_leader_when_it_changes(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_nodes(tmp_path) as (first, second), reading(second) as reader:
            assert await values(reader, 10) == list(range(10))
            async with asked(reader) as waiting:
                await until(lambda: first.server.parked == 1)
                led("n2", 2, first, second)
                for world in (first, second):
                    world.directory.streams["s"].add([b"10"])
                assert (await waiting()).offset == 10
            async with asked(reader) as waiting:
                await until(lambda: second.server.parked == 1)
                second.directory.streams["s"].add([b"11"])
                assert (await waiting()).offset == 11

    run(test())


def test_a_node_that_lags_is_not_believed_about_the_end(tmp_path: Path) -> None:
    """Both say that n1 leads at first; it knows better itself, and n2 learns of it later."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (first, second):
            second.directory.streams["s"].add([b"10", b"11"])
            led("n2", 2, first, second)
            first.directory.rows["s"] = second.directory.rows["s"] = placed("n1")
            async with reading(first, ReadRange("s")) as reader:
                async with asked(reader) as waiting:
                    await until(lambda: first.server.counters.requests > 5)
                    led("n2", 2, second)
                    assert (await waiting()).offset == 0
                assert await values(reader, 11) == list(range(1, 12))

    run(test())


def test_without_a_leader_a_reader_that_needs_one_says_so_and_another_reads(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_nodes(tmp_path) as worlds:
            for world in worlds:
                world.directory.rows["s"] = placed(None)
                world.directory.streams["s"].leads = False
            async with reading(worlds[0], retry_s=0.05) as reader:
                with pytest.raises(NotLeader):
                    await anext(reader)
            async with reading(worlds[0], read_from="any") as reader:
                assert await values(reader, 10) == list(range(10))

    run(test())


@pytest.mark.parametrize("read_from", ["auto", "leader", "any"])
def test_a_stream_that_a_node_has_not_heard_of_is_asked_for_at_the_others(
    tmp_path: Path, read_from: ReadFrom
) -> None:
    async def test() -> None:
        async with two_nodes(tmp_path) as (first, second):
            del first.directory.rows["s"], first.directory.streams["s"]
            second.directory.rows["s"] = placed("n2")
            second.directory.streams["s"].leads = True
            async with serving(tmp_path / "n3", node="n3") as third:
                third.directory.known = first.directory.known
                async with reading(third, read_from=read_from) as reader:
                    reader._batches._route._turn = 0  # n1, where it can
                    assert await values(reader, 10) == list(range(10))
                async with reading(third, ReadRange("nothing"), read_from) as reader:
                    with pytest.raises(UnknownStream):
                        await anext(reader)

    run(test())


def test_a_node_that_has_not_heard_of_the_new_life_of_a_stream_is_left(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_nodes(tmp_path) as (first, second):
            led("n2", 1, first, second)
            first.directory.streams["s"].incarnation = "zero"
            async with reading(second) as reader:
                reader._batches._route._turn = 0  # n1
                assert await values(reader, 10) == list(range(10))
            for world in (first, second):
                world.directory.streams["s"].incarnation = "second"
                world.directory.rows["s"] = placed("n2", incarnation="second")
            async with reading(second, ReadRange("s", incarnation="first")) as reader:
                with pytest.raises(StreamRecreated):
                    await anext(reader)

    run(test())


def test_a_node_that_cannot_be_reached_is_left_out(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_nodes(tmp_path) as (first, second):
            led("n2", 1, first, second)
            gone = NodeMetadata(id="n1", host="127.0.0.1", port=1)
            second.directory.known = [gone, *(second.directory.known or [])[1:]]
            async with reading(second) as reader:
                reader._batches._route._turn = 0  # n1
                assert await values(reader, 10) == list(range(10))

    run(test())


@pytest.mark.parametrize("damaged", [("n1",), ("n1", "n2")])
def test_what_is_damaged_at_one_replica_is_read_from_another(
    tmp_path: Path, damaged: tuple[str, ...]
) -> None:
    async def test() -> None:
        async with two_nodes(tmp_path) as worlds:
            for world in worlds:
                stream = world.directory.streams["s"]
                stream.add([b"%d" % number for number in range(10, 20)])
                if world.directory.node in damaged:
                    damage_batch(world, Offset(10))
            async with reading(worlds[0], ReadRange("s")) as reader:
                reader._batches._route._turn = 0  # n1
                assert await values(reader, 10) == list(range(10))
                if len(damaged) == 1:
                    assert await values(reader, 10) == list(range(10, 20))
                else:
                    with pytest.raises(CorruptDataError):
                        await anext(reader)

    run(test())


# --- what a node answers ----------------------------------------------------------------------------------


async def list_offsets(world: World, at: str) -> str | int:
    """What is answered: the offset, or the error's word."""
    peer = RawPeer(world.port)
    await peer.ask(op="hello", id=0, protocol=1)
    answer = await peer.ask(op="list_offsets", id=1, stream="s", at=at)
    peer.close()
    found: str | int = answer["error"]["err_code"] if "error" in answer else answer["offset"]
    return found


def test_a_new_leader_does_not_say_where_the_end_is_before_it_knows(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_nodes(tmp_path) as (first, _):
            stream: LiveStream = first.directory.streams["s"]
            stream.append([b"10"])
            stream.has_committed_own_epoch = False
            assert await list_offsets(first, "latest") == "stream_offline"
            assert await list_offsets(first, "earliest") == 0
            async with reading(first) as reader:
                assert await values(reader, 10) == list(range(10)), "who follows needs no end"
            async with reading(first, ReadRange("s")) as reader, asked(reader) as waiting:
                await until(lambda: first.server.counters.requests_failed > 1)
                stream.has_committed_own_epoch = True
                stream.commit()
                assert (await waiting()).offset == 0
                assert await values(reader, 10) == list(range(1, 11))
            stream.append([b"11"])
            assert await list_offsets(first, "latest") == 11

    run(test())


def test_a_reader_catches_up_in_its_rack_and_goes_elsewhere_when_that_node_is_gone(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_nodes(tmp_path) as (first, second):
            for turn in range(4):
                async with reading(first, ReadRange("s"), rack="n2-rack") as reader:
                    reader._batches._route._turn = turn
                    assert await values(reader, 10) == list(range(10))
                    assert second.server.counters.connections_opened == turn + 1
            gone = NodeMetadata(id="n2", host="127.0.0.1", port=1, rack="n2-rack")
            first.directory.known = [*(first.directory.known or [])[:1], gone]
            async with reading(first, ReadRange("s"), rack="n2-rack") as reader:
                assert await values(reader, 10) == list(range(10))

    run(test())


def test_readers_of_one_client_share_a_connection_to_each_node(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_nodes(tmp_path) as worlds:
            links = NodeLinks(FixedAddresses([("127.0.0.1", worlds[0].port)]), WAIT_SECONDS)
            readers = [RecordReader(BatchReader(links, ReadRange("s"), ReadSettings())) for _ in range(20)]
            for turn, reader in enumerate(readers):
                reader._batches._route._turn = turn
            found = await asyncio.gather(*(values(reader, 10) for reader in readers))
            assert found == [list(range(10))] * 20
            assert [world.server.counters.connections_opened for world in worlds] == [1, 1]
            for node in ("n1", "n2"):
                (await links.link_to(node)).close()
            found_links = await asyncio.gather(links.link(), *(links.link_to("n1") for _ in range(3)))
            assert len(set(found_links)) == 1
            links.close()

    run(test())
