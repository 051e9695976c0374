"""A real node with a clock that can be put forward, a bystander beside it, and its numbers by scrape."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

import jetstream
from envelope.limits import KIB, MIB
from jetstream import JetstreamClient
from jetstream.node.node import Node
from tests.support.bystander import Bystander, a_bystander
from tests.support.clocks import ForwardClock
from tests.support.nodes import nats_and_node
from tests.support.pauses import pause
from tests.support.sockets import WAIT_SECONDS, RawPeer

_CRUMB_SECONDS = 2.0
"""So long something that was cut off in time may take to be counted."""


@dataclass(frozen=True)
class Scene:
    """What every test here has."""

    js: JetstreamClient
    node: Node
    clock: ForwardClock
    bystander: Bystander

    async def peer(self, receive_buffer: int | None = None, port: int = 0) -> RawPeer:
        """A peer that has said hello."""
        peer = RawPeer(port or self.node.socket_port, receive_buffer)
        await peer.ask(op="hello", id=0, protocol=1)
        return peer

    async def metric(self, name: str, **labels: str) -> float:
        """Return the node's number of that name, as a scrape tells it; the sum of those with these labels."""
        assert self.node.http_address is not None
        reader, writer = await asyncio.open_connection(*self.node.http_address)
        with contextlib.closing(writer):
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            _, _, body = (await reader.read()).partition(b"\r\n\r\n")
        families = text_string_to_metric_families(body.decode())
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    async def until(self, name: str, low: float, high: float, **labels: str) -> None:
        """Return when that number is from ``low`` to ``high``."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not low <= await self.metric(name, **labels) <= high:
                await pause()

    async def until_cut_off(self, name: str, low: float, high: float) -> None:
        """Return when that number is from ``low`` to ``high``, as whoever takes nothing is cut off.

        A kernel that has room for a last crumb of what was sent gives two more minutes: then they pass again.
        """
        async with asyncio.timeout(WAIT_SECONDS):
            while not low <= await self.metric(name) <= high:
                self.clock.put_forward(121)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CRUMB_SECONDS):
                        await self.until(name, low, high)


@asynccontextmanager
async def a_scene(directory: Path, **changes: object) -> AsyncIterator[Scene]:
    """Begin one; nothing in it may raise where nobody waits for it."""
    clock = ForwardClock()
    unhandled: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    async with (
        nats_and_node(directory, clock, http={"port": 0}, **changes) as (url, node),
        jetstream.connect(url) as js,
        a_bystander(url) as bystander,
    ):
        yield Scene(js, node, clock, bystander)
    assert not unhandled, unhandled


def close_all(peers: Iterable[RawPeer]) -> None:
    for peer in peers:
        peer.close()


def open_files(directory: Path) -> list[str]:
    """Which files below ``directory`` this process has open, those that were deleted included."""
    targets = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            targets.append(os.readlink(entry))
        except FileNotFoundError:
            continue
    return [target for target in targets if target.startswith(str(directory))]


async def large_records(js: JetstreamClient, count: int) -> None:
    """A stream ``large`` of 512 KiB a record and 24 MiB a segment: more than the kernel's buffers hold.

    No batch has more than four: one is sent whole, however large it is.
    """
    await js.streams.create("large", "large.>", segment_bytes=24 * MIB)
    await js.publish_all((("large.r", os.urandom(512 * KIB)) for _ in range(count)), window=4)
