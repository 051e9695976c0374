import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js.api import PubAck
from nats.js.errors import APIError, BadRequestError, ServiceUnavailableError

from envelope.acks import AckWriter, publish_command, refusal_body
from envelope.errors import (
    DiskFull,
    InvalidHeader,
    JetstreamError,
    Overloaded,
    SequenceGap,
    TxidDecreasing,
    WrongLastSequence,
)
from envelope.headers import MESSAGE_ID, header_block, only_message_ids
from envelope.types import LeaderEpoch, Offset, StreamName
from tests.support.messages import answers_in

ORDERS = AckWriter(StreamName("orders"), LeaderEpoch(3))


def test_an_ack_has_exactly_these_bytes() -> None:
    body = b'{"stream":"orders","seq":43,"offset":42,"epoch":3}'
    assert ORDERS.ack(b"_INBOX.a", Offset(42)) == b"PUB _INBOX.a %d\r\n%b\r\n" % (len(body), body)


def test_a_command_with_headers_says_where_they_end() -> None:
    assert publish_command(b"a", b"xy") == b"PUB a 2\r\nxy\r\n"
    block = header_block(MESSAGE_ID, "7")
    assert publish_command(b"a r", b"xy", block) == b"HPUB a r %d %d\r\n%bxy\r\n" % (
        len(block),
        len(block) + 2,
        block,
    )
    assert only_message_ids([block]) == [b"7"]


def test_a_duplicate_has_exactly_these_bytes() -> None:
    body = b'{"stream":"orders","seq":43,"offset":42,"epoch":3,"duplicate":true}'
    assert ORDERS.duplicate(b"_INBOX.a", Offset(42)) == b"PUB _INBOX.a %d\r\n%b\r\n" % (len(body), body)


def test_a_refusal_has_exactly_these_bytes() -> None:
    body = (
        b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"},'
        b'"stream":"orders","seq":0}'
    )
    refusal = ORDERS.refusal(b"r", WrongLastSequence("wrong last sequence: 5"))
    assert refusal == b"PUB r %d\r\n%b\r\n" % (len(body), body)
    assert ORDERS.refusals([b"r", b"r"], WrongLastSequence("wrong last sequence: 5")) == refusal * 2


def test_the_numbers_behind_a_refusal_stand_beside_the_error() -> None:
    """Inside it, the official clients would take them for arguments of their exceptions."""
    body = json.loads(refusal_body(StreamName("orders"), SequenceGap("gap", last_sequence=7), 2))
    assert list(body["error"]) == ["code", "err_code", "description"]
    assert (body["detail"], body["partition"]) == ({"last_sequence": 7}, 2)


@given(
    base=st.one_of(
        st.integers(0, 120),
        st.integers(0, 18).map(lambda digits: max(0, 10**digits - 60)),
        st.integers(0, (1 << 63) - 2_000),
    ),
    count=st.integers(0, 150),
)
def test_acks_written_together_are_the_acks_written_alone(base: int, count: int) -> None:
    replies = [b"_INBOX.%d" % number for number in range(count)]
    alone = b"".join(ORDERS.ack(reply, Offset(base + place)) for place, reply in enumerate(replies))
    offsets = range(base, base + count)
    assert ORDERS.acks(offsets, replies) == ORDERS.acks(list(offsets), replies) == alone


@given(st.text(min_size=1))
def test_any_stream_name_makes_legal_json(name: str) -> None:
    writer = AckWriter(StreamName(name), LeaderEpoch(1))
    answers = answers_in(
        writer.ack(b"r", Offset(1))
        + writer.duplicate(b"r", Offset(1))
        + writer.acks(range(1, 2), [b"r"])
        + writer.refusal(b"r", Overloaded(name))
    )
    assert [answer.body["stream"] for answer in answers] == [name] * 4


def test_the_official_client_reads_an_ack() -> None:
    body = answers_in(ORDERS.duplicate(b"r", Offset(42)))[0].body
    ack = PubAck.from_response(dict(body))
    assert (ack.stream, ack.seq, ack.duplicate) == ("orders", 43, True)


@pytest.mark.parametrize(
    ("error", "exception"),
    [
        (WrongLastSequence("wrong last sequence: 5"), BadRequestError),
        (InvalidHeader("Jetstream-Txid must be a number"), BadRequestError),
        (TxidDecreasing("txid 1 is below the last one, 2"), BadRequestError),
        (Overloaded("later"), ServiceUnavailableError),
        (DiskFull("full"), ServiceUnavailableError),
    ],
)
def test_the_official_client_raises_its_own_exception(
    error: JetstreamError, exception: type[APIError]
) -> None:
    body = json.loads(refusal_body(StreamName("orders"), error))
    assert list(body["error"]) == ["code", "err_code", "description"]
    with pytest.raises(exception) as raised:
        APIError.from_error(body["error"])
    assert raised.value.err_code == error.ack_code
    assert raised.value.description == error.description
