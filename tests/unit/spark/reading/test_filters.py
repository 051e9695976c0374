"""What a query's filters leave to the source, and that it does exactly that."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from envelope.subjects import matches
from jetstream.spark.reading.filters import IntegerBounds, Pushed, pushed

COMPARED: dict[Callable[..., Filter], Callable[[int, int], bool]] = {
    EqualTo: lambda one, other: one == other,
    EqualNullSafe: lambda one, other: one == other,
    GreaterThan: lambda one, other: one > other,
    GreaterThanOrEqual: lambda one, other: one >= other,
    LessThan: lambda one, other: one < other,
    LessThanOrEqual: lambda one, other: one <= other,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOMENT = datetime(2026, 11, 23, 9, 0, 0, 1, tzinfo=UTC)


def has(bounds: IntegerBounds, value: int) -> bool:
    return (bounds.start is None or bounds.start <= value) and (bounds.end is None or value < bounds.end)


@given(wanted=st.lists(st.tuples(st.sampled_from(list(COMPARED)), st.integers(0, 9)), max_size=4))
def test_comparisons_become_exactly_the_ranges_that_they_mean(
    wanted: list[tuple[Callable[..., Filter], int]],
) -> None:
    offsets = [kind(("offset",), number) for kind, number in wanted]
    times = [kind(("timestamp",), EPOCH + timedelta(microseconds=number)) for kind, number in wanted]
    selected, rest = pushed([*offsets, *times], Pushed())
    assert rest == []
    for value in range(-1, 11):
        expected = all(COMPARED[kind](value, number) for kind, number in wanted)
        assert (has(selected.offsets, value), has(selected.times, value)) == (expected, expected)


SUBJECTS = ["orders", "orders.eu", "orders.eu.1", "orders.eu.1.2", "orders.eut", "other.eu"]


@pytest.mark.parametrize(
    ("wanted", "pattern", "is_done"),
    [
        (StringStartsWith(("subject",), "orders.eu."), "orders.eu.>", True),
        (StringStartsWith(("subject",), "orders.e"), "orders.>", False),
        (StringStartsWith(("subject",), "ord"), None, False),
        (StringStartsWith(("subject",), ""), None, False),
        (StringStartsWith(("subject",), "orders.*."), None, False),
        (StringStartsWith(("subject",), "orders..e"), None, False),
        (StringStartsWith(("subject",), ".e"), None, False),
        (EqualTo(("subject",), "orders.eu"), "orders.eu", True),
        (EqualTo(("subject",), "orders.>"), None, False),
        (EqualTo(("subject",), "orders eu"), None, False),
    ],
)
def test_a_subject_becomes_a_pattern_that_leaves_out_nothing_that_is_wanted(
    wanted: EqualTo | StringStartsWith, pattern: str | None, *, is_done: bool
) -> None:
    selected, rest = pushed([wanted], Pushed())
    assert (selected.subject, rest) == (pattern, [] if is_done else [wanted])
    if pattern is None:
        return
    for subject in SUBJECTS:
        is_meant = (
            subject == wanted.value if isinstance(wanted, EqualTo) else subject.startswith(wanted.value)
        )
        if is_done:
            assert matches(pattern, subject) == is_meant
        else:
            assert matches(pattern, subject) or not is_meant


def test_of_two_subjects_the_narrower_is_read_and_spark_gets_what_it_does_not_say() -> None:
    europe, new_york = EqualTo(("subject",), "orders.eu"), EqualTo(("subject",), "orders.us.ny")
    wide, cut = StringStartsWith(("subject",), "orders."), StringStartsWith(("subject",), "orders.us.n")
    for filters in ([europe, wide, europe], [wide, europe]):
        assert pushed(filters, Pushed()) == (Pushed(subject="orders.eu"), [])
    assert pushed([cut, new_york], Pushed()) == (Pushed(subject="orders.us.ny"), [cut])
    assert pushed([wide], Pushed(subject="orders.*.ny")) == (Pushed(subject="orders.*.ny"), [])
    assert pushed([new_york], Pushed(subject="orders.*.ny")) == (Pushed(subject="orders.us.ny"), [])
    assert pushed([new_york, europe], Pushed()) == (Pushed(subject="orders.us.ny"), [europe])


def test_a_second_key_is_left_to_spark() -> None:
    one, other = EqualTo(("key",), b"one"), EqualTo(("key",), bytearray(b"other"))
    selected, rest = pushed([one, other], Pushed(key="one"))
    assert (selected.key, rest) == ("one", [other])


@pytest.mark.parametrize(
    "wanted",
    [
        EqualTo(("key",), b"\xff"),
        EqualTo(("key",), b"k" * 1025),
        EqualTo(("value",), b"v"),
        EqualTo(("offset",), True),
        EqualTo(("offset",), None),
        EqualTo(("timestamp",), MOMENT.replace(tzinfo=None)),
        EqualTo(("headers", "key"), "k"),
        EqualNullSafe(("key",), b"k"),
        EqualNullSafe(("offset",), None),
        In(("offset",), (1, 2)),
        IsNull(("offset",)),
        IsNotNull(("key",)),
        Not(EqualTo(("offset",), 1)),
        StringContains(("subject",), "eu"),
    ],
)
def test_what_the_source_cannot_do_exactly_goes_back_to_spark(wanted: Filter) -> None:
    assert pushed([wanted], Pushed()) == (Pushed(), [wanted])


def test_what_is_never_null_need_not_be_asked_for() -> None:
    assert pushed([IsNotNull(("offset",)), IsNotNull(("subject",))], Pushed()) == (Pushed(), [])
