"""Where so many stored bytes end, as the node tells and as the client finds out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import jetstream
from envelope.errors import (
    CorruptDataError,
    JetstreamError,
    NotLeader,
    OffsetOutOfRange,
    RemoteProtocolError,
    RequestError,
    StreamOffline,
    StreamRecreated,
    UnknownStream,
    Unsupported,
)
from envelope.types import Offset
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.socket_access import FixedAddresses
from jetstream.client.read.boundaries import ByteRange, find_boundary
from jetstream.log.log import LogConfig
from jetstream.node.replicas.replica import StreamReplica
from jetstream.protocol.frames import PREFIX
from jetstream.protocol.requests import ListOffsets, decode_request
from jetstream.protocol.responses import (
    HelloResponse,
    ListOffsetsResponse,
    MetadataResponse,
    NodeMetadata,
    Response,
    StreamMetadata,
    encode_error,
    encode_response,
)
from jetstream.tier.object_store import ObjectStore
from jetstream.tier.restore import all_remains
from jetstream.tier.tiered_log import TieredLog
from tests.support.log_life import added_up, batches_of
from tests.support.nodes import nats_and_node
from tests.support.sockets import WAIT_SECONDS, LiveStream, World, run, serving
from tests.support.tiered_nodes import RECORDS, tiered, tiered_node
from tests.support.two_nodes import damage_batch, led, placed, two_nodes

HUGE = 2**63 - 1
SMALL = LogConfig(segment_bytes=6000)


def ten_batches(world: World) -> LiveStream:
    """A stream of three segments, each batch longer than the one before; its last record is not committed."""
    stream = world.stream("s", SMALL)
    stream.add(*([b"v" * (50 * number)] * 2 for number in range(10)))
    stream.append([b"not yet"])
    assert len(stream.log.reader.segments) > 2
    return stream


async def found(
    world: World,
    offset: int,
    max_bytes: int,
    incarnation: str | None = None,
    retry_s: float = WAIT_SECONDS,
) -> tuple[int, int]:
    links = NodeLinks(FixedAddresses([("127.0.0.1", world.port)]), WAIT_SECONDS)
    try:
        wanted = ByteRange("s", offset, max_bytes, incarnation).validated()
        return await find_boundary(links, wanted, retry_s)
    finally:
        links.close()


# --- what a node answers -----------------------------------------------------------------------------------


def test_a_node_tells_what_adding_up_its_batches_finds(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = ten_batches(world)
            end = stream.high_watermark
            batches = batches_of(stream.log)
            peer = await world.peer()
            for offset in range(end):
                for max_bytes in (1, batches[0].bytes, 3 * batches[-2].bytes, HUGE):
                    answer = await peer.ask(
                        op="list_offsets", id=1, stream="s", at="bytes", offset=offset, bytes=max_bytes
                    )
                    expected = added_up(batches, offset, max_bytes, end)
                    assert (answer["offset"], answer["bytes"]) == expected
                    assert (answer["high_watermark"], answer["leads"]) == (end, True)
            latest = await peer.ask(op="list_offsets", id=2, stream="s", at="latest")
            assert "bytes" not in latest
            peer.close()

    run(test())


@pytest.mark.parametrize(
    ("fields", "err_code"),
    [
        ({"offset": 22}, "offset_out_of_range"),
        ({"offset": HUGE}, "offset_out_of_range"),
        ({"offset": 3, "incarnation": "second"}, "stream_recreated"),
        ({"stream": "nothing"}, "stream_not_found"),
        ({"bytes": 0}, "bad_request"),
        ({"bytes": 2**63}, "bad_request"),
        ({"bytes": None}, "bad_request"),
        ({"offset": -1}, "bad_request"),
        ({"offset": "next"}, "bad_request"),
        ({"timestamp": 1}, "bad_request"),
        ({"max_bytes": 1}, "unsupported"),
    ],
)
def test_what_cannot_be_is_refused_and_the_connection_lives_on(
    tmp_path: Path, fields: dict[str, object], err_code: str
) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            ten_batches(world)
            peer = await world.peer()
            asked: dict[str, object] = {"stream": "s", "at": "bytes", "offset": 0, "bytes": 1, **fields}
            answer = await peer.ask(op="list_offsets", id=1, **asked)
            assert answer["error"]["err_code"] == err_code
            answer = await peer.ask(op="list_offsets", id=2, stream="s", at="bytes", offset=20, bytes=1)
            assert (answer["offset"], answer["bytes"]) == (20, 0)
            peer.close()

    run(test())


def test_a_new_leader_that_does_not_know_what_is_committed_does_not_say_that_nothing_is(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = ten_batches(world)
            stream.has_committed_own_epoch = False
            assert (await found(world, 18, HUGE))[0] == 20
            with pytest.raises(StreamOffline):
                await found(world, 20, HUGE, retry_s=0.0)

    run(test())


# --- how the client finds out ------------------------------------------------------------------------------


def test_a_range_is_divided_so_that_no_batch_comes_twice(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = ten_batches(world)
            bounds, total, offset = [0], 0, 0
            while offset < stream.high_watermark:
                offset, size = await found(world, offset, 2500, "first")
                bounds.append(offset)
                total += size
            batches = batches_of(stream.log)[:-1]
            assert set(bounds) <= {0, *(batch.next for batch in batches)}
            assert 3 < len(bounds) < len(batches)
            assert total == sum(batch.bytes for batch in batches)

    run(test())


@pytest.mark.parametrize(
    ("offset", "incarnation", "error"),
    [(0, None, OffsetOutOfRange), (22, None, OffsetOutOfRange), (8, "second", StreamRecreated)],
)
def test_what_is_wrong_is_told_at_once(
    tmp_path: Path, offset: int, incarnation: str | None, error: type[JetstreamError]
) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = ten_batches(world)
            stream.log.truncate_before(Offset(8), stream.high_watermark)
            with pytest.raises(error):
                await found(world, offset, 1000, incarnation)
            assert (await found(world, 8, HUGE))[0] == 20

    run(test())


def test_an_unknown_stream_is_told_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            with pytest.raises(UnknownStream):
                await found(world, 0, 1)

    run(test())


@pytest.mark.parametrize(
    ("offset", "max_bytes"), [(-1, 1), (2**63, 1), (True, 1), (0, 0), (0, -1), (0, 2**63), (0, True)]
)
def test_numbers_that_cannot_be_are_not_asked_for(offset: int, max_bytes: int) -> None:
    with pytest.raises(RequestError):
        ByteRange("s", offset, max_bytes).validated()


def test_that_there_is_nothing_only_the_leader_is_believed(tmp_path: Path) -> None:
    """The follower has not heard that what it has is committed."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (first, second):
            led("n2", 1, first, second)
            second.directory.streams["s"].add([b"10"])
            for _ in range(20):  # whoever is asked first
                assert (await found(first, 10, HUGE))[0] == 11
                assert await found(second, 11, HUGE, retry_s=0.0) == (11, 0), (
                    "the way to the leader is no failure"
                )

    run(test())


def test_without_a_leader_what_is_committed_is_told_and_nothing_is_not(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_nodes(tmp_path) as worlds:
            for world in worlds:
                world.directory.rows["s"] = placed(None)
                world.directory.streams["s"].leads = False
            assert (await found(worlds[0], 5, HUGE))[0] == 10
            with pytest.raises(NotLeader):
                await found(worlds[0], 10, HUGE, retry_s=0.05)

    run(test())


@pytest.mark.parametrize("damaged", [("n1",), ("n1", "n2")])
def test_what_is_damaged_at_one_replica_is_counted_at_another(
    tmp_path: Path, damaged: tuple[str, ...]
) -> None:
    async def test() -> None:
        async with two_nodes(tmp_path) as worlds:
            for world in worlds:
                stream = world.directory.streams["s"]
                stream.add([b"%d" % number for number in range(10, 20)])
                if world.directory.node in damaged:
                    again = damage_batch(world, Offset(10))
                    with pytest.raises(CorruptDataError):  # now the node knows
                        again.log.reader.read(Offset(10), 1, Offset(20))
            if len(damaged) == 1:
                for _ in range(8):  # whoever is asked first
                    assert (await found(worlds[0], 10, HUGE))[0] == 20
            else:
                with pytest.raises(CorruptDataError):
                    await found(worlds[0], 10, HUGE)

    run(test())


# --- nodes that are of another version, or lie -------------------------------------------------------------


@asynccontextmanager
async def a_node(answer: dict[str, Any], refusal: JetstreamError | None = None) -> AsyncIterator[NodeLinks]:
    """A node that gives one answer to every `ListOffsets`."""

    def respond(header: bytes) -> bytes:
        request = decode_request(header)
        response: Response
        match request:
            case ListOffsets() if refusal is not None:
                return encode_error(request.id, refusal)
            case ListOffsets():
                told = {"leader_epoch": 1, "log_start_offset": 0, "high_watermark": 50, "incarnation": "i"}
                fields = {"id": request.id, "leads": True, **told, **answer}
                response = ListOffsetsResponse.model_validate(fields)
            case _ if request.op == "hello":
                response = HelloResponse(id=request.id, protocol=1, node="n1", node_version="0")
            case _:
                node = NodeMetadata(id="n1", host="127.0.0.1", port=port)
                stream = StreamMetadata(
                    name="s", incarnation="i", leader="n1", leader_epoch=1, replicas=["n1"], isr=["n1"]
                )
                response = MetadataResponse(id=request.id, nodes=[node], streams=[stream])
        return encode_response(response)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while prefix := await reader.read(PREFIX.size):
                header = respond(await reader.readexactly(PREFIX.unpack(prefix)[0]))
                writer.write(PREFIX.pack(len(header), 0) + header)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    links = NodeLinks(FixedAddresses([("127.0.0.1", port)]), WAIT_SECONDS)
    try:
        yield links
    finally:
        links.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "refusal",
    [RequestError("at: Input should be 'earliest', 'latest', 'timestamp' or 'txid'"), Unsupported("bytes")],
)
def test_an_older_node_is_said_to_be_too_old(refusal: JetstreamError) -> None:
    async def test() -> None:
        async with a_node({}, refusal) as links:
            with pytest.raises(Unsupported, match="node n1 is too old"):
                await find_boundary(links, ByteRange("s", 0, 1), WAIT_SECONDS)

    run(test())


@pytest.mark.parametrize(
    "answer",
    [
        {"offset": 20},
        {"offset": 20, "bytes": 0},
        {"offset": 10, "bytes": 5},
        {"offset": 9, "bytes": 5},
        {"offset": 51, "bytes": 5},
        {"offset": 20, "bytes": 5, "incarnation": "another"},
    ],
)
def test_a_node_that_contradicts_itself_is_not_believed(answer: dict[str, Any]) -> None:
    async def test() -> None:
        async with a_node(answer) as links:
            with pytest.raises(RemoteProtocolError):
                await find_boundary(links, ByteRange("s", 10, 1, "i"), WAIT_SECONDS)
        async with a_node({"offset": 20, "bytes": 5}) as links:
            assert await find_boundary(links, ByteRange("s", 10, 1, "i"), WAIT_SECONDS) == (20, 5)

    run(test())


def test_bytes_are_counted_across_the_border_without_bringing_in_what_is_taken_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            stream = await tiered(js, node)
            [life] = all_remains(ObjectStore.at(str(tmp_path / "store")))
            first = life.manifest.segments[0]
            assert await js.boundary("orders", 0, first.batch_bytes) == (first.next, first.batch_bytes)
            whole = await js.boundary("orders", 0, 2**63 - 1)
            assert whole[0] == RECORDS
            held = node.stream("orders")
            assert isinstance(held, StreamReplica)
            readable = held.readable
            assert isinstance(readable, TieredLog)
            assert readable.held(first) is None, "nothing was brought in"
            middle, size = await js.boundary("orders", 0, 1)
            assert 0 < middle <= first.next
            assert size <= first.batch_bytes
            assert readable.held(first) is not None, "for a part of it it was"
            total, offset = 0, 0
            while offset < RECORDS:
                offset, size = await js.boundary("orders", offset, 10_000)
                total += size
            assert (offset, total) == whole
            local = stream.log.log_start_offset
            assert (await js.boundary("orders", local, 2**63 - 1))[0] == RECORDS

    run(scenario())


# --- the client of an application --------------------------------------------------------------------------


def test_both_clients_divide_a_stream_of_a_node(tmp_path: Path) -> None:
    async def test() -> None:
        async with nats_and_node(tmp_path, None) as (url, node), jetstream.connect(url) as js:
            created = await js.streams.create("orders", "orders.>", partitions=2, partition_by="key")
            assert created is not None
            await js.publish_all(("orders.x", b"%d" % number, {"key": "k"}) for number in range(100))
            ends = [await js.boundary(f"orders/{partition}", 0, HUGE) for partition in range(2)]
            assert sorted(end for end, _ in ends) == [0, 100]

            def blocking() -> list[tuple[int, int]]:
                with jetstream.connect_blocking(url) as client:
                    return [client.boundary(f"orders/{partition}", 0, HUGE) for partition in range(2)]

            assert await asyncio.to_thread(blocking) == ends
            stored = node.stream("orders/0" if ends[0][0] else "orders/1")
            assert stored is not None
            assert max(ends) == (100, sum(batch.bytes for batch in batches_of(stored.log)))

    run(test())
