"""The HTTP port: who is let in, and which part answers.

The console's files, probes and metrics are answered from the first moment of a start to the last of a stop;
all below ``/v1`` once the node serves.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Protocol

import h11

from envelope.errors import JetstreamError, UnavailableError
from jetstream.node.http.access import Credential, HttpSettings
from jetstream.node.http.connection import HttpConnection
from jetstream.node.http.console.static_files import StaticFile, console_files
from jetstream.node.http.page import Page, plain, problem
from jetstream.node.http.request import HttpRequest
from jetstream.node.readers.line import SocketLine
from jetstream.node.readers.port import ReaderPort
from jetstream.node.readers.reader_connection import (
    ConnectionServices,
    ReaderConnection,
    RequestServer,
    SelectedAnswers,
    SocketCounters,
)
from jetstream.node.readers.ticket_refusals import TicketRefusals
from jetstream.node.runtime.catch_up_queue import CatchUpQueue
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.task_group import task_group
from jetstream.protocol.liveness import Patience
from jetstream.protocol.rights import Gate
from metadata.node.admission.descriptors import DescriptorShare
from metadata.node.admission.door import Door

_log = logging.getLogger(__name__)

_SECOND_NS: Final = 1_000_000_000
PATIENCE: Final = Patience(
    hello_ns=5 * _SECOND_NS, frame_ns=5 * _SECOND_NS, idle_ns=60 * _SECOND_NS, stalled_ns=30 * _SECOND_NS
)
"""From the connection to the head of the first request; for one head; between requests; for taking bytes."""

CONNECTIONS_MAX: Final = 4096
"""Peers that are connected. One more is turned away, or, if one awaits no response, that one is cut off."""

DRAIN_S: Final = 2.0
"""How long a stopping server goes on sending."""

_API: Final = "/v1/"

PageMaker = Callable[[], Awaitable[Page]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The pages by path, each made anew for every request."""

    every: Mapping[str, PageMaker] = field(default_factory=dict)
    """For requests with the token, or for all if there is none."""
    public: Mapping[str, PageMaker] = field(default_factory=dict)
    """For requests without the token, which probes are."""
    files: Mapping[str, StaticFile] = field(default_factory=console_files)
    """For all requests."""


class Api(Protocol):
    """Answers everything below ``/v1``.

    Attributes:
        readers: responses with records that are under way.
    """

    readers: int

    async def answer(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Send the response to a GET or HEAD."""

    async def until_no_readers(self) -> None:
        """Wait until no response with records is under way."""


class _NoStreams:
    """Stands for the streams of a node that does not serve them: nothing of HTTP asks it."""

    def serve(self, connection: ReaderConnection) -> None:
        assert not connection.requests, "nothing is asked before there are streams"

    def forget(self, connection: ReaderConnection) -> None:
        pass

    @property
    def selections(self) -> SelectedAnswers:
        raise AssertionError("no response selects anything before there are streams")


class HttpServer:
    """Serves from `start` to `stop`; on one event loop's thread.

    Attributes:
        pages: may be replaced at any time.
        settings: how the port is guarded.
        door: has decided who was let in.
    """

    def __init__(
        self,
        pages: Pages,
        settings: HttpSettings,
        executor: Executor,
        clock: Clock,
        catch_up_queue: CatchUpQueue,
    ) -> None:
        """Serve ``pages`` at first; ``executor`` reads what is not in the page cache."""
        self.pages = pages
        self.settings = settings
        self._api: Api | None = None
        self.door = Door("http", DescriptorShare.NODE, CONNECTIONS_MAX)
        self._running = AsyncExitStack()
        self._tasks: asyncio.TaskGroup | None = None
        self._port = ReaderPort(self.door, PATIENCE, settings.tls, self._connection, _refusal)
        self._services = ConnectionServices(
            loop=asyncio.get_running_loop(),
            executor=executor,
            clock=clock,
            patience=PATIENCE,
            requests=_NoStreams(),
            introduced=self._port.introduced,
            closed=self._port.closed,
            catch_up_queue=catch_up_queue,
            gate=Gate(),
            ticket_refusals=TicketRefusals(clock),
        )

    @property
    def counters(self) -> SocketCounters:
        """Return the counts of its connections."""
        return self._services.counters

    @property
    def connections(self) -> int:
        """Return how many peers are connected."""
        return self._port.connections

    @property
    def readers(self) -> int:
        """Return how many responses with records are under way."""
        return 0 if self._api is None else self._api.readers

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes in memory that wait for peers to take them."""
        return self._port.buffered_bytes

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; return the address, with the port that was free if ``port`` is 0.

        Raises:
            OSError: the address cannot be had.
        """
        self._tasks = await self._running.enter_async_context(task_group())
        return await self._port.start(host, port)

    async def stop(self) -> None:
        """Stop listening, send what is queued for a moment and close everything; again it does nothing."""
        await self._port.stop(DRAIN_S)
        await self._running.aclose()

    def open_api(self, api: Api, streams: RequestServer, ticket_refusals: TicketRefusals) -> None:
        """Answer requests below ``/v1`` from now on; ``streams`` answers about records."""
        self._api = api
        self._services.requests = streams
        self._services.ticket_refusals = ticket_refusals

    async def close_api(self) -> None:
        """Ask the streams nothing more.

        Responses that follow end with where to go on, if their peers take that in `DRAIN_S`; others are cut.
        """
        api, self._api = self._api, None
        for connection in self._port:
            assert isinstance(connection, HttpConnection), "the port makes no others"
            connection.stop_asking()
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await (api.until_no_readers() if api is not None else asyncio.sleep(0))
        self._port.close_connections()
        self._services.requests = _NoStreams()

    def _connection(self, line: SocketLine) -> HttpConnection:
        assert self._tasks is not None, "connections come to a server that has started"
        return HttpConnection(line, self._services, self._answer, self._tasks, self._port.estranged)

    async def _answer(self, connection: HttpConnection, raw: h11.Request) -> None:
        request = HttpRequest.of(raw)
        if request.method not in ("GET", "HEAD"):
            text = "only GET and HEAD: publish over NATS"
            await connection.send(plain(HTTPStatus.METHOD_NOT_ALLOWED, text, ("allow", "GET, HEAD")))
        elif (file := self.pages.files.get(request.raw_path)) is not None:
            await file.send(connection, request)
        elif not request.raw_path.startswith(_API):
            page = await self._page(request)
            if page.status is HTTPStatus.UNAUTHORIZED:
                _log.info("http request refused peer=%s", connection.peer)
            await connection.send(page, is_head=request.is_head)
        elif self._api is None:
            error = UnavailableError("the node is starting, or stopping")
            await connection.send(problem(error), is_head=request.is_head)
        else:
            await self._api.answer(connection, request)

    async def _page(self, request: HttpRequest) -> Page:
        credential = self.settings.judge(request.headers)
        is_let_in = credential is Credential.RIGHT
        make = (self.pages.every if is_let_in else self.pages.public).get(request.raw_path)
        if make is not None:
            return await make()
        if is_let_in:
            return plain(
                HTTPStatus.NOT_FOUND, f"there are /, {', '.join(sorted(self.pages.every))} and {_API}"
            )
        return plain(
            HTTPStatus.UNAUTHORIZED,
            "this page wants the token of http.token: Authorization: Bearer TOKEN",
            ("www-authenticate", credential.challenge),
        )


def _refusal(error: JetstreamError) -> bytes:
    """Return a response to a peer that is refused before its request is read."""
    page = problem(error)
    headers = (("content-type", page.content_type), ("content-length", str(len(page.body))), *page.headers)
    head = "".join(f"{name}: {value}\r\n" for name, value in (*headers, ("connection", "close")))
    return f"HTTP/1.1 {page.status:d} {page.status.phrase}\r\n{head}\r\n".encode() + page.body
