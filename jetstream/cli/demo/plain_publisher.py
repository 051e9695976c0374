"""Publishing the way any NATS client can: messages with a reply subject, every ack awaited.

With message ids it goes through failures too: what is not acked is sent again. Nothing of our client library
is in here; it is what the demo shows a NATS user to do.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from envelope.errors import CorruptDataError, DeadlinePassed, RequestError, UnavailableError
from envelope.headers import MESSAGE_ID
from jetstream.cli.demo.flights import Flight

WINDOW_MESSAGES: Final = 4096
"""Messages published and not yet acked; enough to fill every group commit."""

SILENCE_SECONDS: Final = 0.25
"""After so long without any ack everything that is owed is sent again: it may be lost, or its ack is."""

GIVE_UP_SECONDS: Final = 60.0
"""Longest silence while acks are owed."""

_SERVER_ERROR: Final = 500
"""From this code on an error is the moment's and not the message's."""
_NO_RESPONDERS: Final = {"error": {"code": 503, "description": "no stream stores this subject"}}
"""What NATS means by an empty reply."""
_TOLD_EVERY: Final = 512


Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Shows a step's progress: takes its name and total, and in its block the count of each part that is done."""


@dataclass(frozen=True, slots=True)
class PublishedFlights:
    """The offset at which each message was acked, and how many seconds all of that took."""

    offsets: list[int]
    seconds: float


@dataclass(slots=True)
class EpochAcks:
    """The acks of one leader epoch."""

    acks: int
    first_at: float
    """`time.perf_counter` of its first ack."""
    last_at: float


class PlainPublisher:
    """Publishes pipelined on one connection; with message ids it sends unacked messages again.

    Attributes:
        acked: messages acked so far.
        sent_again: messages that were sent once more.
        reigns: the acks by leader epoch.
    """

    def __init__(self, client: Client, run: str | None = None, held_at: int | None = None) -> None:
        """Publish nothing yet.

        Args:
            client: a connection.
            run: begins the message ids of this run; without it messages have none, and are sent once.
            held_at: this message and those after it are sent only after `release`.
        """
        self.acked = 0
        self.sent_again = 0
        self.reigns: dict[int, EpochAcks] = {}
        self._client = client
        self._run = run
        self._held_at = held_at
        self._released = asyncio.Event()
        self._inbox = client.new_inbox()
        self._messages: Sequence[Flight] = ()
        self._offsets: list[int | None] = []
        self._owed: dict[int, None] = {}
        self._changed = asyncio.Event()
        self._failure: Exception | None = None

    async def publish(self, messages: Sequence[Flight], progress: Callable[[int], None]) -> list[int]:
        """Publish all ``messages`` and return the offset at which each was acked, in their order.

        Args:
            messages: subjects and values.
            progress: called with a count whenever that many more acks have arrived.

        Raises:
            UnavailableError: without ids, the first refusal, as the stream worded it.
            RequestError: with ids, a message was refused for good.
            CorruptDataError: a message was acked at two places.
            DeadlinePassed: no ack for `GIVE_UP_SECONDS` while some are owed.
        """
        self._messages = messages
        self._offsets = [None] * len(messages)
        subscription = await self._client.subscribe(f"{self._inbox}.*", cb=self._on_ack)
        shown = 0
        for index in range(len(messages)):
            if index == self._held_at:
                await self._until_owed(0)
                await self._released.wait()
            if len(self._owed) >= WINDOW_MESSAGES:
                await self._until_owed(WINDOW_MESSAGES // 2)
            self._owed[index] = None
            await self._send(index)
            if index % _TOLD_EVERY == 0:
                progress(self.acked - shown)
                shown = self.acked
        await self._until_owed(0)
        progress(self.acked - shown)
        await subscription.unsubscribe()
        if self._failure is not None:
            raise self._failure
        offsets = [offset for offset in self._offsets if offset is not None]
        assert len(offsets) == len(messages), f"{len(messages) - len(offsets)} acks are missing"
        return offsets

    def release(self) -> None:
        """Send the messages that are held, too."""
        self._released.set()

    async def until_acked(self, count: int) -> None:
        """Wait until so many messages are acked."""
        while self.acked < count:
            await self._ack_or_failure()

    async def until_reign_after(self, epoch: int) -> int:
        """Wait for the first ack of a later leader epoch than ``epoch`` and return that epoch."""
        while max(self.reigns, default=0) <= epoch:
            await self._ack_or_failure()
        return max(self.reigns)

    async def _ack_or_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        await self._changed.wait()

    async def _send(self, index: int) -> None:
        message = self._messages[index]
        headers = None if self._run is None else {MESSAGE_ID: f"{self._run}-{index}"}
        await self._client.publish(
            message.subject, message.value, reply=f"{self._inbox}.{index}", headers=headers
        )

    async def _until_owed(self, count: int) -> None:
        """Wait until at most ``count`` acks are owed; with ids, send them again after each silence."""
        heard_at = time.perf_counter()
        while len(self._owed) > count:
            acked = self.acked
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    while self.acked == acked:
                        await self._ack_or_failure()
                heard_at = time.perf_counter()
            except TimeoutError:
                if time.perf_counter() - heard_at > GIVE_UP_SECONDS:
                    raise DeadlinePassed(
                        f"{len(self._owed)} acks are owed and none came in {GIVE_UP_SECONDS:g} s"
                    ) from None
                for index in list(self._owed) if self._run is not None else ():
                    self.sent_again += 1
                    await self._send(index)

    async def _on_ack(self, message: Msg) -> None:
        index = int(message.subject.rpartition(".")[2])
        body: dict[str, Any] = json.loads(message.data) if message.data else _NO_RESPONDERS
        if "error" in body:
            self._on_error(int(body["error"]["code"]), str(body["error"]["description"]))
            return
        offset, known = int(body["offset"]), self._offsets[index]
        if known is None:
            self._offsets[index] = offset
            del self._owed[index]
            self.acked += 1
            self._count(int(body["epoch"]))
        elif known != offset:
            self._failure = CorruptDataError(f"message {index} is acked at {known} and at {offset}")
        self._report()

    def _on_error(self, code: int, description: str) -> None:
        if self._run is None:
            self._failure = self._failure or UnavailableError(description)
        elif code < _SERVER_ERROR:
            self._failure = RequestError(description)
        self._report()

    def _count(self, epoch: int) -> None:
        now = time.perf_counter()
        reign = self.reigns.setdefault(epoch, EpochAcks(0, now, now))
        reign.acks += 1
        reign.last_at = now

    def _report(self) -> None:
        """Wake all waiting tasks."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def publish_flights(
    publisher: PlainPublisher, messages: Sequence[Flight], progress: Progress
) -> PublishedFlights:
    """Publish all ``messages`` in order, and measure it; raises what `PlainPublisher.publish` raises."""
    with progress("publishing", len(messages)) as told:
        started = time.perf_counter()
        return PublishedFlights(await publisher.publish(messages, told), time.perf_counter() - started)
