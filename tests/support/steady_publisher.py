"""A publisher that goes on by the clock, sends again what is not acked, and knows when acks came."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Final

import jetstream
from envelope.errors import JetstreamError
from jetstream.client.publish.publisher import Message, Publisher
from tests.support.nodes import WAIT_SECONDS
from tests.support.pauses import pause

_BLOCK: Final = 100
_ACK_SECONDS: Final = 2.0
_BLOCKS_MAX: Final = 500
"""More are not under way at once; of what is published that is some seconds."""
_BEHIND_SECONDS_MAX: Final = 0.2
"""It does not make up for more that it could not publish in time."""


class SteadyPublisher:
    """Publishes numbers, each under an id of its own, in blocks of 100.

    Attributes:
        acked: the offset of each number that is acked.
    """

    def __init__(self, url: str, stream: str, a_second: int) -> None:
        """Prepare to publish so many a second to ``stream``.n."""
        self.acked: dict[int, int] = {}
        self._url, self._stream = url, stream
        self._interval = _BLOCK / a_second
        self._published = 0
        self._ack_times: list[float] = []
        self._next_ack: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()

    @property
    def seconds_an_ack(self) -> float:
        """How long an acked message took, on the whole, from the first ack to the last."""
        return (self._ack_times[-1] - self._ack_times[0]) / len(self.acked)

    def pause_since(self, begun: float) -> float:
        """Return the longest time without an ack since a moment of `time.monotonic`, in seconds."""
        times = [begun, *(at for at in self._ack_times if at > begun), time.monotonic()]
        return max(later - earlier for earlier, later in pairwise(times))

    async def more_acks(self, count: int) -> None:
        """Return when so many more numbers are acked."""
        wanted = len(self.acked) + count
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.acked) < wanted:
                await pause()

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Publish inside; on the way out have everything acked, and hold the stream to every ack."""
        async with (
            jetstream.connect(self._url) as js,
            js.publisher(window=_BLOCK * _BLOCKS_MAX, timeout=_ACK_SECONDS) as publisher,
            asyncio.TaskGroup() as tasks,
        ):
            publishing = tasks.create_task(self._publish(publisher))
            try:
                yield
            finally:
                self._over.set()
            await publishing
            with contextlib.suppress(JetstreamError):
                await publisher.flush()  # failed before it was sent again, and acked
        await self._check()

    async def _publish(self, publisher: Publisher) -> None:
        loop = asyncio.get_running_loop()
        due, room = loop.time(), asyncio.Semaphore(_BLOCKS_MAX)
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as blocks:
            while not self._over.is_set():
                await room.acquire()
                block = blocks.create_task(self._until_acked(publisher, self._published))
                block.add_done_callback(lambda _: room.release())
                self._published += _BLOCK
                due = max(due + self._interval, loop.time() - _BEHIND_SECONDS_MAX)
                while loop.time() < due:
                    await pause()
            limit.reschedule(loop.time() + WAIT_SECONDS)

    async def _until_acked(self, publisher: Publisher, first: int) -> None:
        """Send a block until it is acked, again once others are: those that are new find out when to."""
        numbers = range(first, first + _BLOCK)
        messages: list[Message] = [
            (f"{self._stream}.n", b"%d" % number, {"message_id": str(number)}) for number in numbers
        ]
        acks = None
        while acks is None:
            try:
                acks = await publisher.publish_all(messages)
            except JetstreamError:  # unknown, or refused
                await asyncio.wait((self._next_ack,), timeout=_ACK_SECONDS)
        self._ack_times.append(time.monotonic())
        self.acked.update((number, ack.offset) for number, ack in zip(numbers, acks, strict=True))
        self._next_ack.set_result(None)
        self._next_ack = asyncio.get_running_loop().create_future()

    async def _check(self) -> None:
        """Find each number in the stream once, where it was acked."""
        async with jetstream.connect(self._url) as js:
            table = await js.read_table(self._stream)
        offsets = table["offset"].to_pylist()
        values = [int(value or b"") for value in table["value"].to_pylist()]
        assert offsets == list(range(len(offsets))), "offsets are dense"
        assert len(set(values)) == len(values), "each is stored once"
        assert dict(zip(values, offsets, strict=True)) == self.acked, "each is where it was acked"
        assert len(self.acked) == self._published
