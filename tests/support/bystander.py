"""A well-behaved client that publishes and reads while others misbehave: what counts is that it gets on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import jetstream
from jetstream import JetstreamClient

WAIT_SECONDS = 60.0


class Bystander:
    """Publishes a record, reads it, and so on, on a stream and connections of its own."""

    def __init__(self, js: JetstreamClient) -> None:
        self._js = js
        self._leaving = False
        self._advanced = asyncio.Event()
        self.rounds = 0
        """Records that were published, acked and read back."""

    async def run(self) -> None:
        """Go round until `leave`."""
        reader = self._js.read("bystander", follow=True)
        while not self._leaving:
            value = b"%d" % self.rounds
            ack = await self._js.publish("bystander.rounds", value, timeout=WAIT_SECONDS)
            record = await anext(reader)
            assert (record.offset, record.value) == (ack.offset, value)
            assert ack.offset == self.rounds
            self.rounds += 1
            self._advanced.set()
        await reader.aclose()

    async def gets_on(self, rounds: int = 10) -> None:
        """Return when it has gone so many more rounds."""
        wanted = self.rounds + rounds
        async with asyncio.timeout(WAIT_SECONDS):
            while self.rounds < wanted:
                self._advanced.clear()
                await self._advanced.wait()

    def leave(self) -> None:
        """End after the round that is under way."""
        self._leaving = True


@asynccontextmanager
async def a_bystander(url: str) -> AsyncIterator[Bystander]:
    """Have one go its rounds meanwhile."""
    async with jetstream.connect(url) as js:
        await js.streams.create("bystander", "bystander.>")
        bystander = Bystander(js)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bystander.run())
            await bystander.gets_on(1)
            try:
                yield bystander
            finally:
                bystander.leave()
