"""Cursors: what is written is read, whatever else lies in the log; the table against a dictionary."""

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from consumer_groups.cursors import (
    CURSOR_OFFSET_MAX,
    Cursor,
    CursorPosition,
    CursorRecord,
    CursorTable,
    PlainKey,
    decode_place,
    encode_place,
    plain_key,
    publish_place,
    read_place,
    read_plain_key,
    read_record,
    selected,
)
from envelope.errors import CorruptDataError, InvalidCursor
from envelope.types import Offset, TimestampUs

NAMES = st.from_regex(
    r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,3}(/[A-Za-z0-9_][A-Za-z0-9_\-]{0,3}){0,2}", fullmatch=True
)
FEW_NAMES = st.sampled_from(("a", "b", "a/b", "b/a", "a/b/a"))
PLACES = st.builds(
    CursorPosition,
    st.integers(0, CURSOR_OFFSET_MAX),
    st.none() | st.from_regex(r"[0-9a-f]{16}", fullmatch=True),
    st.none() | st.text(max_size=80),
)
HOSTILE = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        (b'{"v":1}', b'{"v":2,"offset":1}', b'{"v":1,"offset":-1}', b"[" * 2000, b'{"v":1,"offset":')
    ),
)
KEYS = st.one_of(
    st.builds(plain_key, FEW_NAMES, FEW_NAMES),
    st.none()
    | st.binary(max_size=8)
    | st.sampled_from((b"group/a/b", b"plain/a", b"plain/a/b/a", b"plain//")),
)
RECORDS = st.tuples(KEYS, st.none() | HOSTILE | st.builds(encode_place, PLACES), st.integers(1, 3))


@given(PLACES)
def test_a_position_is_read_as_it_was_written(place: CursorPosition) -> None:
    stored = encode_place(place)
    assert decode_place(stored) == place
    assert read_place(publish_place(place)) == place


@given(PLACES, st.integers(0, CURSOR_OFFSET_MAX))
def test_what_is_written_by_hand_is_json_in_one_form(place: CursorPosition, generation: int) -> None:
    fields = {name: value for name, value in place._asdict().items() if value is not None}
    stored = {"v": 1, **fields, "generation": generation}
    for written, expected in (
        (publish_place(place), fields),
        (encode_place(place, generation=generation), stored),
    ):
        assert written == json.dumps(expected, separators=(",", ":"), ensure_ascii=False).encode()


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode(errors="surrogatepass")))
def test_anything_else_is_refused_or_stored_so_that_it_is_read(published: bytes) -> None:
    try:
        place = read_place(published)
    except InvalidCursor:
        return
    assert decode_place(encode_place(place)) == place


@given(NAMES, NAMES, NAMES, NAMES)
def test_a_key_is_that_of_one_consumer_in_one_stream(a: str, b: str, c: str, d: str) -> None:
    assert read_plain_key(plain_key(a, b)) == PlainKey(a, b)
    assert (plain_key(a, b) == plain_key(c, d)) == ((a, b) == (c, d))


def readable(value: bytes | None) -> CursorPosition | None:
    """The place in a value, None if there is none."""
    try:
        return None if value is None else decode_place(value)
    except InvalidCursor:
        return None


@given(st.lists(RECORDS, max_size=40), st.lists(st.integers(1, 10), min_size=1))
def test_the_table_is_the_last_record_of_each_key(
    records: list[tuple[bytes | None, bytes | None, int]], cuts: Sequence[int]
) -> None:
    table, model, hidden = CursorTable(), dict[PlainKey, Cursor](), set[PlainKey]()
    stored: list[CursorRecord] = []
    at, chunk = 0, 0
    for key, value, gap in records:
        at += gap  # compaction leaves gaps
        offset, now = Offset(at), TimestampUs(1000 + at)
        found = read_record(key, value, offset, now)
        plain = None if key is None else read_plain_key(key)
        assert (found is None) == (plain is None)
        if found is None or plain is None:
            continue
        stored.append(found)
        model.pop(plain, None)
        hidden.discard(plain)
        place = readable(value)
        if place is not None:
            model[plain] = Cursor(plain, place, now, offset)
        elif value is not None:
            hidden.add(plain)
        if len(stored) >= cuts[chunk % len(cuts)]:
            table.replay(stored, Offset(at + 1))
            stored, chunk = [], chunk + 1
    table.replay(stored, Offset(at + 1))
    check(table, model, hidden)


def check(table: CursorTable, model: dict[PlainKey, Cursor], hidden: set[PlainKey]) -> None:
    assert (len(table), table.unreadable) == (len(model), len(hidden))
    for consumer in ("a", "b", "a/b", "b/a", "a/b/a", "c"):
        for stream in ("a", "b", "a/b", "b/a", "a/b/a"):
            key = PlainKey(consumer, stream)
            try:
                assert table.get(consumer, stream) == model.get(key)
                assert key not in hidden
            except CorruptDataError:
                assert key in hidden
        of_consumer = selected(table.all(), consumer, None)
        assert of_consumer == [model[key] for key in sorted(model) if key.consumer == consumer]
        of_stream = selected(table.all(), None, consumer)
        assert of_stream == [model[key] for key in sorted(model) if key.stream == consumer]
    assert selected(table.all(), None, None) == [model[key] for key in sorted(model)]
