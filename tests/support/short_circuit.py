"""Streams of a server that tells readers of its files, and what they read."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from envelope.limits import KIB
from jetstream.client.nodes.socket_access import SocketAccess
from jetstream.client.read.reader import BatchReader, RecordReader
from jetstream.client.read.records import Record
from jetstream.log.disk.machine_id import machine_id
from jetstream.log.log import LogConfig
from jetstream.node.disk.leased_range import Body
from jetstream.node.readers.output import stored_range
from jetstream.protocol.responses import StoredRangeResponse
from tests.support.sockets import LiveStream, World, serving

BY_SOCKET = SocketAccess(short_circuit=False)
SEGMENTS = LogConfig(segment_bytes=256 * KIB)


@asynccontextmanager
async def here(root: Path) -> AsyncIterator[World]:
    """A server that tells of its files."""
    async with serving(root / "data", machine=machine_id()) as world:
        yield world


def fill(stream: LiveStream, seed: int = 1, batches: int = 60) -> list[bytes]:
    """Several segments of batches of 10 to 40 KiB, the last of them still open; return the values."""
    chance = random.Random(seed)
    stored = [
        [chance.randbytes(chance.randrange(8 * KIB)) for _ in range(chance.randrange(3, 12))]
        for _ in range(batches)
    ]
    stream.add(*stored)
    return [value for batch in stored for value in batch]


async def all_of(reader: RecordReader) -> list[Record]:
    return [record async for record in reader]


def values_of(batch: pa.RecordBatch) -> list[bytes]:
    return [value for value in batch.column("value").to_pylist() if value is not None]


async def collect(reader: BatchReader, seen: list[bytes]) -> None:
    """Add the values; every offset comes once and in order."""
    async for batch in reader:
        offsets = batch.column("offset").to_pylist()
        assert offsets == list(range(len(seen), len(seen) + len(offsets))), "C6"
        seen += values_of(batch)


async def values(reader: BatchReader) -> list[bytes]:
    """Return all values."""
    seen: list[bytes] = []
    await collect(reader, seen)
    return seen


@dataclass
class Told:
    """What the server says of where ranges lie, as a test would have it."""

    change: Callable[[StoredRangeResponse], StoredRangeResponse] = field(default=lambda where: where)
    count: int = 0

    def __call__(self, body: Body) -> StoredRangeResponse | None:
        where = stored_range(body)
        if where is None:
            return None
        self.count += 1
        return self.change(where)
