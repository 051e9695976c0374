"""The seam to nats-py while nats-py gives a connection up, with a server that stops mid-message.

nats-py resets its parser at once and closes the connection a turn of the loop later. A server's own timing
cannot be commanded so exactly, so a socket of the test's speaks the protocol.
"""

import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import nats.errors
import pytest
import uvloop
from nats.aio.client import Client

from jetstream.ingest.messages import MessageBlock
from jetstream.ingest.parser import MessageParser, ParsedItem
from jetstream.node.nats import transport as nats_transport
from jetstream.node.nats.parser_seam import BatchingParser, Deliver, close, subscription_id
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from metadata.node.peers.accepting import StreamServer, listeners

INFO = b'INFO {"server_id":"x","version":"2.10","proto":1,"max_payload":1048576,"headers":true}\r\n'
PAYLOAD = b"A" * 100 + b"MSG orders.phantom 1 7\r\nphantom\r\n"
MESSAGE = b"MSG orders.cut 1 %d\r\n%b\r\n" % (len(PAYLOAD), PAYLOAD)
HALF = MESSAGE.index(b"MSG orders.phantom")
WHOLE = b"MSG orders.whole 1 5\r\nwhole\r\n"
TIMEOUT_S = 30.0

Loop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Loop:
    made: Loop = request.param
    return made


class Server:
    """Takes one connection after the other, and says on the newest what it is told to."""

    def __init__(self) -> None:
        self.connections: list[asyncio.StreamWriter] = []
        self.subscriptions = asyncio.Semaphore(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak the protocol with one client."""
        self.connections.append(writer)
        writer.write(INFO)
        with suppress(ConnectionError):
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
                elif line.startswith(b"SUB"):
                    self.subscriptions.release()
        writer.close()

    def say(self, data: bytes) -> None:
        """Put ``data`` into the newest connection's socket at once, not in the loop's next turn."""
        os.write(self.connections[-1].get_extra_info("socket").fileno(), data)


class Received:
    """What came as messages of the subscription."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes]] = []
        self.some = asyncio.Event()

    def take(self, block: MessageBlock) -> None:
        """Stand where a stream does."""
        self.messages.extend(zip(block.subjects, block.payloads, strict=True))
        self.some.set()


@asynccontextmanager
async def subscribed() -> AsyncIterator[tuple[Server, Client, Received]]:
    """A client with our parser and a subscription that its server knows; it has read nothing yet."""
    server, client, received = Server(), Client(), Received()
    routes: dict[int, Deliver] = {}
    BatchingParser(client, routes, Crash(), clock=SystemClock())

    async def reconnect(_: Exception) -> None:
        """Nothing to do: nats-py does it."""

    listening = StreamServer(server.serve, limit=1 << 16)
    (listener,) = await listeners("127.0.0.1", 0)
    listening.start(listener)
    async with asyncio.timeout(TIMEOUT_S):
        port = listener.getsockname()[1]
        await client.connect(f"nats://127.0.0.1:{port}", error_cb=reconnect, reconnect_time_wait=0)
        try:
            routes[subscription_id(await client.subscribe("orders.>"))] = received.take
            await server.subscriptions.acquire()
            yield server, client, received
        finally:
            await client.close()
            await listening.stop()


def give_up(client: Client) -> None:
    """Do what nats-py's ping timer and its flusher do when the connection is of no use any more."""
    with suppress(StopIteration):  # it ends without waiting for anything
        client._process_op_err(nats.errors.StaleConnectionError()).send(None)


def wait_until_readable(client: Client) -> None:
    """Block the loop until what the server said is there to be read, and not read."""
    transport = client._transport
    assert isinstance(transport, nats_transport.DirectTransport)
    assert transport._io_writer is not None
    connection: socket.socket = transport._io_writer.get_extra_info("socket")
    assert select.select([connection.fileno()], [], [], TIMEOUT_S)[0]


async def receives_what_the_next_connection_says(server: Server, received: Received) -> None:
    await server.subscriptions.acquire()
    server.say(WHOLE)
    await received.some.wait()
    assert received.messages == [(b"orders.whole", b"whole")]


def test_the_rest_of_a_message_is_not_read_as_commands_once_the_connection_is_given_up(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        fed, feed = asyncio.Event(), MessageParser.feed

        def tell(parser: MessageParser, data: bytes) -> list[ParsedItem]:
            if data:
                fed.set()
            return feed(parser, data)

        monkeypatch.setattr(MessageParser, "feed", tell)
        async with subscribed() as (server, client, received):
            server.say(b"PING\r\n")  # from its first bytes on nats-py is told by the read callback
            await fed.wait()
            fed.clear()
            server.say(MESSAGE[:HALF])
            await fed.wait()
            server.say(MESSAGE[HALF:])
            wait_until_readable(client)
            give_up(client)
            await receives_what_the_next_connection_says(server, received)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


def test_first_bytes_that_arrive_as_the_connection_is_given_up_are_not_joined_with_the_next_ones(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed, receive = list[Client](), nats_transport._Protocol.data_received

    def receive_and_give_up(protocol: nats_transport._Protocol, data: bytes) -> None:
        receive(protocol, data)
        if doomed:
            give_up(doomed.pop())

    async def scenario() -> None:
        async with subscribed() as (server, client, received):
            doomed.append(client)
            server.say(MESSAGE[:HALF])
            await receives_what_the_next_connection_says(server, received)

    # Before there is a connection: uvloop looks the method up once for each.
    monkeypatch.setattr(nats_transport._Protocol, "data_received", receive_and_give_up)
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


def test_a_client_whose_close_was_cancelled_leaves_no_connection_open(loop: Loop) -> None:
    """Of a client that is closing nats-py's ``close`` does nothing more."""

    async def scenario() -> None:
        async with subscribed() as (server, client, _):
            async with asyncio.TaskGroup() as tasks:
                closing = tasks.create_task(close(client))
                await asyncio.sleep(0)  # nats-py lets its own tasks end
                closing.cancel()
            await server.connections[-1].wait_closed()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())
