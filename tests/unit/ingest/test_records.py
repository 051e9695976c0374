import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.ingest.messages import BATCH_FIXED_BYTES, MessageBlock
from jetstream.ingest.records import RecordFields, build_records
from jetstream.log.format.batch import BatchFlags, decode, encode
from jetstream.log.format.plain_batch_encoder import arrow_records
from jetstream.log.format.schema import SCHEMA


def build(subjects: list[bytes], payloads: list[bytes], fields: RecordFields | None = None) -> pa.RecordBatch:
    return arrow_records(
        build_records(
            Offset(40), TimestampUs(1_700_000_000_000_000), subjects, payloads, fields or RecordFields()
        )
    )


def test_plain_messages_fill_five_columns_and_leave_three_null() -> None:
    records = build([b"a", "ü.b".encode()], [b"1", b""])
    records.validate(full=True)
    assert records.schema == SCHEMA
    assert records["offset"].to_pylist() == [40, 41]
    assert records["timestamp"].cast(pa.int64()).to_pylist() == [1_700_000_000_000_000] * 2
    assert records["subject"].to_pylist() == ["a", "ü.b"]
    assert records["value"].to_pylist() == [b"1", b""]
    for name in ("key", "headers", "txid"):
        assert records[name].null_count == 2


def test_what_headers_bring_stands_in_its_row() -> None:
    fields = RecordFields(
        headers={1: [("A", b"1"), ("A", b"\xff")], 3: [("B", b"")]},
        keys={0: b"k", 3: b""},
        txids={2: -5},
        tombstones={3},
    )
    records = build([b"s"] * 4, [b"v"] * 3 + [b""], fields)
    records.validate(full=True)
    assert records["headers"].to_pylist() == [
        None,
        [{"key": "A", "value": b"1"}, {"key": "A", "value": b"\xff"}],
        None,
        [{"key": "B", "value": b""}],
    ]
    assert records["key"].to_pylist() == [b"k", None, None, b""]
    assert records["txid"].to_pylist() == [None, None, -5, None]
    assert records["value"].to_pylist() == [b"v", b"v", b"v", None]


@given(
    st.lists(
        st.tuples(
            st.text(alphabet="abü.", min_size=1, max_size=9),
            st.binary(max_size=30),
            st.lists(
                st.tuples(st.text(alphabet="ab", min_size=1, max_size=3), st.binary(max_size=3)),
                min_size=1,
                max_size=9,
            )
            | st.none(),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_the_size_of_a_block_bounds_its_encoded_batch(
    messages: list[tuple[str, bytes, list[tuple[str, bytes]] | None]],
) -> None:
    block, fields = MessageBlock(), RecordFields()
    for row, (subject, payload, headers) in enumerate(messages):
        raw = None
        if headers is not None:
            fields.headers[row] = headers
            fields.keys[row] = headers[0][1]
            raw = (
                b"NATS/1.0\r\n"
                + b"".join(b"%b:%b\r\n" % (name.encode(), value) for name, value in headers)
                + b"\r\n"
            )
        block.append(subject.encode(), b"", payload, raw)
    frame = encode(build(block.subjects, block.payloads, fields), Offset(40), LeaderEpoch(1))
    assert frame.size <= block.size_bytes + BATCH_FIXED_BYTES


def test_many_headers_of_one_letter_are_within_the_bound() -> None:
    block, fields = MessageBlock(), RecordFields()
    for row in range(50):
        fields.headers[row] = [("a", b"")] * 100
        block.append(b"s", b"", b"", b"NATS/1.0\r\n" + b"a:\r\n" * 100 + b"\r\n")
    frame = encode(build(block.subjects, block.payloads, fields), Offset(40), LeaderEpoch(1))
    assert block.size_bytes / 2 < frame.size <= block.size_bytes + BATCH_FIXED_BYTES


def test_records_survive_the_log_s_codec() -> None:
    records = build([b"a", b"b"], [b"1", b"2"], RecordFields(headers={0: [("A", b"1")]}, txids={1: 7}))
    batch = encode(records, Offset(40), LeaderEpoch(3))
    header, decoded = decode(batch.seal(BatchFlags(0)))
    assert (header.base, header.next, header.leader_epoch) == (40, 42, 3)
    assert decoded.equals(records)
