"""Addresses and places that an application can name."""

from datetime import UTC, datetime

import pytest

import jetstream
from envelope.errors import RequestError
from jetstream.client.nodes.socket_access import address_text, parse_address
from jetstream.client.read.read_range import ReadRange, Start, Txid


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
    "start", ["earliest", "latest", 0, 2**40, datetime(2026, 1, 1, tzinfo=UTC), Txid(-7)]
)
def test_a_place_is_a_word_an_offset_or_a_moment(start: Start) -> None:
    assert ReadRange("s", start=start, end=None).validated().start == start


@pytest.mark.parametrize("place", [-1, True, "first", 1.5, datetime(2026, 1, 1)])  # noqa: DTZ001 - the point
def test_any_other_place_is_refused(place: int | datetime) -> None:
    with pytest.raises(RequestError):
        ReadRange("s", start=place).validated()
    with pytest.raises(RequestError):
        ReadRange("s", end=place).validated()


def test_every_public_name_is_there() -> None:
    for name in jetstream.__all__:
        assert getattr(jetstream, name) is not None
    with pytest.raises(AttributeError):
        jetstream.nothing_of_the_kind  # noqa: B018 - the look-up is the test
