"""The measurements of ``jetstream bench``, made with the client library against any cluster."""

import asyncio
import os
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
from pyarrow import compute

from envelope.errors import DeadlinePassed, JetstreamError, RequestError, StreamExists
from envelope.subjects import is_literal
from jetstream.cli.bench.report import BenchReport
from jetstream.cli.output.console import describe, notice
from jetstream.client.connection import JetstreamClient, ReadOptions
from jetstream.client.publish.ack_inbox import AckFuture
from jetstream.client.publish.messages import PublishAck
from jetstream.client.read.read_progress import ReadProgress
from jetstream.client.read.records import Record

NUMBERED_BYTES: Final = 16
"""A value by which one message of one run is known: eight bytes of chance, eight of its number."""

_ACK_SECONDS_MAX: Final = 30.0
"""A cluster at its limit is what is measured: it may take its time."""

_DELIVERY_SECONDS_MAX: Final = 10.0
_STEP_MESSAGES: Final = 500
"""How often progress is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The messages to publish; the first limit that is reached ends it."""

    stream: str
    count: int
    size: int
    """Of each value, bytes."""
    seconds: float
    in_flight: int = 1


@asynccontextmanager
async def benched_subject(
    client: JetstreamClient, stream: str, subject: str | None, create: bool, keep: bool
) -> AsyncIterator[str]:
    """Yield a subject that the stream stores; with ``create`` the stream lives as long as the block.

    Args:
        client: connected.
        stream: must not be there with ``create``, and be there without.
        subject: if None, the stream's own, or one that is made of its name.
        create: make the stream, and delete it afterwards.
        keep: do not delete it.

    Raises:
        StreamExists: with ``create``; it is not touched.
        UnknownStream: without.
        RequestError: the stream stores a pattern, and no subject is given.
    """
    if not create:
        stored = (await client.streams.info(stream)).config.subject
        if subject is None and not is_literal(stored):
            raise RequestError(f"{stream} stores {stored}: choose one of these subjects with --subject")
        yield subject or stored
        return
    subject = subject or f"bench.{stream}"
    if not (await client.streams.create(stream, subject)).created:
        raise StreamExists(f"stream {stream!r} is there already: without --create it is used as it is")
    try:
        yield subject
    finally:
        if not keep:
            await _delete(client, stream)


async def _delete(client: JetstreamClient, stream: str) -> None:
    try:
        await client.streams.delete(stream)
    except JetstreamError as error:  # what the block has raised matters more
        notice(f"stream {stream} may still be there: {describe(error)}")


@dataclass(slots=True)
class _Acks:
    """The acks of one publisher, in the order in which they come."""

    stream: str
    told: Callable[[int], None]
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    start: int | None = None
    end: int | None = None
    failure: BaseException | None = None
    room: asyncio.Event = field(default_factory=asyncio.Event)

    def on_done(self, begun: float, future: AckFuture) -> None:
        """Count one message in, sent at ``begun``."""
        now = time.perf_counter()
        self.room.set()
        failure = future.exception()
        if failure is not None:
            self.failure = self.failure or failure
            return
        self.add(now - begun, future.result())

    def add(self, latency: float, ack: PublishAck) -> None:
        """Count one ack in."""
        if ack.stream != self.stream:
            self.failure = self.failure or RequestError(f"{ack.stream} stores this subject too, and acks it")
        self.latencies.append(latency)
        self.start = ack.offset if self.start is None else min(self.start, ack.offset)
        self.end = ack.offset + 1 if self.end is None else max(self.end, ack.offset + 1)
        if len(self.latencies) % _STEP_MESSAGES == 0:
            self.told(_STEP_MESSAGES)

    def check(self) -> None:
        """Raise what has gone wrong so far."""
        if self.failure is not None:
            raise self.failure


async def publish(
    client: JetstreamClient, subject: str, load: Load, progress: Callable[[int], None]
) -> BenchReport:
    """Publish with up to ``load.in_flight`` messages unacked, and await every ack.

    Raises:
        JetstreamError: the first failure; RequestError if another stream acks.
    """
    value = os.urandom(load.size)
    acks = _Acks(load.stream, progress)
    cpu_started, started = time.process_time(), time.perf_counter()
    sent = 0
    async with client.publisher(load.in_flight, _ACK_SECONDS_MAX) as publisher:
        while sent < load.count and time.perf_counter() - started < load.seconds:
            # Waited for here, so that it does not count as the message's own time.
            while publisher.outstanding >= load.in_flight:
                acks.room.clear()
                await acks.room.wait()
            acks.check()
            begun = time.perf_counter()
            future = await publisher.publish(subject, value)
            future.add_done_callback(partial(acks.on_done, begun))
            sent += 1
    await asyncio.sleep(0)  # the block has awaited the acks; this is for the last callbacks
    acks.check()
    assert len(acks.latencies) == sent, f"{sent} sent, {len(acks.latencies)} acked, none failed"
    return BenchReport(
        bench="publish",
        stream=load.stream,
        start_offset=acks.start,
        end_offset=acks.end,
        messages=sent,
        value_bytes=sent * load.size,
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - cpu_started,
        latency_seconds={"ack": acks.latencies},
    )


async def read(
    client: JetstreamClient, stream: str, options: ReadOptions, count: int | None, seconds: float
) -> BenchReport:
    """Read Arrow batches until the end, ``count`` records or ``seconds``; a sample is a wait for a batch."""
    waits = array("d")
    records = value_bytes = 0
    first: int | None = None
    end: int | None = None
    cpu_started, started = time.process_time(), time.perf_counter()
    async with client.read_batches(stream, **options) as reader:
        while (count is None or records < count) and time.perf_counter() - started < seconds:
            begun = time.perf_counter()
            batch = await anext(reader, None)
            if batch is None:
                break
            waits.append(time.perf_counter() - begun)
            batch = batch if count is None else batch.slice(0, count - records)
            records += batch.num_rows
            value_bytes += _value_bytes(batch)
            offsets = batch.column(0)
            first = offsets[0].as_py() if first is None else first
            end = offsets[-1].as_py() + 1
    return BenchReport(
        bench="read",
        stream=stream,
        start_offset=first,
        end_offset=end,
        messages=records,
        value_bytes=value_bytes,
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - cpu_started,
        latency_seconds={"batch": waits},
    )


def _value_bytes(batch: pa.RecordBatch) -> int:
    values = batch.column("value")
    assert isinstance(values, pa.BinaryArray), "a reader's batches have the log's schema"
    return compute.sum(compute.binary_length(values)).as_py() or 0


async def latency(
    client: JetstreamClient, subject: str, load: Load, progress: Callable[[int], None]
) -> BenchReport:
    """Publish one message after the other; wait for its ack, and for a following reader to have it.

    Raises:
        DeadlinePassed: a message is acked and the reader does not get it.
        JetstreamError: the first failure.
    """
    acks = _Acks(load.stream, progress)
    run = _Deliveries()
    async with (
        asyncio.TaskGroup() as tasks,
        client.read(load.stream, start="latest", follow=True, progress=run.on_progress) as reader,
    ):
        reading = tasks.create_task(run.follow(reader))
        await run.begun.wait()
        cpu_started, started = time.process_time(), time.perf_counter()
        sent = 0
        while sent < load.count and time.perf_counter() - started < load.seconds:
            begun = time.perf_counter()
            arrived = run.expect(sent)
            ack = await client.publish(subject, run.value(sent, load.size), timeout=_ACK_SECONDS_MAX)
            acks.add(time.perf_counter() - begun, ack)
            acks.check()
            run.latencies.append(await _delivery(arrived, ack) - begun)
            sent += 1
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        reading.cancel()
    return BenchReport(
        bench="latency",
        stream=load.stream,
        start_offset=acks.start,
        end_offset=acks.end,
        messages=sent,
        value_bytes=sent * load.size,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        latency_seconds={"ack": acks.latencies, "delivery": run.latencies},
    )


async def _delivery(arrived: "asyncio.Future[float]", ack: PublishAck) -> float:
    try:
        async with asyncio.timeout(_DELIVERY_SECONDS_MAX):
            return await arrived
    except TimeoutError:
        raise DeadlinePassed(
            f"offset {ack.offset} is acked, and no reader has it after {_DELIVERY_SECONDS_MAX:g} s"
        ) from None


class _Deliveries:
    """Knows the messages of this run among all that a reader gets."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        """Set once the reader's start is fixed: what is published from now on comes."""
        self.latencies: array[float] = array("d")
        self._name = os.urandom(NUMBERED_BYTES // 2)
        self._expected: tuple[bytes, asyncio.Future[float]] | None = None

    def value(self, number: int, size: int) -> bytes:
        """Return the value of a message; it is known by its beginning."""
        assert size >= NUMBERED_BYTES, f"{size} bytes cannot be told apart"
        return self._beginning(number).ljust(size, b"\0")

    def expect(self, number: int) -> "asyncio.Future[float]":
        """Return the future of the moment in which the reader has that message."""
        arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._expected = self._beginning(number), arrived
        return arrived

    def on_progress(self, _: ReadProgress) -> None:
        self.begun.set()

    async def follow(self, records: AsyncIterator[Record]) -> None:
        """Record the reader's batches, for ever."""
        async for record in records:
            if self._expected is None or record.value is None:
                continue
            beginning, arrived = self._expected
            if record.value.startswith(beginning) and not arrived.done():
                arrived.set_result(time.perf_counter())

    def _beginning(self, number: int) -> bytes:
        return self._name + number.to_bytes(NUMBERED_BYTES // 2, "big")
