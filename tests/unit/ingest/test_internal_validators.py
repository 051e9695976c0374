"""What the streams of cursors and of the audit store, and what they refuse before they append anything."""

import pytest

from envelope.envelopes import encode_batch, encode_message
from envelope.errors import InvalidCursor, InvalidHeader, RecordTooLarge, Unauthorized, WrongLastSequence
from envelope.internal_streams import AUDIT, CURSORS, audit_subject, cursor_subject
from tests.support.envelopes import arrow, binary
from tests.support.ingest_machine import IngestHarness
from tests.support.messages import Answer, PublishedMessage, message

PREFIX = "jetstream.api"
SUBJECT = cursor_subject(PREFIX, "billing", "orders")
KEY = b"plain/billing/orders"


def cursors() -> IngestHarness:
    return IngestHarness(stream=CURSORS, record_bytes_max=16_384)


def cursor(payload: bytes, reply: str = "r", subject: str = SUBJECT, **headers: str) -> PublishedMessage:
    return message(payload, reply, subject, **headers)


def stored(stream: IngestHarness) -> list[tuple[object, object]]:
    return list(zip(stream.column("key"), stream.values, strict=True))


def refusal(answers: list[Answer]) -> int | None:
    (answer,) = answers
    return answer.error_code


def test_a_cursor_is_stored_in_one_form_under_the_key_of_its_subject() -> None:
    stream = cursors()
    stream.store(
        cursor(b"42"),
        cursor(b'{ "metadata": "x", "offset": 43 }'),
        cursor(b"1", subject=cursor_subject(PREFIX, "shop/billing", "eu/orders")),
        cursor(encode_message(b"44", key=KEY)),
        cursor(encode_message(b'{"offset":45}', compress=True)),
        cursor(b"46", Jetstream_Key=KEY.decode()),
    )
    assert stored(stream) == [
        (KEY, b'{"v":1,"offset":42}'),
        (KEY, b'{"v":1,"offset":43,"metadata":"x"}'),
        (b"plain/shop.billing/eu.orders", b'{"v":1,"offset":1}'),
        (KEY, b'{"v":1,"offset":44}'),
        (KEY, b'{"v":1,"offset":45}'),
        (KEY, b'{"v":1,"offset":46}'),
    ]


def test_a_tombstone_deletes_and_an_empty_payload_alone_does_not() -> None:
    stream = cursors()
    assert refusal(stream.store(cursor(b""))) == InvalidCursor.ack_code
    stream.store(
        cursor(b"", Jetstream_Tombstone="true"),
        cursor(encode_message(None)),
        cursor(encode_message(None, key=KEY)),
    )
    assert stored(stream) == [(KEY, None)] * 3
    assert refusal(stream.store(cursor(b"42", Jetstream_Tombstone="true"))) == InvalidHeader.ack_code


@pytest.mark.parametrize(
    "published",
    [
        cursor(b"x"),
        cursor(b"-1"),
        cursor(b'{"offset":1,"group":"g"}'),
        cursor(b'{"offset":1,"metadata":"' + b"x" * 1025 + b'"}'),
        cursor(b"1", subject=cursor_subject(PREFIX, "billing", "a+b")),
        cursor(b"1", subject=cursor_subject(PREFIX, "bill$ing", "orders")),
        cursor(b"1", Jetstream_Key="plain/billing/other"),
        cursor(b"1", Jetstream_Key="group/billing/orders"),
        cursor(b"", Jetstream_Key="group/billing/orders", Jetstream_Tombstone="true"),
        cursor(encode_message(b"1", key=b"group/billing/orders")),
        cursor(encode_message(b"x")),
        cursor(encode_batch(arrow({"value": binary(b"1", b"2")}), 2)),
        cursor(encode_batch(arrow({"value": binary(b"1")}), 1)),
    ],
    ids=lambda published: repr(published)[:60],
)
def test_what_is_no_cursor_of_its_subject_is_refused_and_changes_nothing(published: PublishedMessage) -> None:
    stream = cursors()
    assert refusal(stream.receive(published)) == InvalidCursor.ack_code
    assert stream.in_flight == []
    stream.store(published, cursor(b"7"))
    assert stored(stream) == [(KEY, b'{"v":1,"offset":7}')]


def test_too_much_is_refused_before_it_is_read() -> None:
    assert refusal(cursors().receive(cursor(b" " * 16_384 + b"1"))) == RecordTooLarge.ack_code


def test_ids_and_expectations_hold_as_on_any_stream() -> None:
    stream = cursors()
    stream.store(cursor(b"42", Nats_Msg_Id="a"))
    (repeat,) = stream.receive(cursor(b"42", Nats_Msg_Id="a"))
    assert (repeat.body["offset"], repeat.body["duplicate"]) == (0, True)
    unmet = stream.receive(cursor(b"43", Nats_Expected_Last_Sequence="0"))
    assert refusal(unmet) == WrongLastSequence.ack_code
    stream.store(cursor(b"43", Nats_Expected_Last_Sequence="1"))
    assert stored(stream)[-1] == (KEY, b'{"v":1,"offset":43}')


def test_other_streams_take_the_same_subject_as_it_is() -> None:
    stream = IngestHarness()
    stream.store(cursor(b"x", Jetstream_Key="group/a"))
    assert stored(stream) == [(b"group/a", b"x")]


def test_what_finds_the_mailbox_full_is_told_why_it_cannot_be_stored_at_all() -> None:
    stream = cursors()
    told = stream.overflow(cursor(b"x", "r1"), cursor(b"42", "r2"))
    assert sorted((answer.reply, answer.error_code) for answer in told) == [("r1", 60_033), ("r2", 10_077)]


def test_a_refusal_says_what_is_wrong() -> None:
    batch = encode_batch(arrow({"value": binary(b"1")}), 1)
    for published, reason in (
        (cursor(batch), "no batch"),
        (cursor(b"1", Jetstream_Key="group/x"), "only its coordinator"),
        (cursor(b"1", Jetstream_Key="x"), "the key of this cursor is 'plain/billing/orders'"),
        (cursor(b"1", subject=cursor_subject(PREFIX, "a$", "orders")), "the consumer's name: invalid"),
        (cursor(b"-1"), "offset: a whole number"),
    ):
        (answer,) = cursors().receive(published)
        assert reason in str(answer.body["error"])


def test_the_audit_takes_what_comes_from_its_own_account_alone() -> None:
    stream = IngestHarness(stream=AUDIT)
    subject = audit_subject(PREFIX, "stream.delete")
    imported = {"Nats_Msg_Id": "2", "Nats_Request_Info": '{"acc":"SHOP"}'}
    assert refusal(stream.receive(message(b"{}", "r", subject, **imported))) == Unauthorized.ack_code
    sealed = message(encode_message(b"{}"), "r", subject, Nats_Request_Info='{"acc":"SHOP"}')
    assert refusal(stream.receive(sealed)) == Unauthorized.ack_code
    stream.store(message(b"1", "r", subject, Nats_Msg_Id="1"), message(b"2", "r", subject))
    assert stream.values == [b"1", b"2"]
