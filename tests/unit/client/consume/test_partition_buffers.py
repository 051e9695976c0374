"""What waits for the application, what is in its hands, and what of that is processed."""

import pytest

from envelope.errors import OffsetOutOfRange, RequestError
from envelope.types import LeaderEpoch, Offset
from jetstream.client.consume.partition_buffers import (
    Delivery,
    PartitionBuffer,
    PartitionBuffers,
    RecordChunk,
)
from jetstream.client.read.records import RECORDS_AT_ONCE
from tests.support.group_membership import claim
from tests.support.sockets import records_batch


def chunk(start: int, rows: int, end: int | None = None) -> RecordChunk:
    """Return records ``start``, … of which those up to ``end`` that follow were left out."""
    return RecordChunk(
        records_batch(start, [b"v"] * rows),
        Offset(start + rows if end is None else end),
        LeaderEpoch(1),
    )


def a_lane(buffers: PartitionBuffers, number: int = 0, start: int = 0) -> PartitionBuffer:
    buffer = buffers.open(claim(number, 1), f"orders/{number}")
    buffer.has_read_to(Offset(start))
    return buffer


def taken(buffers: PartitionBuffers, rows_max: int | None = None) -> Delivery:
    delivery = buffers.take(rows_max)
    assert delivery is not None
    return delivery


def offsets(delivery: Delivery, count: int) -> list[int]:
    records = [delivery.next() for _ in range(count)]
    return [record.offset for record in records if record is not None]


def test_a_record_is_processed_when_the_next_one_is_asked_for() -> None:
    buffers = PartitionBuffers()
    buffer = a_lane(buffers)
    buffers.put(buffer, chunk(0, 2, end=9))
    delivery = taken(buffers)
    seen = []
    for _ in range(3):
        delivery.next()
        seen.append((buffer.processed, buffer.position))
    assert seen == [(0, 1), (1, 9), (9, 9)]
    assert buffers.finish(delivery) == 2
    assert buffer.processed == 9


def test_records_are_made_a_part_of_a_batch_at_a_time() -> None:
    buffers = PartitionBuffers()
    count = 2 * RECORDS_AT_ONCE + 1
    buffers.put(a_lane(buffers), chunk(0, count))
    delivery = taken(buffers)
    assert offsets(delivery, RECORDS_AT_ONCE + 1) == list(range(RECORDS_AT_ONCE + 1))
    assert offsets(delivery, count) == list(range(RECORDS_AT_ONCE + 1, count))
    assert delivery.next() is None


def test_a_record_that_counts_at_once_is_processed_when_it_is_handed_out() -> None:
    buffers = PartitionBuffers(counts_at_once=True)
    buffer = a_lane(buffers)
    buffers.put(buffer, chunk(0, 2))
    offsets(taken(buffers), 1)
    assert (buffer.processed, buffer.position) == (1, 1)


def test_a_batch_is_processed_when_the_next_one_is_asked_for() -> None:
    buffers = PartitionBuffers()
    buffer = a_lane(buffers)
    buffers.put(buffer, chunk(0, 4))
    delivery = taken(buffers)
    offsets(delivery, 1)
    rest = delivery.rest()
    assert rest is not None
    assert rest.column(0).to_pylist() == [1, 2, 3]
    assert (buffer.processed, buffer.position) == (1, 4)
    assert delivery.next() is None
    assert buffer.processed == 4


def test_pieces_of_a_batch_that_was_taken_back_stay_in_order() -> None:
    buffers = PartitionBuffers()
    buffer = a_lane(buffers)
    buffers.put(buffer, chunk(0, 9))
    first = taken(buffers, 5)
    offsets(first, 2)
    buffers.pause(buffer, is_paused=True)
    first.next()
    buffers.finish(first)
    buffers.pause(buffer, is_paused=False)
    seen = []
    while (delivery := buffers.take(2)) is not None:
        seen += offsets(delivery, 3)
        buffers.finish(delivery)
    assert seen == [2, 3, 4, 5, 6, 7, 8]


def test_a_batch_that_is_taken_back_is_not_handed_out() -> None:
    buffers = PartitionBuffers()
    buffer = a_lane(buffers)
    buffers.put(buffer, chunk(0, 4))
    delivery = taken(buffers)
    buffers.stop(buffer)
    assert delivery.rest() is None


def test_what_is_finished_hands_out_nothing_more_and_counts_once() -> None:
    buffers = PartitionBuffers()
    buffer = a_lane(buffers)
    buffers.put(buffer, chunk(0, 4))
    delivery = taken(buffers)
    offsets(delivery, 2)
    assert buffers.finish(delivery) == 1
    assert delivery.next() is None
    assert buffers.finish(delivery) == 0
    assert buffer.processed == 1
    assert [each.batch.num_rows for each in buffer.chunks] == [3]


def test_what_is_in_hand_of_a_partition_that_is_given_up_does_not_come_back() -> None:
    buffers = PartitionBuffers()
    buffer = a_lane(buffers)
    buffers.put(buffer, chunk(0, 4))
    delivery = taken(buffers)
    offsets(delivery, 2)
    buffers.stop(buffer)
    assert not buffer.is_idle.is_set()
    buffers.pause(buffer, is_paused=True)
    buffers.pause(buffer, is_paused=False)
    assert delivery.next() is None
    buffers.finish(delivery)
    assert buffer.is_idle.is_set()
    assert (buffer.processed, len(buffer.chunks)) == (2, 0)
    assert buffers.take() is None


def test_what_was_read_and_dropped_is_not_processed() -> None:
    buffers = PartitionBuffers()
    buffer = a_lane(buffers)
    buffers.put(buffer, chunk(0, 4))
    buffer.has_read_to(Offset(4))
    assert buffer.processed == 0
    buffers.stop(buffer)
    assert buffer.processed == 0


def test_what_was_left_out_is_processed_once_nothing_waits_before_it() -> None:
    buffers = PartitionBuffers()
    buffer = a_lane(buffers)
    buffers.put(buffer, chunk(0, 1))
    delivery = taken(buffers)
    buffer.has_read_to(Offset(70))
    offsets(delivery, 2)
    assert buffer.processed == 1
    buffers.finish(delivery)
    assert buffer.processed == 70
    buffers.stop(buffer)
    assert buffer.processed == 70


def test_partitions_take_turns_batch_by_batch() -> None:
    buffers = PartitionBuffers()
    several = [a_lane(buffers, number) for number in range(3)]
    for buffer in several:
        buffers.put(buffer, chunk(0, 3))
    turns = []
    for _ in range(9):
        delivery = taken(buffers, 2)
        offsets(delivery, 3)
        buffer = delivery.buffer
        turns.append(buffer.claim.partition.number)
        if not buffer.chunks:
            buffers.put(buffer, chunk(buffer.position or 0, 3))
        buffers.finish(delivery)
    assert turns == [0, 0, 1, 1, 2, 2, 0, 0, 1]


def test_a_failure_is_raised_behind_what_came_before_it_until_the_place_is_another() -> None:
    buffers = PartitionBuffers()
    buffer = a_lane(buffers)
    buffers.put(buffer, chunk(0, 1))
    buffers.fail(buffer, OffsetOutOfRange("gone"))
    delivery = taken(buffers)
    offsets(delivery, 2)
    buffers.finish(delivery)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRange):
            buffers.take()
    buffers.seek(buffer, Offset(50))
    assert buffers.take() is None
    assert (buffer.position, buffer.processed) == (50, 50)
    buffers.fail(buffer, OffsetOutOfRange("gone"))
    buffers.stop(buffer)
    assert buffers.take() is None


def test_what_was_in_hand_when_another_place_was_sought_counts_for_nothing() -> None:
    buffers = PartitionBuffers()
    buffer = a_lane(buffers)
    buffers.put(buffer, chunk(0, 4))
    delivery = taken(buffers)
    offsets(delivery, 2)
    buffers.seek(buffer, Offset(50))
    assert delivery.next() is None
    assert buffers.finish(delivery) == 0
    assert buffer.processed == 50


def test_a_partition_that_is_not_assigned_is_named() -> None:
    with pytest.raises(RequestError, match="orders/9"):
        PartitionBuffers().assigned("orders/9")


def test_what_the_application_works_on_changes_with_every_record() -> None:
    buffers = PartitionBuffers()
    assert buffers.worked_on() is None
    for number in range(2):
        buffers.put(a_lane(buffers, number), chunk(0, 2))
    works = []
    for _ in range(2):
        delivery = taken(buffers)
        assert buffers.worked_on() is None, "nothing of it is handed out yet"
        for _ in range(2):
            delivery.next()
            works.append(buffers.worked_on())
        assert delivery.next() is None
        buffers.finish(delivery)
    assert None not in works
    assert len(set(works)) == 4
    assert buffers.worked_on() is None
