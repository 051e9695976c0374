"""A real node with an object store, and streams that soon have segments in it."""

import math
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Unpack

import jetstream
from jetstream.client.connection import JetstreamClient, ReadOptions
from jetstream.node.node import Node
from jetstream.node.replicas.replica import StreamReplica
from jetstream.tier.object_store import ObjectStore
from jetstream.tier.restore import all_remains
from tests.support.commands import json_lines, succeeded
from tests.support.nodes import nats_and_node
from tests.support.sockets import until

RECORDS = 300


CONFIG: dict[str, Any] = {
    "tier": True,
    "rewrite_after": 0,
    "local_retention": 0.001,
    "dedupe_window": 0,
    "segment_bytes": 64 * 1024,
}


@asynccontextmanager
async def tiered_node(path: Path, **options: object) -> AsyncIterator[tuple[JetstreamClient, Node]]:
    """A node with a store in ``path``, and a client of it."""
    settings: dict[str, object] = {"maintenance_interval": 0.05, "tier": str(path / "store"), **options}
    async with nats_and_node(path, None, **settings) as (url, node), jetstream.connect(url) as js:
        yield js, node


async def published(js: JetstreamClient, stream: str, turns: range) -> None:
    """Values of a kilobyte that tell their offset, with a transaction id of ten times that."""
    for turn in range(turns.start, turns.stop, 20):
        await js.publish_all(
            (f"{stream}.x", b"%d " % number + b"x" * 1000, {"txid": 10 * number})
            for number in range(turn, min(turn + 20, turns.stop))
        )


async def read(js: JetstreamClient, stream: str, **options: Unpack[ReadOptions]) -> list[int]:
    async with js.read(stream, **options) as reader:
        return [int(record.value.split()[0]) async for record in reader if record.value is not None]


def replica(node: Node, name: str) -> StreamReplica:
    found = node.stream(name)
    assert found is not None
    return found


async def tiered(js: JetstreamClient, node: Node, name: str = "orders", **config: object) -> StreamReplica:
    """Create a stream, fill it, and wait until most of it is in the store alone."""
    await js.streams.create(name, f"{name}.>", **{**CONFIG, **config})
    await published(js, name, range(RECORDS))
    stream = replica(node, name)
    await until(lambda: stream.log.log_start_offset > RECORDS // 2)
    return stream


def next_of(path: str) -> float:
    """The offset behind a segment, by the name of its object."""
    _, _, name = path.rpartition("/")
    return math.inf if name.startswith("manifest") else int(name.split("-")[1])


async def check_life(directory: Path, uri: str) -> None:
    """A stream goes to the store at ``uri``, is read across the border, and comes back from there alone."""
    async with tiered_node(directory, tier=uri) as (js, node):
        border = (await tiered(js, node)).log.log_start_offset
        assert await read(js, "orders") == list(range(RECORDS))
        across = range(border - 5, min(border + 5, RECORDS))  # all may have gone
        assert await read(js, "orders", start=across.start, end=across.stop) == list(across)
    [remains] = all_remains(ObjectStore.at(uri))
    end = remains.manifest.end
    assert end > RECORDS // 2
    assert remains.missing == ()
    [life] = json_lines(succeeded("tier", "ls", uri, "--json"))
    assert (life["stream"], life["start"], life["end"], life["missing"]) == ("orders", 0, end, [])
    shutil.rmtree(directory / "data")
    async with tiered_node(directory, tier=uri) as (js, _):
        restored = await js.streams.restore("orders")
        assert restored.log_end_offset == end
        assert await read(js, "orders") == list(range(end))
        await published(js, "orders", range(end, end + 20))
        assert await read(js, "orders", start=end - 1) == list(range(end - 1, end + 20))
