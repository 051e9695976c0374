"""Reading a stream in order: Arrow batches or single records, from any place, over any number of reconnects.

Theory of operation: a reader knows the next offset that its application gets. After any failure (of the
connection, the node, the network) it asks again from exactly there, and checks that the answer fits: every
batch verified by its CRC, beginning where the last one ended, of the same life of the stream, on the same
history. It makes no difference which node it asks: every replica has the same bytes at the same offsets.
So an application gets every record of its range once, in order, or an error.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from envelope.errors import (
    CorruptDataError,
    JetstreamError,
    NotLeader,
    OffsetOutOfRange,
    RemoteProtocolError,
    RequestError,
)
from envelope.limits import MIB
from envelope.types import Incarnation, LeaderEpoch, Offset
from jetstream.client.nodes.local_ranges import RangeAway
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.replica_choice import ReadPreference
from jetstream.client.nodes.stream_route import Arrival, StreamRoute
from jetstream.client.read.fetch_pipeline import (
    FetchedRange,
    FetchPipeline,
    FetchSettings,
    ReadBounds,
    ReaderPlace,
)
from jetstream.client.read.places import named_offset
from jetstream.client.read.read_progress import PlaceCount, PlaceTold, ProgressCount, ReadProgressTold
from jetstream.client.read.read_range import ReadRange, ResolvedRange, resolve
from jetstream.client.read.records import Record, before, records_of, trimmed
from jetstream.client.tracing import TRACING
from jetstream.log.format.schema import NO_RECORDS, SCHEMA
from jetstream.log.format.small_batch_reader import merged_batches

_SMALL_BYTES: Final = MIB
"""What has so much is not put together with others, however few records it is."""
_RUN_ROWS: Final = 1_024
"""So many records of the smallest batches are decoded at once."""
_BACKOFF_S_MIN: Final = 0.02
_BACKOFF_S_MAX: Final = 2.0
_DAMAGED_MAX: Final = 3
"""Damaged answers at one place of the stream before it is said: the first ones may come from the way."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How a reader fetches, and how long it bears with a node that cannot answer."""

    fetch: FetchSettings = field(default_factory=FetchSettings)
    retry_s: float = 60.0
    """How long retriable errors are met with another attempt before they are raised; progress starts anew."""
    progress: ReadProgressTold | None = None
    preference: ReadPreference = field(default_factory=ReadPreference)
    batch_rows: int = 0
    """Smaller batches are put together, as far as they come with one fetch."""
    moved: PlaceTold | None = None
    """Instead of ``progress``, for who wants to know only where the reader is."""


@dataclass(frozen=True, slots=True)
class _Decoded:
    records: pa.RecordBatch
    next: Offset
    epoch: LeaderEpoch
    last: bool


class BatchReader:
    """Yields `pyarrow.RecordBatch` objects cut to the exact range.

    Use it with ``async for``; ``next_offset`` is what to store in order to go on later.

    Attributes:
        endless: whether it follows the stream to no end.
        start_offset: where its range begins; None until that is known.

    Invariants:
        C6: ``next_offset`` never decreases, and every wanted record from the start up to it has been yielded.
    """

    def __init__(self, links: NodeLinks, read_range: ReadRange, settings: ReadSettings) -> None:
        """Send nothing to a node before the first record is asked for."""
        self._wanted = read_range.validated()
        subject = read_range.wanted.subject
        self._route = StreamRoute(links, read_range.stream, settings.preference, subject)
        self.endless: Final = read_range.follow and read_range.end is None
        self.start_offset: Offset | None = None
        self._settings = settings
        self._range: ResolvedRange | None = None
        self._place: ReaderPlace | None = None
        self._pipeline: FetchPipeline | None = None
        self._heard = Offset(0)
        """The largest high watermark that a node has told."""
        self._decoded: Iterator[_Decoded] = iter(())
        self._is_local = False
        """The decoded range was read from the node's file."""
        self._was_away = False
        """Something could not be, or was not what it should be: what follows is to come over the socket."""
        self._begun = False
        self._finished = False
        self._failing_since: float | None = None
        self._attempts = 0
        self._damaged = 0
        self._count = (
            ProgressCount(settings.progress) if settings.moved is None else PlaceCount(settings.moved)
        )

    @property
    def stream(self) -> str:
        """The stream that is read."""
        return self._wanted.stream

    @property
    def next_offset(self) -> Offset | None:
        """The offset after the last batch yielded: store it, and start there to go on.

        None until the start is known.
        """
        return None if self._place is None else self._place.offset

    @property
    def last_epoch(self) -> LeaderEpoch | None:
        """Leader epoch of the last batch yielded."""
        return None if self._place is None else self._place.last_epoch

    @property
    def incarnation(self) -> Incarnation | None:
        """Which life of the stream is read: store it beside the offset, and name it to go on."""
        return None if self._place is None else self._place.incarnation

    @property
    def high_watermark(self) -> Offset | None:
        """The end of the committed records, as a node reported it last."""
        if self._pipeline is not None:
            return self._pipeline.high_watermark
        return None if self._range is None else self._range.high_watermark

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """Return the next batch with records in the range.

        Raises:
            StopAsyncIteration: the end is reached.
            CorruptDataError: a batch fails its checksum, here or at the node.
            OffsetOutOfRange: retention has removed what comes next.
            StreamRecreated: the stream was deleted and created again.
            DivergedHistory: records that were read are not in the stream any more.
            JetstreamError: anything else; those that are ``retriable`` only after ``retry_s``.
        """
        asked_ns = 0 if TRACING.tracer is None else time.time_ns()
        while not self._finished:
            try:
                decoded = next(self._decoded, None)
            except JetstreamError as error:
                if self._is_local:  # a file may change behind its name: the node is the one that says
                    self._go_by_socket()
                    continue
                await self._back_off(error, damaged=isinstance(error, CorruptDataError | RemoteProtocolError))
                continue
            if decoded is None:
                await self._refill()
                continue
            assert self._place is not None, "C6: a reader that decodes has a place"
            self._place = ReaderPlace(decoded.next, decoded.epoch, self._place.incarnation)
            self._begun = True
            self._failing_since, self._attempts, self._damaged = None, 0, 0
            self._route.has_progressed()
            self._count.add(decoded.records)
            if decoded.last:
                self._finish()
                self._count.report(self._place, self._range)
            if decoded.records.num_rows:
                return _traced(decoded.records, self.stream, asked_ns)
        raise StopAsyncIteration

    async def to_table(self) -> pa.Table:
        """Read to the end and return all of it, in memory, as one table with the log's columns.

        Raises:
            RequestError: the reader follows the stream and has no end.
            JetstreamError: as `__anext__`.
        """
        if self.endless:
            raise RequestError(f"following {self.stream!r} without an end never comes to a table")
        return pa.Table.from_batches([batch async for batch in self], SCHEMA)

    def limit(self, max_bytes: int, prefetch_bytes: int) -> None:
        """Fetch so much at a time, and so much ahead, from now on."""
        fetch = replace(self._settings.fetch, max_bytes=max_bytes, prefetch_bytes=prefetch_bytes)
        self._settings = replace(self._settings, fetch=fetch)
        if self._pipeline is not None:
            self._pipeline.limit(max_bytes, prefetch_bytes)

    async def aclose(self) -> None:
        """Stop reading."""
        self._finish()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish()

    async def _refill(self) -> None:
        """Fetch and begin to decode the next range, whatever it takes."""
        self._count.report(self._place, self._range)
        try:
            pipeline = self._pipeline or await self._connect()
            if pipeline is None:
                self._finish()
                return
            fetched = await pipeline.take()
            if fetched is None:
                if self._finished:  # closed meanwhile
                    return
                self._drop_pipeline()
                if not self._route.has_caught_up():
                    raise NotLeader(f"there is no leader of {self.stream!r} to go on at")
                return
        except RangeAway:
            self._go_by_socket()
            return
        except JetstreamError as error:
            await self._back_off(error, damaged=isinstance(error, RemoteProtocolError))
            return
        self._is_local = fetched.response.file is not None
        self._decoded = _together(self._decode(fetched), self._settings.batch_rows)

    async def _connect(self) -> FetchPipeline | None:
        """Return a pipeline that goes on where the reader stands, None if it is at its end."""
        if self._range is None:
            arrival = await self._route.to_offsets(self._wanted.incarnation)
            self._range = await resolve(
                self._wanted, arrival.link, self._settings.fetch.timeout_s, leader_only=arrival.step.leaves
            )
            self._place = self._range.place
            self._heard = max(self._heard, self._range.high_watermark)
            self.start_offset = self._place.offset
            self._count.report(self._place, self._range)
        assert self._place is not None, "C6: a resolved reader has a place"
        if self._range.end is not None and self._place.offset >= self._range.end:
            return None
        arrival = await self._route.to_records(
            self._place.incarnation, behind=self._place.offset < self._heard
        )
        self._pipeline = FetchPipeline(
            link=arrival.link,
            stream=self.stream,
            place=self._place,
            bounds=ReadBounds(self._range.end, self._heard, arrival.step.leaves),
            settings=replace(
                _fetch_settings(self._settings.fetch, arrival), short_circuit=not self._was_away
            ),
            selection=self._wanted.wanted,
        )
        self._was_away = False
        return self._pipeline

    def _go_by_socket(self) -> None:
        """Ask the same node once more for what could not be read where it lies, and go on so."""
        self._was_away = True
        self._decoded = iter(())
        self._drop_pipeline()

    async def _back_off(self, error: JetstreamError, *, damaged: bool) -> None:
        """Drop the fetches under way and wait, longer each time, or raise if another attempt is no use.

        A batch that arrived damaged may be whole at the node: it is asked for again, over a new connection.
        """
        self._decoded = iter(())
        if self._pipeline is not None and damaged:
            self._pipeline.break_off()
        elif self._pipeline is not None and self._pipeline.is_served:
            self._failing_since, self._attempts = None, 0  # what waited at the end had recovered, too
        self._drop_pipeline()
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        self._damaged += damaged
        retriable = self._route.failed(error)
        start = self._wanted.start
        is_looked_up = named_offset(start) is None and start != "latest"
        if isinstance(error, OffsetOutOfRange) and not self._begun and is_looked_up:
            self._range, retriable = None, True  # retention was first: the place is another one now
        again = self._damaged < _DAMAGED_MAX if damaged else retriable
        if not again or now - self._failing_since >= self._settings.retry_s:
            self._finish()
            raise error
        longest = min(_BACKOFF_S_MAX, _BACKOFF_S_MIN * 2**self._attempts)
        self._attempts = min(self._attempts + 1, 16)
        await asyncio.sleep(random.uniform(longest / 2, longest))  # noqa: S311 - spreads reconnects, no secret

    def _decode(self, fetched: FetchedRange) -> Iterator[_Decoded]:
        """Yield the verified, trimmed batches of a range; the next range is on its way meanwhile."""
        assert self._range is not None, "C6: a resolved reader has a range"
        assert self._place is not None, "C6: a reader that decodes has a place"
        end, end_timestamp = self._range.end, self._range.end_timestamp
        # Of what the node has left out only its response tells the time.
        latest = fetched.response.max_timestamp
        passed = end_timestamp is not None and latest is not None and latest >= end_timestamp
        start: Offset | None = None
        wanted = self._place.offset
        for header, stored in merged_batches(fetched.body, max(_RUN_ROWS, self._settings.batch_rows)):
            if not header.base <= wanted < header.next or (start is not None and header.base != start):
                raise RemoteProtocolError(
                    f"wanted offset {wanted}, got the batch [{header.base}, {header.next})"
                )
            if header.leader_epoch != fetched.response.epoch:
                raise RemoteProtocolError(
                    f"the batch [{header.base}, {header.next}) is of leader epoch {header.leader_epoch}, "
                    f"the response says {fetched.response.epoch}"
                )
            is_whole = wanted == header.base and (end is None or header.next <= end)
            in_range = stored if is_whole else trimmed(stored, wanted, end)
            start = wanted = header.next
            records = in_range if end_timestamp is None else before(in_range, end_timestamp)
            ended = passed or records.num_rows < in_range.num_rows or (end is not None and header.next >= end)
            reached = header.next if end is None else min(header.next, end)
            if records.num_rows < in_range.num_rows:
                reached = Offset(in_range.column(0)[records.num_rows].as_py())
            yield _Decoded(records, reached, header.leader_epoch, ended)
            if ended:
                return
        response = fetched.response
        if start is None and response.records == 0:  # the node has left everything out
            reached = Offset(response.next_offset if end is None else min(response.next_offset, end))
            yield _Decoded(NO_RECORDS, reached, LeaderEpoch(response.epoch), passed or reached == end)
        elif start != response.next_offset:
            raise CorruptDataError(f"a body ends at offset {start}, not at {fetched.response.next_offset}")

    def _drop_pipeline(self) -> None:
        if self._pipeline is not None:
            self._heard = max(self._heard, self._pipeline.high_watermark)
            self._pipeline.stop()
            self._pipeline = None

    def _finish(self) -> None:
        self._finished = True
        self._decoded = iter(())
        self._drop_pipeline()


def _traced(records: pa.RecordBatch, stream: str, asked_ns: int) -> pa.RecordBatch:
    """Return ``records``; if they were asked for while tracing was on, with a span."""
    if asked_ns and TRACING.tracer is not None:
        TRACING.tracer.received(stream, records, asked_ns)
    return records


def _together(decoded: Iterator[_Decoded], rows: int) -> Iterator[_Decoded]:
    """Yield the same with small batches put together: of fewer than ``rows`` and of `_SMALL_BYTES`.

    All are of one response, so of one epoch.
    """
    small: list[_Decoded] = []
    count = 0
    failure: JetstreamError | None = None
    while True:
        try:
            each = next(decoded, None)
        except JetstreamError as error:
            each, failure = None, error
        is_small = each is not None and _is_small(each.records, rows)
        if small and (not is_small or count >= rows):
            yield _merged(small)
            small, count = [], 0
        if failure is not None:
            raise failure
        if each is None:
            return
        if is_small:
            small.append(each)
            count += each.records.num_rows
        else:
            yield each


def _is_small(records: pa.RecordBatch, rows: int) -> bool:
    return records.num_rows < rows and records.get_total_buffer_size() < _SMALL_BYTES


def _merged(several: Sequence[_Decoded]) -> _Decoded:
    if len(several) == 1:
        return several[0]
    merged = pa.Table.from_batches([each.records for each in several], SCHEMA).combine_chunks().to_batches()
    return replace(several[-1], records=merged[0] if merged else NO_RECORDS)


def _fetch_settings(fetch: FetchSettings, arrival: Arrival) -> FetchSettings:
    wait_ms_max = arrival.step.wait_ms_max
    if wait_ms_max is None:
        return fetch
    return replace(fetch, max_wait_ms=min(fetch.max_wait_ms, wait_ms_max))


class RecordReader:
    """Yields `Record` objects, one by one.

    Invariant:
        C7: ``next_offset`` is the offset after the last record yielded.
    """

    def __init__(self, batches: BatchReader) -> None:
        """Read through ``batches``, which is this reader's from now on."""
        self._batches = batches
        self._records: Iterator[Record] = iter(())
        self._last: Record | None = None
        """The last record yielded, of the batch that is at hand."""
        self._first_offset: Offset | None = None
        """Of this batch."""

    @property
    def stream(self) -> str:
        """The stream that is read."""
        return self._batches.stream

    @property
    def next_offset(self) -> Offset | None:
        """The offset after the last record yielded: store it, and start there to go on.

        None until the start is known.
        """
        if self._last is not None:
            return Offset(self._last.offset + 1)
        return self._batches.next_offset if self._first_offset is None else self._first_offset

    @property
    def last_epoch(self) -> LeaderEpoch | None:
        """Leader epoch of the batch that the last record came in."""
        return self._batches.last_epoch

    @property
    def incarnation(self) -> Incarnation | None:
        """Which life of the stream is read: store it beside the offset, and name it to go on."""
        return self._batches.incarnation

    @property
    def high_watermark(self) -> Offset | None:
        """The end of the committed records, as a node reported it last."""
        return self._batches.high_watermark

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """Return the next record; raises what `BatchReader.__anext__` raises."""
        while True:
            record = next(self._records, None)
            if record is not None:
                self._last = record
                return record
            self._last = self._first_offset = None
            batch = await anext(self._batches)
            epoch = self._batches.last_epoch
            assert epoch is not None, "C7: a batch has an epoch"
            self._records = records_of(batch, epoch, self.stream)
            self._first_offset = Offset(batch.column(0)[0].as_py())

    async def aclose(self) -> None:
        """Stop reading."""
        self._records = iter(())
        await self._batches.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
