"""Frames cut anywhere, and errors that are not mistaken for answers."""

import json

import pytest

from benchmarks.raw_protocol import PREFIX, Frames, RefusedByNode, encode
from benchmarks.socket_swarm import Round, Unexpected
from jetstream.protocol.connection import RequestReceived, ServerConnection


def response(body: bytes = b"", **fields: object) -> bytes:
    header = json.dumps(fields).encode()
    return PREFIX.pack(len(header), len(body)) + header + body


def test_requests_are_what_a_node_understands() -> None:
    server = ServerConnection()

    events = server.receive_data(
        encode(op="hello", id=0, protocol=1, client="benchmark")
        + encode(op="fetch", id=2, stream="BENCH-0", offset=7, max_wait_ms=60_000)
        + encode(op="list_offsets", id=3, stream="BENCH-0", at="latest")
    )

    assert [type(event) for event in events] == [RequestReceived] * 3


def test_responses_come_out_whole_wherever_the_bytes_are_cut() -> None:
    data = response(id=1, offset=3) + response(b"abc", id=2, records=1) + response(id=3)
    whole = Frames().feed(data)
    assert [(header["id"], body) for header, body in whole] == [(1, b""), (2, b"abc"), (3, b"")]

    for cut in range(len(data) + 1):
        frames = Frames()
        assert frames.feed(data[:cut]) + frames.feed(data[cut:]) == whole


def test_an_error_of_the_node_is_raised() -> None:
    with pytest.raises(RefusedByNode, match="unknown_stream"):
        Frames().feed(response(id=1, error={"err_code": "unknown_stream"}))


def test_a_round_ends_with_the_last_connection() -> None:
    wave = Round(3)

    assert [wave.arrived(b"record", now_ns) for now_ns in (5, 6, 9)] == [False, False, True]
    assert (wave.first_ns, wave.last_ns) == (5, 9)


def test_a_connection_that_receives_something_else_spoils_the_round() -> None:
    wave = Round(3)
    wave.arrived(b"record", 1)

    with pytest.raises(Unexpected):
        wave.arrived(b"another", 2)
