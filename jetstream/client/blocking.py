"""The client library without asyncio: the same calls under the same names, each waiting for its result.

An event loop runs in a thread of its own, and every call is carried there. What crosses between the threads
is a batch of records or a window of messages, never a single record, so that reading and publishing cost
little more than with the asynchronous client.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, Final, TypeVar, Unpack, overload

import pyarrow as pa

from jetstream.client.connection import JetstreamClient, ReadOptions, connect
from jetstream.client.publisher import TIMEOUT_S_DEFAULT, WINDOW_DEFAULT, Message
from jetstream.client.publishing import PublishAck, PublishOptions
from jetstream.client.reader import BatchReader
from jetstream.client.records import Record, records_of
from jetstream.client.streams import Streams
from jetstream.log.schema import SCHEMA
from metadata.api.responses import (
    CreateStreamResponse,
    DeleteStreamResponse,
    StreamInfo,
    StreamSummary,
    TruncateStreamResponse,
    UpdateStreamResponse,
)
from metadata.stream_config import API_PREFIX_DEFAULT

T = TypeVar("T")

_WINDOWS_AT_ONCE: Final = 16
"""Messages that cross to the loop's thread together, in windows."""


class _LoopThread:
    """An event loop in a daemon thread; closed once, by whoever made it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="jetstream-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result; it is cancelled if the wait is interrupted (Ctrl-C)."""
        assert threading.current_thread() is not self._thread, "the loop's thread cannot wait for itself"
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # one that is done takes no notice

    def close(self) -> None:
        self.run(_end_other_tasks())  # a wait that was interrupted has yet to hear of it
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BlockingReader:
    """Iterates over a stream: over records, or with `batches` over Arrow batches.

    Invariant:
        C12: ``next_offset`` is the offset after the last record handed out.
    """

    def __init__(self, thread: _LoopThread, batches: BatchReader) -> None:
        self._thread = thread
        self._batches = batches
        self._next_offset: int | None = None

    @property
    def next_offset(self) -> int | None:
        """The offset after what was handed out: store it, and start there to go on. None before the start."""
        return self._batches.next_offset if self._next_offset is None else self._next_offset

    @property
    def incarnation(self) -> str | None:
        """Which life of the stream is read: store it beside the offset, and name it to go on."""
        return self._batches.incarnation

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches cut to the exact range; raises what `BatchReader.__anext__` raises."""
        while (batch := self._thread.run(_next_batch(self._batches))) is not None:
            self._next_offset = None
            yield batch

    def __iter__(self) -> Iterator[Record]:
        """Yield single records."""
        for batch in self.batches():
            epoch = self._batches.last_epoch
            assert epoch is not None, "C12: a batch has an epoch"
            self._next_offset = batch.column(0)[0].as_py()
            for record in records_of(batch, epoch):
                self._next_offset = record.offset + 1
                yield record

    def to_table(self) -> pa.Table:
        """Read to the end and return all of it as one table; see `BatchReader.to_table`."""
        return self._thread.run(self._batches.to_table())

    def to_batch_reader(self) -> pa.RecordBatchReader:
        """Return a pyarrow reader that fetches as it is read: what Arrow, DuckDB and Polars stream from."""
        return pa.RecordBatchReader.from_batches(SCHEMA, self.batches())


class BlockingStreams:
    """The streams of a cluster; every method is that of `Streams`, awaited."""

    def __init__(self, thread: _LoopThread, streams: Streams) -> None:
        self._thread = thread
        self._streams = streams

    def create(self, name: str, subject: str, **config: object) -> CreateStreamResponse:
        """See `Streams.create`."""
        return self._thread.run(self._streams.create(name, subject, **config))

    def update(self, name: str, **changes: object) -> UpdateStreamResponse:
        """See `Streams.update`."""
        return self._thread.run(self._streams.update(name, **changes))

    def delete(self, name: str) -> DeleteStreamResponse:
        """See `Streams.delete`."""
        return self._thread.run(self._streams.delete(name))

    def info(self, name: str) -> StreamInfo:
        """See `Streams.info`."""
        return self._thread.run(self._streams.info(name))

    def list(self, prefix: str | None = None) -> "list[StreamSummary]":
        """See `Streams.list`."""
        return self._thread.run(self._streams.list(prefix))

    def lookup(self, subject: str) -> "Sequence[StreamSummary]":
        """See `Streams.lookup`."""
        return self._thread.run(self._streams.lookup(subject))

    def truncate(self, name: str, before: int) -> TruncateStreamResponse:
        """See `Streams.truncate`."""
        return self._thread.run(self._streams.truncate(name, before))


class BlockingClient:
    """One application's way to the streams, without asyncio; made by `connect_blocking`.

    Any thread may use it, several at once.
    """

    def __init__(self, thread: _LoopThread, client: JetstreamClient) -> None:
        self._thread = thread
        self._client = client

    @property
    def streams(self) -> BlockingStreams:
        """The streams of the cluster."""
        return BlockingStreams(self._thread, self._client.streams)

    @overload
    def publish(
        self, subject: str, value: bytes | None, *, streams: None = None, **options: Unpack[PublishOptions]
    ) -> PublishAck: ...

    @overload
    def publish(
        self, subject: str, value: bytes | None, *, streams: Sequence[str], **options: Unpack[PublishOptions]
    ) -> list[PublishAck]: ...

    def publish(
        self,
        subject: str,
        value: bytes | None,
        *,
        streams: Sequence[str] | None = None,
        **options: Unpack[PublishOptions],
    ) -> PublishAck | list[PublishAck]:
        """Publish one message and wait until it is stored; see `JetstreamClient.publish`."""
        if streams is None:
            return self._thread.run(self._client.publish(subject, value, **options))
        return self._thread.run(self._client.publish(subject, value, streams=streams, **options))

    def publish_all(
        self,
        messages: Iterable[Message],
        *,
        window: int = WINDOW_DEFAULT,
        progress: Callable[[int], None] | None = None,
    ) -> list[PublishAck]:
        """Publish many messages, up to ``window`` outstanding; return their acks in order.

        ``messages`` are taken in the caller's thread; ``progress`` is called there with the acks so far.

        Raises:
            JetstreamError: the first failure; messages before and after it may be stored.
        """
        acks: list[PublishAck] = []
        waiting = iter(messages)
        for first in waiting:
            some = list(chain([first], islice(waiting, window * _WINDOWS_AT_ONCE - 1)))
            acks += self._thread.run(self._client.publish_all(some, window=window))
            if progress is not None:
                progress(len(acks))
        return acks

    def read(self, stream: str, **options: Unpack[ReadOptions]) -> BlockingReader:
        """Return a reader: iterate over it for records, or over its ``batches()``; see `ReadOptions`."""
        return BlockingReader(self._thread, self._client.read_batches(stream, **options))


@contextmanager
def connect_blocking(
    *servers: str,
    socket: str | Sequence[str] | None = None,
    api_prefix: str = API_PREFIX_DEFAULT,
    request_timeout: float = TIMEOUT_S_DEFAULT,
    **nats_options: object,
) -> Iterator[BlockingClient]:
    """Connect as `jetstream.connect` does, for code without an event loop; closes everything at the end.

    Raises:
        ConnectionLost: no NATS server can be reached.
        RequestError: neither servers nor a socket, or an address that is none.
    """
    thread = _LoopThread()
    try:
        connection = connect(
            *servers, socket=socket, api_prefix=api_prefix, request_timeout=request_timeout, **nats_options
        )
        client = thread.run(connection.__aenter__())
        try:
            yield BlockingClient(thread, client)
        finally:
            thread.run(connection.__aexit__(None, None, None))
    finally:
        thread.close()


async def _end_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _next_batch(batches: BatchReader) -> pa.RecordBatch | None:
    # Not StopAsyncIteration: a future cannot carry it from one thread to another.
    return await anext(batches, None)
