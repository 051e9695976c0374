"""The subscriptions of the streams that a node leads: alone, or as partitions together."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from envelope.errors import JetstreamError, StreamOffline
from jetstream.node.nats.link import NatsLink
from jetstream.node.nats.parser_seam import Deliver
from jetstream.node.nats.partition_feed import Fed, PartitionFeed, fed_by
from jetstream.node.nats.routes import NOT_YET, Route
from metadata.stream_config import StreamConfig


class Subscription(Protocol):
    """A stream's subscription; begun at most once, and ended any number of times."""

    @property
    def problem(self) -> JetstreamError | None:
        """Why no messages come even while the link is connected; None if they do."""

    async def begin(self) -> None:
        """Subscribe; on return the server has the subscription, if it is connected, or refuses it."""

    async def end(self) -> None:
        """Leave the subject; what NATS had sent before has been delivered on return."""


class _OwnSubscription:
    """Of an ordinary stream."""

    def __init__(self, link: NatsLink, route: Route) -> None:
        self._link = link
        self._route = route

    @property
    def problem(self) -> JetstreamError | None:
        """See `Subscription.problem`."""
        return self._route.problem

    async def begin(self) -> None:
        """See `Subscription.begin`."""
        await self._link.subscribe(self._route)

    async def end(self) -> None:
        """See `Subscription.end`."""
        await self._link.unsubscribe(self._route)


class _PartitionSubscription:
    """Of a partition: its part of a feed."""

    def __init__(self, find_feed: Callable[[], PartitionFeed], number: int, deliver: Deliver) -> None:
        self._find_feed = find_feed
        self._number = number
        self._deliver = deliver
        self._feed: PartitionFeed | None = None

    @property
    def problem(self) -> JetstreamError | None:
        """See `Subscription.problem`."""
        return StreamOffline(NOT_YET) if self._feed is None else self._feed.problem(self._number)

    async def begin(self) -> None:
        """See `Subscription.begin`."""
        self._feed = self._find_feed()
        await self._feed.join(self._number, self._deliver)

    async def end(self) -> None:
        """See `Subscription.end`."""
        feed, self._feed = self._feed, None
        if feed is not None:
            await feed.leave(self._number)


class Subscriptions:
    """Of all streams that the node leads; used on the loop's thread."""

    def __init__(self, link: NatsLink, count_of: Callable[[str], int], tasks: asyncio.TaskGroup) -> None:
        """Subscribe over ``link``; see `PartitionFeed` for the others."""
        self._link = link
        self._count_of = count_of
        self._tasks = tasks
        self._feeds: dict[Fed, PartitionFeed] = {}

    def of(self, config: StreamConfig, deliver: Deliver) -> Subscription:
        """Return the subscription of a stream, whose messages go to ``deliver``; not begun."""
        if config.partition is None:
            return _OwnSubscription(self._link, Route(config.subject, config.queue, deliver))
        return _PartitionSubscription(partial(self._feed, fed_by(config)), config.partition, deliver)

    def counts_changed(self, partitioned: str | None = None) -> None:
        """Handle a changed number of partitions that share the messages of a stream; None: of any stream."""
        for fed, feed in self._feeds.items():
            if partitioned in (None, fed.partitioned):
                feed.count_changed()

    def _feed(self, fed: Fed) -> PartitionFeed:
        feed = self._feeds.get(fed)
        if feed is None:
            # Those that feed nobody any more are looked for when there is a new one, which is seldom.
            self._feeds = {known: feed for known, feed in self._feeds.items() if not feed.is_idle}
            feed = self._feeds[fed] = PartitionFeed(fed, self._link, self._count_of, self._tasks)
        return feed
