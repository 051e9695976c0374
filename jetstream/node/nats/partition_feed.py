"""The messages of one partitioned stream, received once by a node and shared out among its partitions here.

A node that leads several partitions of one stream would otherwise receive each message as many times. Of a
stream that is partitioned by queue every partition has a feed of its own: there NATS shares out.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from envelope.errors import JetstreamError, StreamOffline
from envelope.partition_errors import PartitionsMissing
from envelope.types import PartitionBy
from jetstream.ingest.messages import MessageBlock
from jetstream.ingest.partition_shares import shares
from jetstream.node.nats.link import NatsLink, delivered
from jetstream.node.nats.parser_seam import Deliver
from jetstream.node.nats.routes import NOT_YET, Route
from metadata.stream_config import StreamConfig


@dataclass(frozen=True, slots=True)
class Fed:
    """The key of a feed; partitions with the same key share one."""

    partitioned: str
    subject: str
    queue: str
    by: PartitionBy
    alone: int | None
    """Its only partition, if NATS shares out."""


def fed_by(config: StreamConfig) -> Fed:
    """Return what feeds a partition."""
    assert config.partition_of is not None, "an ordinary stream has no feed"
    assert config.partition_by is not None, "a partition is partitioned by something"
    alone = config.partition if config.partition_by is PartitionBy.QUEUE else None
    return Fed(config.partition_of, config.subject, config.queue, config.partition_by, alone)


class PartitionFeed:
    """Subscribed while one of its partitions wants messages and may have any; used on the loop's thread."""

    def __init__(
        self, fed: Fed, link: NatsLink, count_of: Callable[[str], int], tasks: asyncio.TaskGroup
    ) -> None:
        """Feed nobody yet.

        Args:
            fed: what it is about.
            link: to NATS.
            count_of: how many partitions share a stream's messages now (`Catalog.partitions_of`).
            tasks: fails the node when one of its tasks fails.
        """
        self._fed = fed
        self._link = link
        self._count_of = count_of
        self._tasks = tasks
        self._members: dict[int, Deliver] = {}
        self._leaving: set[int] = set()
        self._route: Route | None = None
        self._settling: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it has no partition, and no subscription."""
        return not self._members and self._route is None and self._settling is None

    def problem(self, number: int) -> JetstreamError | None:
        """Return why no messages come for a partition even while the link is connected; None if they do."""
        count = self._count
        if number >= count:
            missing = "the" if count == 0 else "the added"
            return PartitionsMissing(f"not all {missing} partitions of {self._fed.partitioned} are there yet")
        if self._route is None:
            return StreamOffline(NOT_YET)
        return self._route.problem

    async def join(self, number: int, deliver: Deliver) -> None:
        """Feed a partition ; on return the server has the subscription, or refuses it, if it is due."""
        self._members[number] = deliver
        self._leaving.discard(number)
        await self._settled()

    async def leave(self, number: int) -> None:
        """Feed a partition no more; what NATS had sent before has been delivered to it on return."""
        self._leaving.add(number)
        await self._settled()
        if self._route is not None:
            await delivered(self._link)
        if number in self._leaving:
            self._leaving.discard(number)
            del self._members[number]

    def count_changed(self) -> None:
        """Handle a changed number of partitions that share the messages."""
        self._begin_to_settle()

    @property
    def _count(self) -> int:
        return self._count_of(self._fed.partitioned)

    @property
    def _is_due(self) -> bool:
        """Whether to be subscribed.

        Where NATS shares out, a partition that does not count yet must not take part. Elsewhere one that is
        being added hears everything before it counts, so that nothing is missed when it does.
        """
        count, alone = self._count, self._fed.alone
        counts = count > 0 if alone is None else alone < count
        return counts and not self._members.keys() <= self._leaving

    async def _settled(self) -> None:
        self._begin_to_settle()
        while self._settling is not None:
            await asyncio.wait((self._settling,))

    def _begin_to_settle(self) -> None:
        if self._settling is None and self._is_due != (self._route is not None):
            self._settling = self._tasks.create_task(self._settle())

    async def _settle(self) -> None:
        try:
            while self._is_due != (self._route is not None):
                if self._route is None:
                    await self._subscribe()
                else:
                    await self._link.unsubscribe(self._route)
                    self._route = None
        finally:
            self._settling = None

    async def _subscribe(self) -> None:
        self._route = Route(self._fed.subject, self._fed.queue, self._deliver)
        await self._link.subscribe(self._route)

    def _deliver(self, messages: MessageBlock) -> None:
        """Share out what NATS delivered; called from the ingest connection's read loop."""
        fed = self._fed
        if fed.alone is not None:
            self._members[fed.alone](messages)
            return
        for number, share in shares(messages, fed.by, self._count, self._members.keys()):
            self._members[number](share)
