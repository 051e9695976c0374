from datetime import UTC, datetime
from typing import Any

import pytest

from jetstream.cli.output.record_format import text_line


def a_row(**changes: object) -> dict[str, Any]:
    row: dict[str, object] = {
        "offset": 7,
        "timestamp": datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC),
        "subject": "orders.eu",
        "key": None,
        "headers": None,
        "txid": None,
        "value": b'{"a":1}',
    }
    return {**row, **changes}


def test_a_line_says_of_which_stream_it_is_if_that_does_not_go_without_saying() -> None:
    assert text_line(a_row(), "orders/2") == f"orders/2  {text_line(a_row())}"


def test_a_tombstone_and_a_key_are_shown() -> None:
    assert text_line(a_row(value=None)).endswith("(tombstone)")
    assert "[k]" in text_line(a_row(key=b"k"))


@pytest.mark.parametrize("value", [b"\x1b[31mred", b"a\nb", b"\xff", "\u202eabc".encode()])
def test_text_never_steers_the_terminal(value: bytes) -> None:
    line = text_line(a_row(value=value))
    assert line.isprintable()
