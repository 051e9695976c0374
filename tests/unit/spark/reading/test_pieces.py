import pytest

from envelope.spark_errors import InvalidOption
from jetstream.spark.options.source_options import PARTITIONS_MAX
from jetstream.spark.reading.pieces import pieces_of
from jetstream.spark.reading.planning import IncarnationRange
from tests.support.spark_plans import span


def sizes(pieces: list[IncarnationRange]) -> list[int]:
    return [piece.size for piece in pieces]


def test_without_limits_each_range_is_one_piece() -> None:
    ranges = [span("a", 0, 1_000_000), span("b", 7, 8)]
    assert pieces_of([*ranges, span("c", 5, 5)]) == ranges
    assert pieces_of([], min_partitions=4) == []
    assert pieces_of(ranges, boundaries={"a": [900_000]}) == ranges


def test_there_are_as_many_pieces_as_wanted_in_proportion_to_the_ranges() -> None:
    pieces = pieces_of([span("big", 10, 310), span("small", 0, 100)], min_partitions=4)
    assert pieces == [
        span("big", 10, 110),
        span("big", 110, 210),
        span("big", 210, 310),
        span("small", 0, 100),
    ]


def test_there_are_no_more_pieces_than_offsets() -> None:
    assert sizes(pieces_of([span("a", 0, 3)], min_partitions=10)) == [1, 1, 1]


def test_pieces_that_cannot_be_equal_are_nearly() -> None:
    assert sizes(pieces_of([span("a", 0, 10)], min_partitions=6)) == [2, 2, 2, 2, 1, 1]


def test_enough_ranges_are_not_cut() -> None:
    ranges = [span("a", 0, 100), span("b", 0, 100)]
    assert pieces_of(ranges, min_partitions=2) == ranges


def test_no_piece_has_more_records_than_allowed() -> None:
    assert sizes(pieces_of([span("a", 0, 10), span("b", 0, 3)], max_records=4)) == [4, 3, 3, 3]
    assert sizes(pieces_of([span("a", 0, 10)], min_partitions=5, max_records=9)) == [2, 2, 2, 2, 2]
    assert sizes(pieces_of([span("a", 0, 10)], min_partitions=2, max_records=4)) == [4, 3, 3]


def test_cuts_are_made_where_batches_begin() -> None:
    known = {"a": [0, 90, 190, 260, 400], "b": [50]}
    assert sizes(pieces_of([span("a", 0, 400)], min_partitions=4, boundaries=known)) == [90, 100, 70, 140]
    assert sizes(pieces_of([span("a", 100, 400)], min_partitions=3, boundaries=known)) == [90, 70, 140]


def test_a_batch_boundary_that_halves_a_piece_is_not_used() -> None:
    assert sizes(pieces_of([span("a", 0, 200)], min_partitions=2, boundaries={"a": [0, 50]})) == [100, 100]
    assert sizes(pieces_of([span("a", 0, 200)], min_partitions=2, boundaries={"a": [51]})) == [51, 149]


def test_boundaries_do_not_make_a_piece_too_large() -> None:
    known = {"a": [60, 120]}
    assert sizes(pieces_of([span("a", 0, 200)], max_records=100, boundaries=known)) == [60, 60, 80]
    assert sizes(pieces_of([span("a", 0, 200)], max_records=100, boundaries={"a": [60]})) == [60, 100, 40]


def test_more_pieces_than_spark_can_plan_are_refused() -> None:
    assert len(pieces_of([span("a", 0, PARTITIONS_MAX)], max_records=1)) == PARTITIONS_MAX
    with pytest.raises(
        InvalidOption, match=f"makes {PARTITIONS_MAX + 1} partitions of {PARTITIONS_MAX + 1} records"
    ):
        pieces_of([span("a", 0, PARTITIONS_MAX + 1)], max_records=1)
