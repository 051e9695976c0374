import json
from base64 import b64decode
from datetime import UTC, datetime
from typing import Any

import pytest

from jetstream.cli.output.record_format import json_line, text_line


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


def test_a_plain_record_is_one_json_object_without_empty_fields() -> None:
    assert json_line(a_row()) == (
        '{"offset":7,"timestamp":"2026-03-01T12:00:00.000005Z","subject":"orders.eu","value":"{\\"a\\":1}"}'
    )


def test_a_line_says_of_which_stream_it_is_if_that_does_not_go_without_saying() -> None:
    assert json.loads(json_line(a_row(), "orders/2")) == {
        "stream": "orders/2",
        **json.loads(json_line(a_row())),
    }
    assert text_line(a_row(), "orders/2") == f"orders/2  {text_line(a_row())}"


def test_bytes_that_are_not_utf8_are_base64_under_another_name() -> None:
    line = json.loads(json_line(a_row(value=b"\xff\x00", key=b"\xfe")))
    assert "value" not in line
    assert "key" not in line
    assert b64decode(line["value_base64"]) == b"\xff\x00"
    assert b64decode(line["key_base64"]) == b"\xfe"


def test_headers_keep_their_order_their_repetitions_and_their_bytes() -> None:
    headers = [{"key": "A", "value": b"1"}, {"key": "A", "value": b"\xff"}, {"key": "B", "value": None}]
    assert json.loads(json_line(a_row(headers=headers)))["headers"] == [
        {"key": "A", "value": "1"},
        {"key": "A", "value_base64": "/w=="},
        {"key": "B", "value": None},
    ]


def test_a_tombstone_is_null_and_an_empty_value_is_a_value() -> None:
    assert json.loads(json_line(a_row(value=None)))["value"] is None
    assert json.loads(json_line(a_row(value=b"")))["value"] == ""
    assert text_line(a_row(value=None)).endswith("(tombstone)")


def test_a_txid_and_a_key_are_shown_when_set() -> None:
    line = json.loads(json_line(a_row(txid=0, key=b"k")))
    assert line["txid"] == 0
    assert line["key"] == "k"
    assert "[k]" in text_line(a_row(key=b"k"))


@pytest.mark.parametrize("value", [b"\x1b[31mred", b"a\nb", b"\xff", "\u202eabc".encode()])
def test_text_never_steers_the_terminal(value: bytes) -> None:
    line = text_line(a_row(value=value))
    assert line.isprintable()
