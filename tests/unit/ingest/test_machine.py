import pyarrow as pa
import pytest

from envelope.errors import InvalidHeader, InvalidSubject, TxidDecreasing, Unsupported
from envelope.types import AckPolicy, LeaderEpoch, Offset, TimestampUs
from jetstream.ingest.machine import (
    APPENDS_IN_FLIGHT_MAX,
    CountKind,
)
from jetstream.ingest.publishers.dedupe import DedupeWindow
from jetstream.ingest.publishers.history import PublisherHistory, TxidMark
from jetstream.log.format.plain_batch_encoder import arrow_records
from tests.support.ingest_machine import IngestHarness, absorb, outcomes
from tests.support.messages import PublishedMessage, appends, block_of, counted, message

BAD_HEADER = f"error {InvalidHeader.ack_code}"
BAD_SUBJECT = f"error {InvalidSubject.ack_code}"
TXID_DECREASING = f"error {TxidDecreasing.ack_code}"


# --- storing and acking ---------------------------------------------------------------------------------


def test_messages_become_records_in_arrival_order() -> None:
    stream = IngestHarness()
    stream.store(message(b"1", subject="orders.a"), message(b"2", subject="orders.b"))
    stream.store(message(b"3", subject="orders.ü"))
    assert stream.column("offset") == [0, 1, 2]
    assert stream.column("subject") == ["orders.a", "orders.b", "orders.ü"]
    assert stream.values == [b"1", b"2", b"3"]
    for name in ("key", "headers", "txid"):
        assert stream.column(name) == [None] * 3


def test_the_append_names_its_place_and_reign() -> None:
    stream = IngestHarness(log_end_offset=7)
    stream.receive(message())
    [append] = appends(stream.actions)
    assert (append.base, append.leader_epoch) == (7, 3)
    assert arrow_records(append.records)["offset"].to_pylist() == [7]


def test_an_ack_waits_for_the_high_watermark() -> None:
    stream = IngestHarness()
    assert stream.receive(message(reply="r1"), message(reply="r2")) == []
    assert stream.append() == []
    assert outcomes(stream.commit()) == [("r1", 0), ("r2", 1)]
    assert stream.commit() == [], "an ack is sent once"


def test_a_high_watermark_within_a_group_releases_its_front() -> None:
    stream = IngestHarness()
    stream.receive(*(message(reply=f"r{number}") for number in range(4)))
    stream.append()
    assert outcomes(stream.commit(1)) == [("r0", 0)]
    assert outcomes(stream.commit(4)) == [("r1", 1), ("r2", 2), ("r3", 3)]


def test_the_last_of_messages_that_have_ids_alone_is_the_last_id_of_the_stream() -> None:
    stream = IngestHarness()
    stream.store(message(Nats_Msg_Id="a"), message(Nats_Msg_Id="b"))
    for expected, outcome in (("a", "error 10070"), ("b", 2)):
        third = message(reply="r", Nats_Msg_Id="c", Nats_Expected_Last_Msg_Id=expected)
        assert outcomes(stream.store(third)) == [("r", outcome)]


def test_acks_of_several_groups_are_released_together() -> None:
    stream = IngestHarness()
    for group in range(3):
        stream.receive(message(reply=f"a{group}"), message(reply=f"b{group}"))
        stream.append()
    assert outcomes(stream.commit()) == [("a0", 0), ("b0", 1), ("a1", 2), ("b1", 3), ("a2", 4), ("b2", 5)]


def test_messages_without_reply_are_stored_and_not_answered() -> None:
    stream = IngestHarness()
    assert outcomes(stream.store(message(b"1"), message(b"2", "r"), message(b"3"), message(b"4", "q"))) == [
        ("r", 1),
        ("q", 3),
    ]
    assert len(stream.values) == 4


def test_an_empty_block_is_nothing() -> None:
    stream = IngestHarness()
    assert stream.receive() == []
    assert not stream.actions


# --- ack policies -----------------------------------------------------------------------------------------


def test_a_leader_stream_acks_when_the_append_returns() -> None:
    stream = IngestHarness(AckPolicy.LEADER)
    assert stream.receive(message(reply="r")) == []
    assert outcomes(stream.append()) == [("r", 0)]
    assert stream.commit() == []


def test_a_none_stream_answers_only_messages_that_ask() -> None:
    stream = IngestHarness(AckPolicy.NONE)
    stream.receive(
        message(reply="r0"),
        message(reply="r1", Jetstream_Ack="all"),
        message(reply="r2", Jetstream_Ack="leader"),
        message(reply="r3", Nats_Msg_Id="a"),
        message(reply="r4", Nats_Expected_Stream="orders"),
        message(reply="r5", Jetstream_Ack="none"),
    )
    assert outcomes(stream.append()) == [("r2", 2)]
    assert outcomes(stream.commit()) == [("r1", 1)]
    assert len(stream.values) == 6


def test_a_none_stream_leaves_expectations_to_those_who_answer() -> None:
    stream = IngestHarness(AckPolicy.NONE)
    assert stream.store(message(reply="r", Nats_Expected_Last_Sequence="99")) == []
    assert outcomes(
        stream.store(message(reply="r", Nats_Expected_Last_Sequence="99", Jetstream_Ack="all"))
    ) == [("r", "error 10071")]
    assert len(stream.values) == 1


def test_a_message_may_ask_for_less_or_for_nothing() -> None:
    stream = IngestHarness()
    stream.receive(
        message(reply="r0", Jetstream_Ack="leader"),
        message(reply="r1"),
        message(reply="r2", Jetstream_Ack="none"),
    )
    assert outcomes(stream.append()) == [("r0", 0)]
    assert outcomes(stream.commit()) == [("r1", 1)]


def test_a_refused_message_that_wants_no_answer_gets_none() -> None:
    stream = IngestHarness()
    assert stream.receive(message(reply="r", Jetstream_Ack="none", Jetstream_Txid="x")) == []
    assert counted(stream.actions, CountKind.DROPPED_WITHOUT_REPLY) == 1


# --- what headers bring -----------------------------------------------------------------------------------


def test_headers_are_stored_as_they_came() -> None:
    stream = IngestHarness()
    raw = b"NATS/1.0\r\nA: 1\r\nA: 2\r\nNats-Msg-Id: x\r\nJetstream-Key: k\r\nJetstream-Txid: 7\r\n\r\n"
    stream.store(message(b"1"), PublishedMessage(b"2", raw_header=raw), message(b"3"))
    assert stream.column("headers") == [
        None,
        [
            {"key": "A", "value": b"1"},
            {"key": "A", "value": b"2"},
            {"key": "Nats-Msg-Id", "value": b"x"},
            {"key": "Jetstream-Key", "value": b"k"},
            {"key": "Jetstream-Txid", "value": b"7"},
        ],
        None,
    ]
    assert stream.column("key") == [None, b"k", None]
    assert stream.column("txid") == [None, 7, None]
    assert stream.values == [b"1", b"2", b"3"]


def test_a_header_block_without_headers_is_no_headers() -> None:
    stream = IngestHarness()
    stream.store(PublishedMessage(b"1", raw_header=b"NATS/1.0\r\n\r\n"))
    assert stream.column("headers") == [None]


def test_a_tombstone_has_no_value_and_an_empty_payload_has_one() -> None:
    stream = IngestHarness()
    answers = stream.store(
        message(b"", "r0", Jetstream_Tombstone="true", Jetstream_Key="k"),
        message(b"", "r1"),
        message(b"", "r2", Jetstream_Tombstone="false"),
        message(b"x", "r3", Jetstream_Tombstone="true"),
    )
    assert stream.values == [None, b"", b""]
    assert outcomes(answers) == [("r3", BAD_HEADER), ("r0", 0), ("r1", 1), ("r2", 2)]


# --- refusals before the append ---------------------------------------------------------------------------


def test_a_refused_message_leaves_no_gap() -> None:
    stream = IngestHarness(record_bytes_max=5)
    answers = stream.receive(message(b"1", "r0"), message(b"123456", "r1"), message(b"12345", "r2"))
    assert outcomes(answers) == [("r1", "error 10054")]
    assert counted(stream.actions, CountKind.REFUSED) == 1
    assert outcomes(stream.append() + stream.commit()) == [("r0", 0), ("r2", 1)]
    assert stream.values == [b"1", b"12345"]


def test_the_header_counts_for_the_size() -> None:
    size = len(message(b"12345", A="1").header or b"") + 5
    assert (
        IngestHarness(record_bytes_max=size - 1).receive(message(b"12345", "r", A="1"))[0].error_code == 10054
    )
    assert IngestHarness(record_bytes_max=size).receive(message(b"12345", "r", A="1")) == []


def test_a_subject_that_is_not_utf8_is_refused() -> None:
    stream = IngestHarness()
    bad = PublishedMessage(b"1", b"orders.\xff", b"r1")
    split = [PublishedMessage(b"2", b"orders.\xc3", b"r2"), PublishedMessage(b"3", b"\xbc.orders", b"r3")]
    answers = stream.store(message(b"0", "r0"), bad, *split, message(b"4", "r4"))
    assert outcomes(answers) == [
        ("r1", BAD_SUBJECT),
        ("r2", BAD_SUBJECT),
        ("r3", BAD_SUBJECT),
        ("r0", 0),
        ("r4", 1),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        message(reply="r", Jetstream_Txid="seven"),
        message(reply="r", Jetstream_Ack="everybody"),
        message(reply="r", Jetstream_Tombstone="perhaps"),
        message(reply="r", Nats_Msg_Id="x" * 2000),
        message(reply="r", Nats_Expected_Last_Sequence="-1"),
        PublishedMessage(b"1", reply=b"r", raw_header=b"no header block"),
    ],
)
def test_a_bad_header_is_refused_and_stores_nothing(bad: PublishedMessage) -> None:
    stream = IngestHarness()
    assert outcomes(stream.receive(bad)) == [("r", BAD_HEADER)]
    assert appends(stream.actions) == []


def test_a_header_for_what_we_cannot_do_is_refused_and_stores_nothing() -> None:
    stream = IngestHarness()
    answers = stream.receive(message(reply="r", Nats_Rollup="all"))
    assert outcomes(answers) == [("r", f"error {Unsupported.ack_code}")]
    assert appends(stream.actions) == []


def test_an_unknown_ack_policy_is_refused_even_by_a_stream_that_only_listens() -> None:
    assert outcomes(IngestHarness(AckPolicy.NONE).receive(message(reply="r", Jetstream_Ack="quorum"))) == [
        ("r", BAD_HEADER)
    ]


def test_refusals_without_reply_are_counted() -> None:
    stream = IngestHarness()
    assert stream.receive(message(Jetstream_Txid="x"), message(Jetstream_Txid="y")) == []
    assert counted(stream.actions, CountKind.DROPPED_WITHOUT_REPLY) == 2
    assert counted(stream.actions, CountKind.REFUSED) == 0


# --- expectations -----------------------------------------------------------------------------------------


def test_the_expected_last_sequence_is_the_next_offset() -> None:
    stream = IngestHarness()
    answers = stream.receive(
        message(b"a", "r0", Nats_Expected_Last_Sequence="0"),
        message(b"b", "r1", Nats_Expected_Last_Sequence="0"),
        message(b"c", "r2", Nats_Expected_Last_Sequence="1"),
        message(b"d", "r3"),
        message(b"e", "r4", Nats_Expected_Last_Sequence="3"),
    )
    assert outcomes(answers) == [("r1", "error 10071")]
    error = answers[0].body["error"]
    assert isinstance(error, dict)
    assert error["description"] == "wrong last sequence: 1"
    assert error["code"] == 400
    assert outcomes(stream.append() + stream.commit()) == [("r0", 0), ("r2", 1), ("r3", 2), ("r4", 3)]


def test_the_expected_last_id_is_that_of_the_last_record_only() -> None:
    stream = IngestHarness()
    answers = stream.receive(
        message(b"a", "r0", Nats_Msg_Id="a"),
        message(b"b", "r1", Nats_Expected_Last_Msg_Id="a", Nats_Msg_Id="b"),
        message(b"x", "r2", Nats_Expected_Last_Msg_Id="a"),
        message(b"c", "r3", Nats_Expected_Last_Msg_Id="b"),
        message(b"y", "r4", Nats_Expected_Last_Msg_Id="b"),
        message(b"d", "r5", Nats_Msg_Id="d"),
        message(b"e", "r6"),
        message(b"z", "r7", Nats_Expected_Last_Msg_Id="d"),
    )
    assert outcomes(answers) == [("r2", "error 10070"), ("r4", "error 10070"), ("r7", "error 10070")]
    error = answers[0].body["error"]
    assert isinstance(error, dict)
    assert error["description"] == "wrong last msg ID: b"
    assert stream.in_flight == [b"a", b"b", b"c", b"d", b"e"]


def test_the_last_id_is_taken_over_from_the_log() -> None:
    history = PublisherHistory(
        DedupeWindow(1_000_000, 10), Offset(5), last_message_id=b"old", last_message_id_offset=Offset(4)
    )
    stream = IngestHarness(log_end_offset=5, history=history)
    assert stream.receive(message(reply="r", Nats_Expected_Last_Msg_Id="old")) == []


def test_a_named_stream_that_is_not_bound_is_refused() -> None:
    stream = IngestHarness()
    assert outcomes(stream.receive(message(reply="r", Nats_Expected_Stream="nobody"))) == [
        ("r", "error 10060")
    ]
    elsewhere = message(reply="r", subject="payments.new", Nats_Expected_Stream="audit")
    assert outcomes(stream.receive(elsewhere)) == [("r", "error 10060")]
    assert appends(stream.actions) == []


def test_another_named_stream_answers_and_this_one_stores_silently() -> None:
    stream = IngestHarness()
    answers = stream.store(
        message(b"1", "r0", Nats_Expected_Stream="audit", Nats_Expected_Last_Sequence="99"),
        message(b"2", "r1", Nats_Expected_Stream="audit", Nats_Expected_Last_Sequence="no number"),
        message(b"3", "r2", Nats_Expected_Stream="audit", Nats_Expected_Last_Msg_Id="zz"),
        message(b"4", "r3", Nats_Expected_Stream="audit", Jetstream_Ack="all", Nats_Rollup="all"),
    )
    assert answers == []
    assert stream.values == [b"1", b"2", b"3", b"4"]


def test_another_named_stream_does_not_make_a_retry_a_second_record() -> None:
    stream = IngestHarness()
    assert stream.store(message(b"1", "r", Nats_Expected_Stream="audit", Nats_Msg_Id="a")) == []
    assert stream.store(message(b"1", "r", Nats_Expected_Stream="audit", Nats_Msg_Id="a")) == []
    assert stream.values == [b"1"]
    assert counted(stream.actions, CountKind.DUPLICATES) == 1


def test_txids_may_repeat_and_grow_and_never_fall() -> None:
    stream = IngestHarness()
    answers = stream.store(
        message(b"a", "r0", Jetstream_Txid="5"),
        message(b"b", "r1", Jetstream_Txid="4"),
        message(b"c", "r2"),
        message(b"d", "r3", Jetstream_Txid="5"),
        message(b"e", "r4", Jetstream_Txid="9"),
    )
    assert outcomes(answers) == [("r1", TXID_DECREASING), ("r0", 0), ("r2", 1), ("r3", 2), ("r4", 3)]
    assert stream.column("txid") == [5, None, 5, 9]


def test_the_last_txid_is_taken_over_from_the_log() -> None:
    last = TxidMark(LeaderEpoch(2), Offset(4), 7)
    stream = IngestHarness(history=PublisherHistory(DedupeWindow(1_000_000, 10), txid=last))
    assert outcomes(stream.receive(message(reply="r", Jetstream_Txid="6"))) == [("r", TXID_DECREASING)]


# --- duplicates -------------------------------------------------------------------------------------------


def test_a_repeat_of_a_committed_record_is_acked_at_once_with_its_offset() -> None:
    stream = IngestHarness()
    stream.store(message(b"0", "r"), message(b"1", "r", Nats_Msg_Id="a"))
    assert outcomes(stream.receive(message(b"other", "q", Nats_Msg_Id="a"))) == [("q", "dup 1")]
    assert stream.in_flight == []
    assert stream.values == [b"0", b"1"]


def test_a_repeat_in_the_same_block_waits_for_its_original() -> None:
    stream = IngestHarness()
    assert stream.receive(message(b"1", "r", Nats_Msg_Id="a"), message(b"1", "q", Nats_Msg_Id="a")) == []
    assert stream.in_flight == [b"1"]
    assert stream.append() == []
    assert outcomes(stream.commit()) == [("r", 0), ("q", "dup 0")]


def test_a_repeat_of_an_uncommitted_record_waits_for_the_high_watermark() -> None:
    stream = IngestHarness(AckPolicy.LEADER)
    stream.receive(message(b"1", "r", Nats_Msg_Id="a"), message(b"2"))
    assert outcomes(stream.append()) == [("r", 0)]
    assert stream.receive(message(b"1", "q", Nats_Msg_Id="a"), message(b"3", "s")) == []
    assert outcomes(stream.append()) == [("s", 2)]
    assert outcomes(stream.commit(1)) == [("q", "dup 0")]
    assert stream.commit(3) == []


def test_a_repeat_comes_before_expectations() -> None:
    stream = IngestHarness()
    original = message(b"1", "r", Nats_Msg_Id="a", Nats_Expected_Last_Sequence="0", Jetstream_Txid="3")
    stream.store(original, message(b"2", Jetstream_Txid="9"))
    assert outcomes(stream.receive(original)) == [("r", "dup 0")]


def test_a_repeat_after_the_window_is_a_new_message() -> None:
    stream = IngestHarness()
    stream.store(message(b"1", Nats_Msg_Id="a"))
    stream.now = TimestampUs(stream.now + 10_000_000)
    assert outcomes(stream.store(message(b"2", "r", Nats_Msg_Id="a"))) == [("r", 1)]


def test_repeats_are_recognised_after_a_restart() -> None:
    before = IngestHarness()
    before.store(
        message(b"1", Nats_Msg_Id="a"), message(b"2", Jetstream_Txid="8"), message(b"3", Nats_Msg_Id="c")
    )
    history = PublisherHistory(DedupeWindow(10_000_000, 10), Offset(3))
    for records in before.stored:
        absorb(history, records)
    after = IngestHarness(log_end_offset=3, history=history)
    assert outcomes(after.receive(message(b"1", "r", Nats_Msg_Id="a"))) == [("r", "dup 0")]
    assert outcomes(after.receive(message(b"4", "r", Jetstream_Txid="7"))) == [("r", TXID_DECREASING)]
    assert after.receive(message(b"4", "r", Nats_Expected_Last_Msg_Id="c")) == []


# --- timestamps -------------------------------------------------------------------------------------------


def test_a_clock_that_was_set_back_forgets_no_message_id_early() -> None:
    stream = IngestHarness()
    stream.store(message(b"1", "r1", Nats_Msg_Id="a"))
    stream.now = TimestampUs(stream.now - 900_000)
    assert outcomes(stream.store(message(b"1", "r2", Nats_Msg_Id="a"))) == [("r2", "dup 0")]
    stream.store(message(b"2", "r3", Nats_Msg_Id="b"))
    stream.now = TimestampUs(1_000_000 + 9_999_999)
    repeats = stream.store(message(b"1", "r4", Nats_Msg_Id="a"), message(b"2", "r5", Nats_Msg_Id="b"))
    assert outcomes(repeats) == [("r4", "dup 0"), ("r5", "dup 1")]


def test_timestamps_never_decrease() -> None:
    stream = IngestHarness()
    stream.now = TimestampUs(500)
    stream.store(message(b"1"))
    stream.now = TimestampUs(400)
    stream.store(message(b"2"), message(b"3"))
    times = [records["timestamp"].cast(pa.int64()).to_pylist() for records in stream.stored]
    assert times == [[500], [500, 500]]


# --- configuration ----------------------------------------------------------------------------------------


def test_a_changed_configuration_holds_from_the_next_group_on() -> None:
    stream = IngestHarness()
    stream.receive(message(b"12345", "r0"))
    changes = {"ack": AckPolicy.LEADER, "record_bytes_max": 4}
    stream.machine.reconfigure(stream.config.model_copy(update=changes))
    assert stream.append() == []
    assert outcomes(stream.commit()) == [("r0", 0)]
    assert outcomes(stream.receive(message(b"12345", "r1"), message(b"1234", "r2"))) == [
        ("r1", "error 10054")
    ]
    assert outcomes(stream.append()) == [("r2", 1)]
    assert stream.machine.dedupe.window_us == 10_000_000


# --- the shell's duties -----------------------------------------------------------------------------------


def test_a_shell_that_breaks_the_protocol_is_stopped() -> None:
    stream = IngestHarness()
    with pytest.raises(AssertionError, match="M1"):
        stream.machine.appended(Offset(0))
    for _ in range(APPENDS_IN_FLIGHT_MAX):
        stream.receive(message())
    with pytest.raises(AssertionError, match="M1"):
        stream.machine.received(block_of([message()]), stream.now)
    with pytest.raises(AssertionError, match="M3"):
        stream.machine.committed(Offset(1), stream.now)
    stream = IngestHarness()
    stream.receive(message())
    with pytest.raises(AssertionError, match="M2"):
        stream.machine.appended(Offset(2))


def test_the_status_line_names_what_matters() -> None:
    stream = IngestHarness()
    stream.store(message(b"1", Nats_Msg_Id="a"))
    stream.receive(message(b"2", "r"))
    assert str(stream.machine) == "orders e3 online hw=1 end=2 pending=1 ids=1"
    assert stream.machine.high_watermark == 1
