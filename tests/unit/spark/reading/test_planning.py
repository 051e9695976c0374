import re
from collections.abc import Mapping

import pytest

from envelope.errors import RequestError, UnknownStream
from envelope.spark_errors import DataLoss, InvalidOption
from jetstream.spark.reading.offsets import StreamOffset
from jetstream.spark.reading.planning import (
    IncarnationRange,
    StreamBounds,
    batch_ranges,
    checked_ranges,
    ending_offsets,
    latest_offsets,
    moments_of,
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

# --- where a query begins, and a batch read ends --------------------------------------------------------

NOW = bounds(orders=(10, 100), shop=(0, 0))


def test_a_query_begins_at_the_earliest_or_the_latest_offset() -> None:
    assert starting_offsets(options(), NOW, {}) == at(orders=100, shop=0)
    assert starting_offsets(options({"startingOffsets": "earliest"}), NOW, {}) == at(orders=10, shop=0)


def test_a_query_begins_at_the_offsets_that_it_names() -> None:
    named = options({"startingOffsets": '{"orders": 23, "shop": -2}'})
    assert starting_offsets(named, NOW, {}) == at(orders=23, shop=0)
    with pytest.raises(InvalidOption, match="shop is not named"):
        starting_offsets(options({"startingOffsets": '{"orders": 23}'}), NOW, {})


def test_only_moments_are_looked_up() -> None:
    assert moments_of(options().starting, NOW) == {}
    assert moments_of(options({"startingTimestamp": "5"}).starting, NOW) == {"orders": 5000, "shop": 5000}
    one = options({"startingOffsetsByTimestamp": '{"orders": 5, "shop": 6}'})
    assert moments_of(one.starting, NOW) == {"orders": 5000, "shop": 6000}


def test_a_query_begins_at_the_first_record_of_a_moment() -> None:
    asked = options({"startingTimestamp": "5"})
    assert starting_offsets(asked, bounds(orders=(10, 100)), {"orders": 42}) == at(orders=42)


def test_a_moment_after_all_records_is_an_error_or_the_latest_offset() -> None:
    given = {"startingTimestamp": "5"}
    with pytest.raises(
        InvalidOption, match=re.escape("startingTimestamp: orders has no record so late; it has [10, 100); ")
    ):
        starting_offsets(options(given), bounds(orders=(10, 100)), {"orders": 100})
    given["startingOffsetsByTimestampStrategy"] = "latest"
    assert starting_offsets(options(given), bounds(orders=(10, 100)), {"orders": 107}) == at(orders=100)


def test_a_stream_that_is_deleted_while_it_is_asked_is_named() -> None:
    asked = options({"startingTimestamp": "5", "endingTimestamp": "6"}, streaming=False)
    for resolved in (starting_offsets, ending_offsets):
        with pytest.raises(UnknownStream, match="orders was deleted while it was asked for a moment"):
            resolved(asked, NOW, {"shop": 0})


def test_a_batch_read_takes_what_is_between_two_places() -> None:
    def read(given: dict[str, str], timed: Mapping[str, int] | None = None) -> list[IncarnationRange]:
        asked = options(given, streaming=False)
        starts, ends = starting_offsets(asked, NOW, timed or {}), ending_offsets(asked, NOW, timed or {})
        ranges, warnings = batch_ranges(asked, NOW, starts, ends)
        assert not warnings
        return ranges

    assert read({}) == [span("orders", 10, 100)]
    assert read({"startingOffsets": '{"orders": 10, "shop": 0}'}) == [span("orders", 10, 100)]
    assert read({"endingOffsets": '{"orders": 10, "shop": -1}'}) == []
    assert read({"endingOffsets": '{"orders": 99, "shop": 0}'}) == [span("orders", 10, 99)]
    assert read({"endingTimestamp": "5"}, {"orders": 17, "shop": 0}) == [span("orders", 10, 17)]
    assert read({"endingTimestamp": "5"}, {"orders": 170, "shop": 3}) == [span("orders", 10, 100)]


def test_a_batch_read_whose_end_is_before_its_start_is_refused() -> None:
    asked = options({"startingOffsets": '{"orders": 50}', "endingOffsets": '{"orders": 49}'}, streaming=False)
    now = bounds(orders=(10, 100))
    with pytest.raises(
        InvalidOption,
        match=re.escape(
            "orders: from 50 (startingOffsets) to 49 (endingOffsets): the end is before the start"
        ),
    ):
        batch_ranges(asked, now, starting_offsets(asked, now, {}), ending_offsets(asked, now, {}))


@pytest.mark.parametrize(
    ("start", "end", "problem", "kept"),
    [
        (3, 50, "records 3 to 9 are not there any more", [span("orders", 10, 50)]),
        (20, 130, "offset 130 is beyond the high watermark 100", [span("orders", 20, 100)]),
        (3, 7, "records 3 to 9 are not there any more", []),
        (120, 130, "offset 130 is beyond the high watermark 100", []),
    ],
)
def test_a_batch_read_of_what_is_not_there_fails_or_takes_the_rest(
    start: int, end: int, problem: str, kept: list[IncarnationRange]
) -> None:
    given = {"startingOffsets": f'{{"orders": {start}}}', "endingOffsets": f'{{"orders": {end}}}'}
    now = bounds(orders=(10, 100))
    strict = options(given, streaming=False)
    with pytest.raises(DataLoss, match=problem):
        batch_ranges(strict, now, starting_offsets(strict, now, {}), ending_offsets(strict, now, {}))
    lenient = options({**given, "failOnDataLoss": "false"}, streaming=False)
    ranges, warnings = batch_ranges(
        lenient, now, starting_offsets(lenient, now, {}), ending_offsets(lenient, now, {})
    )
    assert ranges == kept
    assert len(warnings) == 1
    assert problem in warnings[0]


# --- what a batch may read -------------------------------------------------------------------------------


def test_a_batch_reads_from_the_end_of_the_one_before() -> None:
    now = bounds(orders=(0, 100), shop=(0, 100))
    ranges, warnings = checked_ranges(
        at(orders=5, shop=7), at(orders=50, shop=7), now, fail_on_data_loss=True
    )
    assert (ranges, warnings) == ([span("orders", 5, 50)], [])


def test_a_batch_reads_from_where_it_says_that_it_begins() -> None:
    now = bounds(orders=(0, 100))
    for before in ({}, at(orders=90), {"orders": StreamOffset("orders-0", 90)}):
        ranges, _ = checked_ranges(before, begun("orders", 5, 50), now, fail_on_data_loss=True)
        assert ranges == [span("orders", 5, 50)]


def test_an_end_that_is_the_same_as_before_is_nothing() -> None:
    end = begun("orders", 5, 50)
    assert checked_ranges(end, end, bounds(orders=(0, 100)), fail_on_data_loss=True) == ([], [])


def test_ends_that_do_not_belong_to_their_start_are_refused() -> None:
    for before in ({}, {"orders": StreamOffset("orders-0", 5)}):
        with pytest.raises(
            RequestError, match="checkpoint: orders: a batch that ends at 50 and begins nowhere"
        ):
            checked_ranges(before, at(orders=50), bounds(orders=(0, 100)), fail_on_data_loss=True)


LOSSES = [
    pytest.param({}, [], GONE, {"offset": 5, "end": 50, "incarnation": "orders-1"}, id="gone"),
    pytest.param(
        recreated(bounds(orders=(0, 100)), "orders"),
        [],
        RECREATED,
        {"offset": 5, "end": 50, "incarnation": "orders-1", "current_incarnation": "orders-2"},
        id="re-created",
    ),
    pytest.param(
        bounds(orders=(30, 100)),
        [span("orders", 30, 50)],
        REMOVED,
        {"offset": 5, "log_start_offset": 30},
        id="removed in part",
    ),
    pytest.param(
        bounds(orders=(60, 100)),
        [],
        "orders: records 5 to 59 are not there any more: retention has removed them",
        {"offset": 5, "log_start_offset": 60},
        id="removed",
    ),
    pytest.param(
        bounds(orders=(0, 49)),
        [span("orders", 5, 49)],
        "orders: offset 50 is beyond the high watermark 49: the stream went backwards, or never had it",
        {"offset": 50, "high_watermark": 49},
        id="cut in part",
    ),
    pytest.param(
        bounds(orders=(0, 3)),
        [],
        "orders: offset 50 is beyond the high watermark 3: the stream went backwards, or never had it",
        {"offset": 50, "high_watermark": 3},
        id="cut",
    ),
]


@pytest.mark.parametrize(("now", "kept", "problem", "numbers"), LOSSES)
def test_a_loss_in_a_batch_fails_with_its_numbers_or_is_left_out(
    now: dict[str, StreamBounds], kept: list[IncarnationRange], problem: str, numbers: dict[str, int | str]
) -> None:
    start, end = at(orders=5), at(orders=50)
    with pytest.raises(DataLoss) as lost:
        checked_ranges(start, end, now, fail_on_data_loss=True)
    assert lost.value.description == problem + ACCEPT
    assert lost.value.detail == {"stream": "orders"} | numbers
    assert checked_ranges(start, end, now, fail_on_data_loss=False) == (kept, [problem])


def test_a_batch_that_ends_before_it_begins_is_a_loss() -> None:
    start, end, now = at(orders=50), at(orders=5), bounds(orders=(0, 100))
    problem = "orders: went backwards: a batch from 50 to 5"
    with pytest.raises(DataLoss, match=problem):
        checked_ranges(start, end, now, fail_on_data_loss=True)
    assert checked_ranges(start, end, now, fail_on_data_loss=False) == ([], [problem])


def test_the_latest_offsets_are_the_high_watermarks() -> None:
    assert latest_offsets(NOW) == at(orders=100, shop=0)
