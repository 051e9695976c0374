import pytest

from envelope.spark_errors import DataLoss
from jetstream.spark.reading.offsets import Offsets, StreamOffset, decode_offsets, encode_offsets
from jetstream.spark.reading.planning import (
    READ_ALL,
    MicroBatches,
    MicroBatchLimit,
    StreamBounds,
    byte_shares,
    checked_ranges,
    cut_offsets,
    next_offsets,
    resumed_offsets,
    shared_out,
    starting_offsets,
)
from tests.support.spark_plans import (
    ACCEPT,
    GONE,
    RECREATED,
    REMOVED,
    at,
    begun,
    bounds,
    options,
    recreated,
    span,
)

# --- where the next batch begins -------------------------------------------------------------------------


def test_streams_go_on_where_they_were() -> None:
    now = bounds(orders=(0, 100), shop=(7, 7))
    resumed = resumed_offsets(at(orders=5, shop=7), now, {}, fail_on_data_loss=True)
    assert resumed == (at(orders=5, shop=7), [])


def test_streams_that_come_later_begin_at_their_earliest_record() -> None:
    now = bounds(orders=(0, 100), shop=(7, 90))
    resumed, warnings = resumed_offsets(at(orders=5), now, {}, fail_on_data_loss=True)
    assert resumed == at(orders=5) | begun("shop", 7, 7)
    assert not warnings


def test_the_first_batch_begins_where_the_options_say() -> None:
    now = bounds(orders=(0, 100))
    resumed, _ = resumed_offsets({}, now, at(orders=100), fail_on_data_loss=True)
    assert resumed == begun("orders", 100, 100)


RESUMED_LOSSES = [
    pytest.param({}, {}, GONE, {"offset": 5, "incarnation": "orders-1"}, id="gone"),
    pytest.param(
        recreated(bounds(orders=(2, 100)), "orders"),
        {"orders": StreamOffset("orders-2", 2, 2)},
        RECREATED,
        {"offset": 5, "incarnation": "orders-1", "current_incarnation": "orders-2"},
        id="re-created",
    ),
    pytest.param(
        bounds(orders=(30, 100)),
        begun("orders", 30, 30),
        REMOVED,
        {"offset": 5, "log_start_offset": 30},
        id="removed",
    ),
    pytest.param(
        bounds(orders=(0, 4)),
        begun("orders", 4, 4),
        "orders: offset 5 is beyond the high watermark 4: the stream went backwards, or never had it",
        {"offset": 5, "high_watermark": 4},
        id="cut",
    ),
]


@pytest.mark.parametrize(("now", "places", "problem", "numbers"), RESUMED_LOSSES)
def test_a_loss_stops_a_query_before_its_next_batch_or_is_passed_over(
    now: dict[str, StreamBounds], places: Offsets, problem: str, numbers: dict[str, int | str]
) -> None:
    with pytest.raises(DataLoss) as lost:
        resumed_offsets(at(orders=5), now, {}, fail_on_data_loss=True)
    assert lost.value.description == problem + ACCEPT
    assert lost.value.detail == {"stream": "orders"} | numbers
    assert resumed_offsets(at(orders=5), now, {}, fail_on_data_loss=False) == (places, [problem])


def test_a_checkpoint_of_other_streams_is_a_loss() -> None:
    with pytest.raises(
        DataLoss, match="orders: the checkpoint is at 5, and it is deleted, or not among the streams"
    ):
        resumed_offsets(at(orders=5), bounds(shop=(0, 9)), {}, fail_on_data_loss=True)


# --- how much it reads -----------------------------------------------------------------------------------


def test_without_limits_all_is_read() -> None:
    now = bounds(orders=(0, 100), shop=(0, 9))
    assert next_offsets(at(orders=5, shop=9), now, READ_ALL) == at(orders=100, shop=9)


def test_a_limit_is_shared_in_proportion_to_what_each_stream_has() -> None:
    now = bounds(big=(0, 900), small=(0, 100), none=(0, 5))
    start = at(big=0, small=0, none=5)
    assert next_offsets(start, now, MicroBatchLimit(max_offsets=100)) == at(big=90, small=10, none=5)


def test_a_small_stream_is_not_starved() -> None:
    now = bounds(big=(0, 1_000_000), small=(0, 1))
    assert next_offsets(at(big=0, small=0), now, MicroBatchLimit(max_offsets=10)) == at(big=9, small=1)


def test_with_a_limit_below_the_number_of_streams_all_have_their_turn() -> None:
    now = bounds(a=(0, 50), b=(0, 50), c=(0, 50))
    place = at(a=0, b=0, c=0)
    for rounds in range(1, 6):
        for _ in range(3):
            place = next_offsets(place, now, MicroBatchLimit(max_offsets=1))
        assert place == at(a=rounds, b=rounds, c=rounds)


def test_too_little_waits_until_there_is_enough_or_it_has_waited_long_enough() -> None:
    limit = MicroBatchLimit(min_offsets=10, max_delay_s=60)
    nine, ten = bounds(orders=(0, 5), shop=(0, 4)), bounds(orders=(0, 5), shop=(0, 5))
    start = at(orders=0, shop=0)
    assert next_offsets(start, nine, limit, waited_s=59.9) == start
    assert next_offsets(start, nine, limit, waited_s=60) == at(orders=5, shop=4)
    assert next_offsets(start, ten, limit, waited_s=0) == at(orders=5, shop=5)


def test_what_is_shared_out_is_the_limit_or_all() -> None:
    assert shared_out(10, {}) == {}
    assert shared_out(10, {"a": 4, "b": 6}) == {"a": 4, "b": 6}
    assert shared_out(7, {"a": 1, "b": 10, "c": 20}) == {"a": 1, "b": 2, "c": 4}
    assert shared_out(10, {"a": 1, "b": 100, "c": 899}) == {"a": 1, "b": 1, "c": 8}
    assert shared_out(2, {"a": 9, "b": 9, "c": 9}, turn=4) == {"b": 1, "c": 1}
    assert shared_out(2, {"a": 9, "b": 9, "c": 9}, turn=2) == {"c": 1, "a": 1}


# --- the micro-batches of a query ------------------------------------------------------------------------


def test_a_first_batch_writes_down_where_it_begins() -> None:
    """Asked again after a crash, "latest" would be elsewhere, and the records between would be left out."""
    batches = MicroBatches(options({"maxOffsetsPerTrigger": "10"}))
    now = bounds(orders=(0, 100))
    begin = starting_offsets(options({"startingOffsets": "earliest"}), now, {})
    end = decode_offsets(encode_offsets(batches.next({}, now, 0.0, joining=begin).offsets))
    assert end == begun("orders", 0, 10)
    later = bounds(orders=(0, 170))
    assert checked_ranges({}, end, later, fail_on_data_loss=True)[0] == [span("orders", 0, 10)]
    assert batches.next(end, later, 1.0).offsets == at(orders=20)


def test_a_first_batch_at_the_latest_offset_writes_that_down() -> None:
    batches, now = MicroBatches(options()), bounds(orders=(0, 100))
    begin = starting_offsets(options(), now, {})
    end = batches.next({}, now, 0.0, joining=begin).offsets
    assert end == begun("orders", 100, 100)
    assert batches.next(end, bounds(orders=(0, 130)), 1.0).offsets == at(orders=130)


def test_a_stream_that_comes_later_is_read_from_its_first_record() -> None:
    batches = MicroBatches(options())
    end = batches.next(at(orders=100), bounds(orders=(0, 100), shop=(3, 9)), 0.0).offsets
    assert end == at(orders=100) | begun("shop", 3, 9)


def test_with_nothing_new_the_end_is_what_was_written_before() -> None:
    batches = MicroBatches(options())
    for start in (at(orders=100), begun("orders", 7, 100), {}):
        now = bounds(orders=(0, 100)) if start else {}
        assert batches.next(start, now, 0.0).offsets == start


def test_the_delay_counts_from_the_last_batch_that_has_read_something() -> None:
    batches = MicroBatches(options({"minOffsetsPerTrigger": "10", "maxTriggerDelay": "60s"}))

    def reached(start: int, end: int, now_s: float) -> int:
        return batches.next(at(orders=start), bounds(orders=(0, end)), now_s).offsets["orders"].offset

    assert reached(0, 0, 0.0) == 0, "there is nothing"
    assert reached(0, 3, 10.0) == 3, "the first records of a run do not wait"
    assert reached(3, 7, 69.0) == 3
    assert reached(3, 7, 70.0) == 7
    assert reached(7, 7, 100.0) == 7, "nothing is no batch"
    assert reached(7, 8, 129.0) == 7
    assert reached(7, 17, 129.0) == 17, "enough"
    assert reached(17, 18, 188.0) == 17
    assert reached(17, 18, 189.0) == 18


def test_all_at_once_has_no_limit() -> None:
    batches = MicroBatches(
        options({"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "20", "maxTriggerDelay": "1h"})
    )
    assert batches.next(at(orders=0), bounds(orders=(0, 5)), 0.0).offsets == at(orders=5)
    assert batches.next(at(orders=5), bounds(orders=(0, 9)), 1.0, read_all=True).offsets == at(orders=9)
    assert batches.next(at(orders=9), bounds(orders=(0, 99)), 2.0, read_all=True).offsets == at(orders=99)


def test_what_is_available_now_is_fixed_once() -> None:
    batches = MicroBatches(options({"maxOffsetsPerTrigger": "60"}))
    batches.prepare_available_now()
    place = at(orders=0)
    reached = []
    for end in (100, 130, 170, 200):
        place = batches.next(place, bounds(orders=(0, end)), float(end)).offsets
        reached.append(place["orders"].offset)
    assert reached == [60, 100, 100, 100]


def test_what_is_available_now_does_not_wait_for_more() -> None:
    batches = MicroBatches(options({"minOffsetsPerTrigger": "50", "maxOffsetsPerTrigger": "60"}))
    batches.prepare_available_now()
    place = batches.next(at(orders=0), bounds(orders=(0, 70)), 0.0).offsets
    assert batches.next(place, bounds(orders=(0, 70)), 0.1).offsets == at(orders=70)


def test_streams_and_lives_that_begin_later_are_not_available_now() -> None:
    batches = MicroBatches(options({"failOnDataLoss": "false"}))
    batches.prepare_available_now()
    now = bounds(orders=(0, 100), shop=(0, 5))
    place = batches.next({}, now, 0.0, joining=at(orders=0, shop=0)).offsets
    later = recreated(bounds(orders=(0, 100), shop=(0, 7), news=(3, 30)), "shop")
    planned = batches.next(place, later, 1.0)
    assert planned.offsets == {
        **at(orders=100),
        **begun("news", 3, 3),
        "shop": StreamOffset("shop-2", 0, 0),
    }
    assert len(planned.warnings) == 1
    assert batches.next(planned.offsets, later, 2.0).offsets == planned.offsets


def test_retention_that_passes_what_is_available_now_ends_it() -> None:
    batches = MicroBatches(options({"failOnDataLoss": "false", "maxOffsetsPerTrigger": "10"}))
    batches.prepare_available_now()
    place = batches.next(at(orders=0), bounds(orders=(0, 100)), 0.0).offsets
    planned = batches.next(place, bounds(orders=(120, 130)), 1.0)
    assert planned.offsets == begun("orders", 120, 120)


def test_a_lost_stream_fails_the_query_before_its_next_batch() -> None:
    with pytest.raises(DataLoss, match="orders: "):
        MicroBatches(options()).next(at(orders=5), {}, 0.0)
    planned = MicroBatches(options({"failOnDataLoss": "false"})).next(at(orders=5), {}, 0.0)
    assert planned.offsets == {}
    assert len(planned.warnings) == 1


def test_a_stream_that_went_backwards_is_read_on_from_its_end() -> None:
    batches = MicroBatches(options({"failOnDataLoss": "false"}))
    start = at(orders=50)
    planned = batches.next(start, bounds(orders=(0, 40)), 0.0)
    assert planned.offsets == begun("orders", 40, 40)
    after = batches.next(planned.offsets, bounds(orders=(0, 44)), 1.0).offsets
    ranges, _ = checked_ranges(planned.offsets, after, bounds(orders=(0, 44)), fail_on_data_loss=True)
    assert ranges == [span("orders", 40, 44)]


# --- bytes, and the latest ---------------------------------------------------------------------------------


def test_bytes_are_shared_in_proportion_to_records() -> None:
    ranges = [span("big", 0, 900), span("small", 50, 150), span("none", 5, 5)]
    assert byte_shares(ranges, 1000) == {"big": 900, "small": 100}
    assert byte_shares(ranges, 3) == {"big": 2, "small": 1}, "a batch of each, whatever its size"
    assert byte_shares([], 3) == {}


def test_no_end_is_beyond_what_the_bytes_allow() -> None:
    ends = at(orders=50, shop=7) | begun("news", 0, 9)
    assert cut_offsets(ends, {"orders": 20, "shop": 9, "news": 3}) == at(orders=20, shop=7) | begun(
        "news", 0, 3
    )
