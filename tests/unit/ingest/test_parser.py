import pytest

from envelope.limits import RECORD_BYTES_MAX
from jetstream.ingest.columns import MIXED_CHUNKS, PATTERNS_MAX, REST_CHUNKS_MAX
from jetstream.ingest.parser import (
    CONTROL_LINE_BYTES_MAX,
    Block,
    Control,
    ControlKind,
    MessageParser,
    NatsProtocolError,
    ParsedItem,
)
from tests.support.messages import header_block, message
from tests.support.parsed_stream import ParsedStream, parsed_by_nats_py, parsed_by_ours


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
    for _ in range(CONTROL_LINE_BYTES_MAX // 4096):
        assert parser.feed(b"x" * 4096) == []
    with pytest.raises(NatsProtocolError):
        parser.feed(b"x" * 4096)
    assert parser._held_bytes <= CONTROL_LINE_BYTES_MAX + 4096


def test_a_message_beyond_the_limit_is_refused_when_it_is_announced() -> None:
    with pytest.raises(NatsProtocolError):
        MessageParser().feed(b"MSG a 7 %d\r\n" % (RECORD_BYTES_MAX + 1))
    assert MessageParser().feed(b"MSG a 7 %d\r\n" % RECORD_BYTES_MAX) == []


@pytest.mark.parametrize("count", [1, 100])
def test_the_limit_holds_for_complete_messages_too(count: int) -> None:
    with pytest.raises(NatsProtocolError):
        MessageParser(message_bytes_max=99).feed(plain_run(count))
    assert len(payloads(MessageParser(message_bytes_max=100).feed(plain_run(count)))) == count


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


# --- differences to nats-py, numbered as in docs/adr/0004 ------------------------------------------------


def both(stream: bytes) -> tuple[ParsedStream, ParsedStream]:
    return parsed_by_ours([stream]), parsed_by_nats_py([stream])


def test_difference_1_an_unknown_line_is_refused_however_much_follows_it() -> None:
    ours, reference = both(b"GARBAGE\r\n" + b"PING\r\n" * 1000)
    assert ours.refused
    assert not reference.refused
    assert reference.controls == []


def test_difference_2_empty_lines_are_no_operations() -> None:
    ours, reference = both(b"PING\r\n\r\nPONG\r\n")
    assert ours.refused
    assert [kind for kind, _ in reference.controls] == ["PING", "PONG"]
    assert parsed_by_nats_py([b"PING\r\n", b"\r\nPONG\r\n"]).refused, "nats-py depends on the chunks"


@pytest.mark.parametrize(
    "line", [b"MSG a\r\n7 5\r\nhello\r\n", b"MSG a\n7 5\r\nhello\r\n", b"INFO\r\n{}\r\n"]
)
def test_difference_3_a_line_ends_at_its_first_line_end(line: bytes) -> None:
    ours, reference = both(line)
    assert ours.refused
    assert not reference.refused


def test_difference_3_holds_for_headers_that_begin_with_a_number() -> None:
    ours, reference = both(b"HMSG a 7 3 5\r\n0\r\nab\r\nPING\r\n")
    assert ours.segments[0] == {7: [(b"a", b"", b"ab", b"0\r\n")]}
    assert reference.segments[0] != ours.segments[0], "nats-py takes 7 3 5 0 for sid, reply and sizes"


@pytest.mark.parametrize("line", [b"MSG a +7 5\r\nhello\r\n", b"MSG a 7_0 5\r\nhello\r\n"])
def test_difference_4_a_number_has_digits_only(line: bytes) -> None:
    ours, reference = both(line)
    assert ours.refused
    assert not reference.refused


def test_difference_5_a_size_beyond_any_server_is_refused_instead_of_awaited() -> None:
    ours, reference = both(b"MSG a 7 99999999999\r\n")
    assert ours.refused
    assert not reference.refused


def test_difference_6_a_header_longer_than_its_message_is_refused() -> None:
    ours, reference = both(b"HMSG a 7 9 3\r\nabc\r\nPING\r\n")
    assert ours.refused
    assert reference.segments[0] == {7: [(b"a", b"", b"", b"abc\r\nPING")]}, "nats-py reads into what follows"


@pytest.mark.parametrize("end", [b"de", b"\rd", b"d\n", b"\n\r"])
def test_difference_7_a_message_ends_with_a_line_end(end: bytes) -> None:
    ours, reference = both(b"MSG a 7 3\r\nabc" + end + b"PING\r\n")
    assert ours.refused
    assert reference.controls == [("PING", None)], "nats-py skips two bytes whatever they are"


@pytest.mark.parametrize("line", [b"-ERR \r\n", b"INFO nonsense\r\n"])
def test_difference_8_what_kills_the_read_loop_of_nats_py_is_refused(line: bytes) -> None:
    ours, reference = both(line)
    assert ours.refused
    assert reference.crashed


def test_difference_8_an_error_text_may_be_any_bytes() -> None:
    ours, reference = both(b"-ERR '\xff'\r\n")
    assert not ours.refused
    assert reference.crashed
