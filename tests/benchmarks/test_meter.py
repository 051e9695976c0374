"""Counting inside a window, on a clock of the test's own."""

from collections.abc import Iterator

from benchmarks.meter import Meter, Reading


def clock(*moments: int) -> Iterator[int]:
    return iter(moments)


def meter_of(window: tuple[int, int] | None, *moments: int) -> Meter:
    times = clock(*moments)
    return Meter(None if window is None else lambda: window, clock=lambda: next(times), cpu=lambda: 0)


def test_a_window_opens_with_an_arrival_that_is_not_counted_and_closes_with_one_that_is() -> None:
    meter = meter_of((10, 20), 5, 11, 15, 21)

    assert [meter.add(amount) for amount in (1, 2, 4, 8)] == [True, True, True, False]

    reading = meter.reading()
    assert reading.amount == 4 + 8
    assert reading.seconds == (21 - 11) / 1e9
    assert reading.rate == 12 / 10e-9


def test_the_window_is_asked_for_until_it_is_known_and_never_again() -> None:
    told: list[tuple[int, int] | None] = [None, None, (3, 5)]
    times = clock(1, 2, 3, 4)
    meter = Meter(lambda: told.pop(0), clock=lambda: next(times), cpu=lambda: 0)

    for _ in range(4):
        assert meter.add(1)

    assert not told
    assert meter.reading().amount == 1


def test_one_pass_is_measured_from_its_request_to_its_last_arrival() -> None:
    meter = meter_of(None, 100, 150, 200)

    meter.begin()
    assert meter.add(3)
    assert meter.add(4)
    assert not meter.passed()

    assert meter.reading() == Reading(amount=7, seconds=100 / 1e9, cpu_seconds=0.0, passes=1)


def test_a_window_goes_on_over_any_number_of_passes() -> None:
    meter = meter_of((0, 10), 1, 2, 11)

    meter.begin()
    assert meter.add(1)
    assert meter.passed()
    assert meter.add(1)
    assert meter.passed()
    assert not meter.add(1)

    assert (meter.reading().amount, meter.reading().passes) == (2, 2)


def test_cpu_time_counts_from_the_opening_of_the_window() -> None:
    spent = clock(1_000_000_000, 3_000_000_000)
    times = clock(10, 20)
    meter = Meter(lambda: (5, 15), clock=lambda: next(times), cpu=lambda: next(spent))

    meter.add(1)
    meter.add(1)

    assert meter.reading().cpu_seconds == 2.0


def test_a_reader_that_received_nothing_has_no_rate() -> None:
    reading = meter_of((0, 10)).reading("broken")

    assert (reading.amount, reading.rate, reading.problem) == (0, 0.0, "broken")


def test_a_reading_survives_its_json() -> None:
    reading = Reading(5, 2.0, 0.5, 1, "why")

    assert Reading.from_json(reading.as_json()) == reading
