"""Readers that are closed or dropped take their requests back, from a node whose clock stands still."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from envelope.errors import Unsupported
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import RecordReader
from jetstream.protocol.connection import CancelReceived, RequestReceived, ServerConnection
from jetstream.protocol.requests import Fetch, GetMetadata, Hello, ListOffsets
from jetstream.protocol.responses import (
    HelloResponse,
    ListOffsetsResponse,
    MetadataResponse,
    StreamMetadata,
)
from metadata.node.peers.accepting import StreamServer, listeners
from tests.support.scene import a_scene
from tests.support.sockets import RawPeer, World, asked, run, serving, standing, until

WAIT: dict[str, Any] = {"op": "fetch", "stream": "s", "max_wait_ms": 60_000}
FOLLOWERS = 400
AT_ONCE = 100


async def following(reader: RecordReader) -> None:
    """Wait for a record that does not come."""
    async for record in reader:
        raise AssertionError(record)


@asynccontextmanager
async def at_the_end(reader: RecordReader, world: World, parked: int) -> AsyncIterator[None]:
    """Have ``reader`` wait for records that do not come; then its application gives that up."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(following(reader))
        await until(lambda: world.server.parked == parked)
        yield
        task.cancel()


def test_readers_that_were_closed_hold_up_nobody(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with standing(tmp_path) as world:
            links = world.links()
            for _ in range(FOLLOWERS):
                reader = world.records(ReadRange("s", start="latest", follow=True), links)
                async with at_the_end(reader, world, parked=1):
                    pass
                assert world.server.parked == 1, "it may go on"
                await reader.aclose()
                await until(lambda: world.server.parked == 0)
            async with asked(world.records(ReadRange("s", start="latest", follow=True), links)) as waiting:
                await until(lambda: world.server.parked == 1)
                assert (await links.link()).in_flight == 1
                world.directory.streams["s"].add([b"b"])
                assert (await waiting()).value == b"b"
            assert world.server.counters.requests_cancelled == FOLLOWERS
            assert world.server.counters.connections_opened == 1

    run(test(), loop)


def test_a_reader_that_is_dropped_takes_its_fetch_along(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with standing(tmp_path) as world:
            reader = world.records(ReadRange("s", start="latest", follow=True))
            async with at_the_end(reader, world, parked=1):
                pass
            held = [reader]
            del reader
            dropping = threading.Thread(target=held.clear)  # as in an application with threads
            dropping.start()
            await until(lambda: world.server.parked == 0)
            dropping.join()
            assert world.server.counters.requests_cancelled == 1

    run(test(), loop)


def test_a_reader_that_is_behind_takes_back_what_it_has_asked_ahead(tmp_path: Path) -> None:
    async def test() -> None:
        async with standing(tmp_path) as world:
            world.directory.streams["s"].add(*([b"x" * 1000] * 10 for _ in range(200)))
            links = world.links()
            reader = world.records(ReadRange("s", follow=True), links, max_bytes=1)
            assert (await anext(reader)).value == b"a"
            await reader.aclose()
            link = await links.link()
            await until(lambda: link.in_flight == 0)
            assert world.server.parked == 0
            assert world.server.counters.requests_failed == 0, "none begins nowhere"

    run(test())


def test_a_question_that_nobody_waits_for_is_taken_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with standing(tmp_path) as world:
            link = await world.links().link()
            fetch = Fetch(id=link.next_id(), stream="s", offset=1, max_wait_ms=60_000)
            async with asyncio.TaskGroup() as tasks:
                question = tasks.create_task(link.ask(fetch))
                await until(lambda: world.server.parked == 1)
                question.cancel()
            await until(lambda: world.server.parked == link.in_flight == 0)

    run(test())


def test_the_followers_of_a_client_on_a_real_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_scene(tmp_path) as scene:
            await scene.js.streams.create("orders", "orders.>")
            for _ in range(FOLLOWERS // AT_ONCE):
                readers = [scene.js.read("orders", follow=True) for _ in range(AT_ONCE)]
                async with asyncio.TaskGroup() as tasks:
                    followers = [tasks.create_task(following(reader)) for reader in readers]
                    await scene.until("jetstream_socket_parked_fetches", AT_ONCE, AT_ONCE)
                    for task in followers:
                        task.cancel()
                for reader in readers:
                    await reader.aclose()
                await scene.until("jetstream_socket_parked_fetches", 0, 0)
            assert await scene.metric("jetstream_socket_cancelled_requests_total") == FOLLOWERS
            async with asked(scene.js.read("orders", follow=True)) as waiting:
                await scene.until("jetstream_socket_parked_fetches", 1, 1)
                await scene.js.publish("orders.new", b"a")
                assert (await waiting()).value == b"a"

    run(scenario())


# --- nodes and clients of other versions ---------------------------------------------------------------


class OlderNode:
    """A node that knows no cancel: it parks every fetch until `answer`."""

    def __init__(self) -> None:
        self.parked: list[tuple[int, asyncio.StreamWriter, ServerConnection]] = []
        self.unknown: list[object] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ServerConnection()
        while data := await reader.read(1 << 16):
            for event in connection.receive_data(data):
                if isinstance(event, RequestReceived):
                    self.respond(event.request, writer, connection)
                else:
                    self.unknown.append(event)
                    assert not isinstance(event, CancelReceived)
        writer.close()

    def respond(self, request: object, writer: asyncio.StreamWriter, connection: ServerConnection) -> None:
        match request:
            case Hello(id=number):
                writer.write(
                    connection.respond(HelloResponse(id=number, protocol=1, node="n", node_version="0"))
                )
            case GetMetadata(id=number):
                stream = StreamMetadata(name="s", incarnation="i", leader="n", leader_epoch=1)
                writer.write(connection.respond(MetadataResponse(id=number, nodes=[], streams=[stream])))
            case ListOffsets(id=number):
                offsets = ListOffsetsResponse(
                    id=number, offset=0, leader_epoch=1, log_start_offset=0, high_watermark=0, incarnation="i"
                )
                writer.write(connection.respond(offsets))
            case Fetch(id=number):
                self.parked.append((number, writer, connection))
            case _:
                raise AssertionError(request)

    def answer(self) -> None:
        for number, writer, connection in self.parked:
            writer.write(connection.fail(number, Unsupported("its time is over")))
        self.parked.clear()


def test_an_older_node_is_asked_nothing_that_it_does_not_know(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            node = OlderNode()
            server = StreamServer(node.talk, limit=1 << 16)
            (listener,) = await listeners("127.0.0.1", 0)
            server.start(listener)
            links = world.links(listener.getsockname()[1])
            readers = [world.records(ReadRange("s", follow=True), links) for _ in range(5)]
            async with asyncio.TaskGroup() as tasks:
                followers = [tasks.create_task(following(reader)) for reader in readers]
                await until(lambda: len(node.parked) == 5)
                for task in followers:
                    task.cancel()
            for reader in readers:
                await reader.aclose()
            link = await links.link()
            await link.ask(GetMetadata(id=link.next_id()))  # whatever was sent before has arrived
            assert (node.unknown, link.in_flight) == ([], 5)
            node.answer()
            await until(lambda: link.in_flight == 0)
            assert not link.closed
            links.close()
            await server.stop()

    run(test())


def test_an_older_client_reads_as_ever(tmp_path: Path) -> None:
    async def test() -> None:
        async with standing(tmp_path) as world:
            peer = RawPeer(world.port)
            hello = await peer.ask(op="hello", id=0, protocol=1)
            assert hello.pop("cancel") is True
            await peer.request(**WAIT, id=1, offset=1)
            await until(lambda: world.server.parked == 1)
            peer.close()
            await until(lambda: world.server.parked == 0)
            assert world.server.counters.requests_cancelled == 0

    run(test())
