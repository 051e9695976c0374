"""Everything below ``/v1``: records, and the questions of the request API as read-only JSON."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

from envelope.errors import (
    Forbidden,
    InvalidTicket,
    JetstreamError,
    Overloaded,
    Unauthorized,
    UnknownPath,
    WrongHost,
)
from envelope.types import NodeId
from jetstream.client.nodes.socket_access import address_text
from jetstream.node.http.access import Credential, HttpSettings
from jetstream.node.http.connection import HttpConnection
from jetstream.node.http.page import JSON, Page, problem
from jetstream.node.http.request import HttpRequest, decoded
from jetstream.node.http.v1.openapi import openapi
from jetstream.node.http.v1.query import parameters
from jetstream.node.http.v1.questions import QUESTIONS, Question
from jetstream.node.http.v1.records import RecordsEndpoint
from jetstream.node.readers.ports import whole_of
from jetstream.node.readers.server import SocketServer
from jetstream.node.readers.ticket_refusals import TicketRefusals
from jetstream.node.runtime.clock import Clock
from jetstream.node.streams.directory import NodeStreams
from jetstream.protocol.rights import Gate, ReaderRights, WholeOf
from metadata.api.requests import Request, StreamInfoRequest
from metadata.api.responses import utc
from metadata.api.wire import reported_error
from metadata.node.admission.descriptors import DescriptorShare, may_keep

_HOST: Final = re.compile(r"(?:\[([^]]*)\]|([^:]*))(?::\d*)?")
"""With the port or without it; an address of IPv6 is in brackets (RFC 9110, 7.2)."""

READERS_MAX: Final = 1024
"""Responses with records that are under way; connections beyond it are left for everything else."""

Ask = Callable[[str, Request], Awaitable[bytes]]
"""Returns the answer to a question of the request API, by its name; raises JetstreamError."""


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
    _no_readers: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """There are none at first."""
        self._no_readers.set()

    async def answer(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Send the response to a GET or HEAD; a typed error becomes a problem document."""
        try:
            rights = self.settings.admit(request.headers, self.gate)
            self._check_host(request)
            connection.rights = rights.reader
            await self._answer(connection, request, may_ask=rights.may_ask)
        except JetstreamError as error:
            _ = self.ticket_refusals.note(connection.peer, "http", None, error)
            await connection.send(_problem(error), is_head=request.is_head)

    async def _answer(self, connection: HttpConnection, request: HttpRequest, *, may_ask: bool) -> None:
        match [decoded(segment) for segment in request.raw_path.split("/")[2:]]:
            case ["streams", *names, "records"] if names:
                await self._read(connection, request, "/".join(names))
            case ["streams", *names, "records", offset, "value"] if names:
                await self.records.value(connection, request, "/".join(names), offset)
            case ["openapi.json"]:
                page = Page(HTTPStatus.OK, JSON, json.dumps(openapi()).encode())
                await connection.send(page, is_head=request.is_head)
            case segments:
                question, fields = _question(segments, parameters(request.query))
                asked = question.request(fields)
                if not (may_ask or _is_of(asked, connection.rights, self.whole_of)):
                    raise Forbidden("a ticket shows the info of its own stream, and nothing else")
                page = await self._questioned(question, asked)
                await connection.send(page, is_head=request.is_head)

    async def _read(self, connection: HttpConnection, request: HttpRequest, stream: str) -> None:
        if self.readers >= READERS_MAX or not may_keep(DescriptorShare.READERS, connection.fileno):
            raise Overloaded(f"{self.readers} responses with records are under way")
        self.readers += 1
        self._no_readers.clear()
        try:
            await self.records.answer(connection, request, stream)
        finally:
            self.readers -= 1
            if not self.readers:
                self._no_readers.set()

    async def until_no_readers(self) -> None:
        """Wait until no response with records is under way."""
        await self._no_readers.wait()

    async def _questioned(self, question: Question, asked: Request) -> Page:
        answer = await self.ask(question.name, asked)
        refusal = reported_error(answer)
        if refusal is not None:
            raise refusal
        return Page(HTTPStatus.OK, JSON, answer, (("cache-control", "no-store"),))

    def _check_host(self, request: HttpRequest) -> None:
        """Refuse a name that is not this node's, unless the request has shown a secret.

        A web page whose name leads here could have sent it otherwise (DNS rebinding).
        """
        named = request.header("host")
        if named is None or self.settings.token is not None or self.gate.require != "none":
            return  # a browser always names a host
        host = _host_name(named)
        if host in self.settings.hosts or host == "localhost" or _is_address(host):
            return
        raise WrongHost(f"this node is not called {host[:256]!r}: http.hosts may name it", host=host[:256])


def _question(segments: Sequence[str], fields: dict[str, str]) -> tuple[Question, dict[str, str]]:
    """Return the question at a path, and its fields.

    Raises:
        UnknownPath: there is none.
    """
    for question in QUESTIONS:
        named = question.matched(segments)
        if named is not None:
            return question, fields | named
    raise UnknownPath("there is no such path; /v1/openapi.json names those that there are")


def _is_of(asked: Request, rights: ReaderRights, whole_of: WholeOf) -> bool:
    """Return whether a question is about a stream that the peer may read."""
    return isinstance(asked, StreamInfoRequest) and rights.sees(asked.name, whole_of)


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
