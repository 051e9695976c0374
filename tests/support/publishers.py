"""A plain NATS publisher that remembers what it was told: the witness of the fault tests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

import jetstream

_PACE_SECONDS: Final = 0.2


@dataclass(slots=True)
class Witness:
    """Publishes numbered values with message ids and keeps every ack, error and silence.

    ``acked`` maps a value's number to the offset it was acked with. What was not acked is unknown: it may be
    stored or not.
    """

    subject: str
    url: str
    window: int = 200
    payload: Callable[[int], bytes] = b"%d".__mod__
    published: int = 0
    acked: dict[int, int] = field(default_factory=dict)
    refused: dict[int, dict[str, Any]] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    _client: Client | None = None
    _inbox: str = ""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_answered(self) -> bool:
        """Whether of everything it is known that it is stored, or refused."""
        return len(self.acked) + len(self.refused) == self.published

    @property
    def client(self) -> Client:
        """The connection, once it is open."""
        assert self._client is not None
        return self._client

    async def open(self) -> None:
        """Connect and listen for acks; reconnects by itself when the server comes back."""
        self._client = await nats.connect(
            self.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=_quiet
        )
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_ack)

    async def close(self) -> None:
        """Leave NATS."""
        if self._client is not None:
            await self._client.close()

    async def _on_ack(self, message: Msg) -> None:
        number = int(message.subject.rpartition(".")[2])
        if not message.data:
            return  # "no responders": the node was away, nothing is known to be stored
        answer = json.loads(message.data)
        if "error" in answer:
            self.refused[number] = answer["error"]
        else:
            known = self.acked.setdefault(number, answer["offset"])
            if known != answer["offset"]:
                self.contradictions.append(f"{number} acked at {known} and at {answer['offset']}")
            self.refused.pop(number, None)
        self._changed.set()

    async def publish(self, count: int) -> None:
        """Publish the next ``count`` values without waiting for their acks."""
        assert self._client is not None
        for number in range(self.published, self.published + count):
            await self.send(number)
        self.published += count
        await self._client.flush()

    async def send(self, number: int) -> None:
        """Publish one value, again perhaps, under its own message id."""
        assert self._client is not None
        headers = {"Nats-Msg-Id": f"id-{number}"}
        await self._client.publish(
            self.subject, self.payload(number), reply=f"{self._inbox}.{number}", headers=headers
        )

    async def wait_for_acks(self, count: int, seconds: float = 30.0) -> None:
        """Return when ``count`` values are acked."""
        async with asyncio.timeout(seconds):
            while len(self.acked) < count:
                self._changed.clear()
                await self._changed.wait()

    async def retry_until_acked(self, count: int | None = None, rounds: int = 30) -> None:
        """Send again what is not acked, as a publisher after a time-out would, until ``count`` or all are."""
        wanted = self.published if count is None else count
        for _ in range(rounds):
            if len(self.acked) >= wanted:
                return
            for number in range(self.published):
                if number not in self.acked:
                    await self.send(number)
            with contextlib.suppress(TimeoutError):
                await self.wait_for_acks(wanted, 2.0)
        raise AssertionError(f"{wanted - len(self.acked)} values were never acked")


async def _quiet(error: Exception) -> None:
    """The outages are the test's own doing; what matters is what was acked."""


class Publishing:
    """Publishes to one stream all the time, and in the end holds the stream to every ack."""

    def __init__(self, url: str, stream: str) -> None:
        self._url, self._stream = url, stream
        self.witness = Witness(f"{stream}.n", url)
        self._over = asyncio.Event()

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Publish inside; check on the way out."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish())
            try:
                yield
            finally:
                self._over.set()
        await self._check()

    async def _publish(self) -> None:
        while not self._over.is_set():
            await self.witness.publish(20)
            try:
                await self.witness.wait_for_acks(self.witness.published, _PACE_SECONDS)
            except TimeoutError:
                continue  # lost with a leader; sent again in the end

    async def _check(self) -> None:
        """Have every message acked, and find each in the stream once, where it was acked."""
        witness = self.witness
        await witness.retry_until_acked()
        assert not witness.contradictions
        async with jetstream.connect(self._url) as js:
            stored = [int(record.value or b"") async for record in js.read(self._stream)]
        assert sorted(stored) == list(range(witness.published)), "each is stored once"
        assert all(stored[offset] == number for number, offset in witness.acked.items())
