"""A stream whose time is ahead of the clock is told once when it begins, and once when it is over."""

from envelope.types import StreamName
from jetstream.log.segments.retention import TIME_AHEAD_US
from jetstream.node.maintenance.stream_times import StreamTimes

ORDERS, AUDIT = StreamName("orders"), StreamName("audit")


def test_a_stream_is_told_once_and_once_when_it_is_over() -> None:
    times = StreamTimes()
    assert times.handle({ORDERS: TIME_AHEAD_US, AUDIT: 0}) == ([], [])
    assert times.handle({ORDERS: TIME_AHEAD_US + 1, AUDIT: 0}) == ([ORDERS], [])
    assert times.handle({ORDERS: TIME_AHEAD_US - 1, AUDIT: TIME_AHEAD_US + 1}) == ([AUDIT], [])
    assert times.handle({ORDERS: 0, AUDIT: 1}) == ([], [ORDERS])
    assert times.handle({ORDERS: 0}) == ([], [AUDIT]), "another node leads it"
    assert times.handle({ORDERS: TIME_AHEAD_US + 1}) == ([ORDERS], [])
