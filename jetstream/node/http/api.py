"""Everything below ``/v1``: records, and the questions of the request API as read-only JSON."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

from pydantic import ValidationError

from envelope.errors import (
    Forbidden,
    InvalidTicket,
    JetstreamError,
    Overloaded,
    RequestError,
    Unauthorized,
    UnknownPath,
    WrongHost,
)
from envelope.types import NodeId
from jetstream.client.nodes.socket_access import address_text
from jetstream.node.http.access import Credential, HttpSettings
from jetstream.node.http.connection import HttpConnection
from jetstream.node.http.page import JSON, Page, problem
from jetstream.node.http.records.endpoint import RecordsEndpoint
from jetstream.node.http.records.query import parameters
from jetstream.node.http.request import HttpRequest, decoded
from jetstream.node.readers.ports import whole_of
from jetstream.node.readers.server import SocketServer
from jetstream.node.readers.ticket_refusals import TicketRefusals
from jetstream.node.runtime.clock import Clock
from jetstream.node.streams.directory import NodeStreams
from jetstream.protocol.rights import Gate, WholeOf
from metadata.api.requests import (
    ClusterInfoRequest,
    GroupInfoRequest,
    ListCursorsRequest,
    ListGroupsRequest,
    ListNamespacesRequest,
    ListStreamsRequest,
    Request,
    StreamInfoRequest,
    StreamPublishersRequest,
)
from metadata.api.responses import utc
from metadata.api.wire import reported_error
from metadata.validation import first_problem

_HOST: Final = re.compile(r"(?:\[([^]]*)\]|([^:]*))(?::\d*)?")
"""With the port or without it; an address of IPv6 is in brackets (RFC 9110, 7.2)."""

READERS_MAX: Final = 1024
"""Responses with records that are under way; connections beyond it are left for everything else."""

Ask = Callable[[str, Request], Awaitable[bytes]]
"""Returns the answer to a question of the request API, by its name; raises JetstreamError."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the request API at a path: ``/v1/`` and the words, with a name in between or behind."""

    name: str
    """Of the request, as ``stream.info``."""
    model: type[Request]
    words: tuple[str, ...]
    field: str | None = None
    """The field of the request that the name in the path is; None: there is none in it."""
    tail: tuple[str, ...] = ()
    """Words behind the name."""

    @property
    def path(self) -> str:
        """Return the path with the field in braces."""
        names = () if self.field is None else (f"{{{self.field}}}",)
        return "/v1/" + "/".join((*self.words, *names, *self.tail))

    def matched(self, segments: Sequence[str]) -> dict[str, str] | None:
        """Return the field that the decoded segments of a path set; None: it is another path."""
        first, last = len(self.words), len(segments) - len(self.tail)
        if tuple(segments[:first]) != self.words or tuple(segments[last:]) != self.tail:
            return None
        names = segments[first:last]
        if self.field is None:
            return None if names else {}
        return {self.field: "/".join(names)} if names else None


QUESTIONS: Final = (
    Question("cluster.info", ClusterInfoRequest, ("cluster",)),
    Question("stream.list", ListStreamsRequest, ("streams",)),
    Question("stream.publishers", StreamPublishersRequest, ("streams",), "name", ("publishers",)),
    Question("stream.info", StreamInfoRequest, ("streams",), "name"),
    Question("group.list", ListGroupsRequest, ("groups",)),
    Question("group.info", GroupInfoRequest, ("groups",), "group"),
    Question("cursor.list", ListCursorsRequest, ("cursors",)),
    Question("namespace.list", ListNamespacesRequest, ("namespaces",)),
)
"""In the order in which they are compared with a path."""


@dataclass(slots=True, kw_only=True)
class ReadApi:
    """Answers requests below ``/v1``; used on the loop's thread."""

    settings: HttpSettings
    gate: Gate
    whole_of: WholeOf
    ask: Ask
    records: RecordsEndpoint
    ticket_refusals: TicketRefusals
    readers: int = 0
    """Responses with records that are under way."""

    async def answer(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Send the response to a GET or HEAD; a typed error becomes a problem document."""
        try:
            connection.rights = self.settings.rights(request.headers, self.gate)
            self._check_host(request)
            await self._answer(connection, request)
        except JetstreamError as error:
            _ = self.ticket_refusals.note(connection.peer, "http", None, error)
            await connection.send(_problem(error), is_head=request.is_head)

    async def _answer(self, connection: HttpConnection, request: HttpRequest) -> None:
        match [decoded(segment) for segment in request.raw_path.split("/")[2:]]:
            case ["streams", *names, "records"] if names:
                await self._read(connection, request, "/".join(names))
            case ["streams", *names, "records", offset, "value"] if names:
                await self.records.value(connection, request, "/".join(names), offset)
            case segments:
                page = await self._page(connection, request, segments)
                await connection.send(page, is_head=request.is_head)

    async def _read(self, connection: HttpConnection, request: HttpRequest, stream: str) -> None:
        if self.readers >= READERS_MAX:
            raise Overloaded(f"{READERS_MAX} responses with records are under way")
        self.readers += 1
        try:
            await self.records.answer(connection, request, stream)
        finally:
            self.readers -= 1

    async def _page(self, connection: HttpConnection, request: HttpRequest, segments: Sequence[str]) -> Page:
        for question in QUESTIONS:
            named = question.matched(segments)
            if named is not None:
                return await self._questioned(connection, question, parameters(request.query) | named)
        raise UnknownPath("there is no such path; /v1/openapi.json names those that there are")

    async def _questioned(
        self, connection: HttpConnection, question: Question, fields: dict[str, str]
    ) -> Page:
        try:
            asked = question.model.model_validate_strings(fields)
        except ValidationError as error:
            found = first_problem(error)
            raise RequestError(f"{found.field}: {found.reason}", field=found.field) from None
        rights = connection.rights
        may_see = isinstance(asked, StreamInfoRequest) and rights.sees(asked.name, self.whole_of)
        if not (may_see or rights.sees_all):
            raise Forbidden("a ticket shows its own stream; the rest needs the token of the port")
        answer = await self.ask(question.name, asked)
        refusal = reported_error(answer)
        if refusal is not None:
            raise refusal
        return Page(HTTPStatus.OK, JSON, answer, (("cache-control", "no-store"),))

    def _check_host(self, request: HttpRequest) -> None:
        """Refuse a name that is not this node's, unless the request has shown a secret.

        A web page whose name leads here could have sent it otherwise (DNS rebinding).
        """
        if self.settings.token is not None or self.gate.require != "none":
            return
        host = _host_name(request.header("host") or "")
        if host in self.settings.hosts or host == "localhost" or _is_address(host):
            return
        raise WrongHost(f"this node is not called {host[:256]!r}: http.hosts may name it", host=host[:256])


def read_api(
    settings: HttpSettings, server: SocketServer, streams: NodeStreams, ask: Ask, clock: Clock
) -> ReadApi:
    """Return what answers below ``/v1`` on a node, with the rights and the refusals of ``server``."""
    scheme = "http" if settings.tls is None else "https"

    def address_of(node: NodeId) -> str | None:
        row = streams.catalog.node(node)
        if row is None or row.http_port is None:
            return None
        return f"{scheme}://{address_text((row.host, row.http_port))}"

    return ReadApi(
        settings=settings,
        gate=server.gate,
        whole_of=partial(whole_of, streams.catalog),
        ask=ask,
        records=RecordsEndpoint(streams, lambda: utc(clock.wall()), address_of),
        ticket_refusals=server.ticket_refusals,
    )


def _problem(error: JetstreamError) -> Page:
    if isinstance(error, Unauthorized | InvalidTicket):
        credential = Credential.WRONG if isinstance(error, InvalidTicket) else Credential.MISSING
        return problem(error, ("www-authenticate", credential.challenge))
    return problem(error)


def _host_name(header: str) -> str:
    """Return the name or the address in the header ``Host``, in small letters; empty: it has neither."""
    found = _HOST.fullmatch(header)
    return "" if found is None else (found[1] or found[2]).lower()


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
