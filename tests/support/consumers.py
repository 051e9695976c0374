"""A node with some streams that have records, and what tests of consumers look at."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import jetstream
from jetstream.client.connection import JetstreamClient
from jetstream.client.consume.consumer import Consumer
from jetstream.client.read.records import Record
from tests.support.nodes import WAIT_SECONDS, nats_and_node
from tests.support.pauses import pause
from tests.support.raw_member import members

Seen = tuple[str, int]
"""A record: its stream and its offset."""


@dataclass(frozen=True)
class ConsumerScene:
    """One client of one node."""

    js: JetstreamClient
    url: str
    socket: tuple[str, int]

    async def cursors(self, group: str, *streams: str) -> dict[str, int]:
        """The group's cursors in streams that are no partitions of others."""
        async with members(self.socket, group) as [nobody]:
            found = {stream: await nobody.cursors(stream) for stream in streams}
        return {stream: offsets[0] for stream, offsets in found.items() if offsets}


@asynccontextmanager
async def streams_with(directory: Path, **records: int) -> AsyncIterator[ConsumerScene]:
    """A node with streams of so many records, whose values are their numbers."""
    async with nats_and_node(directory) as (url, node), jetstream.connect(url) as js:
        for stream, count in records.items():
            await js.streams.create(stream, f"{stream}.>")
            await fill(js, stream, range(count))
        yield ConsumerScene(js, url, (node.socket_host, node.socket_port))


async def fill(js: JetstreamClient, stream: str, numbers: Iterable[int]) -> None:
    await js.publish_all((f"{stream}.{number % 2}", b"%d" % number) for number in numbers)


def seen(record: Record) -> Seen:
    return record.stream, record.offset


async def take(consumer: Consumer, count: int) -> list[Seen]:
    """Return the next records; the last of them is in hand."""
    async with asyncio.timeout(WAIT_SECONDS):
        return [seen(await anext(consumer)) for _ in range(count)]


@asynccontextmanager
async def asking(consumer: Consumer, count: int = 1) -> AsyncIterator[asyncio.Task[list[Seen]]]:
    """Ask for the next records while the block lasts; it ends when they are there."""
    async with asyncio.TaskGroup() as tasks:
        yield tasks.create_task(take(consumer, count))


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not is_so():
            await pause()


async def until_asked(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not await is_so():
            await pause()
