"""Records that were read for a consumer and wait for the application.

Each partition has a buffer: a fetched batch that waits until the application asks for it. A single delivery,
of all buffers together, is in the application's hands. A record counts as processed when the next one is
asked for. A delivered record cannot be withdrawn; the rest of its batch can, and returns to its buffer when
the partition is to be given up, when it is paused, or when the application seeks another offset.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from consumer_groups.assignment.partitions import Claim
from envelope.errors import JetstreamError, RequestError
from envelope.types import LeaderEpoch, Offset
from jetstream.client.read.records import RECORDS_AT_ONCE, Record, records_from


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Records of a partition, in order; at least one."""

    batch: pa.RecordBatch
    end: Offset
    """The offset behind them, and behind what was left out there."""
    epoch: LeaderEpoch

    def cut(self, rows: int) -> tuple["RecordChunk", "RecordChunk"]:
        """Return the first ``rows`` of them, and the others; both have some."""
        assert 0 < rows < self.batch.num_rows, f"{rows} of {self.batch.num_rows}"
        middle = self.offset_after(rows)
        first = RecordChunk(self.batch.slice(0, rows), middle, self.epoch)
        return first, RecordChunk(self.batch.slice(rows), self.end, self.epoch)

    def offset_after(self, rows: int) -> Offset:
        """Return where one goes on that has the first ``rows`` of them; there is one at least."""
        if rows == self.batch.num_rows:
            return self.end
        return Offset(self.batch.column(0)[rows - 1].as_py() + 1)


@dataclass(slots=True, eq=False)
class PartitionBuffer:
    """A partition that is read for a group."""

    claim: Claim
    stream: str
    """The stream that it is: of a partitioned stream the partition, ``orders/2``."""
    counts_at_once: bool = False
    """Whether a record counts as processed when it is handed out."""
    place: Offset | None = None
    """After what is processed, or left out; None until it is known where reading begins."""
    read_to: Offset | None = None
    """The offset below which missing records were left out."""
    incarnation: str | None = None
    chunks: deque[RecordChunk] = field(default_factory=deque)
    """Chunks that wait to be handed out."""
    in_hand: "Delivery | None" = None
    failure: JetstreamError | None = None
    """Why nothing comes behind the chunks."""
    is_open: bool = True
    """Whether it is this member's to read."""
    is_paused: bool = False
    is_begun: bool = False
    """The chunks are what is left of a batch of which some was handed out."""
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    """The application was told of it, and where to begin is known."""
    has_room: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing waits: the next batch may be put here."""
    is_idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing of it is in the application's hands."""

    def __post_init__(self) -> None:
        self.has_room.set()
        self.is_idle.set()

    @property
    def processed(self) -> Offset | None:
        """The offset after the last processed record; None if it is not known where reading has begun."""
        return self._after(0 if self.in_hand is None else self.in_hand.rows_done)

    @property
    def position(self) -> Offset | None:
        """The offset after the last record handed out."""
        return self._after(0 if self.in_hand is None else self.in_hand.rows_handed_out)

    def _after(self, rows: int) -> Offset | None:
        if self.in_hand is not None:
            return self.in_hand.chunk.offset_after(rows) if rows else self.place
        if self.chunks or self.read_to is None:
            return self.place
        return max(self.read_to, self.place or self.read_to)

    def has_read_to(self, offset: Offset) -> None:
        """Record the offset up to which it was read, at first the offset where that begins."""
        self.read_to = offset
        if self.place is None:
            self.place = offset


class Delivery:
    """A chunk in the application's hands; used by one thread at a time.

    Invariant:
        C22: a row counts as processed only when the next one was asked for, or with ``commit="before"`` when
            it is handed out.
            Held by test_the_record_in_hand_is_committed_only_once_it_is_processed.
    """

    def __init__(self, buffer: PartitionBuffer, chunk: RecordChunk, number: int) -> None:
        """``number``: of the delivery, among those of its consumer."""
        self.buffer = buffer
        self.chunk = chunk
        self.number = number
        self.rows_handed_out = 0
        self.rows_processed = 0
        self.is_taken_back = False
        """Nothing more of it is to be handed out."""
        self._rows = chunk.batch.num_rows
        self._records: list[Record] = []
        """Those that were made together with the one handed out last."""

    @property
    def rows_done(self) -> int:
        """How many rows count as processed."""
        return self.rows_handed_out if self.buffer.counts_at_once else self.rows_processed

    def next(self) -> Record | None:
        """Return the next record; None if there is none, or none is to be handed out any more."""
        self.rows_processed = self.rows_handed_out  # C22: it is asked for
        if self.is_taken_back or self.rows_handed_out == self._rows:
            return None
        row = self.rows_handed_out % RECORDS_AT_ONCE
        if not row:
            chunk = self.chunk
            self._records = records_from(chunk.batch, self.rows_handed_out, chunk.epoch, self.buffer.stream)
        record = self._records[row]
        # An interrupt comes with a call or a jump, and there is none between this and the return.
        self.rows_handed_out += 1
        return record

    def rest(self) -> pa.RecordBatch | None:
        """Return all records that were not handed out; None as `next`."""
        self.rows_processed = self.rows_handed_out
        if self.is_taken_back or self.rows_handed_out == self._rows:
            return None
        rest = self.chunk.batch.slice(self.rows_handed_out)
        self.rows_handed_out = self._rows
        return rest


class PartitionBuffers:
    """The buffers of one consumer.

    Invariants:
        C23: of one partition records are handed out in order, each once, from where its reading has begun.
        C24: nothing is handed out of a buffer that is closed, stopped or paused.
    """

    def __init__(self, *, counts_at_once: bool = False) -> None:
        """``counts_at_once``: whether a record counts as processed when it is handed out."""
        self._counts_at_once = counts_at_once
        self._buffers: dict[Claim, PartitionBuffer] = {}
        self._ready: dict[Claim, PartitionBuffer] = {}
        """Those with something to hand out, longest first."""
        self.has_ready = asyncio.Event()
        """Something can be taken."""
        self._taken = 0

    def __iter__(self) -> Iterator[PartitionBuffer]:
        return iter(tuple(self._buffers.values()))

    def __len__(self) -> int:
        return len(self._buffers)

    def open(self, claim: Claim, stream: str) -> PartitionBuffer:
        """Return a buffer for a claim that is new."""
        assert claim not in self._buffers, f"C23: {claim} is read already"
        buffer = self._buffers[claim] = PartitionBuffer(claim, stream, self._counts_at_once)
        return buffer

    def __contains__(self, buffer: PartitionBuffer) -> bool:
        return self._buffers.get(buffer.claim) is buffer

    def of(self, claims: Iterable[Claim]) -> list[PartitionBuffer]:
        """Return the buffers of claims that are read."""
        return [self._buffers[claim] for claim in claims]

    def assigned(self, stream: str) -> PartitionBuffer:
        """Return the buffer of a partition by the stream that it is.

        Raises:
            RequestError: it is not this member's.
        """
        for buffer in self._buffers.values():
            if buffer.stream == stream:
                return buffer
        raise RequestError(f"{stream[:256]!r} is not assigned to this consumer")

    def worked_on(self) -> tuple[int, int] | None:
        """Return numbers of the application's current record that change with it; None: it has none."""
        in_hand = (buffer.in_hand for buffer in self._buffers.values() if buffer.in_hand is not None)
        worked_on = ((each.number, each.rows_handed_out) for each in in_hand if each.rows_handed_out > 0)
        return next(worked_on, None)

    def put(self, buffer: PartitionBuffer, chunk: RecordChunk) -> None:
        """Let what has come wait until the application asks; a buffer takes one chunk at a time."""
        assert not buffer.chunks, f"C23: {buffer.claim} has no room"
        buffer.chunks.append(chunk)
        buffer.has_room.clear()
        self._settle(buffer)

    def fail(self, buffer: PartitionBuffer, failure: JetstreamError) -> None:
        """Raise ``failure`` where the application asks for what comes next of this partition."""
        buffer.failure = failure
        self._settle(buffer)

    def take(self, rows_max: int | None = None) -> Delivery | None:
        """Return the next delivery, ``rows_max`` records at most; None if nothing has come.

        Raises:
            JetstreamError: a partition cannot be read on; again and again, until it is sought or given up.
        """
        buffer = next(iter(self._ready.values()), None)
        if buffer is None:
            return None
        if not buffer.chunks:
            assert buffer.failure is not None, "C24: what is ready has something to hand out"
            raise buffer.failure
        chunk = buffer.chunks.popleft()
        if rows_max is not None and chunk.batch.num_rows > rows_max:
            chunk, rest = chunk.cut(rows_max)
            buffer.chunks.appendleft(rest)
        buffer.is_begun = bool(buffer.chunks)
        self._taken += 1
        buffer.in_hand = Delivery(buffer, chunk, self._taken)
        buffer.is_idle.clear()
        if not buffer.chunks:
            buffer.has_room.set()
        self._settle(buffer)
        return buffer.in_hand

    def finish(self, delivery: Delivery) -> int:
        """Return a delivery's rest to its buffer; return how many rows of it were processed."""
        buffer = delivery.buffer
        delivery.is_taken_back = True
        if buffer.in_hand is not delivery:
            return 0  # it was taken back before, or its buffer is closed or somewhere else
        chunk, rows = delivery.chunk, delivery.rows_done
        buffer.place = buffer.processed
        buffer.in_hand = None
        buffer.is_idle.set()
        if buffer.is_open and rows < chunk.batch.num_rows:
            buffer.chunks.appendleft(chunk.cut(rows)[1] if rows else chunk)
            buffer.has_room.clear()
        self._settle(buffer)
        return rows

    def stop(self, buffer: PartitionBuffer) -> None:
        """Hand out nothing more of it; a delivery in hand is not affected. It is still this member's."""
        buffer.is_open = False
        self._empty(buffer)

    def close(self, buffer: PartitionBuffer) -> None:
        """Forget a buffer; what is in hand of it counts for nothing any more."""
        self.stop(buffer)
        self._let_go(buffer)
        self._buffers.pop(buffer.claim, None)

    def seek(self, buffer: PartitionBuffer, place: Offset | None) -> None:
        """Begin somewhere else; None: where that is will be told."""
        self._empty(buffer)
        self._let_go(buffer)
        buffer.place, buffer.read_to, buffer.failure = place, None, None
        self._settle(buffer)

    def pause(self, buffer: PartitionBuffer, *, is_paused: bool) -> None:
        """Hand out nothing of it for the time being, or go on."""
        buffer.is_paused = is_paused
        if buffer.in_hand is not None:
            buffer.in_hand.is_taken_back = is_paused or not buffer.is_open
        self._settle(buffer)

    def _empty(self, buffer: PartitionBuffer) -> None:
        if buffer.in_hand is None:
            buffer.place = buffer.processed
        buffer.read_to = None  # what is dropped now was read, and not processed
        buffer.chunks.clear()
        buffer.is_begun = False
        buffer.has_room.set()
        if buffer.in_hand is not None:
            buffer.in_hand.is_taken_back = True
        self._settle(buffer)

    def _let_go(self, buffer: PartitionBuffer) -> None:
        buffer.in_hand = None
        buffer.is_idle.set()

    def _settle(self, buffer: PartitionBuffer) -> None:
        """Add the buffer to the ready ones, last unless a batch of it is begun, or remove it."""
        something = bool(buffer.chunks) or buffer.failure is not None
        if not (something and buffer.is_open and not buffer.is_paused and buffer.in_hand is None):
            self._ready.pop(buffer.claim, None)
        elif buffer.is_begun:
            self._ready = {buffer.claim: buffer, **self._ready}
        else:
            self._ready.setdefault(buffer.claim, buffer)
        if self._ready:
            self.has_ready.set()
        else:
            self.has_ready.clear()
