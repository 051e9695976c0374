import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import InvalidHeader, Unsupported
from envelope.headers import (
    HEADER_BLOCK_BYTES_MAX,
    NO_HEADERS,
    UNSUPPORTED_HEADERS,
    PublishHeaders,
    only_message_ids,
    parse_header_block,
    publish_headers,
)
from envelope.limits import MESSAGE_ID_BYTES_MAX
from envelope.types import AckPolicy
from tests.support.messages import header_block

PIECES = (
    b"NATS/1.0",
    b"\r\n",
    b"\r\n\r\n",
    b"Nats-Msg-Id",
    b": ",
    b":",
    b"x",
    b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n",
    b"",
)


def test_names_and_values_keep_order_and_repetitions() -> None:
    raw = b"NATS/1.0\r\nA: 1\r\nb:2\r\nA:  3 \r\nC:\r\nD: x: y\r\n\r\n"
    assert parse_header_block(raw) == [("A", b"1"), ("b", b"2"), ("A", b"3 "), ("C", b""), ("D", b"x: y")]


def test_a_block_without_headers_is_legal() -> None:
    assert parse_header_block(b"NATS/1.0\r\n\r\n") == []


def test_an_inline_status_is_not_a_header() -> None:
    assert parse_header_block(b"NATS/1.0 503 No Responders\r\nA: 1\r\n\r\n") == [("A", b"1")]


def test_a_value_may_be_any_bytes_and_a_name_any_utf8() -> None:
    assert parse_header_block(b"NATS/1.0\r\n\xc3\xbc: \xff\x00\n\r\n\r\n") == [("ü", b"\xff\x00\n")]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"NATS/1.0",
        b"NATS/1.0\r\n",
        b"NATS/1.0\r\nA: 1\r\n",
        b"NATS/1.1\r\nA: 1\r\n\r\n",
        b"NATS/1.01\r\nA: 1\r\n\r\n",
        b"A: 1\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\n: no name\r\n\r\n",
        b"NATS/1.0\r\n\xff: not UTF-8\r\n\r\n",
        b"NATS/1.0\r\n\r\nA: 1\r\n\r\n",
        header_block(("A", "x" * HEADER_BLOCK_BYTES_MAX)),
    ],
)
def test_a_broken_block_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidHeader):
        parse_header_block(raw)


def test_a_block_of_the_largest_size_is_taken() -> None:
    empty = len(header_block(("A", "")))
    assert len(parse_header_block(header_block(("A", "x" * (HEADER_BLOCK_BYTES_MAX - empty))))) == 1


def test_headers_of_others_ask_for_nothing() -> None:
    assert publish_headers([("traceparent", b"00-1"), ("nats-msg-id", b"case matters")]) is NO_HEADERS


def test_all_headers_of_ours_are_read() -> None:
    asked = publish_headers(
        [
            ("Nats-Msg-Id", b"a1"),
            ("Nats-Expected-Stream", b"orders"),
            ("Nats-Expected-Last-Sequence", b"42"),
            ("Nats-Expected-Last-Msg-Id", b"a0"),
            ("Jetstream-Key", b"k"),
            ("Jetstream-Txid", b"-7"),
            ("Jetstream-Ack", b"leader"),
            ("Jetstream-Tombstone", b"true"),
        ]
    )
    assert asked.message_id == b"a1"
    assert asked.expected_stream == b"orders"
    assert asked.expected_last_sequence == 42
    assert asked.expected_last_message_id == b"a0"
    assert asked.key == b"k"
    assert asked.txid == -7
    assert asked.ack is AckPolicy.LEADER
    assert asked.tombstone
    assert asked.problem is None
    assert asked.bad_expectation is None


def test_the_first_of_a_repeated_header_counts() -> None:
    assert publish_headers([("Nats-Msg-Id", b"a"), ("Nats-Msg-Id", b"b")]).message_id == b"a"
    asked = publish_headers([("Jetstream-Txid", b"1"), ("Jetstream-Txid", b"no number")])
    assert asked.txid == 1
    assert asked.problem is None


def test_empty_nats_values_are_none_at_all() -> None:
    asked = publish_headers(
        [
            ("Nats-Msg-Id", b""),
            ("Nats-Expected-Stream", b""),
            ("Nats-Expected-Last-Sequence", b""),
            ("Nats-Expected-Last-Msg-Id", b""),
        ]
    )
    assert asked == NO_HEADERS


def test_an_empty_key_is_a_key() -> None:
    assert publish_headers([("Jetstream-Key", b"")]).key == b""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Jetstream-Txid", b""),
        ("Jetstream-Txid", b"1.5"),
        ("Jetstream-Txid", b" 1"),
        ("Jetstream-Txid", b"1_000"),
        ("Jetstream-Txid", b"9223372036854775808"),
        ("Jetstream-Txid", b"-9223372036854775809"),
        ("Jetstream-Ack", b"quorum"),
        ("Jetstream-Ack", b""),
        ("Jetstream-Tombstone", b"maybe"),
        ("Nats-Msg-Id", b"x" * (MESSAGE_ID_BYTES_MAX + 1)),
    ],
)
def test_a_value_outside_its_grammar_is_a_problem_for_every_stream(name: str, value: bytes) -> None:
    asked = publish_headers([("Nats-Expected-Stream", b"orders"), (name, value)])
    assert isinstance(asked.problem, InvalidHeader)
    assert asked.expected_stream == b"orders"
    assert asked.txid is None


def test_txids_reach_both_ends_of_int64() -> None:
    for number in (-(1 << 63), (1 << 63) - 1):
        assert publish_headers([("Jetstream-Txid", b"%d" % number)]).txid == number


def test_an_unknown_ack_policy_still_asks_for_an_answer() -> None:
    assert publish_headers([("Jetstream-Ack", b"quorum")]).ack is AckPolicy.ALL


@pytest.mark.parametrize("value", [b"-1", b"1.0", b"abc", b"123456789012345678901"])
def test_a_bad_expected_sequence_concerns_only_the_stream_that_answers(value: bytes) -> None:
    asked = publish_headers([("Nats-Expected-Last-Sequence", value)])
    assert isinstance(asked.bad_expectation, InvalidHeader)
    assert asked.problem is None
    assert asked.expected_last_sequence is None


@pytest.mark.parametrize("name", sorted(UNSUPPORTED_HEADERS))
def test_what_nats_would_do_and_we_do_not_is_refused(name: str) -> None:
    assert isinstance(publish_headers([(name, b"1")]).bad_expectation, Unsupported)


@pytest.mark.parametrize(
    ("value", "meant"), [("", True), ("1", True), ("true", True), ("0", False), ("false", False)]
)
def test_a_tombstone_is_said_in_five_words(value: str, meant: bool) -> None:
    asked = publish_headers([("Jetstream-Tombstone", value.encode())])
    assert asked.tombstone is meant
    assert asked.problem is None


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=6).map(lambda value: b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % value),
            st.lists(st.sampled_from(PIECES), max_size=9).map(b"".join),
            st.none(),
        ),
        max_size=4,
    )
)
def test_blocks_with_a_message_id_alone_are_told_from_all_others(blocks: list[bytes | None]) -> None:
    ids = only_message_ids(blocks)
    if ids is not None:
        headers = [parse_header_block(block) for block in blocks if block is not None]
        assert headers == [[("Nats-Msg-Id", message_id)] for message_id in ids]
        assert [publish_headers(each) for each in headers] == [PublishHeaders(each) for each in ids]


def test_the_ids_of_the_usual_blocks_are_found() -> None:
    ids = [b"a", b"with space ", b"x" * MESSAGE_ID_BYTES_MAX]
    assert only_message_ids([b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % each for each in ids]) == ids
    assert (
        only_message_ids([b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % (b"x" * (MESSAGE_ID_BYTES_MAX + 1))])
        is None
    )
    assert only_message_ids([]) == []
