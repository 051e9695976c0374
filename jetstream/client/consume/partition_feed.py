"""Reads the partitions of a consumer, each a batch ahead of the application."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from consumer_groups.assignment.partitions import Claim
from envelope.errors import JetstreamError, OffsetOutOfRange, StreamRecreated, UnknownStream
from envelope.limits import KIB
from envelope.types import Offset
from jetstream.client.consume.options import ConsumeSettings
from jetstream.client.consume.partition_buffers import PartitionBuffer, PartitionBuffers, RecordChunk
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.read.fetch_pipeline import FetchSettings
from jetstream.client.read.places import Start
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import BatchReader, ReadSettings

_log = logging.getLogger(__name__)

_FOR_EVER: Final = float("inf")
_GONE_S: Final = 1.0
"""Pause before a stream that is not there is looked for again: it may have been deleted a moment ago."""
_FETCH_BYTES_MIN: Final = 64 * KIB
_SHARES_MIN: Final = 8
"""Who reads fewer partitions fetches no more of each ahead: what lies long goes through memory twice."""


@dataclass(frozen=True, slots=True)
class FeedStart:
    """Where reading begins."""

    start: Start
    incarnation: str | None = None
    """Of the stream that the start belongs to, if that is known."""


class PartitionPrefetcher:
    """Reads a partition into its buffer, whenever that has room."""

    def __init__(
        self,
        buffers: PartitionBuffers,
        buffer: PartitionBuffer,
        open_reader: Callable[[FeedStart, "PartitionPrefetcher"], BatchReader],
    ) -> None:
        self.buffer: Final = buffer
        self.reader: BatchReader | None = None
        self._buffers = buffers
        self._open_reader = open_reader

    async def read(self, where: FeedStart) -> None:
        """Read from there on until cancelled; raises what `BatchReader` does."""
        buffer = self.buffer
        reader = self.reader = self._open_reader(where, self)
        async with reader:
            async for batch in reader:
                end, epoch = reader.next_offset, reader.last_epoch
                assert end is not None, "a reader that has read stands somewhere"
                assert epoch is not None, "a batch has an epoch"
                await _room(buffer)
                self._buffers.put(buffer, RecordChunk(batch, end, epoch))
                await _room(buffer)

    def reached(self, where: FeedStart) -> FeedStart:
        """Return where to go on that has begun at ``where``."""
        reader = self.reader
        if reader is None or reader.next_offset is None:
            return where
        return FeedStart(reader.next_offset, reader.incarnation)


async def _room(buffer: PartitionBuffer) -> None:
    while buffer.chunks:  # it may come back while this waits
        await buffer.has_room.wait()


async def _idle(buffer: PartitionBuffer) -> None:
    """Return when the application is done with all that was put into the buffer."""
    while buffer.chunks or buffer.in_hand is not None:
        await buffer.has_room.wait()
        await buffer.is_idle.wait()


class PartitionFeeds:
    """The feeds of one consumer, which share its memory."""

    def __init__(
        self,
        links: NodeLinks,
        settings: ConsumeSettings,
        buffers: PartitionBuffers,
        begun: Callable[[PartitionBuffer], None],
        elsewhere: Callable[[PartitionBuffer, JetstreamError], FeedStart | None],
    ) -> None:
        """Start none yet.

        Args:
            links: to the nodes.
            settings: of the consumer.
            buffers: that are filled.
            begun: called when the beginning of a buffer is known, and whenever more is known.
            elsewhere: returns where to go on if a start is not in the stream any more; None: it is an error.
        """
        self._links = links
        self._settings = settings
        self._buffers = buffers
        self._begun = begun
        self._elsewhere = elsewhere
        self._running: dict[Claim, tuple[PartitionPrefetcher, asyncio.Task[None]]] = {}

    def start(self, buffer: PartitionBuffer, where: FeedStart, tasks: asyncio.TaskGroup) -> None:
        """Begin to read for a buffer, as one of ``tasks``."""
        assert buffer.claim not in self._running, f"{buffer.claim} is read already"
        feed = PartitionPrefetcher(self._buffers, buffer, self._open)
        self._running[buffer.claim] = feed, tasks.create_task(self._run(feed, where))
        self._share()

    def stop(self, buffer: PartitionBuffer) -> bool:
        """Read no more for a buffer; return whether that was begun."""
        running = self._running.pop(buffer.claim, None)
        if running is not None:
            running[1].cancel()
            self._share()
        return running is not None

    async def _run(self, feed: PartitionPrefetcher, where: FeedStart) -> None:
        """Read until cancelled, or until a failure, which the application gets in its turn."""
        stream = feed.buffer.stream
        while True:
            try:
                await feed.read(where)
            except (OffsetOutOfRange, StreamRecreated) as error:
                await _idle(feed.buffer)
                elsewhere = self._elsewhere(feed.buffer, error)
                if elsewhere is None:
                    self._fail(feed.buffer, error)
                    return
                _log.warning("%s is read from %s on error=%r", stream, elsewhere.start, error)
                where = elsewhere
            except UnknownStream as error:
                _log.warning("%s cannot be read, is tried again error=%r", stream, error)
                await asyncio.sleep(_GONE_S)
                where = feed.reached(where)
            except JetstreamError as error:
                self._fail(feed.buffer, error)
                return

    def _fail(self, buffer: PartitionBuffer, error: JetstreamError) -> None:
        error.detail.setdefault("stream", buffer.stream)
        self._buffers.fail(buffer, error)

    def _open(self, where: FeedStart, feed: PartitionPrefetcher) -> BatchReader:
        def moved(offset: Offset) -> None:
            """Handle a gap in the range, or its beginning; the records before it are in the buffer."""
            assert feed.reader is not None, "it is the reader that tells"
            feed.buffer.incarnation = feed.reader.incarnation
            feed.buffer.has_read_to(offset)
            self._begun(feed.buffer)

        settings = self._settings
        wanted = ReadRange(
            feed.buffer.stream,
            where.start,
            follow=True,
            incarnation=where.incarnation,
            wanted=settings.wanted,
        )
        fetch = FetchSettings(max_bytes=self._fetch_bytes, prefetch_bytes=self._prefetch_bytes)
        return BatchReader(
            self._links, wanted, ReadSettings(fetch, _FOR_EVER, moved=moved, preference=settings.preference)
        )

    @property
    def _prefetch_bytes(self) -> int:
        return max(_FETCH_BYTES_MIN, self._settings.prefetch_bytes // max(_SHARES_MIN, len(self._running)))

    @property
    def _fetch_bytes(self) -> int:
        return min(FetchSettings().max_bytes, self._prefetch_bytes)

    def _share(self) -> None:
        """Set the prefetch of all feeds so that together they keep to the bound."""
        for feed, _ in self._running.values():
            if feed.reader is not None:
                feed.reader.limit(self._fetch_bytes, self._prefetch_bytes)
