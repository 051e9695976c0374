"""Mirrors in this process, what they tell, and what a test waits for beside them."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from envelope.errors import JetstreamError
from jetstream.client.connection import JetstreamClient
from jetstream.client.mirror.mirror import Mirror, MirrorSettings
from jetstream.client.mirror.positions import Resumption
from tests.support.nodes import WAIT_SECONDS
from tests.support.pauses import pause
from tests.support.two_clusters import TwoClients


class Mirroring:
    """One mirror, and what it told."""

    def __init__(
        self, clients: TwoClients, stream: str = "orders", to_stream: str = "orders", *, once: bool = False
    ) -> None:
        self.resumptions: list[Resumption] = []
        self.interruptions: list[JetstreamError] = []
        settings = MirrorSettings(
            stream=stream,
            to_stream=to_stream,
            once=once,
            resumed=self.resumptions.append,
            interrupted=self.interruptions.append,
        )
        self.mirror = Mirror(clients.source, clients.target, settings)


async def copied_once(clients: TwoClients, stream: str = "orders", to_stream: str = "orders") -> Mirroring:
    mirroring = Mirroring(clients, stream, to_stream, once=True)
    await mirroring.mirror.run()
    return mirroring


@asynccontextmanager
async def following(clients: TwoClients) -> AsyncIterator[tuple[Mirroring, asyncio.Task[None]]]:
    """A mirror that runs while the block lasts, unless it fails."""
    mirroring = Mirroring(clients)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(mirroring.mirror.run())
        yield mirroring, task
        task.cancel()


async def ended_by(clients: TwoClients, disturbed: Coroutine[None, None, None]) -> BaseException | None:
    """Return how a mirror ends beside which something is done to its streams."""
    outcome, done = await asyncio.gather(Mirroring(clients).mirror.run(), disturbed, return_exceptions=True)
    assert done is None
    return outcome


async def until_end(client: JetstreamClient, end: int, stream: str = "orders") -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while (await client.streams.info(stream)).high_watermark < end:
            await pause()


async def fill(client: JetstreamClient, numbers: range, stream: str = "orders") -> None:
    await client.publish_all((f"{stream}.{number % 3}", b"%d" % number) for number in numbers)


async def until_end_if_there(client: JetstreamClient, end: int, stream: str = "orders") -> None:
    """Wait until the stream has been created, and has so many records."""
    async with asyncio.timeout(WAIT_SECONDS):
        while stream not in [each.name for each in await client.streams.list()]:
            await pause()
    await until_end(client, end, stream)


async def until_members(client: JetstreamClient, group: str, count: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while len((await client.groups.info(group)).members) < count:
            await pause()
