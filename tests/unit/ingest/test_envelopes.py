"""Envelopes on the publish path: what becomes a record, what is answered where, and what is refused."""

from typing import Any

import pyarrow as pa
import pytest

from envelope.envelopes import COOKIE, encode_batch, encode_message
from envelope.errors import DiskFull, InvalidEnvelope
from envelope.limits import BATCH_BYTES_MAX, ENVELOPE_RECORDS_MAX, MIB
from envelope.types import AckPolicy, LeaderEpoch, Offset
from jetstream.ingest.machine import CountKind
from jetstream.ingest.mailbox import Mailbox
from jetstream.ingest.messages import BATCH_ENVELOPE_BYTES_MIN
from jetstream.log.format.plain_batch_encoder import encode_records
from jetstream.log.format.schema import HEADERS_TYPE, SCHEMA
from tests.support.envelopes import (
    Columns,
    arrow,
    arrow_stream,
    batch_of,
    binary,
    ends,
    extent,
    forged,
    raw,
    without_schema,
)
from tests.support.ingest_machine import IngestHarness, absorb, outcomes
from tests.support.messages import Answer, appends, block_of, counted, message

INVALID = f"error {InvalidEnvelope.ack_code}"


def batch(*values: bytes | None, **columns: "pa.Array[Any]") -> bytes:
    table: Columns = {"value": binary(*values), **columns}
    return encode_batch(arrow(table), len(values))


def only(answers: list[Answer]) -> dict[str, object]:
    (answer,) = answers
    return answer.body


# --- messages -----------------------------------------------------------------------------------------


def test_a_message_in_an_envelope_becomes_the_record_that_headers_would_have_made() -> None:
    by_envelope, by_headers = IngestHarness(), IngestHarness()
    by_envelope.store(message(encode_message(b"v", key=b"k", txid=7, message_id=b"a"), "r"))
    by_headers.store(message(b"v", "r", Jetstream_Key="k", Jetstream_Txid="7", Nats_Msg_Id="a"))
    for name in ("offset", "timestamp", "subject", "key", "txid", "value"):
        assert by_envelope.column(name) == by_headers.column(name), name
    assert by_envelope.column("headers") == [[{"key": "Nats-Msg-Id", "value": b"a"}]]


def test_headers_of_nats_come_before_those_of_the_envelope() -> None:
    stream = IngestHarness()
    stream.store(message(encode_message(b"v", headers=[("b", b"2"), ("b", b"\xff")], message_id=b"m"), A="1"))
    (stored,) = stream.column("headers")
    assert [(each["key"], each["value"]) for each in stored] == [  # type: ignore[attr-defined]  # a list of dicts
        ("A", b"1"),
        ("b", b"2"),
        ("b", b"\xff"),
        ("Nats-Msg-Id", b"m"),
    ]


def test_a_repeat_is_recognised_however_its_id_comes() -> None:
    stream = IngestHarness()
    assert outcomes(stream.store(message(encode_message(b"1", message_id=b"a"), "r1"))) == [("r1", 0)]
    again = stream.store(
        message(b"1", "r2", Nats_Msg_Id="a"), message(encode_message(b"1", message_id=b"a"), "r3")
    )
    assert outcomes(again) == [("r2", "dup 0"), ("r3", "dup 0")]


def test_headers_inside_an_envelope_ask_as_those_outside_do() -> None:
    stream = IngestHarness()
    wrong = encode_message(b"", headers=[("Nats-Expected-Last-Sequence", b"5")])
    unknown = encode_message(b"", headers=[("Nats-TTL", b"1")])
    answers = stream.store(message(wrong, "r1"), message(unknown, "r2"))
    assert outcomes(answers) == [("r1", "error 10071"), ("r2", "error 60008")]


@pytest.mark.parametrize(
    "headers",
    [{"Nats_Msg_Id": "b"}, {"Jetstream_Key": "x"}, {"Jetstream_Txid": "8"}, {"Jetstream_Ack": "leader"}],
)
def test_a_header_that_contradicts_the_envelope_is_refused(headers: dict[str, str]) -> None:
    stream = IngestHarness()
    told = encode_message(b"", message_id=b"a", key=b"k", txid=7, ack=AckPolicy.ALL)
    assert outcomes(stream.store(message(told, "r", **headers))) == [("r", INVALID)]


def test_a_header_that_says_the_same_is_fine() -> None:
    stream = IngestHarness()
    told = encode_message(b"", message_id=b"a", key=b"k", txid=7, ack=AckPolicy.ALL)
    same = {"Nats_Msg_Id": "a", "Jetstream_Key": "k", "Jetstream_Txid": "7", "Jetstream_Ack": "all"}
    assert outcomes(stream.store(message(told, "r", **same))) == [("r", 0)]


def test_the_ack_goes_to_the_inbox_if_there_is_no_reply_and_echoes_the_correlation_id() -> None:
    stream = IngestHarness()
    told = encode_message(b"", ack_inbox="inbox.1", correlation_id='c"1')
    both = stream.store(message(told), message(told, "r"), message(b"plain", "p"))
    assert outcomes(both) == [("inbox.1", 0), ("r", 1), ("p", 2)]
    assert [answer.body.get("correlation_id") for answer in both] == ['c"1', 'c"1', None]


def test_refusals_and_repeats_echo_the_correlation_id_too() -> None:
    stream = IngestHarness()
    stream.store(message(encode_message(b"", txid=5, message_id=b"a")))
    late = encode_message(b"", txid=4, ack_inbox="inbox", correlation_id="late")
    again = encode_message(b"", message_id=b"a", ack_inbox="inbox", correlation_id="again")
    answers = stream.store(message(late), message(again))
    assert outcomes(answers) == [("inbox", "error 60007"), ("inbox", "dup 0")]
    assert [answer.body["correlation_id"] for answer in answers] == ["late", "again"]
    full = encode_message(b"", ack_inbox="inbox", correlation_id="full")
    assert only(stream.overflow(message(full)))["correlation_id"] == "full"
    stream.receive(message(full))
    assert only(stream.refuse(DiskFull("full")))["correlation_id"] == "full"


def test_a_stream_that_only_listens_answers_who_names_an_inbox_and_no_other() -> None:
    stream = IngestHarness(AckPolicy.NONE)
    asks, does_not = encode_message(b"1", ack_inbox="inbox"), encode_message(b"2", correlation_id="c")
    answers = stream.store(message(asks), message(does_not, "theirs"), message(asks, "theirs"))
    assert outcomes(answers) == [("inbox", 0)]
    assert stream.values == [b"1", b"2", b"1"]


def test_the_ack_policy_of_an_envelope_counts() -> None:
    stream = IngestHarness()
    leader, none = encode_message(b"", ack=AckPolicy.LEADER), encode_message(b"", ack=AckPolicy.NONE)
    stream.receive(message(leader, "r1"), message(none, "r2"), message(encode_message(b""), "r3"))
    assert outcomes(stream.append()) == [("r1", 0)]
    assert outcomes(stream.commit()) == [("r3", 2)]


def test_a_tombstone_in_an_envelope_has_no_value() -> None:
    stream = IngestHarness()
    stream.store(message(encode_message(None, key=b"k")), message(encode_message(b"", key=b"k")))
    assert stream.values == [None, b""]
    hollow = message(encode_message(b"x"), "r", Jetstream_Tombstone="true")
    assert outcomes(stream.store(hollow)) == [("r", "error 60006")]


def test_a_compressed_payload_is_stored_as_what_it_holds() -> None:
    stream = IngestHarness(record_bytes_max=1000)
    large, larger = encode_message(b"x" * 1000, compress=True), encode_message(b"x" * 1001, compress=True)
    answers = stream.store(message(large, "r1"), message(larger, "r2"))
    assert outcomes(answers) == [("r2", "error 10054"), ("r1", 0)]
    assert stream.values == [b"x" * 1000]


@pytest.mark.parametrize("payload", [COOKIE, COOKIE + b"x" * 40, encode_message(b"v")[:-1] + b"w"])
def test_a_cookie_by_chance_is_stored_as_it_is(payload: bytes) -> None:
    stream = IngestHarness()
    assert outcomes(stream.store(message(payload, "r"))) == [("r", 0)]
    assert stream.values == [payload]


def test_a_cookie_by_chance_that_looks_like_a_batch_is_stored_among_its_neighbours() -> None:
    stream = IngestHarness()
    chance = batch(b"x")[:-1] + b"?"
    stream.store(*(message(payload) for payload in (b"1", chance, b"2", batch(b"3", b"4"), chance)))
    assert stream.values == [b"1", chance, b"2", b"3", b"4", chance]


def test_an_envelope_within_an_envelope_is_a_value() -> None:
    stream = IngestHarness()
    inner = encode_message(b"inner")
    stream.store(message(encode_message(inner)), message(batch(inner, batch(b"x"))))
    assert stream.values == [inner, inner, batch(b"x")]


def test_what_cannot_be_taken_is_refused_and_said_to_the_reply() -> None:
    stream = IngestHarness()
    answers = stream.store(
        message(raw(version=2), "r1"),
        message(raw(b"\x02"), "r2"),
        message(raw(kind=2), "r3"),
        message(b"ok", "r4"),
    )
    assert outcomes(answers) == [("r1", "error 60008"), ("r2", INVALID), ("r3", INVALID), ("r4", 0)]


# --- batches ------------------------------------------------------------------------------------------


def test_a_batch_is_stored_in_its_columns_with_one_ack() -> None:
    stream = IngestHarness()
    headers = pa.array([None, [("a", b"1")], []], HEADERS_TYPE)
    data = batch(b"a", None, b"", key=binary(b"k", None, b""), txid=pa.array([1, None, 1]), headers=headers)
    body = only(stream.store(message(data, "r")))
    assert body == {"stream": "orders", "seq": 3, "offset": 2, "epoch": 3, "first_offset": 0, "count": 3}
    assert stream.values == [b"a", None, b""]
    assert stream.column("key") == [b"k", None, b""]
    assert stream.column("txid") == [1, None, 1]
    assert stream.column("headers") == [None, [{"key": "a", "value": b"1"}], []]
    assert stream.column("subject") == ["orders.new"] * 3
    assert stream.column("offset") == [0, 1, 2]
    assert stream.stored[0].schema.equals(SCHEMA)


@pytest.mark.parametrize(
    "order", [["value"], ["txid", "value"], ["value", "key"], ["headers", "value", "txid", "key"]]
)
def test_columns_may_stand_in_any_order_or_not_at_all(order: list[str]) -> None:
    everything: Columns = {
        "value": binary(b"v"),
        "key": binary(b"k"),
        "txid": pa.array([3], pa.int64()),
        "headers": pa.array([[("a", b"b")]], HEADERS_TYPE),
    }
    stream = IngestHarness()
    stream.store(message(encode_batch(arrow({name: everything[name] for name in order}), 1)))
    for name, column in everything.items():
        assert stream.column(name) == (column.to_pylist() if name in order else [None]), name


def test_messages_and_batches_keep_their_order_and_their_acks() -> None:
    stream = IngestHarness()
    answers = stream.store(
        message(b"0", "a"),
        message(batch(b"1", b"2"), "b"),
        message(batch(b"3"), "c"),
        message(b"4"),
        message(encode_message(b"5", correlation_id="x"), "d"),
        message(batch(b"6", b"7"), "e"),
    )
    assert outcomes(answers) == [("a", 0), ("b", 2), ("c", 3), ("d", 5), ("e", 7)]
    assert stream.values == [b"%d" % number for number in range(8)]
    assert stream.column("offset") == list(range(8))


def test_a_batch_is_acked_when_its_last_record_is_committed() -> None:
    stream = IngestHarness()
    stream.receive(message(batch(b"0", b"1", b"2"), "r"))
    stream.append()
    assert stream.commit(2) == []
    assert outcomes(stream.commit(3)) == [("r", 2)]


def test_a_repeated_batch_is_answered_with_the_offsets_of_the_first() -> None:
    stream = IngestHarness()
    data = encode_batch(arrow({"value": binary(b"0", b"1")}), 2, message_id=b"b", correlation_id="c")
    stream.store(message(b"x"))
    first = only(stream.store(message(data, "r")))
    again = only(stream.store(message(data, "r")))
    assert (first["first_offset"], first["offset"], first["count"]) == (1, 2, 2)
    assert again == first | {"duplicate": True}
    assert only(stream.store(message(batch(b"2"), "r")))["count"] == 1
    assert stream.values == [b"x", b"0", b"1", b"2"]
    plain = only(stream.store(message(b"", "r", Nats_Msg_Id="b")))
    assert (plain["first_offset"], plain["offset"], plain["count"]) == (1, 2, 2)


def test_a_log_that_is_read_back_knows_its_batches() -> None:
    before = IngestHarness()
    data = encode_batch(arrow({"value": binary(b"0", b"1", b"2")}), 3, message_id=b"b")
    one = encode_batch(arrow({"value": binary(b"3")}), 1, message_id=b"one")
    before.store(message(b"x"), message(data), message(b"y", Nats_Msg_Id="y"), message(one))
    after = IngestHarness()
    history = after.history
    for records in before.stored:
        absorb(history, records)
    history.high_watermark = before.log_end
    after = IngestHarness(log_end_offset=before.log_end, history=history)
    again = only(after.store(message(data, "r")))
    assert (again["first_offset"], again["offset"], again["count"], again["duplicate"]) == (1, 3, 3, True)
    assert only(after.store(message(one, "r")))["count"] == 1
    assert "count" not in only(after.store(message(b"", "r", Nats_Msg_Id="y")))
    last_id = message(b"", "r", Nats_Expected_Last_Msg_Id="one")
    assert "error" not in only(after.store(last_id)), "the last record of a batch has its id"


def test_a_batch_whose_append_is_refused_was_never_there() -> None:
    stream = IngestHarness()
    data = encode_batch(arrow({"value": binary(b"0", b"1"), "txid": pa.array([5, 9])}), 2, message_id=b"b")
    stream.receive(message(data, "r1"), message(b"plain", "r2"))
    assert outcomes(stream.refuse(DiskFull("full"))) == [("r1", "error 10047"), ("r2", "error 10047")]
    assert outcomes(stream.store(message(data, "r3"))) == [("r3", 1)]


def test_the_id_stands_behind_the_last_records_own_headers() -> None:
    stream = IngestHarness()
    headers = pa.array([None, [("a", b"1")]], HEADERS_TYPE)
    data = encode_batch(
        arrow({"value": binary(b"0", b"1"), "headers": headers}), 2, message_id=b"b", headers=[("e", b"2")]
    )
    stream.store(message(data, N="3"))
    nothing, last = stream.column("headers")
    assert nothing is None
    assert [(each["key"], each["value"]) for each in last] == [  # type: ignore[attr-defined]  # a list of dicts
        ("a", b"1"),
        ("N", b"3"),
        ("e", b"2"),
        ("Nats-Msg-Id", b"b"),
        ("Jetstream-Batch-Records", b"2"),
    ]


def test_what_only_the_node_writes_is_refused_from_anybody_else() -> None:
    stream = IngestHarness()
    forged = message(b"", "r", Jetstream_Batch_Records="1000", Nats_Msg_Id="a")
    assert outcomes(stream.store(forged)) == [("r", "error 60006")]


def test_txids_go_on_behind_those_before_the_batch_and_in_it() -> None:
    stream = IngestHarness()
    stream.store(message(b"", Jetstream_Txid="5"))
    answers = [
        only(stream.store(message(batch(*[b""] * len(txids), txid=pa.array(txids, pa.int64())), "r")))
        for txids in ([4, 9], [5, 7], [8, None, 9], [10, 9], [-(1 << 63), (1 << 63) - 1], [9, 9])
    ]
    codes = [answer["error"]["err_code"] if "error" in answer else None for answer in answers]  # type: ignore[index]  # a dict
    assert codes == [60007, None, None, InvalidEnvelope.ack_code, 60007, None]
    assert outcomes(stream.store(message(b"", "r", Jetstream_Txid="8"))) == [("r", "error 60007")]


def test_expectations_are_of_the_batch_as_a_whole() -> None:
    stream = IngestHarness()
    stream.store(message(batch(b"0", b"1")))
    wrong = message(batch(b"x"), "r1", Nats_Expected_Last_Sequence="1")
    right = message(batch(b"2", b"3"), "r2", Nats_Expected_Last_Sequence="2")
    assert outcomes(stream.store(wrong, right)) == [("r1", "error 10071"), ("r2", 3)]


@pytest.mark.parametrize(
    "headers", [{"Jetstream_Key": "k"}, {"Jetstream_Txid": "1"}, {"Jetstream_Tombstone": "1"}]
)
def test_what_a_batch_says_in_columns_it_does_not_say_in_headers(headers: dict[str, str]) -> None:
    assert outcomes(IngestHarness().store(message(batch(b""), "r", **headers))) == [("r", INVALID)]


VALUE = binary(b"v")
HEADER = pa.array([[("name", b"")]], HEADERS_TYPE)


HOSTILE: dict[str, bytes] = {
    "no Arrow": b"no Arrow",
    "nothing": b"",
    "a schema without records": arrow({"value": VALUE})[:120],
    "no schema before the records": without_schema(arrow({"value": VALUE})),
    "half a batch": arrow({"value": VALUE})[:-40],
    "bytes behind the end": arrow({"value": VALUE}) + b"more",
    "no column value": arrow({"key": VALUE}),
    "a column too many": arrow({"value": VALUE, "offset": pa.array([0])}),
    "a value of text": arrow({"value": pa.array(["v"])}),
    "a large binary value": arrow({"value": VALUE.cast(pa.large_binary())}),
    "a dictionary": arrow({"value": pa.array(["v"]).dictionary_encode()}),
    "a dictionary of keys": arrow({"value": VALUE, "key": VALUE.dictionary_encode()}),
    "txids of 32 bits": arrow({"value": VALUE, "txid": pa.array([1], pa.int32())}),
    "headers of another shape": arrow({"value": VALUE, "headers": pa.array([["a"]])}),
    "two columns value": arrow_stream(pa.RecordBatch.from_arrays([VALUE, VALUE], names=["value", "value"])),
    "two record batches": arrow_stream(*[pa.RecordBatch.from_arrays([VALUE], names=["value"])] * 2),
    "a compressed body, zstd": arrow({"value": VALUE}, pa.ipc.IpcWriteOptions(compression="zstd")),
    "a compressed body, lz4": arrow({"value": VALUE}, pa.ipc.IpcWriteOptions(compression="lz4")),
    "old metadata": arrow(
        {"value": VALUE}, pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    ),
    "an offset out of bounds": forged(arrow({"value": binary(b"abcde")}), ends(0, 5), ends(0, 1 << 30)),
    "a negative offset": forged(arrow({"value": binary(b"abcde")}), ends(0, 5), ends(-1, 5)),
    "a negative length": forged(arrow({"value": binary(b"abcde", b"f")}), ends(0, 5, 6), ends(0, 7, 6)),
    "a list that ends out of bounds": forged(
        arrow({"value": VALUE, "headers": HEADER}), ends(0, 1), ends(0, 9)
    ),
    "a header name that is not UTF-8": forged(
        arrow({"value": VALUE, "headers": HEADER}), b"name\0", b"na\xffe\0"
    ),
    "a null header": arrow({"value": VALUE, "headers": pa.array([[None]], HEADERS_TYPE)}),
    "a header without a name": arrow({"value": VALUE, "headers": pa.array([[(None, b"v")]], HEADERS_TYPE)}),
    "a header without a value": arrow({"value": VALUE, "headers": pa.array([[("a", None)]], HEADERS_TYPE)}),
    "a message's own header": arrow(
        {"value": VALUE, "headers": pa.array([[("Nats-Msg-Id", b"x")]], HEADERS_TYPE)}
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_arrow_that_is_not_allowed_is_refused(name: str) -> None:
    stream = IngestHarness()
    records = 2 if name == "a negative length" else 1  # the extent is right: what else is wrong is told
    body = only(stream.store(message(batch_of(HOSTILE[name], records), "r")))
    assert body["error"]["err_code"] == InvalidEnvelope.ack_code, body  # type: ignore[index]  # a dict
    assert outcomes(stream.store(message(b"next", "n"))) == [("n", 0)]


def test_what_is_no_schema_is_never_read_as_one() -> None:
    """Arrow would take any message for a schema, and follow references that are not there."""
    good = arrow({"value": VALUE})
    of_no_type = good[:20] + b"\x01" + good[21:]  # in the table of the message's fields: the type's place
    for hostile in (without_schema(good), of_no_type):
        body = only(IngestHarness().store(message(batch_of(hostile, 1), "r")))
        assert "begins with its schema" in body["error"]["description"]  # type: ignore[index]  # a dict


def test_claims_that_the_arrow_does_not_hold_are_refused() -> None:
    stream, good = IngestHarness(), arrow({"value": VALUE})
    assert outcomes(stream.store(message(batch_of(good, 2), "r"))) == [("r", INVALID)]
    rows = good.rindex((1).to_bytes(8, "little") + bytes(8))  # length and nulls of the one column
    first = good.index((1).to_bytes(8, "little"), 120)  # of the batch
    for place in (rows, first):
        forged = good[:place] + (10**9).to_bytes(8, "little") + good[place + 8 :]
        for records in (1, 10**9):
            body = only(stream.store(message(batch_of(forged, records), "r")))
            assert body["error"]["err_code"] in (InvalidEnvelope.ack_code, 10054), body  # type: ignore[index]  # a dict


def test_a_batch_that_fills_more_than_a_batch_of_the_log_is_refused() -> None:
    stream = IngestHarness()
    many = encode_batch(b"", ENVELOPE_RECORDS_MAX + 1)
    large = raw(extent(1, BATCH_BYTES_MAX), kind=2, flags=1)
    wide = message(raw(extent(ENVELOPE_RECORDS_MAX, 0), kind=2), "r3", "orders." + "x" * 200)
    answers = stream.store(message(many, "r1"), message(large, "r2"), wide)
    assert outcomes(answers) == [("r1", "error 10054"), ("r2", "error 10054"), ("r3", "error 10054")]


def test_a_batch_within_the_limits_is_one_batch_of_the_log() -> None:
    stream = IngestHarness(record_bytes_max=8 * MIB)
    columns: Columns = {
        "value": binary(*[b"v" * 60] * ENVELOPE_RECORDS_MAX),
        "key": binary(*[b"k"] * ENVELOPE_RECORDS_MAX),
    }
    payload = arrow(columns)
    for records in (ENVELOPE_RECORDS_MAX, ENVELOPE_RECORDS_MAX // 2):
        part = (
            payload
            if records == ENVELOPE_RECORDS_MAX
            else arrow({k: v[:records] for k, v in columns.items()})
        )
        stream.receive(message(encode_batch(part, records, message_id=b"%d" % records), "r"))
        for append in appends(stream.actions):
            (encoded,) = encode_records(append.records, append.base, LeaderEpoch(1))
            assert encoded.size <= BATCH_BYTES_MAX
            assert encoded.next - encoded.base == records
            stream.append()
    assert stream.log_end == ENVELOPE_RECORDS_MAX // 2, "the whole one was too much"


def test_the_streams_limit_is_for_each_record_of_a_batch() -> None:
    stream = IngestHarness(record_bytes_max=100)
    headers = pa.array([None, [("name", b"x" * 50)]], HEADERS_TYPE)
    fine = batch(b"v" * 46, b"v" * 46, headers=headers)
    too_much = batch(b"v" * 46, b"v" * 47, headers=headers)
    with_key = batch(b"v" * 60, b"", key=binary(b"k" * 41, None))
    answers = stream.store(message(fine, "r1"), message(too_much, "r2"), message(with_key, "r3"))
    assert outcomes(answers) == [("r2", "error 10054"), ("r3", "error 10054"), ("r1", 1)]


# --- what is opened together ----------------------------------------------------------------------------


def test_a_group_opens_only_so_many_envelopes_at_once() -> None:
    mailbox = Mailbox(1000, 64 * MIB)
    bomb = raw(extent(1, 4 * MIB), b"tiny", flags=1)
    mailbox.offer(block_of([message(bomb)] * 5 + [message(b"plain")] * 3))
    assert [len(mailbox.drain(1000, BATCH_BYTES_MAX)) for _ in range(5)] == [1, 1, 1, 1, 4]
    assert mailbox.waiting == mailbox.size_bytes == 0


def test_an_envelope_larger_than_the_limit_is_opened_alone() -> None:
    mailbox = Mailbox(1000, 64 * MIB)
    mailbox.offer(block_of([message(raw(extent(1, 100 * MIB), b"tiny", flags=1))] * 2))
    assert [len(mailbox.drain(1000, BATCH_BYTES_MAX)) for _ in range(2)] == [1, 1]


def test_small_batches_count_as_what_they_cost() -> None:
    mailbox = Mailbox(1000, 64 * MIB)
    mailbox.offer(block_of([message(batch(b"x"))] * 300))
    assert len(mailbox.drain(1000, BATCH_BYTES_MAX)) == (BATCH_BYTES_MAX - 1) // BATCH_ENVELOPE_BYTES_MIN


def test_plain_messages_count_as_before() -> None:
    mailbox = Mailbox(1000, 64 * MIB)
    mailbox.offer(block_of([message(b"\x8aJSD"), message(b"x")] * 400))
    assert len(mailbox.drain(1000, BATCH_BYTES_MAX)) == 800


def test_refused_and_repeated_messages_are_counted_one_by_one() -> None:
    stream = IngestHarness()
    stream.receive(message(batch(*[b"x"] * 500), "r"), message(batch(b"y", b"z")))
    answers = stream.refuse(DiskFull("full"))
    assert outcomes(answers) == [("r", "error 10047")]
    assert counted(stream.actions, CountKind.REFUSED) == 1
    assert counted(stream.actions, CountKind.DROPPED_WITHOUT_REPLY) == 1
    assert stream.log_end == Offset(0)
