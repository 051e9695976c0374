"""The fast way through a chunk takes only what the grammar takes, with the same result."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream.ingest.columns import RunMatcher
from jetstream.ingest.parser import MessageParser
from tests.support.messages import PublishedMessage
from tests.support.parsed_stream import ParsedStream, parsed_by_ours

LIMIT = 60

PAYLOADS = st.one_of(
    st.sampled_from(
        [b"", b"x", b"12345", b"x" * LIMIT, b"a\nb", b"a\r\nb", b"MSG a 7 r 1\r\n1", b"\r", b"1\r"]
    ),
    st.binary(max_size=8),
)
SUBJECTS = st.sampled_from([b"a", b"orders.new", b"MSG", b"7", b"\xc3\xbc"])
DAMAGE = [b"", b" ", b"\t", b"\v", b"\f", b"\r", b"\n", b"\r\n", b"0", b"1", b"-", b"H", b"\x00", b"PING\r\n"]


@st.composite
def runs(draw: st.DrawFn) -> bytes:
    """Messages, most of them of one shape; perhaps cut."""
    has_reply = draw(st.booleans())
    sids = draw(st.sampled_from([(7,), (7, 8)]))
    run = b""
    for place in range(draw(st.integers(1, 6))):
        reply = b"_INBOX.%d" % place if has_reply != (draw(st.integers(0, 15)) == 0) else b""
        run += PublishedMessage(draw(PAYLOADS), draw(SUBJECTS), reply).wire(draw(st.sampled_from(sids)))
    return run[: len(run) - draw(st.sampled_from([0, 0, 1, 2, 5]))]


def grammar_alone(data: bytes) -> ParsedStream:
    parser = MessageParser(LIMIT)
    parser._matcher._rest_chunks = 1 << 60
    return parsed_by_ours([data], parser)


def agree(data: bytes, mixed_chunks: int) -> bool:
    """Check that what the columns take of ``data`` is what the grammar takes; tell whether they take any."""
    matcher = RunMatcher(LIMIT)
    matcher._mixed_chunks = mixed_chunks
    taken, end = matcher.take(data)
    if not taken:
        assert end == 0
        return False
    columns = ParsedStream()
    for sid, of_sid in taken.items():
        for message in zip(*of_sid, strict=True):
            columns.add_message(sid, message)
    grammar = grammar_alone(data[:end])
    assert not grammar.refused
    assert grammar.rest == b""
    assert columns.same(grammar)
    return True


@given(runs(), st.sampled_from([0, 1]))
def test_what_the_columns_take_the_grammar_takes(data: bytes, mixed_chunks: int) -> None:
    agree(data, mixed_chunks)


def damaged(run: bytes) -> Iterator[bytes]:
    """Yield ``run`` with each damage put in, or in the place of a byte, everywhere."""
    for at in range(len(run)):
        for damage in DAMAGE:
            yield run[:at] + damage + run[at:]
            yield run[:at] + damage + run[at + 1 :]


@pytest.mark.parametrize("mixed_chunks", [0, 1])
@pytest.mark.parametrize("reply", [b"", b"r"])
def test_no_damage_to_plain_messages_makes_a_difference(mixed_chunks: int, reply: bytes) -> None:
    run = PublishedMessage(b"x", b"a", reply).wire() + PublishedMessage(b"yy", b"bc", reply).wire()
    taken = [agree(each, mixed_chunks) for each in damaged(run)]
    assert len(set(taken)) == 2, "some damage leaves legal messages"


@given(
    st.lists(st.tuples(SUBJECTS, st.sampled_from([b"x", b"12345", b"x" * LIMIT])), min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from([0, 1]),
)
def test_columns_take_all_plain_messages(
    messages: list[tuple[bytes, bytes]], has_reply: bool, mixed_chunks: int
) -> None:
    matcher = RunMatcher(LIMIT)
    matcher._mixed_chunks = mixed_chunks
    reply = b"r" if has_reply else b""
    wires = [PublishedMessage(payload, subject, reply).wire() for subject, payload in messages]
    data = b"".join(wires)
    taken, end = matcher.take(data + b"MSG a 7 5\r\nhal")
    one_size = [len(payload) == len(messages[0][1]) for _, payload in messages]
    count = len(messages) if mixed_chunks or all(one_size) else one_size.index(False)
    _, _, payloads, _ = taken[7]
    assert payloads == [payload for _, payload in messages[:count]]
    assert data[end:] == b"".join(wires[count:])
