"""What waits for the application, what is in its hands, and what of that is processed."""

import pytest

from envelope.errors import OffsetOutOfRange, RequestError
from envelope.types import LeaderEpoch, Offset
from jetstream.client.consume.lanes import Delivery, PartitionBuffer, PartitionBuffers, RecordChunk
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


def a_lane(lanes: PartitionBuffers, number: int = 0, start: int = 0) -> PartitionBuffer:
    lane = lanes.open(claim(number, 1), f"orders/{number}")
    lane.has_read_to(Offset(start))
    return lane


def taken(lanes: PartitionBuffers, rows_max: int | None = None) -> Delivery:
    delivery = lanes.take(rows_max)
    assert delivery is not None
    return delivery


def offsets(delivery: Delivery, count: int) -> list[int]:
    records = [delivery.next() for _ in range(count)]
    return [record.offset for record in records if record is not None]


def test_a_record_is_processed_when_the_next_one_is_asked_for() -> None:
    lanes = PartitionBuffers()
    lane = a_lane(lanes)
    lanes.put(lane, chunk(0, 2, end=9))
    delivery = taken(lanes)
    seen = []
    for _ in range(3):
        delivery.next()
        seen.append((lane.processed, lane.position))
    assert seen == [(0, 1), (1, 9), (9, 9)]
    assert lanes.finish(delivery) == 2
    assert lane.processed == 9


def test_records_are_made_a_part_of_a_batch_at_a_time() -> None:
    lanes = PartitionBuffers()
    count = 2 * RECORDS_AT_ONCE + 1
    lanes.put(a_lane(lanes), chunk(0, count))
    delivery = taken(lanes)
    assert offsets(delivery, RECORDS_AT_ONCE + 1) == list(range(RECORDS_AT_ONCE + 1))
    assert offsets(delivery, count) == list(range(RECORDS_AT_ONCE + 1, count))
    assert delivery.next() is None


def test_a_record_that_counts_at_once_is_processed_when_it_is_handed_out() -> None:
    lanes = PartitionBuffers(counts_at_once=True)
    lane = a_lane(lanes)
    lanes.put(lane, chunk(0, 2))
    offsets(taken(lanes), 1)
    assert (lane.processed, lane.position) == (1, 1)


def test_a_batch_is_processed_when_the_next_one_is_asked_for() -> None:
    lanes = PartitionBuffers()
    lane = a_lane(lanes)
    lanes.put(lane, chunk(0, 4))
    delivery = taken(lanes)
    offsets(delivery, 1)
    rest = delivery.rest()
    assert rest is not None
    assert rest.column(0).to_pylist() == [1, 2, 3]
    assert (lane.processed, lane.position) == (1, 4)
    assert delivery.next() is None
    assert lane.processed == 4


def test_pieces_of_a_batch_that_was_taken_back_stay_in_order() -> None:
    lanes = PartitionBuffers()
    lane = a_lane(lanes)
    lanes.put(lane, chunk(0, 9))
    first = taken(lanes, 5)
    offsets(first, 2)
    lanes.pause(lane, is_paused=True)
    first.next()
    lanes.finish(first)
    lanes.pause(lane, is_paused=False)
    seen = []
    while (delivery := lanes.take(2)) is not None:
        seen += offsets(delivery, 3)
        lanes.finish(delivery)
    assert seen == [2, 3, 4, 5, 6, 7, 8]


def test_a_batch_that_is_taken_back_is_not_handed_out() -> None:
    lanes = PartitionBuffers()
    lane = a_lane(lanes)
    lanes.put(lane, chunk(0, 4))
    delivery = taken(lanes)
    lanes.stop(lane)
    assert delivery.rest() is None


def test_what_is_finished_hands_out_nothing_more_and_counts_once() -> None:
    lanes = PartitionBuffers()
    lane = a_lane(lanes)
    lanes.put(lane, chunk(0, 4))
    delivery = taken(lanes)
    offsets(delivery, 2)
    assert lanes.finish(delivery) == 1
    assert delivery.next() is None
    assert lanes.finish(delivery) == 0
    assert lane.processed == 1
    assert [each.batch.num_rows for each in lane.chunks] == [3]


def test_what_is_in_hand_of_a_partition_that_is_given_up_does_not_come_back() -> None:
    lanes = PartitionBuffers()
    lane = a_lane(lanes)
    lanes.put(lane, chunk(0, 4))
    delivery = taken(lanes)
    offsets(delivery, 2)
    lanes.stop(lane)
    assert not lane.is_idle.is_set()
    lanes.pause(lane, is_paused=True)
    lanes.pause(lane, is_paused=False)
    assert delivery.next() is None
    lanes.finish(delivery)
    assert lane.is_idle.is_set()
    assert (lane.processed, len(lane.chunks)) == (2, 0)
    assert lanes.take() is None


def test_what_was_read_and_dropped_is_not_processed() -> None:
    lanes = PartitionBuffers()
    lane = a_lane(lanes)
    lanes.put(lane, chunk(0, 4))
    lane.has_read_to(Offset(4))
    assert lane.processed == 0
    lanes.stop(lane)
    assert lane.processed == 0


def test_what_was_left_out_is_processed_once_nothing_waits_before_it() -> None:
    lanes = PartitionBuffers()
    lane = a_lane(lanes)
    lanes.put(lane, chunk(0, 1))
    delivery = taken(lanes)
    lane.has_read_to(Offset(70))
    offsets(delivery, 2)
    assert lane.processed == 1
    lanes.finish(delivery)
    assert lane.processed == 70
    lanes.stop(lane)
    assert lane.processed == 70


def test_partitions_take_turns_batch_by_batch() -> None:
    lanes = PartitionBuffers()
    several = [a_lane(lanes, number) for number in range(3)]
    for lane in several:
        lanes.put(lane, chunk(0, 3))
    turns = []
    for _ in range(9):
        delivery = taken(lanes, 2)
        offsets(delivery, 3)
        lane = delivery.lane
        turns.append(lane.claim.partition.number)
        if not lane.chunks:
            lanes.put(lane, chunk(lane.position or 0, 3))
        lanes.finish(delivery)
    assert turns == [0, 0, 1, 1, 2, 2, 0, 0, 1]


def test_a_failure_is_raised_behind_what_came_before_it_until_the_place_is_another() -> None:
    lanes = PartitionBuffers()
    lane = a_lane(lanes)
    lanes.put(lane, chunk(0, 1))
    lanes.fail(lane, OffsetOutOfRange("gone"))
    delivery = taken(lanes)
    offsets(delivery, 2)
    lanes.finish(delivery)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRange):
            lanes.take()
    lanes.seek(lane, Offset(50))
    assert lanes.take() is None
    assert (lane.position, lane.processed) == (50, 50)
    lanes.fail(lane, OffsetOutOfRange("gone"))
    lanes.stop(lane)
    assert lanes.take() is None


def test_what_was_in_hand_when_another_place_was_sought_counts_for_nothing() -> None:
    lanes = PartitionBuffers()
    lane = a_lane(lanes)
    lanes.put(lane, chunk(0, 4))
    delivery = taken(lanes)
    offsets(delivery, 2)
    lanes.seek(lane, Offset(50))
    assert delivery.next() is None
    assert lanes.finish(delivery) == 0
    assert lane.processed == 50


def test_a_partition_that_is_not_assigned_is_named() -> None:
    with pytest.raises(RequestError, match="orders/9"):
        PartitionBuffers().assigned("orders/9")


def test_what_the_application_works_on_changes_with_every_record() -> None:
    lanes = PartitionBuffers()
    assert lanes.worked_on() is None
    for number in range(2):
        lanes.put(a_lane(lanes, number), chunk(0, 2))
    works = []
    for _ in range(2):
        delivery = taken(lanes)
        assert lanes.worked_on() is None, "nothing of it is handed out yet"
        for _ in range(2):
            delivery.next()
            works.append(lanes.worked_on())
        assert delivery.next() is None
        lanes.finish(delivery)
    assert None not in works
    assert len(set(works)) == 4
    assert lanes.worked_on() is None
