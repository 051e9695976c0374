"""NATS JetStream's consumers through nats-py, in the ways its users read a stream from the beginning.

Every message is counted; the stream sequence of every 256th, and of the last one, must be the count. None of
the consumers acks: that is the fastest there is.
"""

import asyncio
from typing import Final

import nats
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.client import JetStreamContext

from benchmarks.meter import Meter, Unverified
from benchmarks.systems import SUBJECT, stream_name

CHECK_EVERY: Final = 256
FETCH_MESSAGES: Final = 1000
PASS_SECONDS_MAX: Final = 600.0
STREAM: Final = stream_name(0)


async def read_ordered(url: str, records: int, meter: Meter) -> None:
    """Read by the callback of an ordered consumer.

    A plain push consumer, without its flow control, is no alternative: nats-server cuts the reader off.
    """
    client = await nats.connect(url)
    try:
        meter.begin()
        while await _ordered_pass(client.jetstream(), _Checker(records, meter)):
            pass
    finally:
        await client.close()


async def read_pulled(url: str, records: int, meter: Meter) -> None:
    """Read by ``fetch`` of a pull consumer, 1,000 messages at a time."""
    client = await nats.connect(url)
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    try:
        meter.begin()
        while True:
            checker = _Checker(records, meter)
            consumer = await client.jetstream().pull_subscribe(SUBJECT, stream=STREAM, config=config)
            while not checker.finished:
                for message in await consumer.fetch(min(FETCH_MESSAGES, records - checker.count)):
                    checker.take(message)
            await consumer.unsubscribe()
            if not checker.goes_on:
                return
    finally:
        await client.close()


async def _ordered_pass(context: JetStreamContext, checker: "_Checker") -> bool:
    """Read everything once; tell whether to read it again."""
    ended = asyncio.Event()
    problems: list[Unverified] = []

    async def on_message(message: Msg) -> None:
        if ended.is_set():
            return
        try:
            checker.take(message)
        except Unverified as problem:  # nats-py would swallow it
            problems.append(problem)
            ended.set()
        if checker.finished:
            ended.set()

    consumer = await context.subscribe(SUBJECT, stream=STREAM, cb=on_message, ordered_consumer=True)
    async with asyncio.timeout(PASS_SECONDS_MAX):
        await ended.wait()
    await consumer.unsubscribe()
    if problems:
        raise problems[0]
    return checker.goes_on


class _Checker:
    """Counts the messages of one pass and checks that none is missing, repeated or out of order."""

    def __init__(self, records: int, meter: Meter) -> None:
        self.count = 0
        self.finished = False
        self.goes_on = False
        self._records = records
        self._meter = meter

    def take(self, message: Msg) -> None:
        self.count += 1
        if self.count % CHECK_EVERY and self.count != self._records:
            return
        sequence = message.metadata.sequence.stream
        if sequence != self.count:
            raise Unverified(f"message {self.count} has the sequence {sequence}")
        chunk = self.count % CHECK_EVERY or CHECK_EVERY
        if not self._meter.add(chunk):
            self.finished = True
        elif self.count == self._records:
            self.finished = True
            self.goes_on = self._meter.passed()
