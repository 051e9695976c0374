"""What anybody may publish: whatever it is, the deciders refuse it by a typed error or take it, and go on."""

import json
from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_groups.cursors import read_place
from envelope.errors import JetstreamError
from envelope.internal_streams import CURSORS
from envelope.limits import DEDUPE_IDS_MAX, KIB, SUBJECT_BYTES_MAX
from envelope.subjects import matches
from envelope.types import LeaderEpoch, Offset, StreamName, TimestampUs
from jetstream.ingest.machine import (
    AppendRecords,
    CountKind,
    StreamIngest,
)
from jetstream.ingest.messages import MessageBlock, Unread
from jetstream.ingest.partition_shares import partition_keys
from jetstream.ingest.publishers.dedupe import DedupeWindow, window_us
from jetstream.ingest.publishers.history import PublisherHistory
from jetstream.ingest.subject_filter import SubjectFilter
from metadata.api.requests import REQUESTS
from metadata.api.wire import encode_error, parse_request
from metadata.discovery.notices import decode_notice
from metadata.stream_config import StreamConfig
from tests.support.messages import counted, published

SUBJECTS = st.one_of(
    st.binary(min_size=1, max_size=30).map(lambda raw: raw.translate(bytes.maketrans(b" \t\n", b"___"))),
    st.sampled_from(
        [b"orders.x", b"jetstream.api.cursors.plain.a.b", b"short", b"a.b", b"s" * (SUBJECT_BYTES_MAX + 1)]
    ),
)
NAMES = st.sampled_from(
    [
        b"Jetstream-Txid",
        b"Nats-Msg-Id",
        b"Nats-Expected-Last-Sequence",
        b"Jetstream-Session",
        b"Jetstream-Sequence",
        *(
            b"Jetstream-Sequence-After",
            b"Jetstream-Ack",
            b"Jetstream-Key",
            b"Jetstream-Tombstone",
            b"Nats-TTL",
        ),
        *(b"Nats-Expected-Stream", b"Jetstream-Batch-Records", b"\xff"),
    ]
)
VALUES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b"9" * 20, b"-" + b"9" * 19, b"9" * 5000, b"1", b"all", b"\xd9\xa1", b"\xff", b"orders", b"1_0"]
    ),
)
HEADERS = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.lists(st.tuples(NAMES, VALUES), max_size=4).map(
        lambda pairs: b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in pairs) + b"\r\n"
    ),
    st.integers(64 * KIB, 1 << 40).map(Unread),
)
JSON_TEXTS = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            *(
                b"[" * 100_000,
                b"9" * 5000,
                b"1e999",
                b"NaN",
                b'"\\ud800"',
                b'{"offset":1' + b"0" * 400 + b"}",
            ),
            *(
                b'{"offset":1,"metadata":"\\ud800"}',
                b'{"\\ud800":1}',
                b'{"offset":true}',
                b"\xef\xbb\xbf1",
                b"-1",
            ),
            *(
                b'{"name":"\\udfff"}',
                b'{"name":' + b"[" * 5000,
                b'{"name":"orders","offset":' + b"9" * 5000 + b"}",
            ),
            *(
                b'{"cluster":"c","notice":' + b"[" * 900 + b"]" * 900 + b"}",
                b'{"cluster":' + b"9" * 5000 + b"}",
            ),
        ]
    ),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
)
MESSAGES = st.lists(
    st.tuples(
        SUBJECTS, st.sampled_from([b"", b"r", b"r\xff", b"%d%b"]), st.one_of(JSON_TEXTS, VALUES), HEADERS
    ),
    min_size=1,
    max_size=6,
)


def block(messages: Sequence[tuple[bytes, bytes, bytes, bytes | None]]) -> MessageBlock:
    found = MessageBlock()
    for each in messages:
        found.append(*each)
    return found


@pytest.mark.parametrize("stream", ["orders", CURSORS])
@given(groups=st.lists(MESSAGES, max_size=4))
def test_a_stream_takes_or_refuses_whatever_is_published(
    stream: str, groups: list[list[tuple[bytes, bytes, bytes, bytes | None]]]
) -> None:
    window = window_us(timedelta(minutes=2))
    machine = StreamIngest(
        stream=StreamName(stream),
        config=StreamConfig.model_construct(name=stream, subject="orders.>"),
        leader_epoch=LeaderEpoch(1),
        log_end_offset=Offset(0),
        history=PublisherHistory(DedupeWindow(window, DEDUPE_IDS_MAX)),
        binds=lambda _stream, _subject: False,
    )
    for number, group in enumerate(groups):
        end = machine.log_end_offset
        actions = machine.received(block(group), TimestampUs(number))
        refused = counted(actions, CountKind.REFUSED) + counted(actions, CountKind.DROPPED_WITHOUT_REPLY)
        repeated = counted(actions, CountKind.DUPLICATES)
        assert machine.log_end_offset - end == len(group) - refused - repeated
        if any(isinstance(action, AppendRecords) for action in actions):
            machine.appended(machine.log_end_offset)
            machine.committed(machine.log_end_offset, TimestampUs(number))
        machine.overflowed(block(group))
        partition_keys(block(group))


def test_a_message_too_large_to_be_read_is_refused_with_its_size() -> None:
    machine = StreamIngest(
        stream=StreamName("orders"),
        config=StreamConfig(name="orders", subject="orders.>"),
        leader_epoch=LeaderEpoch(1),
        log_end_offset=Offset(0),
        history=PublisherHistory(DedupeWindow(0, 1)),
        binds=lambda _stream, _subject: False,
    )
    messages = [(b"orders.x", b"r", b"", Unread(70_000_000)), (b"orders.x", b"", b"", Unread(70_000_000))]
    actions = machine.received(block(messages), TimestampUs(0))
    [answer] = published(actions)
    assert answer.error_code == 10054
    assert "70000000 bytes" in str(answer.body)
    assert counted(actions, CountKind.DROPPED_WITHOUT_REPLY) == 1


@given(text=JSON_TEXTS)
def test_what_is_no_cursor_is_refused_as_one(text: bytes) -> None:
    refusals = []
    try:
        read_place(text)
    except JetstreamError as error:
        refusals.append(encode_error(error))
    assert all(map(json.loads, refusals))


@given(suffix=st.one_of(st.sampled_from(sorted(REQUESTS)), st.text(max_size=20)), text=JSON_TEXTS)
def test_what_is_no_request_is_refused_as_one(suffix: str, text: bytes) -> None:
    refusals = []
    try:
        parse_request(suffix, text)
    except JetstreamError as error:
        refusals.append(encode_error(error))
    assert all(map(json.loads, refusals))


@given(text=JSON_TEXTS, token=st.sampled_from([None, "secret"]))
def test_what_is_no_notice_is_refused_as_one(text: bytes, token: str | None) -> None:
    refusals = []
    try:
        decode_notice(text, "c", token)
    except JetstreamError as error:
        refusals.append(encode_error(error))
    assert all(map(json.loads, refusals))


WORDS = st.sampled_from([b"a", b"b", b"*", b">", b"x\x0b7", b"\xff"])


@given(
    pattern=st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3),
    has_tail=st.booleans(),
    blocks=st.lists(st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=1, max_size=5), max_size=5),
)
def test_a_subscription_is_given_what_its_pattern_matches_and_nothing_else(
    pattern: list[str], has_tail: bool, blocks: list[list[list[bytes]]]
) -> None:
    wanted = ".".join([*pattern, *([">"] if has_tail else [])])
    delivered: list[MessageBlock] = []
    dropped: list[int] = []
    subjects = SubjectFilter(wanted, delivered.append, dropped.append)
    for tokens in blocks:
        given_messages = block([(b".".join(each), b"", b"%d" % at, None) for at, each in enumerate(tokens)])
        subjects.receive(given_messages)
        expected = [
            (subject, payload)
            for subject, payload in zip(given_messages.subjects, given_messages.payloads, strict=True)
            if matches(wanted, subject.decode(errors="surrogateescape"))
        ]
        found = [
            pair for passing in delivered for pair in zip(passing.subjects, passing.payloads, strict=True)
        ]
        assert found == expected
        assert len(delivered) == bool(expected)
        assert delivered == [given_messages] or len(expected) < len(given_messages)
        assert sum(dropped) == len(given_messages) - len(expected)
        delivered.clear()
        dropped.clear()
