"""Plain NATS publishers that put down what they send and what they are told."""

import asyncio
import contextlib
import json
import random
from dataclasses import dataclass
from typing import Final

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.chaos.cluster import passes
from tests.chaos.recorder import Recorder
from tests.support.history import Acked, Refused, Sent, Unknown

_ATTEMPTS_MAX: Final = 12
"""Then a publisher gives up: within the dedupe window, so that every repeat is recognised."""
_ANSWER_SECONDS: Final = (1.0, 1.5, 2.5, 4.0)
"""How long each attempt waits; the last holds for all further ones."""
_PADDING_BYTES_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class Plan:
    """How one publisher goes about it."""

    stream: str
    subject: str
    per_second: float
    window: int = 1
    """Messages under way at a time."""
    has_ids: bool = True
    """Without ids each value is sent once."""


class Publisher:
    """One connection."""

    def __init__(self, recorder: Recorder, name: str, seed: str, url: str) -> None:
        self.name = name
        self._recorder = recorder
        self._chance = random.Random(seed)
        self._url = url
        self._client = Client()
        self._inbox = ""
        self._count = 0
        self._waiting: dict[str, tuple[str, str, asyncio.Future[bool]]] = {}
        """By number: stream, value, and what tells whether it is stored."""

    async def open(self) -> None:
        """Connect; it reconnects by itself."""
        self._client = await nats.connect(
            self._url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=_quiet
        )
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*.*", cb=self._answered)

    async def close(self) -> None:
        """Leave NATS."""
        await self._client.close()

    async def run(self, plan: Plan, over: asyncio.Event) -> None:
        """Publish until it is over; what is under way then is finished."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(plan.window):
                tasks.create_task(self._publish(plan, over))

    async def _publish(self, plan: Plan, over: asyncio.Event) -> None:
        seconds = plan.window / plan.per_second
        while not await passes(self._chance.uniform(0, 2 * seconds), over):
            await self.put(plan.stream, plan.subject, has_id=plan.has_ids)

    async def put(self, stream: str, subject: str, *, has_id: bool = True) -> bool:
        """Publish a new value until it is acked; return whether it was, or False when giving up."""
        number = str(self._count)
        self._count += 1
        value = f"{self.name}.{number}"
        padding = b" " + b"x" * self._chance.randrange(_PADDING_BYTES_MAX)
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (stream, value, outcome)
        for attempt in range(1, _ATTEMPTS_MAX + 1 if has_id else 2):
            message_id = value if has_id else None
            sent = Sent(
                at=self._recorder.now(),
                stream=stream,
                value=value,
                attempt=attempt,
                connection=self.name,
                message_id=message_id,
            )
            self._recorder.record(sent)
            with contextlib.suppress(nats.errors.Error):  # it may have left: nothing is known
                await self._client.publish(
                    subject,
                    value.encode() + padding,
                    reply=f"{self._inbox}.{number}.{attempt}",
                    headers={"Nats-Msg-Id": message_id} if message_id else None,
                )
            if await self._heard(outcome, attempt):
                return True
            self._recorder.record(Unknown(self._recorder.now(), stream, value, attempt))
        return False

    async def _heard(self, outcome: "asyncio.Future[bool]", attempt: int) -> bool:
        seconds = _ANSWER_SECONDS[min(attempt, len(_ANSWER_SECONDS)) - 1]
        await asyncio.wait((outcome,), timeout=seconds)
        return outcome.done()

    async def _answered(self, message: Msg) -> None:
        *_, number, attempt = message.subject.split(".")
        stream, value, outcome = self._waiting[number]
        at = self._recorder.now()
        if not message.data:
            code = (message.headers or {}).get("Status", "none")
            self._recorder.record(Refused(at, stream, value, int(attempt), f"status {code}"))
            return
        answer = json.loads(message.data)
        if "error" in answer:
            code = str(answer["error"]["err_code"])
            self._recorder.record(Refused(at, stream, value, int(attempt), code))
            return
        self._recorder.record(
            Acked(
                at=at,
                stream=stream,
                value=value,
                attempt=int(attempt),
                offset=answer["offset"],
                epoch=answer["epoch"],
                duplicate=answer.get("duplicate", False),
            )
        )
        if not outcome.done():
            outcome.set_result(True)


async def _quiet(error: Exception) -> None:
    """The outages are the chaos's own doing."""
