from datetime import timedelta

import pytest
import typer

from jetstream.cli.options.quantities import parse_duration, parse_header, parse_label, parse_size, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1048576", 1 << 20), ("64KiB", 1 << 16), ("1 gib", 1 << 30), ("10MB", 10_000_000), ("5b", 5)],
)
def test_sizes_are_bytes_or_carry_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5MiB", "64KiBs", "many", "0x10", "\u0663"])
def test_a_size_that_is_none_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("120", timedelta(seconds=120)),
        ("0", timedelta(0)),
        ("0.5", timedelta(milliseconds=500)),
        ("500ms", timedelta(milliseconds=500)),
        ("15m", timedelta(minutes=15)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("P7D", timedelta(days=7)),
        ("PT2M", timedelta(minutes=2)),
    ],
)
def test_durations_are_seconds_short_forms_or_iso_8601(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "-1", "1 fortnight", "P", "-P1D", "12:30", "1e400d", "9" * 400 + "d"])
def test_a_duration_that_is_none_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a duration"):
        parse_duration(text)


def test_a_header_is_split_at_its_first_colon() -> None:
    assert parse_header("Content-Type: a:b ") == ("Content-Type", "a:b")
    assert parse_header("Empty:") == ("Empty", "")


@pytest.mark.parametrize("text", ["no colon", ": value", "A: b\r\nNats-Msg-Id: forged"])
def test_a_header_that_could_forge_another_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a header"):
        parse_header(text)


def test_a_label_is_split_at_its_first_equals_sign() -> None:
    assert parse_label("team=a=b") == ("team", "a=b")
    with pytest.raises(typer.BadParameter, match="is not a label"):
        parse_label("team")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (1 << 50, "1024.0 TiB")],
)
def test_sizes_are_shown_with_a_unit(size: int, text: str) -> None:
    assert size_text(size) == text
