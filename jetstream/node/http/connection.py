"""A connection that speaks HTTP/1.1: h11 knows the protocol, the bodies are bytes or ranges of segment files.

One request is answered at a time. While it is, more bytes are taken only to notice that the peer has gone.

Source: RFC 9112 (HTTP/1.1); h11's documentation, "Support for sendfile()".
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from itertools import count
from typing import Final, cast

import h11

from envelope.errors import JetstreamError, UnavailableError
from envelope.limits import KIB, MIB
from jetstream.fetch.selection import Encoder
from jetstream.node.disk.leased_range import Body
from jetstream.node.http.page import Headers, Page, plain
from jetstream.node.readers.line import SocketLine
from jetstream.node.readers.reader_connection import ConnectionServices, Pending, ReaderConnection
from jetstream.protocol.liveness import PeerState
from jetstream.protocol.requests import Fetch, ListOffsets
from jetstream.protocol.responses import Response

_log = logging.getLogger(__name__)

HEADER_BYTES_MAX: Final = 16 * KIB
_DISCARDED_BYTES_MAX: Final = MIB
"""Of a request that was refused before its end."""
_US_PER_SECOND: Final = 1_000_000
_STOPPING: Final = "the node stops"
_ROOM_BYTES: Final = 64 * KIB
"""Bytes in memory that wait to be sent, beyond which a body is not written any further."""

Answer = tuple[Response, Body | bytes | memoryview]
"""To a request to the node's streams; see `ReaderConnection.respond`."""


class _Length:
    """Stands for a body of so many bytes: h11 counts them, and never looks at them."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


class HttpConnection(ReaderConnection):
    """Answers one request after the other with a coroutine.

    Invariants:
        N15: a coroutine runs only while its connection is open: `close` cancels it.
            Held by test_a_reader_that_goes_away_ends_its_answer.
        N16: a file range that was handed over is sent, dropped, or given back by `close`.
            Held by test_a_range_that_is_handed_over_when_its_reader_goes_is_given_back.
    """

    def __init__(
        self,
        line: SocketLine,
        services: ConnectionServices,
        answer: Callable[["HttpConnection", h11.Request], Awaitable[None]],
        tasks: asyncio.TaskGroup,
        idle: Callable[["HttpConnection"], None],
    ) -> None:
        """Answer with ``answer``, in ``tasks``; ``idle`` is called whenever the next request is awaited."""
        super().__init__(line, services)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)
        self._answer = answer
        self._tasks = tasks
        self._idle = idle
        self.fileno: Final = line.fileno
        self.ids: Final = count()
        """Of the requests to the node's streams."""
        self._exchange: asyncio.Task[None] | None = None
        self._asked: asyncio.Future[Answer] | None = None
        self._handed_over: Body | None = None
        """A file range that `ask` has got, and nobody has sent yet."""
        self.is_stopping = False
        """Nothing more can be asked."""
        self._is_stranger = True
        self._has_left = False
        """The peer sends nothing more."""
        self._bytes_ahead = 0
        """Received since the request that is being answered."""
        self._queued = b""
        """Goes out with what is sent next."""
        self._room = asyncio.Event()
        self._discarded: int | None = None
        """Bytes that were dropped since the last response; None: another one may follow."""
        self.is_endless = False
        """The response has no end of its own: it ends as soon as the peer sends nothing more."""

    @property
    def _state(self) -> PeerState:
        is_busy = self._exchange is not None
        is_partial = self._discarded is not None or (not is_busy and bool(self._http.trailing_data[0]))
        return PeerState(self._is_stranger, is_partial, int(is_busy), self.taken is not None)

    # --- receiving -------------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        if self._discarded is not None:
            self._discarded += len(data)
            if not data or self._discarded > _DISCARDED_BYTES_MAX:
                self.close()
            return
        self._bytes_ahead += len(data)
        if not data:
            self._has_left = self._is_deaf = True
            if self.is_endless:
                self.close()
                return
        self._http.receive_data(data)
        if self._exchange is None:
            self._next_request()
        elif self._bytes_ahead > HEADER_BYTES_MAX:
            self._is_deaf = True

    def _next_request(self) -> None:
        try:
            request = self._http.next_event()
            is_request = isinstance(request, h11.Request)
            is_whole = (
                isinstance(request, h11.Request)
                and not _has_body(request)
                and isinstance(self._http.next_event(), h11.EndOfMessage)
            )
        except h11.RemoteProtocolError as error:
            self._services.counters.protocol_errors += 1
            self._begin(self._refuse(error))
            return
        now = self._services.clock.monotonic()
        self._liveness.received(frames=int(is_request), mid_frame=not is_request, now=now)
        if isinstance(request, h11.Request):
            self._services.counters.requests += 1
            self._is_stranger = False
            self._services.introduced(self)
            self._bytes_ahead = 0
            self._begin(self._answer_request(request, is_whole=is_whole))
        elif request is not h11.NEED_DATA:
            self.close()

    def _begin(self, exchange: "Awaitable[None]") -> None:
        async def run() -> None:
            await exchange

        self._exchange = self._tasks.create_task(run(), name=f"http exchange with {self.peer}")

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        with suppress(h11.LocalProtocolError):  # in the middle of a response nothing can be said
            await self.send(plain(HTTPStatus(error.error_status_hint), str(error)))
        self._linger()

    async def _answer_request(self, request: h11.Request, *, is_whole: bool) -> None:
        """Answer, then wait for the next request, if there may be one."""
        try:
            await self._answer(self, request)
        except Exception:  # noqa: BLE001 - an error of ours: strangers must not end the node by it
            _log.exception("http request failed target=%r", request.target[:256])
            if self._http.our_state is not h11.SEND_RESPONSE:
                self.close()
                return
            await self.send(plain(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault of the server; see its log"))
            self.leave()
            return
        self.is_endless = False
        self._exchange = None
        if not is_whole:
            self._linger()
            return
        if self._has_left or self._http.our_state is not h11.DONE:
            self.leave()
            return
        self._http.start_next_cycle()
        self._is_deaf = False
        self._idle(self)
        self._next_request()
        self._settle()

    def _linger(self) -> None:
        """Close as soon as the peer does: if bytes of it were unread then, it would lose the response."""
        if self._has_left or self._output.items or self._line.unsent:
            self.leave()
            return
        self._discarded = 0
        self._is_deaf = False
        self._liveness.received(frames=0, mid_frame=True, now=self._services.clock.monotonic())
        self._line.end()
        self._settle()

    # --- asking the node's streams -----------------------------------------------------------------

    async def ask(self, request: Fetch | ListOffsets, encode: Encoder | None = None) -> Answer:
        """Return the response to ``request``, and its body, which `write` or `drop` takes.

        Args:
            request: about a stream.
            encode: makes the body of a fetch out of decoded records; None: it is stored batches.

        Raises:
            UnavailableError: the node stops.
            JetstreamError: the typed refusal.
        """
        if self.closed:
            await asyncio.sleep(0)  # sending has closed it, and so cancelled the coroutine, which ends here
        assert self._asked is None, "one request is asked at a time"
        assert self._handed_over is None, "N16: the range before is on its way"
        if self.is_stopping:
            raise UnavailableError(_STOPPING)
        self._asked = self._services.loop.create_future()
        self.requests.append(Pending(self, request, encode))
        self._services.requests.serve(self)
        try:
            return await self._asked
        finally:
            self._asked = None

    def respond(self, response: Response, body: Body | bytes | memoryview = b"") -> None:
        """Hand the response to `ask`."""
        assert self._asked is not None, "a response belongs to a request"
        self._handed_over = body if isinstance(body, Body) else None
        self._asked.set_result((response, body))

    def fail(self, request_id: int, error: JetstreamError) -> None:
        """Let `ask` raise ``error``."""
        del request_id
        assert self._asked is not None, "an error belongs to a request"
        self._asked.set_exception(error)

    def drop(self, body: Body | bytes | memoryview) -> None:
        """Give back a body that is not to be sent."""
        if isinstance(body, Body):
            self._handed_over = None
            body.release()
        elif isinstance(body, memoryview):
            self._services.requests.selections.taken(self)

    # --- sending -----------------------------------------------------------------------------------

    async def send(self, page: Page, *, is_head: bool = False) -> None:
        """Send a whole response; without its body if ``is_head``."""
        length = ("content-length", str(len(page.body)))
        self.begin(page.status, (("content-type", page.content_type), length, *page.headers))
        if not is_head and page.body:
            await self.write(page.body)
        self.end()

    def begin(self, status: HTTPStatus, headers: Headers) -> None:
        """Begin a response; its head goes out with the first bytes of the body, or with `flush`."""
        date = formatdate(self._services.clock.wall() / _US_PER_SECOND, usegmt=True)
        response = h11.Response(status_code=status, headers=[("date", date), *headers], reason=status.phrase)
        head = self._http.send(response)
        self._queued += head or b""

    async def write(self, body: Body | bytes | memoryview) -> None:
        """Send some more of the body, which is not empty; returns when there is room for more."""
        if self.closed:
            await asyncio.sleep(0)  # as in `ask`
        length = len(body)
        if isinstance(body, Body):
            self._handed_over = None
        stand_in = cast("bytes", _Length(length))
        framed = self._http.send_with_data_passthrough(h11.Data(data=stand_in)) or []
        at = next(index for index, part in enumerate(framed) if part is stand_in)
        head = b"".join((self._queued, *framed[:at]))
        self._queued = b"".join(framed[at + 1 :])
        if isinstance(body, bytes):
            self._send(head + body)
        else:
            self._send(head, body)
        if self.is_endless:
            self.flush()  # the end of this chunk: the next one may be long in coming
        while self._output.memory_bytes > _ROOM_BYTES or self._output.bodies > 1:
            self._room.clear()
            await self._room.wait()

    def flush(self) -> None:
        """Send what is queued: the head of a response whose body has not begun."""
        if self._queued and not self.closed:
            queued, self._queued = self._queued, b""
            self._send(queued)

    def end(self, trailers: Iterable[tuple[str, str]] = ()) -> None:
        """End the response, which has no length if there are trailers; HTTP/1.0 gets none of them."""
        sent = [] if self._http.their_http_version == b"1.0" else list(trailers)
        self._queued += self._http.send(h11.EndOfMessage(headers=sent)) or b""
        self.flush()

    def _settle(self) -> None:
        self._room.set()
        super()._settle()

    def stop_asking(self) -> None:
        """End the response that is under way as if its stream had gone; the node stops."""
        self.is_stopping = True
        if self._asked is not None and not self._asked.done():
            self._services.requests.forget(self)
            self.requests.clear()
            self._asked.set_exception(UnavailableError(_STOPPING))

    def close(self) -> None:
        """Close now, and cancel the coroutine that answers."""
        if self.closed:
            return
        super().close()
        if self._handed_over is not None:
            self._handed_over.release()
        if self._exchange is not None:
            self._exchange.cancel()


def _has_body(request: h11.Request) -> bool:
    """Return whether the request has a body; it is answered, and ends the connection.

    So nobody in between can take its body for another request (RFC 9112, 6.3 and 11.2).
    """
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in request.headers)
