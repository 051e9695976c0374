import pytest

from envelope.limits import MIB, RECORD_BYTES_MAX
from jetstream.ingest.columns import MIXED_CHUNKS, PATTERNS_MAX, REST_CHUNKS_MAX
from jetstream.ingest.messages import Unread
from jetstream.ingest.parser import (
    LINE_BYTES_MAX,
    Block,
    Control,
    ControlKind,
    MessageParser,
    NatsProtocolError,
    ParsedItem,
)
from tests.support.messages import header_block, message


def blocks(items: list[ParsedItem]) -> list[Block]:
    return [item for item in items if isinstance(item, Block)]


def payloads(items: list[ParsedItem]) -> list[bytes]:
    return [payload for block in blocks(items) for payload in block.messages.payloads]


def plain_run(count: int, payload: bytes = b"x" * 100, reply: str = "_INBOX.a", sid: int = 7) -> bytes:
    return b"".join(message(payload, reply, f"orders.{number}").wire(sid) for number in range(count))


def test_a_message_without_reply_and_headers() -> None:
    [block] = blocks(MessageParser().feed(b"MSG a.b 7 5\r\nhello\r\n"))
    assert block.sid == 7
    found = block.messages
    assert (found.subjects, found.replies, found.payloads, found.headers) == (
        [b"a.b"],
        [b""],
        [b"hello"],
        [None],
    )


def test_a_message_with_reply_and_headers() -> None:
    header = header_block(("A", "1"))
    [block] = blocks(MessageParser().feed(message(b"hello", "r", A="1").wire()))
    found = block.messages
    assert (found.replies, found.payloads, found.headers) == ([b"r"], [b"hello"], [header])


def test_an_empty_payload_is_a_payload() -> None:
    assert payloads(MessageParser().feed(message(b"").wire() + message(b"", A="1").wire())) == [b"", b""]


def test_control_operations_keep_their_place_among_messages() -> None:
    stream = message(b"1").wire(1) + message(b"2").wire(2) + message(b"3").wire(1)
    stream += b"PING\r\n" + message(b"4").wire(1)
    stream += b"PONG\r\n+OK\r\n-ERR 'Slow Consumer'\r\nINFO {\"a\":1}\r\n"
    first, second, ping, third, *controls = MessageParser().feed(stream)
    assert isinstance(first, Block)
    assert isinstance(second, Block)
    assert isinstance(third, Block)
    assert (first.sid, first.messages.payloads) == (1, [b"1", b"3"])
    assert (second.sid, second.messages.payloads) == (2, [b"2"])
    assert ping == Control(ControlKind.PING)
    assert third.messages.payloads == [b"4"]
    assert controls == [
        Control(ControlKind.PONG),
        Control(ControlKind.OK),
        Control(ControlKind.ERR, b"'Slow Consumer'"),
        Control(ControlKind.INFO, b'{"a":1}'),
    ]


@pytest.mark.parametrize("sids", [(7,), (1, 2), tuple(range(1, 40))])
def test_a_chunk_of_plain_messages_gives_one_block_for_each_subscription(sids: tuple[int, ...]) -> None:
    stream = b"".join(
        message(b"%d" % number * 20, "r").wire(sids[number % len(sids)]) for number in range(120)
    )
    found = blocks(MessageParser().feed(stream))
    assert [block.sid for block in found] == list(sids)
    for place, block in enumerate(found):
        assert block.messages.payloads == [b"%d" % number * 20 for number in range(place, 120, len(sids))]


@pytest.mark.parametrize(
    "payload",
    [
        b"x" * 100,
        b"one\ntwo\n" * 10,
        b"one\r\ntwo" * 10,
        b"\r\n" * 40,
        b"MSG a 7 r 3\r\nabc\r\n" * 5,
        b"x" * 5000,
    ],
)
def test_line_ends_in_payloads_are_payload(payload: bytes) -> None:
    parser = MessageParser()
    stream = plain_run(200, payload)
    chunks = [stream[start : start + 8192] for start in range(0, len(stream), 8192)]
    assert payloads([item for chunk in chunks for item in parser.feed(chunk)]) == [payload] * 200


def test_many_different_sizes_are_not_remembered_for_ever() -> None:
    parser = MessageParser()
    sizes = range(3 * PATTERNS_MAX)
    for size in sizes:
        chunk = plain_run(3, b"x" * size) + b"PING\r\n" * 200
        assert payloads(parser.feed(chunk)) == [b"x" * size] * 3
    assert len(parser._matcher._patterns) <= PATTERNS_MAX


def test_messages_of_mixed_sizes_are_taken_by_any_size_and_of_one_size_again_after_a_while() -> None:
    parser = MessageParser()
    mixed = b"".join(message(b"x" * size, "r").wire() for size in range(50))
    parser.feed(mixed)
    assert parser._matcher._mixed_chunks == MIXED_CHUNKS
    for left in range(MIXED_CHUNKS, 0, -1):
        assert parser._matcher._mixed_chunks == left
        parser.feed(plain_run(50, b"y" * 50))
    parser.feed(plain_run(50, b"y" * 50))
    assert parser._matcher._mixed_chunks == 0


@pytest.mark.parametrize("chunk_bytes", [1025, 3000, 8192])
def test_a_message_that_a_chunk_ends_within_is_not_taken_for_one_of_another_size(chunk_bytes: int) -> None:
    parser = MessageParser()
    payload = b"one\r\ntwo" * 200
    stream = plain_run(50, payload)
    found = 0
    for start in range(0, len(stream), chunk_bytes):
        found += len(payloads(parser.feed(stream[start : start + chunk_bytes])))
        assert parser._matcher._mixed_chunks == parser._matcher._rest_chunks == 0
    assert found == 50


def test_chunks_that_do_not_suit_the_columns_are_tried_ever_more_rarely() -> None:
    parser = MessageParser()
    chunk = b"".join(message(b"a\r\nb" * size, "r").wire() for size in range(20))
    attempts = 0
    for _ in range(MIXED_CHUNKS * (REST_CHUNKS_MAX + 1)):
        attempts += parser._matcher._rest_chunks == 0
        parser.feed(chunk)
    assert attempts <= MIXED_CHUNKS + 12


def test_a_large_message_is_kept_in_pieces_and_joined_once() -> None:
    parser = MessageParser()
    payload = bytes(range(256)) * 4096
    stream = message(payload, "r").wire() + message(b"next").wire()
    *pieces, last = [stream[start : start + 4096] for start in range(0, len(stream), 4096)]
    for number, piece in enumerate(pieces):
        assert parser.feed(piece) == []
        assert len(parser._held) == number + 1, "no joining before the last byte"
    assert payloads(parser.feed(last)) == [payload, b"next"]
    assert parser._held == []


def test_a_slowly_dripping_line_is_not_joined_before_its_end() -> None:
    parser = MessageParser()
    line = b'INFO {"x":"' + b"y" * 1000 + b'"}\r\n'
    for at in range(len(line) - 1):
        assert parser.feed(line[at : at + 1]) == []
        assert len(parser._held) == at + 1
    [info] = parser.feed(line[-1:])
    assert info == Control(ControlKind.INFO, line[5:-2])


def test_a_line_without_end_is_refused_at_a_limit() -> None:
    parser = MessageParser()
    for _ in range(LINE_BYTES_MAX // MIB):
        assert parser.feed(b"x" * MIB) == []
    with pytest.raises(NatsProtocolError):
        parser.feed(b"x" * MIB)
    assert parser._held_bytes <= LINE_BYTES_MAX + MIB


def test_a_message_beyond_the_limit_is_told_when_it_is_announced_and_passed_over() -> None:
    parser = MessageParser()
    [block] = blocks(parser.feed(b"MSG a 7 r %d\r\n" % (RECORD_BYTES_MAX + 1)))
    [header] = block.messages.headers
    assert isinstance(header, Unread)
    assert header.message_bytes == RECORD_BYTES_MAX + 1
    assert (block.messages.replies, block.messages.payloads) == ([b"r"], [b""])
    assert MessageParser().feed(b"MSG a 7 %d\r\n" % RECORD_BYTES_MAX) == []


@pytest.mark.parametrize("count", [1, 100])
def test_the_limit_holds_for_complete_messages_too(count: int) -> None:
    assert payloads(MessageParser(message_bytes_max=99).feed(plain_run(count))) == [b""] * count
    assert payloads(MessageParser(message_bytes_max=100).feed(plain_run(count))) == [b"x" * 100] * count


@pytest.mark.parametrize("count", [1, 100])
def test_messages_before_garbage_are_handed_over_with_the_error(count: int) -> None:
    parser = MessageParser()
    with pytest.raises(NatsProtocolError) as caught:
        parser.feed(plain_run(count) + b"PING\r\nGARBAGE\r\nPONG\r\n")
    assert len(payloads(caught.value.items)) == count
    assert caught.value.items[-1] == Control(ControlKind.PING)
    assert caught.value.unparsed == b"GARBAGE\r\nPONG\r\n"
    assert "GARBAGE" in caught.value.description


def test_after_garbage_nothing_is_parsed_until_a_reset() -> None:
    parser = MessageParser()
    with pytest.raises(NatsProtocolError):
        parser.feed(b"GARBAGE\r\n")
    with pytest.raises(NatsProtocolError) as again:
        parser.feed(b"PING\r\n")
    assert again.value.items == []
    parser.reset()
    assert parser.feed(b"PING\r\n") == [Control(ControlKind.PING)]


def test_reset_forgets_a_half_read_message() -> None:
    parser = MessageParser()
    parser.feed(b"MSG a 7 500\r\nhalf")
    parser.reset()
    assert payloads(parser.feed(message(b"whole").wire())) == [b"whole"]


def test_a_padded_subscription_id_names_the_same_subscription() -> None:
    [block] = blocks(MessageParser().feed(b"MSG a 7 1\r\n1\r\nMSG a 07 1\r\n2\r\nMSG a 7 1\r\n3\r\n"))
    assert block.messages.payloads == [b"1", b"2", b"3"]


# --- what nats-server never sends ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stream",
    [
        b"GARBAGE\r\n" + b"PING\r\n" * 1000,
        b"PING\r\n\r\nPONG\r\n",
        b"MSG a\n7 5\r\nhello\r\n",
        b"INFO\r\n{}\r\n",
        b"MSG a +7 5\r\nhello\r\n",
        b"MSG a 7_0 5\r\nhello\r\n",
        b"HMSG a 7 9 3\r\nabc\r\nPING\r\n",
        b"MSG a 7 3\r\nabcdePING\r\n",
        b"MSG a 7 3\r\nabc\rdPING\r\n",
        b"MSG a 7 3\r\nabcd\nPING\r\n",
        b"MSG a 7 3\r\nabc\n\rPING\r\n",
        b"-ERR \r\n",
        b"INFO nonsense\r\n",
    ],
)
def test_what_no_server_says_is_refused(stream: bytes) -> None:
    with pytest.raises(NatsProtocolError):
        MessageParser().feed(stream)


def test_an_error_text_may_be_any_bytes() -> None:
    assert MessageParser().feed(b"-ERR '\xff'\r\n") == [Control(ControlKind.ERR, b"'\xff'")]


# --- what a publisher may have put into a line -----------------------------------------------------------

BLANKS_OF_PYTHON = [b"\v", b"\f", b"\x1c", b"\x1d", b"\x1e", b"\x1f", b"\x85", b"\xa0", b"\r", b"\0", b"\xff"]


@pytest.mark.parametrize("blank", BLANKS_OF_PYTHON)
@pytest.mark.parametrize("count", [1, 60])
def test_only_space_and_tab_end_a_subject(blank: bytes, count: int) -> None:
    subject = b"orders.x" + blank + b"9"
    [block] = blocks(MessageParser().feed(b"MSG %b 7 4\r\nbody\r\n" % subject * count))
    assert (block.sid, block.messages.subjects) == (7, [subject] * count)


@pytest.mark.parametrize("blank", [blank for blank in BLANKS_OF_PYTHON if blank != b"\r"])
@pytest.mark.parametrize("count", [1, 60])
def test_only_space_and_tab_end_a_reply_subject(blank: bytes, count: int) -> None:
    reply = b"r" + blank + b"4"
    [block] = blocks(MessageParser().feed(b"MSG orders.x 7 %b 4\r\nbody\r\n" % reply * count))
    assert (block.messages.replies, block.messages.payloads) == ([reply] * count, [b"body"] * count)


@pytest.mark.parametrize("reply", [b"r\r", b"a\rb", b"r" * 4088])
@pytest.mark.parametrize("count", [1, 60])
def test_a_reply_subject_that_no_command_can_name_is_left_out_and_counted(reply: bytes, count: int) -> None:
    parser = MessageParser()
    [block] = blocks(parser.feed(b"MSG orders.x 7 %b 4\r\nbody\r\n" % reply * count))
    assert (block.messages.replies, parser.unanswerable) == ([b""] * count, count)


def test_how_long_a_reply_subject_may_be_follows_from_the_servers_control_line() -> None:
    longest = b"r" * (8192 - len(" 67108864"))
    line = b"MSG orders.x 7 %b 4\r\nbody\r\n"
    [block] = blocks(MessageParser(max_control_line=8192).feed(line % longest + line % (longest + b"r")))
    assert block.messages.replies == [longest, b""]


def test_a_message_line_may_be_far_longer_than_that_of_a_client() -> None:
    subject = b"s" * 100_000
    assert blocks(MessageParser().feed(b"MSG %b 7 4\r\nbody\r\n" % subject))[0].messages.subjects == [subject]


def test_nothing_of_a_message_that_is_too_large_is_held() -> None:
    parser = MessageParser()
    parser.feed(b"HMSG a 7 r 12 %d\r\n" % (RECORD_BYTES_MAX + 1))
    for _ in range(RECORD_BYTES_MAX // MIB):
        assert parser.feed(bytes(MIB)) == []
        assert parser._held == []
    [block] = blocks(parser.feed(b"x\r\n" + message(b"next").wire()))
    assert block.messages.payloads == [b"next"]
