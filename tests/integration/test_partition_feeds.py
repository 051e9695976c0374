"""A node's partitions of one stream on a real NATS server: subscribed once, each taking its own."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import nats
import nats.errors
from nats.aio.client import Client

from envelope.errors import JetstreamError, StreamOffline, Unauthorized
from envelope.partition_errors import PartitionsMissing
from envelope.partitions import partition_of
from jetstream.ingest.messages import MessageBlock
from jetstream.node.nats.link import NatsLink
from jetstream.node.nats.subscriptions import Subscription, Subscriptions
from jetstream.node.nats.watch import LinkWatch
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.node.settings.node_config import NatsConfig
from metadata.stream_config import StreamConfig
from tests.conftest import StartNatsServer
from tests.support.catalogs import partition
from tests.support.nats_server import NatsServer
from tests.support.nodes import run
from tests.support.pauses import pause

SUBJECTS = [f"orders.{number}" for number in range(40)]


@dataclass
class Site:
    """One node's link, and the partitions that it leads."""

    link: NatsLink
    subscriptions: Subscriptions
    client: Client
    counts: dict[str, int]
    heard: dict[int, list[str]] = field(default_factory=dict)

    def of(self, number: int, partitions: int = 4, by: str = "subject") -> Subscription:
        """The subscription of a partition, not begun."""
        heard = self.heard.setdefault(number, [])

        def deliver(messages: MessageBlock) -> None:
            heard.extend(subject.decode() for subject in messages.subjects)

        config: StreamConfig = partition("orders", number, partitions, by=by).config
        return self.subscriptions.of(config, deliver)

    async def now(self, count: int) -> None:
        """Let so many partitions share the messages; returns when the link has done what follows."""
        self.counts["orders"] = count
        self.subscriptions.counts_changed("orders")
        while any(feed._settling is not None for feed in self.subscriptions._feeds.values()):
            await pause()

    async def published(self) -> None:
        """Publish on every subject; returns when the link has heard what it was to hear."""
        for subject in SUBJECTS:
            await self.client.publish(subject, b"x")
        for _ in range(
            2
        ):  # the first answer may be older than what was published, as `NatsLink.confirm` says
            await self.client.flush()
        await self.link.confirm()

    async def is_heard(self) -> bool:
        """Whether anybody is subscribed: nobody answers, and NATS says at once that nobody listens."""
        try:
            await self.client.request("orders.0", b"", timeout=10)
        except nats.errors.NoRespondersError:
            return False
        except nats.errors.TimeoutError:
            return True
        raise AssertionError("nobody answers here")


@asynccontextmanager
async def site(url: str, count: int = 4, **options: str) -> AsyncIterator[Site]:
    link = NatsLink(
        NatsConfig.model_validate({"urls": [url], **options}),
        LinkWatch("ingest", SystemClock()),
        Crash(),
    )
    counts = {"orders": count}
    await link.open()
    async with asyncio.TaskGroup() as tasks, await nats.connect(url, **options) as client:
        tasks.create_task(link.supervise())
        try:
            yield Site(link, Subscriptions(link, lambda name: counts.get(name, 0), tasks), client, counts)
        finally:
            await link.close()


def problems(*subscriptions: Subscription) -> list[type[JetstreamError] | None]:
    """What each says is wrong, now."""
    return [None if one.problem is None else type(one.problem) for one in subscriptions]


def publish_unheard(port: int) -> None:
    """Publish on every subject while the loop stands still: the server has sent all, nobody has read it."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b'CONNECT {"verbose":false}\r\n')
        client.sendall(b"".join(b"PUB %b 1\r\nx\r\n" % subject.encode() for subject in SUBJECTS))
        client.sendall(b"PING\r\n")
        with client.makefile("rb") as lines:
            while lines.readline() != b"PONG\r\n":
                pass


def own(number: int, count: int) -> list[str]:
    """The subjects whose messages are a partition's."""
    return [subject for subject in SUBJECTS if partition_of(subject.encode(), count) == number]


def test_a_node_hears_each_message_once_and_hands_it_to_the_partition_whose_it_is(
    nats_server: NatsServer,
) -> None:
    async def scenario() -> None:
        async with site(nats_server.url) as here:
            led = [here.of(number) for number in (0, 1, 3)]
            assert problems(*led) == [StreamOffline] * 3
            await asyncio.gather(*(one.begin() for one in led))
            assert problems(*led) == [None] * 3
            assert len(list(here.link._routes)) == 1
            await here.published()
            assert here.heard == {number: own(number, 4) for number in (0, 1, 3)}

    run(scenario())


def test_who_leaves_has_what_was_sent_before_and_the_others_go_on(nats_server: NatsServer) -> None:
    async def scenario() -> None:
        async with site(nats_server.url) as here:
            staying, leaving = here.of(0), here.of(1)
            await staying.begin()
            await leaving.begin()
            publish_unheard(nats_server.port)
            await leaving.end()
            assert here.heard[1] == own(1, 4)
            await here.published()
            assert here.heard == {0: own(0, 4) * 2, 1: own(1, 4)}
            await staying.end()
            assert not await here.is_heard()
            again = here.of(1)
            await again.begin()
            await leaving.end()
            await here.published()
            assert here.heard == {0: own(0, 4) * 2, 1: own(1, 4) * 2}

    run(scenario())


def test_an_incomplete_stream_is_not_subscribed(nats_server: NatsServer) -> None:
    async def scenario() -> None:
        async with site(nats_server.url, count=0) as here:
            one = here.of(0)
            await one.begin()
            assert problems(one) == [PartitionsMissing]
            assert not await here.is_heard()
            await here.now(4)
            assert problems(one) == [None]
            await here.published()
            assert here.heard == {0: own(0, 4)}
            await here.now(0)
            assert not await here.is_heard()

    run(scenario())


def test_a_partition_that_is_added_takes_its_share_from_when_it_counts(nats_server: NatsServer) -> None:
    async def scenario() -> None:
        async with site(nats_server.url, count=2) as here:
            old, new = here.of(1, 2), here.of(3, 4)
            await old.begin()
            await new.begin()
            assert problems(old, new) == [None, PartitionsMissing]
            await here.published()
            assert here.heard == {1: own(1, 2), 3: []}
            await here.now(4)
            assert problems(old, new) == [None, None]
            await here.published()
            assert here.heard == {1: own(1, 2) + own(1, 4), 3: own(3, 4)}

    run(scenario())


def test_by_queue_nats_shares_out_among_the_partitions_that_count(nats_server: NatsServer) -> None:
    async def scenario() -> None:
        async with site(nats_server.url, count=2) as here:
            led = [here.of(number, 4, by="queue") for number in range(4)]
            await asyncio.gather(*(one.begin() for one in led))
            assert problems(*led) == [None, None, PartitionsMissing, PartitionsMissing]
            await here.published()
            assert sorted(here.heard[0] + here.heard[1]) == sorted(SUBJECTS)
            assert here.heard[2] == here.heard[3] == []
            await here.now(4)
            assert problems(*led) == [None] * 4
            while not (here.heard[2] and here.heard[3]):
                await here.published()
            heard = [subject for subjects in here.heard.values() for subject in subjects]
            assert all(heard.count(subject) == heard.count(SUBJECTS[0]) for subject in SUBJECTS)

    run(scenario())


def test_partitions_whose_subject_is_denied_say_so(start_nats_server: StartNatsServer) -> None:
    rights = 'permissions: { subscribe: "_INBOX.>" }'
    server = start_nats_server(
        config=f"authorization {{ users: [{{ user: node, password: pw, {rights} }}] }}"
    )

    async def scenario() -> None:
        async with site(server.url, user="node", password="pw") as here:
            led = [here.of(number) for number in range(2)]
            for one in led:
                await one.begin()
            assert problems(*led) == [Unauthorized] * 2
            for one in led:
                await one.end()

    run(scenario())
