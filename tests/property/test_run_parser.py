"""Runs of acks are taken out of a NATS connection, whatever else it carries and however it is cut."""

import asyncio
import re

from hypothesis import given
from hypothesis import strategies as st

from envelope.acks import PLAIN_ACK, AckWriter
from envelope.errors import UnavailableError
from envelope.types import LeaderEpoch, Offset, StreamName
from jetstream.client.nodes.nats_seam import RunParser

LINE = b"MSG _INBOX.me."
RUN = re.compile(rb"MSG _INBOX\.me\.(\d+) 7 (\d+)\r\n(%b)\r\n|(.+)" % PLAIN_ACK, re.DOTALL)
WRITER = AckWriter(StreamName("orders"), LeaderEpoch(3))


class Recorder:
    """Stands where nats-py's parser does."""

    def __init__(self) -> None:
        self.data = b""
        self.resets = 0

    async def parse(self, data: bytes = b"") -> None:
        self.data += data

    def reset(self) -> None:
        self.resets += 1


def parser_and_what_it_takes() -> tuple[RunParser, Recorder, list[int]]:
    taken: list[int] = []

    def take(data: bytes, position: int) -> int:
        rows = RUN.findall(data, position)
        rest: bytes = rows[-1][-1]
        taken.extend(int(row[0]) for row in rows if not row[-1])
        return len(data) - len(rest)

    recorder = Recorder()
    parser = RunParser(recorder)  # type: ignore[arg-type]  # has the two methods that are called
    parser.take(LINE, take)
    return parser, recorder, taken


def ack(number: int) -> bytes:
    body = WRITER.ack(b"r", Offset(number)).split(b"\r\n")[1]
    return b"MSG _INBOX.me.%d 7 %d\r\n%b\r\n" % (number, len(body), body)


def refusal(number: int) -> bytes:
    body = WRITER.refusal(b"r", UnavailableError("later")).split(b"\r\n")[1]
    return b"MSG _INBOX.me.%d 7 %d\r\n%b\r\n" % (number, len(body), body)


def foreign(payload: bytes) -> bytes:
    return b"MSG _INBOX.other 8 a.reply %d\r\n%b\r\n" % (len(payload), payload)


def with_headers(payload: bytes) -> bytes:
    header = b"NATS/1.0 503\r\n\r\n"
    size = len(header), len(header) + len(payload)
    return b"HMSG _INBOX.me.1 7 %d %d\r\n%b%b\r\n" % (*size, header, payload)


payloads = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"", b"\r\n", b"PING\r\n", ack(5), ack(5)[:-1], b"MSG _INBOX.me.1 7 900\r\n"]),
)
others = st.one_of(
    payloads.map(foreign),
    payloads.map(with_headers),
    st.integers(0, 9).map(refusal),
    st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'Slow Consumer'\r\n", b'INFO {"a":1}\r\n']),
)
items = st.lists(st.one_of(st.integers(0, 10**15), others), max_size=30)


@given(items, st.lists(st.integers(1, 40), max_size=60))
def test_acks_are_taken_and_all_else_is_parsed_however_it_is_cut(
    stream: list[int | bytes], sizes: list[int]
) -> None:
    parser, recorder, taken = parser_and_what_it_takes()
    data = b"".join(ack(each) if isinstance(each, int) else each for each in stream)

    async def feed() -> None:
        position = 0
        for size in sizes:
            await parser.parse(data[position : position + size])
            position += size
        await parser.parse(data[position:])

    asyncio.run(feed())
    assert taken == [each for each in stream if isinstance(each, int)]
    assert recorder.data == b"".join(each for each in stream if isinstance(each, bytes))


def test_what_looks_like_an_ack_in_a_payload_is_none_wherever_it_is_cut() -> None:
    inside = foreign(ack(5)) + with_headers(b"\r\n" + ack(6)) + foreign(b"PING\r\n" + refusal(7))
    data = ack(1) + inside + ack(2)

    async def feed(cut: int) -> None:
        parser, recorder, taken = parser_and_what_it_takes()
        await parser.parse(data[:cut])
        await parser.parse(data[cut:])
        assert (taken, recorder.data) == ([1, 2], inside), cut

    for cut in range(len(data)):
        asyncio.run(feed(cut))


def test_a_new_connection_begins_with_a_line() -> None:
    parser, recorder, taken = parser_and_what_it_takes()

    async def feed() -> None:
        await parser.parse(ack(1) + ack(2)[:-5])
        parser.reset()
        await parser.parse(ack(3) + foreign(b"x" * 100)[:-50])
        parser.reset()
        await parser.parse(b"PING\r\n" + ack(4))

    asyncio.run(feed())
    assert taken == [1, 3, 4]
    assert recorder.data == foreign(b"x" * 100)[:-50] + b"PING\r\n"
    assert recorder.resets == 3


def test_what_is_no_message_is_left_to_the_parser_with_all_that_follows() -> None:
    parser, recorder, taken = parser_and_what_it_takes()
    garbage = b"MSG a 1 none\r\n" + ack(1)

    async def feed() -> None:
        await parser.parse(garbage)
        await parser.parse(ack(2))
        parser.reset()
        await parser.parse(ack(3))

    asyncio.run(feed())
    assert taken == [3]
    assert recorder.data == garbage + ack(2)
