"""Options to headers, answers to values."""

import json
import re

import pytest

from envelope.acks import PLAIN_ACK, AckWriter, EchoingReply, refusal_body
from envelope.errors import InvalidHeader, JetstreamError, RequestError, UnavailableError, registry
from envelope.headers import parse_header_block, publish_headers
from envelope.types import AckPolicy, LeaderEpoch, Offset, StreamName
from jetstream.client.publish.messages import (
    PublishAck,
    PublishOptions,
    PublishRefusal,
    encode_options,
    header_block,
    parse_ack,
    plain_acks,
)


def test_a_plain_message_has_no_headers() -> None:
    assert encode_options(b"v", {}) == (b"v", None)


def test_every_option_arrives_as_the_header_that_ingest_reads() -> None:
    options: PublishOptions = {
        "key": "ключ",
        "headers": {"mine": "yes"},
        "message_id": "m-1",
        "txid": -5,
        "expected_last_sequence": 0,
        "expected_last_message_id": "m-0",
        "stream": "orders",
        "ack": "leader",
    }
    payload, headers = encode_options(None, options)
    assert headers is not None
    parsed = parse_header_block(header_block(headers))
    asked = publish_headers(parsed)
    assert payload == b""
    assert ("mine", b"yes") in parsed
    assert asked.problem is None
    assert asked.key == "ключ".encode()
    assert (asked.message_id, asked.txid, asked.ack) == (b"m-1", -5, AckPolicy.LEADER)
    assert (asked.expected_last_sequence, asked.expected_last_message_id) == (0, b"m-0")
    assert (asked.expected_stream, asked.tombstone) == (b"orders", True)


@pytest.mark.parametrize(
    "options",
    [
        {"key": b"\xff"},
        {"key": " padded"},
        {"message_id": "two\r\nlines"},
        {"headers": {"a": "tab\tinside"}},
        {"headers": {"": "x"}},
        {"headers": {"a b:": "x"}},
    ],
)
def test_what_would_arrive_as_something_else_is_refused(options: PublishOptions) -> None:
    with pytest.raises(InvalidHeader):
        encode_options(b"v", options)


def test_a_tombstone_has_no_value() -> None:
    with pytest.raises(RequestError):
        encode_options(b"v", {"tombstone": True})
    assert encode_options(b"", {"tombstone": True}) == encode_options(None, {})


def body_of(command: bytes) -> bytes:
    return command.split(b"\r\n")[1]


def test_the_acks_that_nodes_write_are_understood() -> None:
    writer = AckWriter(StreamName("a/b"), LeaderEpoch(3))
    assert parse_ack(body_of(writer.ack(b"r", Offset(41)))) == PublishAck("a/b", 41, 3)
    assert parse_ack(body_of(writer.duplicate(b"r", Offset(0)))) == PublishAck("a/b", 0, 3, duplicate=True)


def test_the_answers_of_a_partition_are_those_of_its_stream_too() -> None:
    writer = AckWriter(StreamName("a/b/12"), LeaderEpoch(3), 12)
    answers = [
        writer.ack(b"r", Offset(41)),
        writer.duplicate(b"r", None),
        writer.refusal(b"r", UnavailableError("later")),
        writer.acks(range(9, 10), [b"r"]),
    ]
    for answer in answers:
        told = parse_ack(body_of(answer))
        assert told is not None
        assert (told.stream, told.partition, told.names) == ("a/b/12", 12, ("a/b/12", "a/b"))
    ordinary = parse_ack(body_of(AckWriter(StreamName("a/12"), LeaderEpoch(1)).ack(b"r", Offset(0))))
    assert ordinary is not None
    assert (ordinary.partition, ordinary.names) == (None, ("a/12",))


def test_plain_acks_are_read_by_the_column_as_they_are_one_by_one() -> None:
    writers = [AckWriter(StreamName(name), LeaderEpoch(epoch)) for name, epoch in (("a/b", 3), ("c", 12))]
    offsets_one_each = [range(10**digits, 10**digits + 1) for digits in range(15)]
    bodies = [body_of(writer.acks(each, [b"r"])) for each in offsets_one_each for writer in writers]
    found = [re.fullmatch(PLAIN_ACK, body) for body in bodies]
    streams, offsets, epochs = zip(*(match.groups() for match in found if match is not None), strict=True)
    acks = plain_acks(streams, offsets, epochs)
    assert acks == list(map(parse_ack, bodies))
    assert len({hash(ack) for ack in acks}) == len(bodies)


def test_an_ack_that_says_more_is_not_read_by_the_column() -> None:
    writer = AckWriter(StreamName("a"), LeaderEpoch(3))
    partition = AckWriter(StreamName("a/12"), LeaderEpoch(3), 12)
    answers = [
        writer.duplicate(b"r", Offset(1)),
        writer.duplicate(b"r", None),
        writer.refusal(b"r", UnavailableError("later")),
        writer.ack(EchoingReply(b"r", 1, None), Offset(1)),
        partition.acks(range(9, 10), [b"r"]),
    ]
    assert [re.fullmatch(PLAIN_ACK, body_of(answer)) for answer in answers] == [None] * len(answers)


@pytest.mark.parametrize("kind", registry().values())
def test_a_refusal_becomes_the_error_the_stream_raised(kind: type[JetstreamError]) -> None:
    refusal = parse_ack(refusal_body(StreamName("s"), kind("why")))
    assert isinstance(refusal, PublishRefusal)
    assert refusal.stream == "s"
    assert type(refusal.error) is kind
    assert refusal.error.description == "why"


def test_a_refusal_without_a_name_of_its_own_becomes_its_family() -> None:
    class Passing(UnavailableError):
        """Told to nobody by this name."""

    refusal = parse_ack(refusal_body(StreamName("s"), Passing("why")))
    assert isinstance(refusal, PublishRefusal)
    assert type(refusal.error) is UnavailableError


@pytest.mark.parametrize(
    ("code", "kind"),
    [(400, RequestError), (503, UnavailableError), (None, RequestError), ("x", RequestError)],
)
def test_an_unknown_refusal_still_says_whether_to_retry(code: object, kind: type[Exception]) -> None:
    refusal = parse_ack(json.dumps({"error": {"code": code, "err_code": 99_999}, "stream": "s"}).encode())
    assert isinstance(refusal, PublishRefusal)
    assert type(refusal.error) is kind


def test_an_ack_of_natss_own_jetstream_is_understood() -> None:
    assert parse_ack(b'{"stream":"s","seq":7,"domain":"hub"}') == PublishAck("s", 6, 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"+ACK",
        b"[]",
        b"null",
        b"{}",
        b'{"stream":"s"}',
        b'{"stream":"s","seq":0}',
        b'{"stream":1,"seq":1}',
    ],
)
def test_an_answer_of_somebody_else_is_none_of_a_stream(answer: bytes) -> None:
    assert parse_ack(answer) is None


def test_an_option_that_does_not_exist_is_not_taken_for_none() -> None:
    misspelt: dict[str, object] = {"msg_id": "1"}
    with pytest.raises(TypeError, match="unexpected options: msg_id; there are ack, expected"):
        encode_options(b"v", misspelt)  # type: ignore[arg-type]  # what a caller without a type checker does
