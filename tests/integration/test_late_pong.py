"""A NATS server that answers late: whoever waited has given up, and the connection hears on."""

import asyncio

import nats
import nats.errors
import pytest

from jetstream.ingest.messages import MessageBlock
from jetstream.node.nats import link as nats_link
from jetstream.node.nats.link import NatsLink
from jetstream.node.nats.routes import Route
from jetstream.node.nats.watch import LinkWatch
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.node.settings.node_config import NatsConfig
from tests.support.nats_server import NatsServer
from tests.support.nodes import WAIT_SECONDS, run


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
