"""Whatever comes between, records are handed out in order, and what is processed is what was asked behind."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from consumer_groups.assignment.partitions import Claim
from envelope.errors import OffsetOutOfRange
from envelope.types import LeaderEpoch, Offset
from jetstream.client.consume.partition_buffers import (
    Delivery,
    PartitionBuffer,
    PartitionBuffers,
    RecordChunk,
)
from tests.support.group_membership import claim
from tests.support.sockets import records_batch

LANES = 3


@dataclass
class Source:
    """What a lane's feed would read: ten times as many offsets as records, so that some are left out."""

    buffer: PartitionBuffer
    next_offset: int = 0
    expected: int = 0
    """What is to be handed out next, at least."""
    handed_out: list[int] = field(default_factory=list)
    stopped: bool = False


class Application:
    """Asks for records, as a consumer's user does."""

    def __init__(self, *, counts_at_once: bool) -> None:
        self.buffers = PartitionBuffers(counts_at_once=counts_at_once)
        self.at_once = counts_at_once
        self.sources: dict[Claim, Source] = {}
        self.delivery: Delivery | None = None
        self._generation = 0
        for number in range(LANES):
            self.open(number)

    def open(self, number: int) -> None:
        self._generation += 1
        fresh = claim(number, self._generation)
        buffer = self.buffers.open(fresh, f"orders/{number}")
        buffer.has_read_to(Offset(0))
        self.sources[fresh] = Source(buffer)

    def of(self, number: int) -> Source:
        return next(source for source in self.sources.values() if source.buffer.stream == f"orders/{number}")

    def put(self, number: int, rows: int) -> None:
        source = self.of(number)
        if source.buffer.chunks or source.stopped or source.buffer.failure is not None:
            return
        base = source.next_offset + 2  # the two before it are left out
        end = Offset(base + rows + 3)  # and so are the three behind it
        self.buffers.put(source.buffer, RecordChunk(records_batch(base, [b"v"] * rows), end, LeaderEpoch(1)))
        source.next_offset = end
        source.buffer.has_read_to(Offset(end + 1))

    def ask(self, rows_max: int | None, count: int) -> None:
        """Ask for records, one after the other."""
        for _ in range(count):
            record = None if self.delivery is None else self.delivery.next()
            if record is None:
                if self.delivery is not None:
                    self.buffers.finish(self.delivery)
                    self.buffers.finish(self.delivery)
                try:
                    self.delivery = self.buffers.take(rows_max)
                except OffsetOutOfRange:
                    self.delivery = None
                if self.delivery is None:
                    return
                self._look_at(self.delivery)
                record = self.delivery.next()
                assert record is not None
            self._has_seen(record.stream, [record.offset])

    def ask_for_batch(self, rows_max: int | None) -> None:
        batch: pa.RecordBatch | None = None if self.delivery is None else self.delivery.rest()
        if batch is None:
            if self.delivery is not None:
                self.buffers.finish(self.delivery)
            try:
                self.delivery = self.buffers.take(rows_max)
            except OffsetOutOfRange:
                self.delivery = None
            if self.delivery is None:
                return
            self._look_at(self.delivery)
            batch = self.delivery.rest()
            assert batch is not None
        assert self.delivery is not None
        self._has_seen(self.delivery.buffer.stream, batch.column(0).to_pylist())

    def _look_at(self, delivery: Delivery) -> None:
        buffer = delivery.buffer
        assert buffer.is_open
        assert not buffer.is_paused
        assert not buffer.is_idle.is_set()

    def _has_seen(self, stream: str, offsets: list[int | None]) -> None:
        assert self.delivery is not None
        source = self.sources[self.delivery.buffer.claim]
        for offset in offsets:
            assert offset is not None
            between = range(source.expected, offset)
            assert len(between) in (0, 2, 5), f"{between} are missing of {stream}"
            source.expected = offset + 1
            source.handed_out.append(offset)
        buffer = self.delivery.buffer
        if buffer.in_hand is self.delivery:
            assert buffer.position is not None
            assert buffer.position > source.handed_out[-1]

    def check(self) -> None:
        for source in self.sources.values():
            buffer = source.buffer
            if buffer not in self.buffers or buffer.processed is None or buffer.position is None:
                continue
            assert buffer.processed <= buffer.position
            is_in_hand = buffer.in_hand is not None and buffer.in_hand.rows_handed_out > 0
            last = source.handed_out[-1] if source.handed_out else -1
            assert buffer.position > last
            if is_in_hand and not self.at_once:
                assert buffer.processed <= last, "the record in hand is not processed"
            else:
                assert buffer.processed > last
            assert buffer.has_room.is_set() == (not buffer.chunks)
            assert buffer.is_idle.is_set() == (buffer.in_hand is None)

    def seek(self, number: int, offset: int | None) -> None:
        source = self.of(number)
        if source.stopped:
            return
        self.buffers.seek(source.buffer, None if offset is None else Offset(offset))
        place = offset or 0
        source.buffer.has_read_to(Offset(place))
        source.next_offset = source.expected = place
        source.handed_out.clear()

    def stop(self, number: int) -> None:
        source = self.of(number)
        source.stopped = True
        self.buffers.stop(source.buffer)

    def close(self, number: int) -> None:
        source = self.of(number)
        self.buffers.close(source.buffer)
        del self.sources[source.buffer.claim]
        if self.delivery is not None and self.delivery.buffer is source.buffer:
            assert self.delivery.next() is None
            self.delivery = None
        self.open(number)


Step = Callable[[Application], None]
buffers = st.integers(0, LANES - 1)
rows = st.sampled_from((None, 1, 2, 3))
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda number, count: lambda app: app.put(number, count), buffers, st.integers(1, 6)),
    st.builds(lambda number, count: lambda app: app.put(number, count), buffers, st.integers(1, 6)),
    st.builds(lambda most, count: lambda app: app.ask(most, count), rows, st.integers(1, 5)),
    st.builds(lambda most, count: lambda app: app.ask(most, count), rows, st.integers(1, 5)),
    st.builds(lambda most: lambda app: app.ask_for_batch(most), rows),
    st.builds(
        lambda number, is_paused: lambda app: app.buffers.pause(app.of(number).buffer, is_paused=is_paused),
        buffers,
        st.booleans(),
    ),
    st.builds(lambda number, at: lambda app: app.seek(number, at), buffers, st.sampled_from((None, 0, 7))),
    st.builds(lambda number: lambda app: app.stop(number), buffers),
    st.builds(lambda number: lambda app: app.close(number), buffers),
    st.builds(
        lambda number: lambda app: app.buffers.fail(app.of(number).buffer, OffsetOutOfRange("gone")), buffers
    ),
)


@given(st.booleans(), st.lists(steps, min_size=10, max_size=60))
def test_records_come_in_order_and_none_is_missing_whatever_comes_between(
    counts_at_once: bool, happens: list[Step]
) -> None:
    app = Application(counts_at_once=counts_at_once)
    for happen in happens:
        happen(app)
        app.check()
