"""A stream of numbers under a publisher that remembers its acks: what every test in containers looks at."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import jetstream
from envelope.errors import JetstreamError
from jetstream import JetstreamClient
from metadata.api.responses import StreamInfo
from tests.support.pauses import pause
from tests.support.publishers import Witness

STREAM: Final = "numbers"
PART: Final = 500
JOIN_SECONDS_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Numbers:
    """The stream, as a client sees it that is connected all the time."""

    url: str
    js: JetstreamClient
    witness: Witness

    async def publish_acked(self) -> None:
        """Publish a part and have it acked, sent again if need be."""
        await self.witness.publish(PART)
        await self.witness.retry_until_acked()

    async def leader(self) -> str:
        """Return the node that leads the stream now."""
        leader = (await self._info()).leader
        assert leader is not None
        return leader

    async def publish_until_in_sync(self, replicas: int) -> None:
        """Go on publishing, ten at a time, until so many replicas are in sync."""
        async with asyncio.timeout(JOIN_SECONDS_MAX):
            while len((await self._info()).isr) < replicas:
                await self.witness.publish(10)
                await self.witness.retry_until_acked()

    async def _info(self) -> StreamInfo:
        """Ask until a node answers: one that is paused gets requests too, and keeps silent."""
        async with asyncio.timeout(JOIN_SECONDS_MAX):
            while True:
                try:
                    return await self.js.streams.info(STREAM)
                except JetstreamError as error:
                    if not error.retriable:
                        raise

    async def verify(self) -> None:
        """What is stored is what was acked, each value once and at its offset, to a client that is new."""
        async with jetstream.connect(self.url) as js:
            stored = [(record.offset, int(record.value or b"-1")) async for record in js.read(STREAM)]
        offsets, values = [offset for offset, _ in stored], [value for _, value in stored]
        lost = sorted(set(self.witness.acked) - set(values))
        assert not lost, f"acked and not stored: {lost}; {len(stored)} of {self.witness.published} are"
        doubled = [value for value, times in Counter(values).items() if times > 1]
        assert not doubled, f"stored more than once: {doubled}"
        assert offsets == list(range(self.witness.published)), "offsets have gaps, or begin elsewhere"
        moved = {value: offset for offset, value in stored if self.witness.acked[value] != offset}
        assert not moved, f"not at the offset it was acked with: {moved}"
        assert self.witness.contradictions == []


@asynccontextmanager
async def numbers(url: str, replicas: int = 1) -> AsyncIterator[Numbers]:
    """The stream, with one part published and acked, once the cluster has as many voters as replicas."""
    async with jetstream.connect(url) as js:
        async with asyncio.timeout(JOIN_SECONDS_MAX):
            while len((await js.requests.cluster_info()).voters) < replicas:
                await pause()
        await js.streams.create(STREAM, f"{STREAM}.>", replicas=replicas)
        witness = Witness(f"{STREAM}.all", url)
        await witness.open()
        try:
            stream = Numbers(url, js, witness)
            await stream.publish_acked()
            yield stream
        finally:
            await witness.close()
