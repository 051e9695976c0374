"""Whatever is put into an envelope comes out again; whatever is done to one is noticed, or refused typed."""

import struct
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envelope.envelopes import COOKIE, HeaderFields, decode, encode_batch, encode_message
from envelope.errors import InvalidEnvelope, JetstreamError, RecordTooLarge, Unsupported
from envelope.types import AckPolicy, Offset, TimestampUs
from jetstream.ingest.batches import joined_records, read_batch
from jetstream.log.format.schema import HEADERS_TYPE, SCHEMA
from tests.support.envelopes import Columns, arrow, batch_of, raw
from tests.support.example_counts import examples
from tests.support.ingest_machine import IngestHarness
from tests.support.messages import message

BYTES_MAX = 1 << 20
MANY = settings(max_examples=examples(500))
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
SUBJECTS = st.lists(st.text("abcXYZ09_-", min_size=1, max_size=5), min_size=1, max_size=4).map(".".join)

of_both: dict[str, st.SearchStrategy[Any]] = {
    "message_id": st.binary(min_size=1, max_size=20),
    "ack": st.sampled_from(AckPolicy),
    "ack_inbox": SUBJECTS,
    "correlation_id": NAMES,
    "headers": st.lists(st.tuples(NAMES, st.binary(max_size=8)), max_size=3),
}
of_messages: dict[str, st.SearchStrategy[Any]] = {
    "key": st.binary(max_size=20),
    "txid": st.integers(-(1 << 63), (1 << 63) - 1),
}
batch_fields = st.fixed_dictionaries({}, optional=of_both)
message_fields = st.fixed_dictionaries({}, optional=of_both | of_messages)


@given(message_fields, st.none() | st.binary(max_size=300), st.booleans())
def test_what_goes_into_a_message_comes_out(asked: HeaderFields, value: bytes | None, compress: bool) -> None:
    found = decode(encode_message(value, compress=compress, **asked))
    assert found is not None
    inbox = asked.get("ack_inbox")
    assert found[1:7] == (
        asked.get("message_id"),
        asked.get("key"),
        asked.get("txid"),
        asked.get("ack"),
        None if inbox is None else inbox.encode(),
        asked.get("correlation_id"),
    )
    assert list(found.headers) == list(asked.get("headers", []))
    assert (found.tombstone, bytes(found.content(BYTES_MAX))) == (value is None, value or b"")


@given(batch_fields, st.binary(max_size=5000), st.integers(0, 1 << 30), st.integers(1, 255))
def test_a_changed_byte_anywhere_makes_it_no_envelope(
    asked: HeaderFields, payload: bytes, place: int, change: int
) -> None:
    data = bytearray(encode_batch(payload, 1, **asked))
    data[place % len(data)] ^= change
    assert decode(bytes(data)) is None


@given(st.binary(max_size=100))
@example(bytes(12))
def test_bytes_behind_the_cookie_are_a_payload_like_any_other(rest: bytes) -> None:
    stream = IngestHarness()
    stream.store(message(COOKIE + rest, "r"))
    assert stream.values == [COOKIE + rest]


@given(
    st.binary(max_size=60),
    st.binary(max_size=60),
    st.integers(0, 255) | st.sampled_from([1, 2]),
    st.integers(0, 7),
    st.none() | st.integers(0, (1 << 32) - 1),
)
@MANY
def test_anything_with_a_fitting_checksum_is_taken_or_refused_typed(
    header: bytes, payload: bytes, kind: int, flags: int, claim: int | None
) -> None:
    try:
        found = decode(raw(header, payload, kind=kind, flags=flags, claim=claim))
    except (InvalidEnvelope, Unsupported):
        return
    assert found is not None
    try:
        found.content(BYTES_MAX)
    except (InvalidEnvelope, RecordTooLarge):
        return


numbers = st.lists(st.tuples(st.integers(1, 8), st.binary(max_size=12)), max_size=6)


@given(numbers, st.booleans())
@MANY
def test_fields_in_any_shape_are_taken_or_refused_typed(
    given_fields: list[tuple[int, bytes]], ordered: bool
) -> None:
    if ordered:
        given_fields.sort(key=lambda each: each[0])
    header = b"".join(struct.pack("<BH", number, len(value)) + value for number, value in given_fields)
    stream = IngestHarness()
    answers = stream.store(message(raw(header, b"v"), "r"))
    assert len(answers) <= 1
    refused = bool(answers) and answers[0].error_code is not None
    assert len(stream.values) == (0 if refused else 1)


rows = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=20),
        st.none() | st.lists(st.tuples(NAMES, st.binary(max_size=5)), max_size=3),
    ),
    min_size=1,
    max_size=20,
)


def table(records: list[tuple[Any, Any, Any]], txids: list[int | None]) -> Columns:
    keys, values, headers = zip(*records, strict=True)
    return {
        "key": pa.array(keys, pa.binary()),
        "headers": pa.array(headers, HEADERS_TYPE),
        "txid": pa.array(txids, pa.int64()),
        "value": pa.array(values, pa.binary()),
    }


@given(rows, st.data())
def test_a_batch_is_stored_as_its_rows(records: list[tuple[Any, Any, Any]], data: st.DataObject) -> None:
    txids = data.draw(st.lists(st.none() | st.integers(0, 9), min_size=len(records), max_size=len(records)))
    in_order = iter(sorted(txid for txid in txids if txid is not None))
    columns = table(records, [None if txid is None else next(in_order) for txid in txids])
    stream = IngestHarness()
    compress = data.draw(st.booleans())
    (answer,) = stream.store(message(encode_batch(arrow(columns), len(records), compress=compress), "r"))
    assert answer.body["count"] == len(records)
    for name, column in columns.items():
        assert stream.column(name) == column.to_pylist(), name


@given(
    rows,
    st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4),
)
@MANY
def test_arrow_with_other_bytes_in_it_is_read_or_refused_typed(
    records: list[tuple[Any, Any, Any]], changes: list[tuple[int, bytes]]
) -> None:
    """The checksum fits: so all that stands between these bytes and the log is the check of the Arrow."""
    content = bytearray(arrow(table(records, [None] * len(records))))
    for place, change in changes:
        at = place % len(content)
        content[at : at + len(change)] = change[: len(content) - at]
    found = decode(batch_of(bytes(content), len(records)))
    assert found is not None
    try:
        batch = read_batch(found, b"orders.new", [("a", b"b")], BYTES_MAX)
    except JetstreamError as error:
        assert isinstance(error, InvalidEnvelope | RecordTooLarge)  # noqa: PT017  # any other is a bug
        return
    for copies in (1, 2):
        stored = joined_records([batch] * copies, Offset(5), TimestampUs(7))
        stored.validate(full=True)
        assert stored.schema.equals(SCHEMA)
        assert len(stored.to_pylist()) == copies * len(records)
