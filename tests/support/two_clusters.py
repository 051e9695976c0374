"""Two clusters of one node each, with a nats-server of their own, and what their mirrored streams have."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import jetstream
from envelope.headers import (
    ACK,
    BATCH_RECORDS,
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_STREAM,
    MESSAGE_HEADERS,
    SEQUENCE,
    SEQUENCE_AFTER,
    SESSION,
    SOURCE_PREFIX,
    SOURCE_TIME,
)
from jetstream.client.connection import JetstreamClient
from jetstream.client.read.records import Record
from jetstream.node.nats.embedded_server import MAX_PAYLOAD_BYTES
from tests.support.nats_server import NatsServer
from tests.support.nodes import NodeProcess, nats_and_node

_OF_THE_ENVELOPE = {
    *(SESSION, SEQUENCE, SEQUENCE_AFTER, EXPECTED_STREAM, EXPECTED_LAST_SEQUENCE, ACK, BATCH_RECORDS)
}
"""What the last record of each envelope has besides its own headers."""

Carried = tuple[int, str, bytes | None, int | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Offset, subject, key, txid, value, headers."""


def expected(record: Record, difference: int = 0) -> Carried:
    """What a mirror makes of a record of the source."""
    headers = [
        (f"{SOURCE_PREFIX}{name}" if name in MESSAGE_HEADERS else name, value)
        for name, value in record.headers
    ]
    headers.append((SOURCE_TIME, b"%d" % record.timestamp))
    offset = record.offset + difference
    return offset, record.subject, record.key, record.txid, record.value, tuple(headers)


def carried(record: Record) -> Carried:
    """What a record of the target has, but for what the envelope has left there."""
    headers = tuple(pair for pair in record.headers if pair[0] not in _OF_THE_ENVELOPE)
    return record.offset, record.subject, record.key, record.txid, record.value, headers


async def records(client: JetstreamClient, stream: str) -> list[Record]:
    """All that is committed now."""
    return [record async for record in client.read(stream)]


async def check_mirrored(
    source: JetstreamClient, target: JetstreamClient, stream: str, to_stream: str | None = None
) -> int:
    """The target has every record of the source at its offset, and no other; return how many they are."""
    originals = [expected(record) for record in await records(source, stream)]
    copies = [carried(record) for record in await records(target, to_stream or stream)]
    assert copies == originals
    return len(copies)


@dataclass(frozen=True)
class TwoClients:
    """A client of each."""

    source: JetstreamClient
    target: JetstreamClient

    @property
    def source_port(self) -> int:
        """Of the source's nats-server."""
        url = self.source.nats.connected_url
        assert url is not None, "it is connected"
        assert url.port is not None, "it was given with its port"
        return url.port


@asynccontextmanager
async def two_nodes_apart(directory: Path, maintenance_interval: float = 1.0) -> AsyncIterator[TwoClients]:
    """Both nodes in this process; the source looks for work of its upkeep so often, in seconds."""
    async with (
        nats_and_node(directory / "source", maintenance_interval=maintenance_interval) as (source_url, _),
        nats_and_node(directory / "target") as (target_url, _),
        jetstream.connect(source_url) as source,
        jetstream.connect(target_url) as target,
    ):
        yield TwoClients(source, target)


@dataclass(frozen=True)
class TwoClusters:
    """Both nodes as processes of their own."""

    source: NodeProcess
    target: NodeProcess
    source_url: str
    target_url: str

    def command(self, *arguments: str) -> tuple[str, ...]:
        """The command that mirrors the stream ``orders``."""
        return (
            "mirror",
            "--from",
            self.source_url,
            "--nats",
            self.target_url,
            "--stream",
            "orders",
            *arguments,
        )

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[TwoClients]:
        """A client of each."""
        async with (
            jetstream.connect(self.source_url) as source,
            jetstream.connect(self.target_url) as target,
        ):
            yield TwoClients(source, target)


@contextmanager
def two_clusters(directory: Path) -> Iterator[TwoClusters]:
    """Start them; what still runs in the end is killed."""
    settings = f"max_payload: {MAX_PAYLOAD_BYTES}"
    with (
        NatsServer(directory / "nats-source", settings) as source_nats,
        NatsServer(directory / "nats-target", settings) as target_nats,
    ):
        source = NodeProcess(directory / "source", source_nats.url)
        target = NodeProcess(directory / "target", target_nats.url)
        try:
            source.start()
            target.start()
            yield TwoClusters(source, target, source_nats.url, target_nats.url)
        finally:
            source.kill()
            target.kill()
