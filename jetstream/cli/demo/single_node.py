"""The steps of ``jetstream demo``, without their output."""

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nats
import pyarrow as pa

import jetstream
from envelope.errors import CorruptDataError, InvalidConfig, UnknownStream
from jetstream.cli.demo.flight_query import AirportFlights, flights_per_airport, sealed_segments
from jetstream.cli.demo.flights import Flight
from jetstream.cli.demo.plain_publisher import PlainPublisher, Progress, PublishedFlights, publish_flights
from jetstream.cli.serve.data_directory import EMBEDDED_NATS_DIRECTORY, claim_data_directory
from jetstream.client.connection import JetstreamClient
from jetstream.log.disk.identity import IDENTITY_FILE
from jetstream.log.format.schema import SCHEMA
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from jetstream.node.settings.node_config import NodeConfig, load_config

STREAM: Final = "flights"
MARKER: Final = "demo"
"""File that tells a directory of ours: only there may an earlier run's stream be replaced."""

SEGMENT_BYTES: Final = 2 * 1024 * 1024
"""Small segments, so that nearly every record ends in a sealed file: only the newest one stays open."""


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The result of a run; every check has passed, or the run has failed."""

    records: int
    routes: int
    first_offset: int
    value_bytes: int
    publish_seconds: float
    read_seconds: float
    sha256: str
    segments: tuple[Path, ...]
    stored_bytes: int
    airports: AirportFlights


def claim_directory(directory: Path) -> None:
    """Make ``directory`` the demo's data directory, unless it is somebody else's.

    Raises:
        InvalidConfig: it is a data directory, but not one of an earlier demo.
        StorageError: a process uses it, or it has files that are not a node's.
    """
    refuse_foreign(directory, IDENTITY_FILE)
    claim_data_directory(directory)
    (directory / MARKER).touch()


def refuse_foreign(directory: Path, token: str) -> None:
    """Refuse a directory that has the file ``token``, so it is one of nodes, and is not one of ours.

    Raises:
        InvalidConfig: it is like that.
    """
    if (directory / token).exists() and not (directory / MARKER).exists():
        raise InvalidConfig(f"{directory} has a node's data in it: choose another directory with --data")


async def run_demo(directory: Path, messages: Sequence[Flight], keep: bool, progress: Progress) -> DemoReport:
    """Publish ``messages`` through a real node, read them back, check everything, query the files.

    Args:
        directory: claimed by `claim_directory`.
        messages: in the order in which they are published.
        keep: append to an earlier run's stream instead of replacing it.
        progress: shows a step's progress: takes its name and total.

    Raises:
        CorruptDataError: the records read back are not the messages published.
    """
    async with AsyncExitStack() as running:
        server = await running.enter_async_context(EmbeddedNatsServer(directory / EMBEDDED_NATS_DIRECTORY))
        await running.enter_async_context(Node(_node_config(directory, server.url)))
        client = await running.enter_async_context(jetstream.connect(server.url))
        first_offset = await prepared_stream(client, keep)
        async with await nats.connect(server.url) as plain:
            published = await publish_flights(PlainPublisher(plain), messages, progress)
        for place, offset in enumerate(published.offsets, first_offset):
            if offset != place:
                raise CorruptDataError(
                    f"message {place - first_offset} was acked at offset {offset}, not at offset {place}"
                )
        read = await read_back(client, first_offset, len(messages), progress)
        sha256 = _checked_content(messages, read.records, first_offset)
    return demo_report(messages, published, read, sha256, directory)


def _node_config(directory: Path, url: str) -> NodeConfig:
    """Settings of a node on a free port that nobody else is meant to find."""
    return load_config(flags={"data": directory, "nats": {"urls": [url]}, "socket": {"port": 0}})


async def prepared_stream(client: JetstreamClient, keep: bool, replicas: int = 1) -> int:
    """Make the stream and return the offset that the first message will have."""
    if not keep:
        with suppress(UnknownStream):
            await client.streams.delete(STREAM)
    stream = await client.streams.create(
        STREAM, f"{STREAM}.>", segment_bytes=SEGMENT_BYTES, replicas=replicas
    )
    return stream.log_end_offset


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Everything that was stored, and how many seconds it took to read it."""

    records: pa.Table
    first_offset: int
    seconds: float


async def read_back(client: JetstreamClient, first_offset: int, count: int, progress: Progress) -> ReadBack:
    """Read what was just stored, as Arrow batches, through the client library."""
    with progress("reading back", count) as told:
        started = time.perf_counter()
        batches = []
        async for batch in client.read_batches(STREAM, start=first_offset):
            batches.append(batch)
            told(batch.num_rows)
        seconds = time.perf_counter() - started
    return ReadBack(pa.Table.from_batches(batches, SCHEMA), first_offset, seconds)


def _checked_content(messages: Sequence[Flight], stored: pa.Table, first_offset: int) -> str:
    """Return the SHA-256 of all values in order, if what is stored is exactly what was published.

    One stream is one total order, and one connection's messages keep theirs: so row ``i`` must be message
    ``i``, and with that every route is in order too.

    Raises:
        CorruptDataError: it is not.
    """
    if stored.num_rows != len(messages):
        raise CorruptDataError(f"{len(messages)} records were published and {stored.num_rows} read back")
    expected = {
        "offset": pa.array(range(first_offset, first_offset + len(messages)), pa.int64()),
        "subject": pa.array((message.subject for message in messages), pa.string()),
        "value": pa.array((message.value for message in messages), pa.binary()),
    }
    for column, values in expected.items():
        if stored[column].combine_chunks() != values:
            raise CorruptDataError(f"the column {column!r} read back is not what was published")
    return checked_sha256(messages, stored)


def checked_sha256(messages: Sequence[Flight], stored: pa.Table) -> str:
    """Return the SHA-256 of all values of ``stored``, which are in the order of ``messages``.

    Raises:
        CorruptDataError: it is not that of the messages.
    """
    read = hashlib.sha256()
    for value in stored["value"].to_pylist():
        if value is None:
            raise CorruptDataError("a record read back has no value")
        read.update(value)
    if read.digest() != hashlib.sha256(b"".join(message.value for message in messages)).digest():
        raise CorruptDataError("the values read back have another SHA-256 than those published")
    return read.hexdigest()


def demo_report(
    messages: Sequence[Flight], published: PublishedFlights, read: ReadBack, sha256: str, directory: Path
) -> DemoReport:
    """Query the files of the stopped node in ``directory``, hold them against the stream, and report.

    Raises:
        CorruptDataError: sealed files do not hold the stream's first records.
    """
    segments = tuple(sealed_segments(directory))
    airports = flights_per_airport(segments)
    if read.first_offset == 0:
        subjects = read.records["subject"].to_pylist()[: airports.records]
        departures = Counter(str(subject).split(".")[1] for subject in subjects)
        if dict(airports.departures) != departures:
            raise CorruptDataError(f"the files count {airports.departures}, published were {departures}")
    return DemoReport(
        records=len(messages),
        routes=len({message.subject for message in messages}),
        first_offset=read.first_offset,
        value_bytes=sum(len(message.value) for message in messages),
        publish_seconds=published.seconds,
        read_seconds=read.seconds,
        sha256=sha256,
        segments=segments,
        stored_bytes=sum(path.stat().st_size for path in segments),
        airports=airports,
    )
