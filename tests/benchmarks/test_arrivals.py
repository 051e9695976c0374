"""Times of what members saw: the last stream counts, and both ends of a window."""

from benchmarks.arrivals import Arrival, longest_pause_ms, outage_ms, taken_over_ms

MS = 1_000_000


def arrivals(*moments: tuple[str, int]) -> list[Arrival]:
    return [Arrival(stream, number, at * MS) for number, (stream, at) in enumerate(moments)]


def test_streams_are_taken_over_when_the_last_one_is_read_again() -> None:
    seen = arrivals(("a", 5), ("b", 30), ("a", 12), ("a", 50), ("c", 90))

    assert taken_over_ms(seen, {"a", "b"}, since_ns=10 * MS) == 20
    assert taken_over_ms(seen, {"a"}, since_ns=10 * MS) == 2


def test_streams_of_which_nothing_has_come_since_are_not_taken_over() -> None:
    seen = arrivals(("a", 12), ("b", 9))

    assert taken_over_ms(seen, {"a", "b"}, since_ns=10 * MS) is None


def test_a_pause_may_be_at_either_end_of_the_window() -> None:
    seen = arrivals(("a", 5), ("a", 20), ("b", 22), ("a", 26), ("a", 90))

    assert longest_pause_ms(seen, "a", begun_ns=10 * MS, ended_ns=30 * MS) == 10
    assert longest_pause_ms(seen, "a", begun_ns=19 * MS, ended_ns=60 * MS) == 34
    assert longest_pause_ms(seen, "c", begun_ns=10 * MS, ended_ns=30 * MS) == 20


def test_an_outage_is_the_longest_gap_that_ends_after_the_strike() -> None:
    times = [at * MS for at in (0, 50, 52, 55, 140, 145)]

    assert outage_ms(times, struck_ns=53 * MS) == 85
    assert outage_ms(times, struck_ns=142 * MS) == 5
    assert outage_ms(times, struck_ns=150 * MS) is None
