"""The connection machines under any chunking and any garbage."""

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from envelope.errors import JetstreamError, UnknownStream
from jetstream.protocol.connection import (
    CancelReceived,
    ClientConnection,
    ClientEvent,
    ConnectionBroken,
    RequestReceived,
    RequestRefused,
    ResponseReceived,
    ServerConnection,
    ServerEvent,
)
from jetstream.protocol.frames import encode_head
from jetstream.protocol.requests import Fetch, GetMetadata, Hello, ListOffsets, Request
from jetstream.protocol.responses import FetchResponse
from jetstream.protocol.rights import Gate, ReaderRights
from tests.support.example_counts import examples

NAMES = st.text(max_size=20)
OFFSETS = st.integers(0, 2**63 - 1)
HELLO = encode_head(b'{"op":"hello","id":0,"protocol":1}')


def requests(ids: Iterator[int]) -> st.SearchStrategy[Request]:
    number = st.builds(lambda: next(ids))
    return st.one_of(
        st.builds(Fetch, id=number, stream=NAMES, offset=OFFSETS, max_bytes=st.integers(1, 100)),
        st.builds(ListOffsets, id=number, stream=NAMES, at=st.just("earliest")),
        st.builds(GetMetadata, id=number, after=st.none() | NAMES),
    )


def chunks(data: bytes, cuts: Iterable[int]) -> Iterator[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        yield data[start:end]


def told_by(server: ServerConnection, data: Iterable[bytes]) -> list[ServerEvent]:
    return [event for chunk in data for event in server.receive_data(chunk)]


def comparable(events: list[ServerEvent]) -> list[object]:
    return [_comparable(event) for event in events]


def _comparable(event: ServerEvent) -> object:
    match event:
        case RequestReceived(request):
            return request
        case CancelReceived():
            return event
        case RequestRefused(error) | ConnectionBroken(error):
            return type(error), error.description


@given(st.data(), st.lists(st.integers(0, 10_000), max_size=20), st.binary(max_size=40))
def test_a_server_hears_the_same_however_the_bytes_are_cut(
    data: st.DataObject, cuts: list[int], tail: bytes
) -> None:
    ids = iter(range(1, 1000))
    sent = data.draw(st.lists(requests(ids), max_size=8))
    client = ClientConnection()
    stream = HELLO + b"".join(client.send(request) for request in sent) + tail
    whole = comparable(told_by(ServerConnection(), [stream]))
    assert comparable(told_by(ServerConnection(), chunks(stream, cuts))) == whole
    assert whole[1 : 1 + len(sent)] == sent


@given(st.binary(max_size=300), st.booleans())
def test_garbage_is_answered_by_a_typed_error_or_silence(garbage: bytes, after_hello: bool) -> None:
    server = ServerConnection()
    if after_hello:
        server.receive_data(HELLO)
    for event in server.receive_data(garbage):
        assert isinstance(event, RequestReceived | RequestRefused | CancelReceived | ConnectionBroken)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    ["op", "id", "stream", "offset", "max_bytes", "max_wait_ms", "at", "timestamp", "protocol", "streams"]
)
HELLOS = st.fixed_dictionaries(
    {"op": st.just("hello"), "id": OFFSETS, "protocol": st.integers(0, 2)},
    optional={"token": st.text(max_size=10).filter(lambda token: token != "right") | st.just("righ")},
)
VALUES = JSON | st.sampled_from(["hello", "cancel", "fetch", "metadata", "list_offsets", "s", 0, 1])


@given(st.lists(st.dictionaries(FIELDS, VALUES, max_size=6) | JSON, max_size=5))
def test_any_json_is_answered_by_a_typed_error_or_taken(documents: list[object]) -> None:
    server = ServerConnection()
    server.receive_data(HELLO)
    for document in documents:
        for event in server.receive_data(encode_head(json.dumps(document).encode("utf-8", "replace"))):
            if isinstance(event, RequestReceived):
                server.fail(event.request.id, UnknownStream("s"))
            elif not isinstance(event, CancelReceived):
                assert isinstance(event.error, JetstreamError)


@given(
    st.lists(st.dictionaries(FIELDS | st.just("token"), VALUES, max_size=6) | HELLOS | JSON, max_size=5),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_without_the_token_nothing_is_ever_received(documents: list[object], cuts: list[int]) -> None:
    stream = b"".join(encode_head(json.dumps(document).encode("utf-8", "replace")) for document in documents)
    for event in told_by(
        ServerConnection(ReaderRights(Gate("token", SecretStr("right")))), chunks(stream, cuts)
    ):
        assert isinstance(event, RequestRefused | ConnectionBroken)


@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=6),
    st.lists(st.integers(0, 10_000), max_size=20),
    st.booleans(),
)
def test_a_client_gets_every_body_whole_however_the_bytes_are_cut(
    bodies: list[bytes], cuts: list[int], in_place: bool
) -> None:
    client, server = ClientConnection(), ServerConnection()
    server.receive_data(client.send(Hello(id=client.next_id(), protocol=1)))
    stream = bytearray()
    for body in bodies:
        request = Fetch(id=client.next_id(), stream="s", offset=0)
        server.receive_data(client.send(request))
        response = FetchResponse(
            id=request.id, epoch=1, schema_id=1, start_offset=0, next_offset=1, records=1, high_watermark=1,
            log_start_offset=0, incarnation="i",
        )  # fmt: skip
        stream += server.respond(response, len(body)) + body
    received = [
        bytes(event.body)
        for chunk in chunks(bytes(stream), cuts)
        for event in deliver(client, chunk, in_place=in_place)
        if isinstance(event, ResponseReceived)
    ]
    assert received == bodies


def deliver(client: ClientConnection, data: bytes, *, in_place: bool) -> list[ClientEvent]:
    """Hand ``data`` over as a socket would: into the body's room where there is one, else by copy."""
    events: list[ClientEvent] = []
    while data:
        window = client.body_window() if in_place else None
        if window is None:
            # One byte only: the next one may already belong into a body.
            events += client.receive_data(data[:1] if in_place else data)
            data = data[1:] if in_place else b""
            continue
        count = min(len(window), len(data))
        window[:count] = data[:count]
        events += client.body_filled(count)
        data = data[count:]
    return events


@settings(max_examples=examples(200))
@given(st.binary(max_size=300))
def test_garbage_from_a_server_is_a_typed_error_or_silence(garbage: bytes) -> None:
    client = ClientConnection()
    client.send(Hello(id=client.next_id(), protocol=1))
    for event in client.receive_data(garbage):
        assert isinstance(event, ConnectionBroken)
        assert isinstance(event.error, JetstreamError)
