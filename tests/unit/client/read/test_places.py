"""Addresses and places that an application can name."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import chain

import pytest

import jetstream
from envelope.errors import RequestError
from jetstream.client.nodes.socket_access import address_text, parse_address
from jetstream.client.read.places import Start, Txid, parse_end, parse_start
from jetstream.client.read.read_range import ReadRange


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9292", ("127.0.0.1", 9292)),
        ("node.example:1", ("node.example", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert parse_address(address_text(address)) == address


@pytest.mark.parametrize(
    "text", ["", "host", ":1", "host:", "host:0", "host:65536", "host:-1", "host:x", "host:\uff11"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        parse_address(text)


@pytest.mark.parametrize(
    "start",
    ["earliest", "latest", 0, 2**40, -10, datetime(2026, 1, 1, tzinfo=UTC), timedelta(days=-1), Txid(-7)],
)
def test_a_place_is_a_word_an_offset_or_a_moment(start: Start) -> None:
    assert ReadRange("s", start=start, end=None).validated().start == start


@pytest.mark.parametrize(
    "place",
    [2**63, -(2**63), True, "first", 1.5, timedelta(1), datetime(2026, 1, 1)],  # noqa: DTZ001 - the point
)
def test_any_other_place_is_refused(place: int | datetime) -> None:
    with pytest.raises(RequestError):
        ReadRange("s", start=place).validated()
    with pytest.raises(RequestError):
        ReadRange("s", end=place).validated()


def test_words_numbers_and_durations_are_places() -> None:
    assert parse_start("earliest") == "earliest"
    assert parse_start(" latest ") == "latest"
    assert parse_start("42") == 42
    assert parse_start("-10") == -10
    assert parse_start("-1h") == timedelta(hours=-1)
    assert parse_start("-1.5d") == timedelta(hours=-36)
    assert parse_start("-PT5M") == timedelta(minutes=-5)


def test_a_time_without_zone_is_utc() -> None:
    assert parse_start("2026-03-01") == datetime(2026, 3, 1, tzinfo=UTC)
    assert parse_start("2026-03-01T12:00:00Z") == datetime(2026, 3, 1, 12, tzinfo=UTC)
    berlin = parse_start("2026-03-01T12:00:00+01:00")
    assert berlin == datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=1)))


NO_PLACES = (
    ["", "-", "--1", "-0", "1h", "P1D", "-1.5", "1.5", "-1fortnight", "-999999999.9d", "9" * 20, "9" * 5000],
    ["yesterday", "Earliest", "2026-13-01", "end", "\u0663", "-\u0663"],
)


@pytest.mark.parametrize("text", [*chain.from_iterable(NO_PLACES)])
def test_any_other_text_is_no_place(text: str) -> None:
    with pytest.raises(RequestError, match="is no place in a stream: use earliest, latest, an offset, -10"):
        parse_start(text)


def test_a_read_begins_at_any_place_or_at_a_txid() -> None:
    assert parse_start("txid:42") == Txid(42)
    assert parse_start(" txid:-1 ") == Txid(-1)
    for text in ("txid:", "txid:x", "txid", "id:4", "txid:9999999999999999999", "txid:" + "9" * 5000):
        with pytest.raises(RequestError):
            parse_start(text)


def test_a_read_ends_at_the_end_an_offset_or_a_time() -> None:
    assert parse_end("end") == parse_end("latest") == "latest"
    assert parse_end("42") == 42
    assert parse_end("-10") == -10
    assert parse_end("-5m") == timedelta(minutes=-5)
    assert parse_end("2026-03-01") == datetime(2026, 3, 1, tzinfo=UTC)
    for text in ("earliest", "yesterday", "txid:4"):
        with pytest.raises(RequestError):
            parse_end(text)


def test_every_public_name_is_there() -> None:
    for name in jetstream.__all__:
        assert getattr(jetstream, name) is not None
    with pytest.raises(AttributeError):
        jetstream.nothing_of_the_kind  # noqa: B018 - the look-up is the test
