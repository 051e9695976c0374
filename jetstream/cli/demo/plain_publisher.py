"""Publishing the way any NATS client can: plain messages with a reply subject, every ack awaited.

Nothing of our client library is in here; it is what the demo shows a NATS user to do.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from envelope.errors import DeadlinePassed, UnavailableError
from jetstream.cli.demo.flights import Flight

WINDOW_MESSAGES: Final = 4096
"""Messages published and not yet acked; enough to fill every group commit."""

ACK_TIMEOUT_SECONDS: Final = 30.0
"""Longest silence while acks are owed."""

_STEP_MESSAGES: Final = 512
"""How often progress is told."""

_NO_RESPONDERS: Final = {"error": {"description": "no stream stores this subject"}}
"""What NATS means by an empty reply with status 503."""


@dataclass(frozen=True, slots=True)
class Ack:
    """What the demo needs of an ack: where the message is stored."""

    stream: str
    offset: int


class AckedPublisher:
    """Publishes pipelined on one connection, at most `WINDOW_MESSAGES` unacked, and keeps every ack."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._inbox = client.new_inbox()
        self._acks: list[Ack | None] = []
        self._owed = 0
        self._room = asyncio.Event()
        self._refusal: UnavailableError | None = None

    async def publish(self, messages: Sequence[Flight], told: Callable[[int], None]) -> list[Ack]:
        """Publish all ``messages`` in order and return their acks in the same order.

        Args:
            messages: subjects and values.
            told: called with a count whenever that many more acks have arrived.

        Raises:
            JetstreamError: the first refusal, as the stream worded it.
            DeadlinePassed: no ack for `ACK_TIMEOUT_SECONDS` while some are owed.
        """
        self._acks = [None] * len(messages)
        subscription = await self._client.subscribe(f"{self._inbox}.*", cb=self._on_ack)
        acked = 0
        for index, message in enumerate(messages):
            if self._owed >= WINDOW_MESSAGES:
                await self._until_owed(WINDOW_MESSAGES // 2)
            self._owed += 1
            await self._client.publish(message.subject, message.value, reply=f"{self._inbox}.{index}")
            if index % _STEP_MESSAGES == 0:
                told(index + 1 - self._owed - acked)
                acked = index + 1 - self._owed
        await self._until_owed(0)
        told(len(messages) - acked)
        await subscription.unsubscribe()
        acks = [ack for ack in self._acks if ack is not None]
        assert len(acks) == len(messages), f"{len(messages) - len(acks)} acks are missing though none is owed"
        return acks

    async def _until_owed(self, count: int) -> None:
        """Wait until at most ``count`` acks are owed."""
        assert self._owed <= WINDOW_MESSAGES, f"{self._owed} acks are owed, the window is {WINDOW_MESSAGES}"
        while self._owed > count:
            if self._refusal is not None:
                raise self._refusal
            self._room.clear()
            try:
                async with asyncio.timeout(ACK_TIMEOUT_SECONDS):
                    await self._room.wait()
            except TimeoutError:
                silence = f"{ACK_TIMEOUT_SECONDS:g} s"
                raise DeadlinePassed(f"{self._owed} acks are owed and none came in {silence}") from None

    async def _on_ack(self, message: Msg) -> None:
        index = int(message.subject.rpartition(".")[2])
        body: dict[str, Any] = json.loads(message.data) if message.data else _NO_RESPONDERS
        if "error" in body:
            self._refusal = self._refusal or UnavailableError(str(body["error"]["description"]))
        elif self._acks[index] is None:
            self._acks[index] = Ack(str(body["stream"]), int(body["offset"]))
            self._owed -= 1
        self._room.set()
