"""A stream whose deliveries a test decides: the node's own publish machine, right behind a real nats-server.

What NATS, a clogged node or an election does to single messages cannot be had from a whole node on command.
"""

import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.support.ingest_machine import IngestHarness
from tests.support.messages import Answer, PublishedMessage


class StreamByHand:
    """Stores what comes on ``orders.>``, and answers it, unless told otherwise.

    Attributes:
        ingest: the machine, and what is stored.
        delivers: whether a message arrives.
        lag: how many answers are held back: each is sent when so many messages have come after its own.
    """

    def __init__(self, client: Client) -> None:
        self.ingest = IngestHarness()
        self.delivers: Callable[[PublishedMessage], bool] = lambda _: True
        self.lag = 0
        self._client = client
        self._held: deque[Answer] = deque()

    async def on_message(self, arrived: Msg) -> None:
        """Take one message from NATS."""
        message = PublishedMessage(
            arrived.data,
            arrived.subject.encode(),
            arrived.reply.encode(),
            tuple((arrived.headers or {}).items()),
        )
        if not self.delivers(message):
            return
        self._held += self.ingest.store(message)
        while len(self._held) > self.lag:
            answer = self._held.popleft()
            await self._client.publish(answer.reply, json.dumps(answer.body).encode())


def sequence_of(message: PublishedMessage) -> int:
    """Return the message's number in its session."""
    return int(dict(message.headers)["Jetstream-Sequence"])


class LostOnce:
    """Loses the first message with one of these numbers; every other arrives."""

    def __init__(self, *sequences: int) -> None:
        self._sequences = set(sequences)

    def __call__(self, message: PublishedMessage) -> bool:
        """Return whether it arrives."""
        sequence = sequence_of(message)
        arrives = sequence not in self._sequences
        self._sequences.discard(sequence)
        return arrives


@asynccontextmanager
async def stream_by_hand(client: Client) -> AsyncIterator[StreamByHand]:
    """Have the stream "orders" there for a block."""
    stream = StreamByHand(client)
    subscription = await client.subscribe("orders.>", cb=stream.on_message)
    await client.flush()
    yield stream
    await subscription.unsubscribe()
