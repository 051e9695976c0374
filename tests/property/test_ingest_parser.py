"""Our parser against nats-server's grammar, byte for byte (ADR 0004).

That this grammar is the server's is shown with a server in tests/integration/test_published_bytes.py.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jetstream.ingest.parser as parser_module
from jetstream.ingest.messages import Unread
from jetstream.ingest.parser import MessageParser
from tests.support.example_counts import examples
from tests.support.messages import PublishedMessage, header_block
from tests.support.parsed_stream import parsed_by_ours, parsed_by_reference

SUBJECTS = st.one_of(
    st.binary(min_size=1, max_size=12).map(lambda raw: raw.translate(bytes.maketrans(b" \t\n", b"___"))),
    st.lists(
        st.sampled_from([b"orders.x", b"\v", b"\f", b"\x1c", b"\x85", b"\r", b"\0", b"7", b"\xff"]),
        min_size=1,
    ).map(b"".join),
)
REPLIES = SUBJECTS.map(lambda raw: raw.replace(b"\r", b"_"))
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.lists(
        st.sampled_from([b"\r\n", b"\n", b"\r", b"MSG a 1 3\r\n", b" ", b"PING\r\n", b"x", b"5"]), max_size=8
    ).map(b"".join),
)
HEADERS = st.one_of(
    st.none(),
    st.lists(
        st.tuples(st.sampled_from(["A", "Nats-Msg-Id"]), st.sampled_from(["", "1", "x y"])), max_size=3
    ).map(lambda pairs: header_block(*pairs)),
    st.binary(max_size=20),
)


@st.composite
def message_lines(draw: st.DrawFn) -> bytes:
    message = PublishedMessage(
        draw(PAYLOADS), draw(SUBJECTS), draw(st.one_of(st.just(b""), REPLIES)), raw_header=draw(HEADERS)
    )
    wire = message.wire(draw(st.integers(1, 3)))
    if draw(st.integers(0, 9)) == 0:
        line, rest = wire.split(b"\r\n", 1)
        wire = line.replace(b" ", draw(st.sampled_from([b"  ", b"\t", b" \t "]))) + b"\r\n" + rest
    return wire


CONTROL_LINES = st.one_of(
    st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"PING \r\n", b"+OK\t\r\n"]),
    st.sampled_from([b"-ERR 'Stale Connection'\r\n", b"-ERR\t'it''s'\r\n"]),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3).map(
        lambda info: b"INFO " + json.dumps(info).encode() + b"\r\n"
    ),
)
# Long runs of plain messages are what the columns take; single odd lines between them are what they must not.
PLAIN_RUNS = st.tuples(PAYLOADS, st.integers(1, 40), st.booleans(), st.integers(1, 2)).map(
    lambda run: b"".join(
        PublishedMessage(run[0], b"orders.%d" % number, b"_INBOX.%d" % number if run[2] else b"").wire(
            run[3] if run[3] == 1 else number % 3
        )
        for number in range(run[1])
    )
)
STREAMS = st.lists(st.one_of(message_lines(), CONTROL_LINES, PLAIN_RUNS), max_size=12).map(b"".join)


@st.composite
def chunked(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    kind = draw(st.sampled_from(["whole", "bytes", "cuts"]))
    if kind == "whole":
        return [stream]
    if kind == "bytes" and len(stream) < 2000:
        return [stream[at : at + 1] for at in range(len(stream))]
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


@pytest.fixture(params=["columns for any chunk", "grammar alone"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_min = 0 if request.param == "columns for any chunk" else 1 << 60
    monkeypatch.setattr(parser_module, "COLUMNS_BYTES_MIN", bytes_min)


@given(data=st.data(), stream=STREAMS)
def test_a_valid_stream_means_what_the_grammar_says_in_any_chunks(data: st.DataObject, stream: bytes) -> None:
    ours = parsed_by_ours(data.draw(chunked(stream)))
    reference = parsed_by_reference(stream)
    assert not ours.refused
    assert ours.same(reference)
    assert ours.rest == reference.rest == b""


@given(data=st.data(), stream=STREAMS, missing=st.integers(1, 60))
def test_a_cut_stream_leaves_the_same_rest(data: st.DataObject, stream: bytes, missing: int) -> None:
    stream = stream[: max(0, len(stream) - missing)]
    ours = parsed_by_ours(data.draw(chunked(stream)))
    reference = parsed_by_reference(stream)
    assert not ours.refused
    assert ours.same(reference)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    stream = bytearray(draw(st.lists(st.one_of(message_lines(), CONTROL_LINES), max_size=6).map(b"".join)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(stream)))
        match draw(st.sampled_from(["insert", "delete", "replace"])):
            case "insert":
                stream[at:at] = draw(
                    st.sampled_from([b"\r\n", b" ", b"\n", b"\r", b"0", b"9", b"M", b"+", b"\t", b"'"])
                )
            case "delete":
                del stream[at : at + draw(st.integers(1, 4))]
            case _:
                stream[at : at + 1] = draw(st.binary(min_size=1, max_size=2))
    return bytes(stream)


@settings(max_examples=examples(400))
@given(data=st.data(), stream=st.one_of(damaged(), st.binary(max_size=60)))
def test_garbage_means_the_same_in_any_chunks_and_is_refused_at_most(
    data: st.DataObject, stream: bytes
) -> None:
    in_chunks, whole = parsed_by_ours(data.draw(chunked(stream))), parsed_by_ours([stream])
    assert in_chunks.same(whole)
    assert in_chunks.refused == whole.refused


@given(data=st.data(), sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8), limit=st.integers(0, 40))
def test_a_message_that_is_too_large_is_passed_over_and_its_size_is_told(
    data: st.DataObject, sizes: list[int], limit: int
) -> None:
    stream = b"".join(PublishedMessage(b"x" * size, b"a", b"r").wire() for size in sizes)
    parser = MessageParser(message_bytes_max=limit)
    parsed = parsed_by_ours(data.draw(chunked(stream)), parser)
    assert not parsed.refused
    messages = parsed.segments[0][7]
    assert [(subject, reply) for subject, reply, _, _ in messages] == [(b"a", b"r")] * len(sizes)
    for size, (_, _, payload, header) in zip(sizes, messages, strict=True):
        assert len(payload) == (size if size <= limit else 0)
        assert (header.message_bytes if isinstance(header, Unread) else 0) == (size if size > limit else 0)
