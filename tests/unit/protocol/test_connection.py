"""Both ends of a connection, joined by a wire in memory."""

import json

import pytest
from pydantic import SecretStr

from envelope.errors import (
    JetstreamError,
    Overloaded,
    RemoteProtocolError,
    RequestCancelled,
    RequestError,
    Unauthorized,
    UnknownStream,
    Unsupported,
)
from envelope.limits import REQUESTS_IN_FLIGHT_MAX
from jetstream.protocol.connection import (
    CancelReceived,
    ClientConnection,
    ConnectionBroken,
    RequestReceived,
    RequestRefused,
    ResponseFailed,
    ResponseReceived,
    ResponseStarted,
    ServerConnection,
    ServerEvent,
)
from jetstream.protocol.frames import encode_head
from jetstream.protocol.group_requests import LeaveGroup
from jetstream.protocol.requests import Cancel, Fetch, GetMetadata, Hello, ListOffsets, encode_request
from jetstream.protocol.responses import FetchResponse, HelloResponse, ListOffsetsResponse, encode_response
from jetstream.protocol.rights import Gate, ReaderRights


def a_fetch_response(request_id: int) -> FetchResponse:
    return FetchResponse(
        id=request_id, epoch=1, schema_id=1, start_offset=0, next_offset=3, records=3, high_watermark=3,
        log_start_offset=0, incarnation="i",
    )  # fmt: skip


def a_hello_response(request_id: int, *, older: bool = False) -> HelloResponse:
    return HelloResponse(
        id=request_id, protocol=1, node="n", node_version="0", cancel=None if older else True
    )


class Pair:
    """A client and a server that have said hello."""

    def __init__(self, *, older: bool = False) -> None:
        self.client, self.server = ClientConnection(), ServerConnection()
        hello = self.client.send(Hello(id=self.client.next_id(), protocol=1))
        (event,) = self.server.receive_data(hello)
        assert isinstance(event, RequestReceived)
        self.client.receive_data(self.server.respond(a_hello_response(event.request.id, older=older)))

    def fetch(self, stream: str = "s") -> int:
        request = Fetch(id=self.client.next_id(), stream=stream, offset=0)
        (event,) = self.server.receive_data(self.client.send(request))
        assert event == RequestReceived(request)
        return request.id


def broken(events: tuple[object, ...]) -> JetstreamError:
    last = events[-1]
    assert isinstance(last, ConnectionBroken)
    return last.error


def test_a_response_is_told_when_it_starts_and_when_its_body_is_there() -> None:
    pair = Pair()
    response = a_fetch_response(pair.fetch())
    head = pair.server.respond(response, body_length=5)
    assert pair.client.receive_data(head + b"bo") == (ResponseStarted(response, 5),)
    (event,) = pair.client.receive_data(b"dy!")
    assert isinstance(event, ResponseReceived)
    assert (event.response, bytes(event.body)) == (response, b"body!")
    assert pair.client.in_flight == pair.server.in_flight == 0


def test_responses_come_in_any_order() -> None:
    pair = Pair()
    first, second = pair.fetch("a"), pair.fetch("b")
    events = pair.client.receive_data(
        pair.server.respond(a_fetch_response(second)) + pair.server.fail(first, UnknownStream("no a"))
    )
    assert isinstance(events[1], ResponseReceived)
    assert events[1].response.id == second
    assert isinstance(events[2], ResponseFailed)
    assert events[2].request_id == first
    assert isinstance(events[2].error, UnknownStream)


def test_a_request_before_hello_breaks_the_connection() -> None:
    server = ServerConnection()
    events = server.receive_data(ClientConnection().send(GetMetadata(id=0)))
    assert isinstance(broken(events), RemoteProtocolError)
    assert server.receive_data(b"anything") == ()


def test_an_unknown_version_is_refused_and_another_may_be_tried() -> None:
    client, server = ClientConnection(), ServerConnection()
    (event,) = server.receive_data(client.send(Hello(id=client.next_id(), protocol=9)))
    assert isinstance(event, RequestRefused)
    (failed,) = client.receive_data(event.response)
    assert isinstance(failed, ResponseFailed)
    assert isinstance(failed.error, Unsupported)
    assert failed.error.detail == {"protocol_min": 1, "protocol_max": 1}
    (event,) = server.receive_data(client.send(Hello(id=client.next_id(), protocol=1)))
    assert isinstance(event, RequestReceived)


def test_hello_is_said_once() -> None:
    pair = Pair()
    (event,) = pair.server.receive_data(pair.client.send(Hello(id=pair.client.next_id(), protocol=1)))
    assert isinstance(event, RequestRefused)
    assert isinstance(event.error, RequestError)


def test_one_request_more_than_allowed_is_refused_and_the_connection_lives() -> None:
    pair = Pair()
    ids = [pair.fetch() for _ in range(REQUESTS_IN_FLIGHT_MAX)]
    with pytest.raises(Overloaded):
        pair.client.send(Fetch(id=pair.client.next_id(), stream="s", offset=0))
    flood = ClientConnection().send(Fetch(id=10**9, stream="s", offset=0))
    (event,) = pair.server.receive_data(flood)
    assert isinstance(event, RequestRefused)
    assert isinstance(event.error, Overloaded)
    pair.server.fail(ids[0], UnknownStream("s"))
    (event,) = pair.server.receive_data(flood)
    assert isinstance(event, RequestReceived)


def test_a_cancelled_request_is_in_flight_until_it_is_answered() -> None:
    pair = Pair()
    request_id = pair.fetch()
    assert pair.server.receive_data(pair.client.cancel(request_id)) == (CancelReceived(request_id),)
    assert pair.client.cancel(request_id) == b"", "once is enough"
    assert pair.client.in_flight == pair.server.in_flight == 1
    (failed,) = pair.client.receive_data(pair.server.fail(request_id, RequestCancelled("gone")))
    assert isinstance(failed, ResponseFailed)
    assert isinstance(failed.error, RequestCancelled)
    assert pair.client.in_flight == pair.server.in_flight == 0


def test_a_cancel_that_crosses_the_answer_harms_nobody() -> None:
    pair = Pair()
    request_id = pair.fetch()
    answer = pair.server.respond(a_fetch_response(request_id))
    cancel = pair.client.cancel(request_id)
    assert isinstance(pair.client.receive_data(answer)[-1], ResponseReceived)
    assert pair.server.receive_data(cancel) == (CancelReceived(request_id),)
    again = Fetch(id=request_id, stream="s", offset=0)  # other clients may use an id again
    assert pair.server.receive_data(encode_head(encode_request(again))) == (RequestReceived(again),)


def test_an_answer_that_has_begun_is_not_cancelled() -> None:
    pair = Pair()
    request_id = pair.fetch()
    pair.client.receive_data(pair.server.respond(a_fetch_response(request_id), body_length=5) + b"bo")
    assert pair.client.cancel(request_id) == b""


def test_a_cancel_needs_no_place_among_the_requests_in_flight() -> None:
    pair = Pair()
    ids = [pair.fetch() for _ in range(REQUESTS_IN_FLIGHT_MAX)]
    events = pair.server.receive_data(b"".join(map(pair.client.cancel, ids)))
    assert events == tuple(map(CancelReceived, ids))


def test_an_older_server_is_never_sent_a_cancel() -> None:
    pair = Pair(older=True)
    assert pair.client.cancel(pair.fetch()) == b""


def test_what_changes_something_is_not_cancelled() -> None:
    pair = Pair()
    leave = LeaveGroup(id=pair.client.next_id(), group="g", member="m")
    pair.server.receive_data(pair.client.send(leave))
    assert pair.client.cancel(leave.id) == b""


@pytest.mark.parametrize(
    "fields",
    ['"id":null', '"id":-1', '"id":"1"', '"id":true', '"id":1.5', '"id":[1]', '"id":9223372036854775808',
     '"ids":[1]', '"id":1,"request":1', '"id":1,"stream":"s"'],
)  # fmt: skip
def test_a_malformed_cancel_breaks_the_connection(fields: str) -> None:
    pair = Pair()
    pair.fetch()  # with id 1
    events = pair.server.receive_data(encode_head(b'{"op":"cancel",%b}' % fields.encode()))
    assert isinstance(broken(events), RemoteProtocolError)


def test_a_cancel_before_hello_breaks_the_connection() -> None:
    events = ServerConnection().receive_data(encode_head(encode_request(Cancel(id=0))))
    assert isinstance(broken(events), RemoteProtocolError)


def test_an_id_in_flight_cannot_be_used_again() -> None:
    pair = Pair()
    again = ClientConnection().send(Fetch(id=pair.fetch(), stream="s", offset=0))
    assert isinstance(broken(pair.server.receive_data(again)), RemoteProtocolError)


def test_an_id_in_flight_is_not_even_refused_under_its_name() -> None:
    pair = Pair()
    request_id = pair.fetch()
    events = pair.server.receive_data(encode_head(b'{"id":%d,"op":"unknown"}' % request_id))
    assert isinstance(broken(events), RemoteProtocolError)


def test_a_request_with_a_body_breaks_the_connection() -> None:
    pair = Pair()
    head = b'{"id":5,"op":"metadata"}'
    assert isinstance(broken(pair.server.receive_data(encode_head(head, 1))), RemoteProtocolError)


def test_the_farewell_tells_the_client_why() -> None:
    pair = Pair()
    events = pair.server.receive_data(encode_head(b"not json"))
    last = events[-1]
    assert isinstance(last, ConnectionBroken)
    error = broken(pair.client.receive_data(last.farewell))
    assert isinstance(error, RemoteProtocolError)
    assert "not JSON" in error.description
    assert pair.client.receive_data(last.farewell) == ()
    assert pair.client.body_window() is None


def test_good_requests_before_a_bad_frame_are_still_received() -> None:
    pair = Pair()
    good = pair.client.send(Fetch(id=pair.client.next_id(), stream="s", offset=0))
    events = pair.server.receive_data(good + b"\x00" * 12)
    assert [type(event) for event in events] == [RequestReceived, ConnectionBroken]


@pytest.mark.parametrize(
    "answer",
    [
        encode_head(encode_response(a_fetch_response(99))),
        encode_head(b'{"id":"1"}'),
        encode_head(b'{"id":1}'),
        encode_head(b'{"id":1,"error":{}}'),
        encode_head(b'{"id":null}'),
        encode_head(b'{"id":1,"error":{"code":1,"err_code":"x","description":"d","retriable":true}}', 3),
        encode_head(
            encode_response(
                ListOffsetsResponse(
                    id=1, offset=0, leader_epoch=0, log_start_offset=0, high_watermark=0, incarnation="i"
                )
            )
        ),
        b"\xff" * 12,
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_a_server_that_talks_nonsense_breaks_the_connection(answer: bytes) -> None:
    pair = Pair()
    assert pair.fetch() == 1
    assert isinstance(broken(pair.client.receive_data(answer)), RemoteProtocolError)


def test_a_request_too_large_for_a_header_is_the_callers_fault() -> None:
    names = ["\x00" * 1024] * 200
    client = ClientConnection()
    with pytest.raises(RequestError):
        client.send(GetMetadata(id=client.next_id(), streams=names))
    assert client.in_flight == 0


def test_list_offsets_is_matched_like_any_other() -> None:
    pair = Pair()
    request = ListOffsets(id=pair.client.next_id(), stream="s", at="latest")
    pair.server.receive_data(pair.client.send(request))
    response = ListOffsetsResponse(
        id=request.id, offset=3, leader_epoch=1, log_start_offset=0, high_watermark=3, incarnation="i"
    )
    events = pair.client.receive_data(pair.server.respond(response))
    assert events[0] == ResponseStarted(response, 0)


# --- the token ------------------------------------------------------------------------------------------

TOKEN = "open sesame, häuptling"


def guarded() -> ServerConnection:
    return ServerConnection(ReaderRights(Gate("token", SecretStr(TOKEN))))


def said_with(token: object, server: ServerConnection, protocol: int = 1) -> tuple[ServerEvent, ...]:
    """Say hello with ``token``, unless it is None, and ask for something in the same breath."""
    hello: dict[str, object] = {"op": "hello", "id": 0, "protocol": protocol}
    if token is not None:
        hello["token"] = token
    return server.receive_data(
        encode_head(json.dumps(hello).encode()) + encode_head(b'{"op":"metadata","id":1}')
    )


def test_the_right_token_is_let_in() -> None:
    client, server = ClientConnection(), guarded()
    hello = Hello(id=client.next_id(), protocol=1, token=SecretStr(TOKEN))
    (event,) = server.receive_data(client.send(hello))
    assert event == RequestReceived(hello)
    assert server.receive_data(client.send(GetMetadata(id=client.next_id()))) == (
        RequestReceived(GetMetadata(id=1)),
    )


@pytest.mark.parametrize(
    "token",
    [None, "", TOKEN[:-1], TOKEN + " ", TOKEN.upper(), "x" * 60_000],
    ids=lambda token: str(token)[:9],
)
def test_any_other_token_breaks_the_connection_and_is_not_repeated(token: str | None) -> None:
    server = guarded()
    (event,) = said_with(token, server)
    assert isinstance(event, ConnectionBroken)
    assert isinstance(event.error, Unauthorized)
    assert not event.error.retriable
    assert server.broken
    assert said_with(TOKEN, server) == ()  # P6: one attempt for each connection
    (told,) = ClientConnection().receive_data(event.farewell)
    assert isinstance(told, ConnectionBroken)
    assert isinstance(told.error, Unauthorized)
    for secret in (TOKEN, token):
        assert not secret or (secret not in repr(event) and secret.encode() not in event.farewell)


def test_the_token_is_looked_at_before_the_version() -> None:
    (event,) = said_with("wrong", guarded(), protocol=9)
    assert isinstance(event, ConnectionBroken)
    refused, asked_too_early = said_with(TOKEN, guarded(), protocol=9)
    assert isinstance(refused, RequestRefused)
    assert isinstance(refused.error, Unsupported)
    assert isinstance(asked_too_early, ConnectionBroken)


@pytest.mark.parametrize("token", [5, True, ["a"], {"a": "b"}])
def test_a_token_that_is_no_text_is_a_bad_request(token: object) -> None:
    refused, asked_too_early = said_with(token, guarded())
    assert isinstance(refused, RequestRefused)
    assert refused.error.err_code == "bad_request"
    assert isinstance(asked_too_early, ConnectionBroken)


def test_a_token_that_nobody_asked_for_is_of_no_account() -> None:
    hello, metadata = said_with("whatever", ServerConnection())
    assert isinstance(hello, RequestReceived)
    assert isinstance(metadata, RequestReceived)


def test_a_token_is_in_no_repr_and_only_in_the_bytes_that_are_sent() -> None:
    hello = Hello(id=0, protocol=1, token=SecretStr(TOKEN))
    (event,) = guarded().receive_data(ClientConnection().send(hello))
    assert TOKEN not in f"{hello!r} {hello} {event!r} {hello.model_dump()}"
    assert TOKEN.encode() in encode_request(hello)
    assert b"token" not in encode_request(Hello(id=0, protocol=1))
