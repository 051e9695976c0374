"""A node with something for every view of its console, and a browser beside it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Browser

import jetstream
from jetstream.client.connection import JetstreamClient
from jetstream.node.node import Node
from tests.support.browser import browser, http_address
from tests.support.nodes import nats_and_node, request

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
BIG_VALUE_BYTES = 1 << 20
TXID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ConsoleScene:
    """The parts; the node is of this process."""

    url: str
    node: Node
    js: JetstreamClient
    browser: Browser

    @property
    def address(self) -> tuple[str, int]:
        """Return where the console is."""
        return http_address(self.node)


@asynccontextmanager
async def console_scene(directory: Path, **http: object) -> AsyncIterator[ConsoleScene]:
    """Start a node whose HTTP port has these settings, and Chromium."""
    async with (
        browser() as chromium,
        nats_and_node(directory, http={"port": 0, **http}) as (url, node),
        jetstream.connect(url) as js,
    ):
        yield ConsoleScene(url, node, js, chromium)


async def fill(scene: ConsoleScene) -> None:
    """Create streams, records and a group: ``orders`` has ordinary records, ``payments`` four partitions."""
    js = scene.js
    await js.streams.create("orders", "orders.>")
    await js.streams.create("payments", "payments.>", partitions=4, partition_by="key")
    for number in range(20):
        key = f"k{number % 3}".encode()
        await js.publish(f"orders.{'eu' if number % 2 else 'us'}", b'{"id": %d}' % number, key=key)
        await js.publish("payments.new", b"%d" % number, key=key)
    places = [{"stream": "orders", "offset": 5}, {"stream": "payments", "partition": 1, "offset": 0}]
    await request(js.nats, "group.reset", group="billing", cursors=places)


async def fill_hostile(scene: ConsoleScene) -> None:
    """Create a stream whose subjects, keys, headers and values try to be programs, big, or no text."""
    js = scene.js
    await js.streams.create("hostile", "hostile.>")
    headers = {"Kind": HOSTILE}
    await js.publish(f"hostile.{HOSTILE.replace(' ', '')}", HOSTILE.encode(), key=HOSTILE, headers=headers)
    await js.publish("hostile.bytes", b"\xff\xfe\x00\x80", key="k")
    await js.publish("hostile.big", b"x" * (BIG_VALUE_BYTES - 1024) + HOSTILE.encode(), key="k")
    await js.publish("hostile.gone", None, key="k", txid=TXID)
    await js.publish("hostile.json", b'{"n": 12345678901234567890, "n": 1.0, "a": [], "s": "<b>\\u0000{},"}')
    await js.publish("hostile.shell", "it's\n\x1b[2J$(reboot) `reboot` \u202e".encode())
