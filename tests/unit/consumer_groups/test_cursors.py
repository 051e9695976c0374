"""The keys and values of cursors: what is taken, what is refused, what is stored."""

import pytest

from consumer_groups.cursors import (
    CURSOR_OFFSET_MAX,
    CursorPosition,
    CursorTable,
    PlainKey,
    decode_place,
    encode_place,
    plain_key,
    read_place,
    read_plain_key,
    read_record,
)
from envelope.errors import CorruptDataError, InvalidCursor
from envelope.limits import CURSOR_METADATA_BYTES_MAX
from envelope.types import Offset, TimestampUs

NOW = TimestampUs(1_700_000_000_000_000)


@pytest.mark.parametrize(
    ("published", "place"),
    [
        (b"42", CursorPosition(42)),
        (b" 42\n", CursorPosition(42)),
        (b"0", CursorPosition(0)),
        (b'{"offset":42}', CursorPosition(42)),
        (b'{"offset":4611686018427387904}', CursorPosition(CURSOR_OFFSET_MAX)),
        (b'{"offset":1,"metadata":null,"incarnation":null}', CursorPosition(1)),
        (
            b'{"metadata":"\\u00e9","offset":1,"incarnation":"1f0c-9"}',
            CursorPosition(1, "1f0c-9", "\u00e9"),
        ),
        (b'{"offset":1,"metadata":"' + b"x" * 1024 + b'"}', CursorPosition(1, None, "x" * 1024)),
    ],
)
def test_a_position_is_an_offset_or_an_object(published: bytes, place: CursorPosition) -> None:
    assert read_place(published) == place
    assert decode_place(encode_place(place)) == place


@pytest.mark.parametrize(
    ("published", "reason"),
    [
        (b"", "JSON"),
        (b"x", "JSON"),
        (b"042", "JSON"),
        (b"\xff", "JSON"),
        (b"4\x002", "JSON"),
        (b"[" * 10_000, "JSON"),
        (b"9" * 5000, "JSON"),
        (b"-1", "offset"),
        (b"4.0", "offset"),
        (b"1e3", "offset"),
        (b"true", "offset"),
        (b"null", "offset"),
        (b'"42"', "offset"),
        (b"[42]", "offset"),
        (b"4611686018427387905", "offset"),
        (b"{}", "offset is required"),
        (b'{"offset":"42"}', "offset"),
        (b'{"offset":42,"v":1}', "unknown field 'v'; there are: incarnation, metadata, offset"),
        (b'{"offset":42,"metadata":7}', "metadata"),
        (b'{"offset":42,"metadata":"' + b"x" * 1025 + b'"}', "at most 1024"),
        ('{"offset":42,"metadata":"%s"}' % ("\u00e9" * 513), "at most 1024"),
        (b'{"offset":42,"metadata":"\\ud800"}', "metadata"),
        (b'{"offset":42,"incarnation":"a b"}', "incarnation"),
        (b'{"offset":42,"incarnation":""}', "incarnation"),
    ],
)
def test_what_is_no_position_is_refused(published: bytes | str, reason: str) -> None:
    raw = published.encode() if isinstance(published, str) else published
    with pytest.raises(InvalidCursor, match=reason):
        read_place(raw)


def test_equal_positions_are_stored_as_equal_bytes() -> None:
    assert encode_place(read_place(b"42")) == b'{"v":1,"offset":42}'
    written = encode_place(read_place('{"metadata": "\u00e9", "offset": 42}'.encode()))
    assert written == '{"v":1,"offset":42,"metadata":"\u00e9"}'.encode()


def test_a_position_out_of_range_is_not_stored() -> None:
    for place in (CursorPosition(-1), CursorPosition(1, metadata="x" * (CURSOR_METADATA_BYTES_MAX + 1))):
        with pytest.raises(InvalidCursor):
            encode_place(place)


def test_fields_of_a_newer_version_are_passed_over_and_other_formats_are_not_read() -> None:
    assert decode_place(b'{"v":1,"offset":42,"colour":"red"}') == CursorPosition(42)
    for value in (b'{"v":2,"offset":42}', b'{"offset":42}', b"42", b""):
        with pytest.raises(InvalidCursor):
            decode_place(value)


def test_keys_of_names_with_namespaces_are_told_apart() -> None:
    assert plain_key("billing", "orders") == b"plain/billing/orders"
    assert plain_key("a/b", "c") == b"plain/a.b/c"
    assert plain_key("a", "b/c") == b"plain/a/b.c"


@pytest.mark.parametrize(("consumer", "stream"), [("", "s"), ("a.b", "s"), ("c", "a//b"), ("c" * 256, "s")])
def test_names_outside_the_grammar_have_no_key(consumer: str, stream: str) -> None:
    with pytest.raises(InvalidCursor, match="name"):
        plain_key(consumer, stream)


@pytest.mark.parametrize(
    "key",
    [b"", b"plain", b"plain/a", b"plain/a/b/c", b"group/a/b", b"plain/a//b", b"plain/\xff/b", b"plain/a/"],
)
def test_other_keys_are_of_no_plain_cursor(key: bytes) -> None:
    assert read_plain_key(key) is None
    assert read_record(key, b'{"v":1,"offset":42}', Offset(0), NOW) is None


def test_a_value_of_an_unknown_format_hides_the_cursor_before_it_and_is_told() -> None:
    """As compaction removes that one, the answer would otherwise depend on who has compacted what."""
    table, key = CursorTable(), plain_key("billing", "orders")
    values = [b'{"v":1,"offset":7}', b'{"v":2,"offset":8}']
    found = [read_record(key, value, Offset(at), NOW) for at, value in enumerate(values)]
    table.replay([record for record in found if record is not None], Offset(2))
    with pytest.raises(CorruptDataError, match="at offset 1 is none of format 1"):
        table.get("billing", "orders")
    assert (len(table), table.unreadable, table.all()) == (0, 1, ())
    newer = read_record(key, b'{"v":1,"offset":9}', Offset(2), NOW)
    assert newer is not None
    table.replay([newer], Offset(3))
    cursor = table.get("billing", "orders")
    assert cursor is not None
    assert (cursor.key, cursor.place, cursor.at) == (PlainKey("billing", "orders"), CursorPosition(9), 2)
    assert table.unreadable == 0


def test_nothing_is_absorbed_twice() -> None:
    table = CursorTable()
    record = read_record(plain_key("a", "b"), b'{"v":1,"offset":7}', Offset(4), NOW)
    assert record is not None
    table.replay([record], Offset(5))
    with pytest.raises(AssertionError, match="U1"):
        table.replay([record], Offset(6))
    with pytest.raises(AssertionError, match="U1"):
        table.replay([], Offset(4))
