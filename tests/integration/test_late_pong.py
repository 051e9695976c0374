"""A NATS server that answers late, or not at all while nothing is closed."""

import asyncio

import nats
import nats.errors
import pytest

from jetstream.ingest.messages import MessageBlock
from jetstream.node.nats import link as nats_link
from jetstream.node.nats.gaps import Gap
from jetstream.node.nats.link import NatsLink
from jetstream.node.nats.routes import Route
from jetstream.node.nats.watch import LinkWatch
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.node.settings.node_config import NatsConfig
from metadata.api.responses import GapKind
from tests.support.nats_server import NatsServer
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.sockets import until


def test_a_pong_that_comes_too_late_does_not_make_the_connection_deaf(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_link, "_FLUSH_SECONDS", 0.1)

    async def check() -> None:
        delivered: asyncio.Queue[MessageBlock] = asyncio.Queue()
        config = NatsConfig.model_validate({"urls": [nats_server.url]})
        link = NatsLink(config, LinkWatch("ingest", SystemClock()), Crash())
        publisher = await nats.connect(nats_server.url)
        await link.open()
        try:
            await link.subscribe(Route("s.>", "", delivered.put_nowait))
            nats_server.pause()
            with pytest.raises(nats.errors.FlushTimeoutError):
                await link.confirm()
            nats_server.resume()
            await publisher.publish("s.one", b"x")
            async with asyncio.timeout(WAIT_SECONDS):
                block = await delivered.get()
            assert block.subjects == [b"s.one"]
            monkeypatch.setattr(nats_link, "_FLUSH_SECONDS", WAIT_SECONDS)
            await link.confirm()
        finally:
            nats_server.resume()
            await link.close()
            await publisher.close()

    run(check())


def test_a_gap_begins_when_the_server_was_heard_last(nats_server: NatsServer) -> None:
    """And not when that was noticed: what was published in between came to nobody."""
    interval = 0.2

    async def check() -> None:
        clock, gaps = SystemClock(), list[Gap]()
        config = NatsConfig.model_validate({"urls": [nats_server.url], "ping_interval": interval})
        link = NatsLink(config, LinkWatch("ingest", clock), Crash())
        link.watch.on_gap = gaps.append
        await link.open()
        try:
            nats_server.pause()
            await until(lambda: not link.watch.is_heard)
            silent_at = clock.wall()
            await until(lambda: not link.connected)
            nats_server.resume()
            await until(lambda: link.connected)
            [gap] = gaps
            assert gap.kind is GapKind.RECONNECT
            assert gap.since <= silent_at - 2 * interval * 1e6
        finally:
            nats_server.resume()
            await link.close()

    run(check())


def test_a_server_that_sends_is_there_whatever_it_owes(nats_server: NatsServer) -> None:
    """A PONG may be behind many messages."""

    async def check() -> None:
        config = NatsConfig.model_validate({"urls": [nats_server.url], "ping_interval": 3600})
        link = NatsLink(config, LinkWatch("ingest", SystemClock()), Crash())
        delivered: asyncio.Queue[MessageBlock] = asyncio.Queue()
        publisher = await nats.connect(nats_server.url)
        await link.open()
        try:
            await link.subscribe(Route("s.>", "", delivered.put_nowait))
            link._client._pings_outstanding = 2
            await publisher.publish("s.one", b"x")
            await delivered.get()
            assert link._client._pings_outstanding == 0
        finally:
            await link.close()
            await publisher.close()

    run(check())
