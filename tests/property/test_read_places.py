"""Texts that name places in a stream: a place that a reader takes, or one typed error."""

from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.errors import RequestError
from jetstream.client.read.places import Txid, parse_end, parse_start
from jetstream.client.read.read_range import ReadRange
from jetstream.protocol.durations import parse_duration
from tests.support.example_counts import examples

PIECES = st.sampled_from(
    [
        "-",
        "+",
        "txid:",
        "P",
        "T",
        "1",
        "0",
        "9999999999",
        ".",
        "h",
        "ms",
        "d",
        "D",
        "M",
        "W",
        ":",
        "e5",
        " ",
        "Z",
    ]
)
NUMBERS = st.integers(-(1 << 70), 1 << 70)
TEXTS = (
    st.text(st.characters(codec=None), max_size=20)  # lone surrogates among them
    | st.lists(PIECES, max_size=8).map("".join)
    | NUMBERS.map(str)
    | st.tuples(NUMBERS | st.floats(), st.sampled_from(["ms", "s", "m", "h", "d"])).map(
        lambda pair: f"{pair[0]}{pair[1]}"
    )
    | st.datetimes().map(datetime.isoformat)
)


@settings(max_examples=examples(500))
@given(TEXTS)
def test_any_text_is_a_place_that_can_be_read_from_or_a_request_error(text: str) -> None:
    try:
        start = parse_start(text)
    except RequestError:
        pass
    else:
        assert ReadRange("s", start).validated().start == start
    try:
        end = parse_end(text)
    except RequestError:
        return
    assert ReadRange("s", end=end).validated().end == end


@settings(max_examples=examples(200))
@given(TEXTS)
def test_any_text_is_a_duration_or_a_request_error(text: str) -> None:
    try:
        duration = parse_duration(text)
    except RequestError:
        return
    assert duration >= timedelta(0)


@settings(max_examples=examples(100))
@given(st.integers(-(1 << 63) + 1, (1 << 63) - 1), st.integers(1, 10**9))
def test_what_is_written_is_what_is_meant(number: int, seconds: int) -> None:
    assert parse_start(str(number)) == parse_end(str(number)) == number
    assert parse_start(f"txid:{number}") == Txid(number)
    assert parse_start(f"-{seconds}s") == parse_end(f"-{seconds}s") == timedelta(seconds=-seconds)
