"""Both ends of one socket connection as machines: bytes in, events out; values in, bytes out.

The server side::

    awaiting hello --hello of a known version--> open --request--> open
          |                                       |
          +-- any other request, bad frame -------+--> broken: nothing more is read
          +-- hello without what opens the gate ------/

What a hello shows is looked at before anything else in it; see `jetstream.protocol.rights`. It is in no
event's error and, being a `SecretStr`, in no repr.

A request is *in flight* from its `RequestReceived` until `ServerConnection.respond` or
`ServerConnection.fail`; so is one that the client has cancelled. Responses go out in any order; a body
follows its header without anything in between, which is the caller's part.

Source: the split of machine and I/O is that of h11 and httpcore; ids for pipelining as in Kafka's
correlation id, without its rule of answering in order.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from envelope.errors import (
    InvalidTicket,
    JetstreamError,
    Overloaded,
    RemoteProtocolError,
    RequestError,
    Unauthorized,
    Unsupported,
)
from envelope.limits import (
    FRAME_HEADER_BYTES_MAX,
    REQUEST_BODY_BYTES_MAX,
    REQUESTS_IN_FLIGHT_MAX,
    RESPONSE_BODY_BYTES_MAX,
)
from jetstream.protocol.frames import (
    BodyReceived,
    FrameEvent,
    FrameReader,
    FrameRefused,
    HeadReceived,
    encode_head,
)
from jetstream.protocol.group_responses import GROUP_RESPONSES
from jetstream.protocol.request_base import ProtocolRequest
from jetstream.protocol.requests import (
    PROTOCOL_VERSION,
    Cancel,
    Fetch,
    GetMetadata,
    Hello,
    ListOffsets,
    RefusedRequest,
    Request,
    ShowTicket,
    decode_request,
    encode_request,
)
from jetstream.protocol.responses import (
    FetchResponse,
    HelloResponse,
    ListOffsetsResponse,
    MetadataResponse,
    Response,
    TicketShownResponse,
    decode_error,
    decode_response,
    encode_error,
    encode_response,
    response_id,
)
from jetstream.protocol.rights import Gate, ReaderRights


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A valid request; answer it with `ServerConnection.respond` or `ServerConnection.fail`."""

    request: Request


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A request that cannot be served: send ``response``; the connection lives on."""

    error: JetstreamError
    response: bytes


@dataclass(frozen=True, slots=True)
class ConnectionBroken:
    """The peer broke the protocol: send ``farewell`` (may be empty), then close; nothing more is read."""

    error: JetstreamError
    farewell: bytes


@dataclass(frozen=True, slots=True)
class CancelReceived:
    """The peer needs no answer to a request, which may have been answered meanwhile."""

    request_id: int


ServerEvent = RequestReceived | RequestRefused | CancelReceived | ConnectionBroken


class _ServerState(Enum):
    AWAITING_HELLO = "awaiting hello"
    OPEN = "open"
    BROKEN = "broken"


class ServerConnection:
    """The server's side of one connection.

    Invariants:
        P4: at most ``REQUESTS_IN_FLIGHT_MAX`` requests are in flight, each id once.
            Held by test_one_request_more_than_allowed_is_refused_and_the_connection_lives.
        P5: only ids in flight are answered, each once.
        P6: after `ConnectionBroken` there are no more events.
            Held by test_garbage_is_answered_by_a_typed_error_or_silence.
        P10: no request is received before a hello that its rights have admitted.
    """

    def __init__(self, rights: ReaderRights | None = None) -> None:
        """``rights``: admit the peer; None lets everybody in."""
        self._rights = rights or ReaderRights(Gate())
        self._admitted = False
        self._reader = FrameReader(FRAME_HEADER_BYTES_MAX, REQUEST_BODY_BYTES_MAX)
        self._state = _ServerState.AWAITING_HELLO
        self._in_flight: set[int] = set()
        self.mid_frame = False
        """Whether a request has begun to arrive and is not complete."""

    @property
    def awaiting_hello(self) -> bool:
        """Whether the peer has not yet agreed on a version."""
        return self._state is _ServerState.AWAITING_HELLO

    @property
    def broken(self) -> bool:
        """Whether the peer broke the protocol."""
        return self._state is _ServerState.BROKEN

    @property
    def in_flight(self) -> int:
        """How many requests await their response."""
        return len(self._in_flight)

    def receive_data(self, data: bytes | memoryview) -> tuple[ServerEvent, ...]:
        """Take in any bytes; return what they mean, in order. Never raises for what a peer sends."""
        events: list[ServerEvent] = []
        if self.broken:
            return ()
        for frame in self._reader.feed(data):
            if isinstance(frame, BodyReceived):
                continue  # requests have none: it is empty
            event = self._on_frame(frame)
            events.append(event)
            if isinstance(event, ConnectionBroken):
                break
        self.mid_frame = self._reader.mid_frame
        return tuple(events)

    def respond(self, response: Response, body_length: int = 0) -> bytes:
        """Return the bytes that begin the response; ``body_length`` bytes of body must follow them."""
        self._answered(response.id)
        return encode_head(encode_response(response), body_length)

    def fail(self, request_id: int, error: JetstreamError) -> bytes:
        """Return the whole response to a request that failed."""
        self._answered(request_id)
        return encode_head(encode_error(request_id, error))

    def _answered(self, request_id: int) -> None:
        assert request_id in self._in_flight, f"P5: request {request_id} is not in flight"
        self._in_flight.remove(request_id)

    def _on_frame(self, frame: HeadReceived | FrameRefused) -> ServerEvent:
        if isinstance(frame, FrameRefused):
            return self._break(frame.error)
        try:
            return self._accepted(decode_request(frame.header))
        except RefusedRequest as refused:
            if refused.request_id in self._in_flight:
                return self._break(_reused(refused.request_id))
            header = encode_error(refused.request_id, refused.error)
            return RequestRefused(refused.error, encode_head(header))
        except (RemoteProtocolError, Unauthorized, InvalidTicket) as error:
            return self._break(error)

    def _accepted(self, request: Request | Cancel) -> ServerEvent:
        """Let a well-formed request in, or say why not; a cancel also where no more requests are let in."""
        if isinstance(request, Cancel) and not self.awaiting_hello:
            return CancelReceived(request.id)
        if request.id in self._in_flight:
            raise _reused(request.id)
        if isinstance(request, Hello):
            self._open(request)
        elif self.awaiting_hello or isinstance(request, Cancel):
            raise RemoteProtocolError(f'the first request must be "hello", not "{request.op}"')
        if len(self._in_flight) >= REQUESTS_IN_FLIGHT_MAX:
            raise RefusedRequest(
                request.id, Overloaded(f"{REQUESTS_IN_FLIGHT_MAX} requests are in flight on this connection")
            )
        self._in_flight.add(request.id)
        assert len(self._in_flight) <= REQUESTS_IN_FLIGHT_MAX, "P4"
        assert self._admitted, "P10: nobody is served who was not admitted"
        return RequestReceived(request)

    def _open(self, hello: Hello) -> None:
        if self._state is _ServerState.OPEN:
            raise RefusedRequest(hello.id, RequestError('"hello" was said before'))
        self._rights.admit(hello)
        self._admitted = True
        if hello.protocol != PROTOCOL_VERSION:
            raise RefusedRequest(
                hello.id,
                Unsupported(
                    f"protocol version {hello.protocol} is not spoken here",
                    protocol_min=PROTOCOL_VERSION,
                    protocol_max=PROTOCOL_VERSION,
                ),
            )
        self._state = _ServerState.OPEN

    def _break(self, error: JetstreamError) -> ConnectionBroken:
        self._state = _ServerState.BROKEN
        return ConnectionBroken(error, encode_farewell(error))


def encode_farewell(error: JetstreamError) -> bytes:
    """Return the bytes that tell a peer why its connection is about to be closed."""
    return encode_head(encode_error(None, error))


def _reused(request_id: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"request id {request_id} is still in flight")


@dataclass(frozen=True, slots=True)
class ResponseStarted:
    """A response's header is here, its body is still arriving: time to ask for what comes next."""

    response: Response
    body_length: int


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """A response is complete; the receiver owns ``body``."""

    response: Response
    body: memoryview


@dataclass(frozen=True, slots=True)
class ResponseFailed:
    """The server answered a request with an error."""

    request_id: int
    error: JetstreamError


ClientEvent = ResponseStarted | ResponseReceived | ResponseFailed | ConnectionBroken

_RESPONSES: Final[Mapping[type[ProtocolRequest], type[Response]]] = {
    Hello: HelloResponse,
    ShowTicket: TicketShownResponse,
    GetMetadata: MetadataResponse,
    ListOffsets: ListOffsetsResponse,
    Fetch: FetchResponse,
    **GROUP_RESPONSES,
}


class ClientConnection:
    """The client's side of one connection.

    Invariants:
        P7: every response belongs to a request in flight; it is told once as received or failed.
        P11: a request is cancelled once at most, before its answer begins to arrive, at a server whose hello
            named ``cancel``; it stays in flight until it is answered.
            Held by test_requests_answers_and_cancels_in_any_order.
        P8: after `ConnectionBroken` there are no more events.
            Held by test_garbage_from_a_server_is_a_typed_error_or_silence.
    """

    def __init__(self, allocate: Callable[[int], memoryview] | None = None) -> None:
        """``allocate`` makes the writable room for one body; the default is zeroed memory."""
        limits = FRAME_HEADER_BYTES_MAX, RESPONSE_BODY_BYTES_MAX
        self._reader = FrameReader(*limits) if allocate is None else FrameReader(*limits, allocate)
        self._requests: dict[int, Request] = {}
        self._arriving: Response | None = None
        self._cancelled: set[int] | None = None
        """What is cancelled and in flight; None: the server does not know ``cancel``."""
        self._next_id = 0
        self._broken = False

    @property
    def in_flight(self) -> int:
        """How many requests await their response."""
        return len(self._requests)

    def next_id(self) -> int:
        """Return an id that was never used on this connection."""
        self._next_id += 1
        return self._next_id - 1

    def send(self, request: Request) -> bytes:
        """Return the bytes of ``request``; its id must come from `next_id`.

        Raises:
            Overloaded: as many requests are in flight as a server takes.
        """
        assert request.id not in self._requests, f"P7: request id {request.id} is in flight"
        if len(self._requests) >= REQUESTS_IN_FLIGHT_MAX:
            raise Overloaded(f"{REQUESTS_IN_FLIGHT_MAX} requests are in flight on this connection")
        header = encode_request(request)
        if len(header) > FRAME_HEADER_BYTES_MAX:
            raise RequestError(f"request of {len(header)} bytes, the limit is {FRAME_HEADER_BYTES_MAX}")
        self._requests[request.id] = request
        return encode_head(header)

    def cancel(self, request_id: int) -> bytes:
        """Return the bytes by which the server takes a request back; none if that is no use."""
        request = self._requests.get(request_id)
        if self._cancelled is None or request is None or not request.can_be_cancelled:
            return b""
        is_answered = self._arriving is not None and self._arriving.id == request_id
        if is_answered or request_id in self._cancelled:
            return b""
        self._cancelled.add(request_id)
        return encode_head(encode_request(Cancel(id=request_id)))

    def body_window(self) -> memoryview | None:
        """Return where the rest of the arriving body may be written in place, or None between bodies."""
        return None if self._broken else self._reader.body_window()

    def body_filled(self, count: int) -> tuple[ClientEvent, ...]:
        """Say that the first ``count`` bytes of `body_window` have been written."""
        return self._events(self._reader.body_filled(count))

    def receive_data(self, data: bytes | memoryview) -> tuple[ClientEvent, ...]:
        """Take in any bytes; return what they mean, in order. Never raises for what a peer sends."""
        return () if self._broken else self._events(self._reader.feed(data))

    def _events(self, frames: list[FrameEvent]) -> tuple[ClientEvent, ...]:
        events: list[ClientEvent] = []
        for frame in frames:
            try:
                events.extend(self._on_frame(frame))
            except RemoteProtocolError as error:
                events.append(self._break(error))
            if self._broken:
                break
        return tuple(events)

    def _on_frame(self, frame: FrameEvent) -> tuple[ClientEvent, ...]:
        match frame:
            case HeadReceived(header, body_length):
                return self._on_head(header, body_length)
            case BodyReceived(body):
                return self._on_body(body)
            case FrameRefused(error):
                return (self._break(error),)
            case _:
                assert_never(frame)

    def _on_head(self, header: bytes, body_length: int) -> tuple[ClientEvent, ...]:
        fields, answered = response_id(header)
        if answered is None:
            return (self._break(decode_error(fields)),)
        request = self._requests.get(answered)
        if request is None:
            raise RemoteProtocolError(f"response to request {answered}, which is not in flight")
        if "error" in fields:
            return self._on_error(answered, decode_error(fields), body_length)
        self._arriving = decode_response(_RESPONSES[type(request)], fields)
        return (ResponseStarted(self._arriving, body_length),)

    def _on_error(self, answered: int, error: JetstreamError, body_length: int) -> tuple[ClientEvent, ...]:
        if body_length:
            raise RemoteProtocolError(f"error response with a body of {body_length} bytes")
        self._answered(answered)
        return (ResponseFailed(answered, error),)

    def _on_body(self, body: memoryview) -> tuple[ClientEvent, ...]:
        if self._arriving is None:
            return ()  # the empty body of an error
        response, self._arriving = self._arriving, None
        self._answered(response.id)
        if isinstance(response, HelloResponse) and response.cancel:
            self._cancelled = set()
        return (ResponseReceived(response, body),)

    def _answered(self, request_id: int) -> None:
        del self._requests[request_id]
        if self._cancelled:
            self._cancelled.discard(request_id)

    def _break(self, error: JetstreamError) -> ConnectionBroken:
        self._broken = True
        return ConnectionBroken(error, b"")
