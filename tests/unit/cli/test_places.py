from datetime import UTC, datetime, timedelta, timezone

import pytest
import typer

from jetstream.cli.places import parse_place


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
