"""A small HTTP door for probes and scrapers: GET on a few paths, one request a connection.

h11 knows HTTP; here is who is let in, and for how long. Nothing a peer sends reaches further than its path
and its token.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import h11

from envelope.limits import KIB
from jetstream.node.http.access import Credential, HttpSettings
from metadata.node.admission.descriptors import DescriptorShare
from metadata.node.admission.door import Door
from metadata.node.peers.accepting import StreamServer, listeners

_log = logging.getLogger(__name__)

HEADER_BYTES_MAX: Final = 16 * KIB
HEAD_S_MAX: Final = 5.0
"""From the connection to the last byte of the request's head."""
EXCHANGE_S_MAX: Final = 10.0
"""From the connection to the last byte of the answer; a peer that has not read by then loses the rest."""

CONNECTIONS_MAX: Final = 64
"""Peers that are connected, those included that do not read their answer; one more is turned away, or, if
one has not said what it wants, that one."""

_RECEIVE_BYTES: Final = 4 * KIB
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """The response to a path."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    """Beside those that every response has."""


PageMaker = Callable[[], Awaitable[Page]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The pages by path, each made anew for every request."""

    every: Mapping[str, PageMaker] = field(default_factory=dict)
    """For requests with the token, or for all if there is none."""
    public: Mapping[str, PageMaker] = field(default_factory=dict)
    """For requests without the token, which probes are."""


class HttpServer:
    """Serves pages from `start` to `stop`; on one event loop's thread.

    Attributes:
        pages: may be replaced at any time.
        door: has decided who was let in.
    """

    def __init__(self, pages: Pages, settings: HttpSettings | None = None) -> None:
        """Serve ``pages`` at first; without ``settings`` everybody may see all of them."""
        self.pages = pages
        self.door = Door("http", DescriptorShare.NODE, CONNECTIONS_MAX)
        self._settings = settings or HttpSettings()
        self._server = StreamServer(self._talk, limit=_RECEIVE_BYTES, tls=self._settings.tls, door=self.door)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; return the address, with the port that was free if ``port`` is 0.

        Raises:
            OSError: the address cannot be had.
        """
        found = await listeners(host, port)
        for listener in found:
            self._server.start(listener)
        bound = found[0].getsockname()
        _log.info("http server listening host=%s port=%d", bound[0], bound[1])
        return str(bound[0]), int(bound[1])

    async def stop(self) -> None:
        """Stop listening and break off what is going on."""
        await self._server.stop()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(EXCHANGE_S_MAX):
                await self._exchange(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError) as error:
            _log.debug("http exchange ended early error=%r", error)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)
        try:
            async with asyncio.timeout(HEAD_S_MAX):
                request = await _next_request(connection, reader)
            if request is None:
                return
            self._server.introduced()
            page = await self._page(request)
            if page.status is HTTPStatus.UNAUTHORIZED:
                _log.info("http request refused peer=%s", writer.get_extra_info("peername"))
        except h11.RemoteProtocolError as error:
            page = _plain(HTTPStatus(error.error_status_hint), str(error))
            request = None
        headers = [
            ("content-type", page.content_type),
            ("content-length", str(len(page.body))),
            ("connection", "close"),
            *page.headers,
        ]
        answer = connection.send(h11.Response(status_code=page.status, headers=headers)) or b""
        if request is None or request.method != b"HEAD":
            answer += connection.send(h11.Data(data=page.body)) or b""
        writer.write(answer)
        await writer.drain()

    async def _page(self, request: h11.Request) -> Page:
        if request.method not in (b"GET", b"HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", ("allow", "GET, HEAD"))
        path = request.target.partition(b"?")[0].decode("ascii", "replace")
        credential = self._settings.judge(request.headers)
        is_let_in = credential is Credential.RIGHT
        make = (self.pages.every if is_let_in else self.pages.public).get(path)
        if make is not None:
            return await make()
        if is_let_in:
            return _plain(HTTPStatus.NOT_FOUND, f"there are {', '.join(sorted(self.pages.every))}")
        return _plain(
            HTTPStatus.UNAUTHORIZED,
            "this page wants the token of http.token: Authorization: Bearer TOKEN",
            ("www-authenticate", credential.challenge),
        )


async def _next_request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """Return the peer's request, None if it went away before.

    Raises:
        h11.RemoteProtocolError: it sends something else, or too much.
    """
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        connection.receive_data(await reader.read(_RECEIVE_BYTES))


def _plain(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Page:
    return Page(status, _TEXT, f"{text}\n".encode(), headers)
