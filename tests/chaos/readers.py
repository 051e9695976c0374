"""Readers of the client library, from any replica, that put down what they get and go on at their offset."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

import jetstream
from envelope.errors import JetstreamError
from jetstream import JetstreamClient
from jetstream.client.nodes.replica_choice import ReadFrom
from jetstream.client.read.reader import BatchReader
from tests.chaos.cluster import passes
from tests.chaos.recorder import Recorder
from tests.support.history import Drained, EndTold, Read, ReadFailed, Seen

_RETRY_SECONDS: Final = 8.0


def seen(batch: pa.RecordBatch, epoch: int) -> Iterator[Seen]:
    """Yield the records of a batch; what follows a value's first blank is padding."""
    for offset, value in zip(batch.column(0).to_pylist(), batch.column("value").to_pylist(), strict=True):
        assert offset is not None, "a record has an offset"
        assert value is not None, "nobody publishes a tombstone"
        yield Seen(offset, epoch, value.split(b" ", 1)[0].decode())


@dataclass
class Follower:
    """Reads one stream for as long as it runs, by a new reader now and then."""

    recorder: Recorder
    name: str
    stream: str
    read_from: ReadFrom
    chance: random.Random
    _offset: int = 0
    _incarnation: str | None = None

    async def run(self, js: JetstreamClient, over: asyncio.Event) -> None:
        """Read until cancelled."""
        while not over.is_set():
            reader = js.read_batches(
                self.stream,
                start=self._offset,
                incarnation=self._incarnation,
                follow=True,
                read_from=self.read_from,
                retry_s=_RETRY_SECONDS,
                max_bytes=self.chance.choice((4096, 1 << 16, 1 << 20)),
            )
            try:
                await self._read(reader, self.chance.choice((3, 30, 300, 3000)))
            except JetstreamError as error:
                self.recorder.record(
                    ReadFailed(self.recorder.now(), self.name, self.stream, error.err_code, error.retriable)
                )
                await passes(0.1, over)
            finally:
                await reader.aclose()

    async def _read(self, reader: BatchReader, batches: int) -> None:
        """Get so many batches; the next reader goes on behind them."""
        async for batch in reader:
            assert reader.next_offset is not None, "a reader that reads has a place"
            assert reader.last_epoch is not None, "what is read has an epoch"
            records = tuple(seen(batch, reader.last_epoch))
            self.recorder.record(Read(self.recorder.now(), self.name, self.stream, records))
            self._offset, self._incarnation = reader.next_offset, reader.incarnation
            batches -= 1
            if batches <= 0:
                return


@dataclass
class EndAsker:
    """Asks again and again where the streams end, and sometimes reads up to there."""

    recorder: Recorder
    name: str
    streams: tuple[str, ...]
    chance: random.Random

    async def run(self, js: JetstreamClient, over: asyncio.Event) -> None:
        """Ask until it is over."""
        while not await passes(self.chance.uniform(0.0, 0.3), over):
            stream = self.chance.choice(self.streams)
            read_from: ReadFrom = "leader" if self.chance.random() < 0.5 else "auto"
            asked_at = self.recorder.now()
            start: int | Literal["latest"] = "latest"
            try:
                if self.chance.random() < 0.5:
                    told = (await js.streams.info(stream)).high_watermark
                    asked_at = self.recorder.now()
                    start = max(0, told - 100)
                reader = js.read_batches(stream, start=start, read_from=read_from, retry_s=_RETRY_SECONDS)
                end = await self._end(reader)
            except JetstreamError as error:
                self.recorder.record(
                    ReadFailed(self.recorder.now(), self.name, stream, error.err_code, error.retriable)
                )
                continue
            self.recorder.record(EndTold(asked_at, self.recorder.now(), self.name, stream, end))

    async def _end(self, reader: BatchReader) -> int:
        async for _ in reader:
            pass
        assert reader.next_offset is not None, "a reader at its end has a place"
        return reader.next_offset


async def drain(
    recorder: Recorder,
    url: str,
    reader_name: str,
    stream: tuple[str, str],
    read_from: ReadFrom,
    until: int | None = None,
) -> int:
    """Read all of a stream once everything is well, to its end or to one that must come.

    Args:
        recorder: of the history.
        url: of NATS.
        reader_name: in the history.
        stream: what it is called in the history, and its name.
        read_from: whom to ask.
        until: an end that is known; None asks for it.

    Returns:
        The end.

    Raises:
        JetstreamError: it cannot be read.
    """
    key, name = stream
    async with (
        jetstream.connect(url) as js,
        js.read_batches(
            name, start=0, end=until, follow=until is not None, read_from=read_from, retry_s=30.0
        ) as reader,
    ):
        async for batch in reader:
            assert reader.last_epoch is not None, "what is read has an epoch"
            records = tuple(seen(batch, reader.last_epoch))
            recorder.record(Read(recorder.now(), reader_name, key, records))
        end = reader.next_offset
    assert end is not None, "a reader at its end has a place"
    recorder.record(Drained(recorder.now(), reader_name, key))
    return end
