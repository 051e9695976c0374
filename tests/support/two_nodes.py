"""Two nodes with one stream, each of which can be read."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from envelope.types import Offset
from jetstream.protocol.responses import NodeMetadata
from metadata.catalog.tables import Stream
from tests.support.sockets import LiveStream, World, damage, row_of, serving


def placed(leader: str | None, epoch: int = 1, incarnation: str = "first") -> Stream:
    """The stream is on both nodes, and this one leads it."""
    return row_of("s", incarnation, leader, epoch, "n1", "n2")


def led(leader: str, epoch: int, *worlds: World) -> None:
    """Have these nodes know who leads."""
    for world in worlds:
        world.directory.rows["s"] = placed(leader, epoch)
        stream = world.directory.streams["s"]
        stream.leads = world.directory.node == leader


@asynccontextmanager
async def two_nodes(directory: Path) -> AsyncIterator[tuple[World, World]]:
    """Nodes n1, which leads, and n2; each has ten records of stream s."""
    async with serving(directory / "n1") as first, serving(directory / "n2", node="n2") as second:
        worlds = (first, second)
        nodes = [
            NodeMetadata(
                id=world.directory.node,
                host="127.0.0.1",
                port=world.port,
                rack=f"{world.directory.node}-rack",
            )
            for world in worlds
        ]
        for world in worlds:
            world.directory.known = nodes
            world.stream("s").add([b"%d" % number for number in range(10)])
        led("n1", 1, *worlds)
        yield worlds


def damage_batch(world: World, offset: Offset) -> LiveStream:
    """Turn a bit of the batch at ``offset`` of stream s over, on the disk of a node that is started again."""
    stream = world.directory.streams["s"]
    found = stream.log.reader.locate(offset)
    stream.log.close()
    damage(world.root / found.segment.path, found.entry.position + found.entry.length - 60)
    again = world.stream("s")
    again.leads = stream.leads
    return again
