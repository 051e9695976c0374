from datetime import UTC, datetime, timedelta, timezone

import pytest
import typer

from jetstream.cli.options.places import parse_end, parse_place, parse_start
from jetstream.client.read.read_range import Txid


def test_words_and_digits_are_places() -> None:
    assert parse_place("earliest") == "earliest"
    assert parse_place(" latest ") == "latest"
    assert parse_place("42") == 42


def test_a_time_without_zone_is_utc() -> None:
    assert parse_place("2026-03-01") == datetime(2026, 3, 1, tzinfo=UTC)
    assert parse_place("2026-03-01T12:00:00Z") == datetime(2026, 3, 1, 12, tzinfo=UTC)
    berlin = parse_place("2026-03-01T12:00:00+01:00")
    assert berlin == datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize("text", ["", "-1", "1.5", "yesterday", "Earliest", "2026-13-01"])
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no place in a stream"):
        parse_place(text)


def test_a_read_begins_at_any_place_or_at_a_txid() -> None:
    assert parse_start("txid:42") == Txid(42)
    assert parse_start(" txid:-1 ") == Txid(-1)
    assert parse_start("42") == 42
    for text in ("txid:", "txid:x", "txid", "id:4"):
        with pytest.raises(typer.BadParameter):
            parse_start(text)


def test_a_read_ends_at_the_end_an_offset_or_a_time() -> None:
    assert parse_end("end") == parse_end("latest") == "latest"
    assert parse_end("42") == 42
    assert parse_end("2026-03-01") == datetime(2026, 3, 1, tzinfo=UTC)
    for text in ("earliest", "yesterday"):
        with pytest.raises(typer.BadParameter):
            parse_end(text)
    with pytest.raises(typer.BadParameter):
        parse_place("end")
