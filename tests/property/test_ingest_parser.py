"""Our parser against nats-py's own, byte for byte (docs/adr/0004)."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.protocol.parser import ERR_RE, HMSG_RE, INFO_RE, MSG_RE, OK_RE, PING_RE, PONG_RE

import jetstream.ingest.parser as parser_module
from envelope.limits import RECORD_BYTES_MAX
from tests.support.messages import PublishedMessage, header_block
from tests.support.parsed_stream import parsed_by_nats_py, parsed_by_ours

TOKENS = st.binary(min_size=1, max_size=12).map(lambda raw: re.sub(rb"\s", b"_", raw))
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
    # nats-py takes digits at the start of a header for the size: difference 3. Real headers begin with NATS.
    st.binary(max_size=20).map(lambda raw: b"N" + raw),
)


@st.composite
def message_lines(draw: st.DrawFn) -> bytes:
    message = PublishedMessage(
        draw(PAYLOADS), draw(TOKENS), draw(st.one_of(st.just(b""), TOKENS)), raw_header=draw(HEADERS)
    )
    wire = message.wire(draw(st.integers(1, 3)))
    if draw(st.integers(0, 9)) == 0:
        line, rest = wire.split(b"\r\n", 1)
        wire = (
            line.replace(b" ", draw(st.sampled_from([b"  ", b"\t", b" \t ", b"\v", b"\f"]))) + b"\r\n" + rest
        )
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
def test_a_valid_stream_means_the_same_to_both_parsers_in_any_chunks(
    data: st.DataObject, stream: bytes
) -> None:
    ours = parsed_by_ours(data.draw(chunked(stream)))
    reference = parsed_by_nats_py([stream])
    assert not reference.refused
    assert not reference.crashed
    assert not ours.refused
    assert ours.same(reference)
    assert ours.rest == b""


@given(data=st.data(), stream=STREAMS, missing=st.integers(1, 60))
def test_a_cut_stream_leaves_the_same_rest(data: st.DataObject, stream: bytes, missing: int) -> None:
    stream = stream[: max(0, len(stream) - missing)]
    ours = parsed_by_ours(data.draw(chunked(stream)))
    reference = parsed_by_nats_py([stream])
    assert not ours.refused
    assert not reference.refused
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


GARBAGE = st.one_of(
    damaged(),
    st.binary(max_size=60),
    st.lists(
        st.sampled_from(
            [
                b"MSG",
                b"HMSG",
                b"PING",
                b"-ERR",
                b"+OK",
                b"INFO",
                b" ",
                b"\t",
                b"\r",
                b"\n",
                b"\r\n",
                b"1",
                b"+1",
                b"a",
                b"{}",
                b"[]",
                b"'x'",
            ]
        ),
        max_size=14,
    ).map(b"".join),
)


@settings(max_examples=400)
@given(data=st.data(), stream=GARBAGE)
def test_garbage_is_refused_where_nats_py_refuses_it_or_earlier_for_a_known_reason(
    data: st.DataObject, stream: bytes
) -> None:
    stream = stream[:4000]  # from 4096 bytes on nats-py waits for ever instead of refusing: difference 1
    chunks = data.draw(chunked(stream))
    ours, reference = parsed_by_ours(chunks), parsed_by_nats_py(chunks)
    if reference.crashed and reference.begins(ours):
        return  # nats-py died of text that is not UTF-8, or of an error without text: difference 8
    if not ours.refused:
        assert not reference.refused
        assert ours.same(reference)
        return
    assert ours.begins(reference)
    if not reference.refused or not ours.same(reference):
        assert known_difference(stream, ours.rest) is not None


def known_difference(stream: bytes, rest: bytes) -> str | None:
    """Name the difference in ADR 0004 by which we refuse ``rest``, the end of ``stream``, and nats-py not."""
    before = stream[: len(stream) - len(rest)]
    if re.search(rb"(PING|PONG|\+OK)\s*\r\n$", before) and re.match(rb"\s*\r\n", rest):
        return "2: empty lines after an operation"
    patterns = (MSG_RE, HMSG_RE, OK_RE, ERR_RE, PING_RE, PONG_RE, INFO_RE)
    line = next(filter(None, (pattern.match(rest) for pattern in patterns)), None)
    if line is None:
        return None
    if re.search(rb"[\r\n]", line[0][:-2]):
        return "3: line ends inside a line"
    if line.re is INFO_RE:
        return "8: INFO that is no JSON object"
    return different_message(line, rest) if line.re in (MSG_RE, HMSG_RE) else None


def different_message(line: re.Match[bytes], rest: bytes) -> str | None:
    arguments = line[0].split()
    size = int(arguments[-1])
    has_end = rest[line.end() + size : line.end() + size + 2] == b"\r\n"
    reasons = (
        (
            not arguments[2].isdigit() or len(arguments[-1]) > 18,
            "4: numbers that only Python takes for numbers",
        ),
        (size > RECORD_BYTES_MAX, "5: a size beyond what a NATS server can be told to allow"),
        (line.re is HMSG_RE and int(arguments[-2]) > size, "6: a header longer than its message"),
        (not has_end, "7: no line end after the message"),
    )
    return next((reason for applies, reason in reasons if applies), None)
