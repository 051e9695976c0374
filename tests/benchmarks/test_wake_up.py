"""Joining what was published with what arrived."""

import pytest

from benchmarks.wake_up import Published, joined, percentile

PUBLISHED = [Published(offset, 1000 * offset, 1000 * offset + 400) for offset in range(3)]
ARRIVALS = [[offset, 1000 * offset + 100, 1000 * offset + 600] for offset in range(3)]


def test_times_of_the_measured_messages_are_microseconds() -> None:
    found = joined(PUBLISHED, ARRIVALS, skip=1)

    assert found.problem is None
    assert found.append_to_reader == (0.5, 0.5)
    assert found.publish_to_reader == (0.6, 0.6)
    assert found.ack_to_reader == (0.2, 0.2)
    assert found.publish_to_ack == (0.4, 0.4)


@pytest.mark.parametrize(
    ("arrivals", "published"),
    [
        (ARRIVALS[:2], PUBLISHED),
        ([ARRIVALS[0], ARRIVALS[0], ARRIVALS[2]], PUBLISHED),
        ([ARRIVALS[1], ARRIVALS[0], ARRIVALS[2]], PUBLISHED),
        (ARRIVALS, [PUBLISHED[0], PUBLISHED[2], PUBLISHED[1]]),
    ],
)
def test_a_record_that_is_missing_repeated_or_out_of_order_is_a_problem(
    arrivals: list[list[int]], published: list[Published]
) -> None:
    assert joined(published, arrivals, skip=0).problem


def test_a_percentile_is_a_value_that_was_seen() -> None:
    values = [float(value) for value in range(100, 0, -1)]

    assert percentile(values, 0.5) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile(values, 1.0) == 100.0
    assert percentile([7.0], 0.5) == 7.0
    assert percentile([], 0.5) == 0.0
