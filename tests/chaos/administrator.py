"""Somebody who creates, changes, deletes and moves streams while all breaks, and knows what must be so."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nats.aio.client import Client

from tests.chaos.cluster import asked, passes
from tests.chaos.publishers import Publisher
from tests.chaos.recorder import Recorder

_MESSAGES_MAX: Final = 5
_AT_ONCE: Final = 3


@dataclass
class Churned:
    """A stream that comes and goes; ``exists`` is what the last answer says, which was a definite one."""

    name: str
    life: int = 0
    exists: bool = False

    @property
    def subject(self) -> str:
        """What this life binds: another life never gets what was sent to this one."""
        return f"churn.{self.name}.{self.life}"

    @property
    def key(self) -> str:
        """What this life is called in the history."""
        return f"{self.name}#{self.life}"


@dataclass
class Administrator:
    """Awaits every answer, and turns its back on a name whose request may still be carried out."""

    recorder: Recorder
    client: Client
    publisher: Publisher
    nodes: Sequence[str]
    moved: Sequence[tuple[str, int]]
    """Streams to be moved, with the number of their replicas."""
    chance: random.Random
    churned: list[Churned] = field(default_factory=list)
    _left: list[Churned] = field(default_factory=list)
    """Those of which nobody can say whether they are there."""
    _count: int = 0
    operations: int = 0
    at_rest: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Whoever holds it has the administrator wait: no stream comes, goes or moves."""

    async def run(self, over: asyncio.Event) -> None:
        """Do one thing after the other until it is over."""
        self.churned = [self._another() for _ in range(_AT_ONCE)]
        while not await passes(self.chance.uniform(0.1, 1.0), over):
            async with self.at_rest:
                await self._act()

    async def _act(self) -> None:
        self.operations += 1
        if self.chance.random() < 0.2:
            await self._move()
        elif self._left and self.chance.random() < 0.5:
            await self._clear()
        else:
            await self._change(self.chance.randrange(_AT_ONCE))

    def _another(self) -> Churned:
        self._count += 1
        return Churned(f"churn{self._count}")

    async def _move(self) -> None:
        name, replicas = self.chance.choice(list(self.moved))
        wanted = self.chance.sample(list(self.nodes), replicas)
        cancel = self.chance.random() < 0.2
        body: dict[str, object] = {"cancel": True} if cancel else {"replicas": wanted}
        answer = await asked(self.client, "stream.reassign", name=name, **body)
        self.recorder.note(f"reassign {name} {'cancel' if cancel else wanted}: {_told(answer)}")

    async def _clear(self) -> None:
        stream = self._left.pop(0)
        answer = await asked(self.client, "stream.delete", 8.0, name=stream.name)
        self.recorder.note(f"clear {stream.name}: {_told(answer)}")
        if not answer or "error" in answer:
            self._left.append(stream)  # also one that is not there: a creation may be under way

    async def _change(self, place: int) -> None:
        stream = self.churned[place]
        if not stream.exists:
            operation = "stream.create"
            stream.life += 1
            replicas = self.chance.randrange(1, min(3, len(self.nodes)) + 1)
            body: dict[str, object] = {"subject": stream.subject, "replicas": replicas}
        elif self.chance.random() < 0.5:
            operation, body = "stream.update", {"labels": {"changed": str(self.operations)}}
        else:
            operation, body = "stream.delete", {}
        answer = await asked(self.client, operation, 8.0, name=stream.name, **body)
        self.recorder.note(f"{operation} {stream.name} {body or ''}: {_told(answer)}")
        if not answer or "error" in answer:
            # Carried out or not, or later: nobody can say what is right.
            self._left.append(stream)
            self.churned[place] = self._another()
            return
        stream.exists = operation != "stream.delete"
        if stream.exists:
            for _ in range(self.chance.randrange(_MESSAGES_MAX + 1)):
                await self.publisher.put(stream.key, stream.subject)


def _told(answer: dict[str, Any]) -> str:
    if not answer:
        return "no answer"
    return str(answer["error"]["err_code"]) if "error" in answer else "done"
