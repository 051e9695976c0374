"""Which nodes there are, and one connection that readers share."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from envelope.errors import JetstreamError, RequestError, Unauthorized, UnavailableError
from jetstream.client.socket_access import SocketAccess
from jetstream.client.socket_link import SocketLink

Address = tuple[str, int]


class AddressBook(Protocol):
    """Where the nodes' sockets are."""

    async def addresses(self) -> Sequence[Address]:
        """Return host and port of each node; may raise a typed error."""


class FixedAddresses:
    """Nodes that were named by the application."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = tuple(addresses)

    async def addresses(self) -> Sequence[Address]:
        """Return what was given."""
        return self._addresses


def parse_address(text: str) -> Address:
    """Return host and port of ``"host:port"`` or ``"[v6]:port"``.

    Raises:
        RequestError: anything else.
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 1 << 16:
        raise RequestError(f"{text!r} is not a socket address: write host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


class NodeLinks:
    """The open connection, re-opened when it is gone.

    Invariant:
        C2: at most one connection is open or being opened.
    """

    def __init__(self, book: AddressBook, timeout: float, access: SocketAccess | None = None) -> None:
        """``timeout``: seconds for one node to be found, connected and greeted; ``access``: None has none."""
        self._book = book
        self._timeout = timeout
        self._access = access or SocketAccess()
        self._link: SocketLink | None = None
        self._opening: asyncio.Event | None = None
        self._closed = False

    async def link(self) -> SocketLink:
        """Return an open connection, the same one to everybody.

        Raises:
            UnavailableError: no node could be reached; the last node's reason.
            TlsFailed: the last node could not be trusted, or trusts us not.
            Unauthorized: the token is not right; no other node is asked.
            RequestError: the client is closed.
        """
        while self._opening is not None:
            await self._opening.wait()
        if self._closed:
            raise RequestError("this client is closed")
        if self._link is not None and not self._link.closed:
            return self._link
        self._opening = opening = asyncio.Event()
        try:
            self._link = await self._open()
        finally:
            self._opening = None
            opening.set()
        return self._link

    async def _open(self) -> SocketLink:
        reason: JetstreamError = UnavailableError("no node is known")
        for host, port in await self._book.addresses():
            try:
                link = await SocketLink.open(host, port, self._timeout, self._access)
            except Unauthorized:
                raise  # the token is the cluster's: the next node would refuse it too
            except JetstreamError as error:
                reason = error
                continue
            if self._closed:
                link.close()
            return link
        raise reason

    def close(self) -> None:
        """Close the connection; readers that are under way end with an error."""
        self._closed = True
        if self._link is not None:
            self._link.close()
