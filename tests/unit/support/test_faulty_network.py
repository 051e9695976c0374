"""The network of the chaos tests does to bytes what it says, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.faulty_network import Network, faulty_network
from tests.support.sockets import run

A_TO_B = ("a", "b")
B_TO_A = ("b", "a")
WAIT_SECONDS = 10.0


class Talk:
    """A connection that a has dialled to b: both ends, and the network between them."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.heard: list[str] = []
        """What each end was told, in the order in which it came, and its end as "."."""
        self._changed = asyncio.Event()
        self._writers: dict[str, asyncio.StreamWriter] = {}

    async def dial(self, tasks: asyncio.TaskGroup) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.network.port("a", "b"))
        self._writers["a"] = writer
        tasks.create_task(self.listen("a", reader, writer))

    async def listen(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[name] = writer
        self._changed.set()
        try:
            while data := await reader.read(1 << 16):
                self._hear(f"{name}<{data.decode()}")
            self._hear(f"{name}.")
        except ConnectionError:
            self._hear(f"{name}!")
        finally:
            writer.transport.abort()

    def _hear(self, text: str) -> None:
        self.heard.append(text)
        self._changed.set()

    def say(self, name: str, text: str) -> None:
        self._writers[name].write(text.encode())

    def end(self, name: str) -> None:
        self._writers[name].close()

    async def until(self, *heard: str) -> None:
        """Wait until all this was heard, in any order, and nothing else was."""
        async with asyncio.timeout(WAIT_SECONDS):
            while sorted(self.heard) != sorted(heard) or len(self._writers) < 2:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def talk() -> AsyncIterator[Talk]:
    """A connection that has been used in both directions."""
    talks: list[Talk] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await talks[-1].listen("b", reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, faulty_network({A_TO_B: port}) as network, asyncio.TaskGroup() as tasks:
        talks.append(Talk(network))
        await talks[-1].dial(tasks)
        talks[-1].say("a", "hello")
        yield talks[-1]
        network.cut([A_TO_B])


def test_what_is_said_arrives_on_both_sides() -> None:
    async def check() -> None:
        async with talk() as both:
            await both.until("b<hello")
            both.say("b", "well")
            await both.until("b<hello", "a<well")

    run(check())


def test_in_a_direction_that_is_held_nothing_arrives_before_it_is_released() -> None:
    async def check() -> None:
        async with talk() as both:
            await both.until("b<hello")
            both.network.hold([A_TO_B])
            both.say("a", "late")
            both.say("b", "well")
            await both.until("b<hello", "a<well")
            both.network.directions[A_TO_B].release()
            await both.until("b<hello", "a<well", "b<late")

    run(check())


def test_the_end_of_a_connection_is_held_too() -> None:
    async def check() -> None:
        async with talk() as both:
            await both.until("b<hello")
            both.network.hold([A_TO_B])
            both.say("a", "last words")
            both.end("a")
            await both.until("b<hello", "a.")
            both.network.heal(lose=False)
            await both.until("b<hello", "a.", "b<last words", "b.")

    run(check())


def test_what_is_held_when_a_way_heals_with_loss_never_arrives() -> None:
    async def check() -> None:
        async with talk() as both:
            await both.until("b<hello")
            both.network.hold([A_TO_B])
            both.say("a", "lost")
            both.say("b", "well")
            await both.until("b<hello", "a<well")
            both.network.heal(lose=True)
            await both.until("b<hello", "a<well", "a.", "b.")

    run(check())


def test_whoever_dials_a_party_that_is_down_or_refused_is_refused() -> None:
    async def check() -> None:
        async with talk() as both:
            network, port = both.network, both.network.port("a", "b")
            network.is_down("b", down=True)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            await both.until("b<hello")
            network.is_down("b", down=False)
            network.refuse([A_TO_B])
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            network.heal(lose=False)
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.transport.abort()

    run(check())


def test_a_slow_direction_delivers_in_order_and_no_sooner() -> None:
    async def check() -> None:
        async with talk() as both:
            await both.until("b<hello")
            loop = asyncio.get_running_loop()
            both.network.slow([A_TO_B], 0.05, 100.0)
            began = loop.time()
            both.say("a", "x" * 10)
            both.say("b", "well")
            await both.until("b<hello", "a<well", "b<" + "x" * 10)
            # 50 ms of delay and 100 ms for ten bytes: neither alone would do. The loop's clock is coarse.
            assert loop.time() - began > 0.12
            assert both.heard[-1].startswith("b<x")

    run(check())
