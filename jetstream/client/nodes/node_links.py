"""The nodes, the places of streams and of groups' coordinators, and one shared connection to each node."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, Protocol

from envelope.errors import (
    DeadlinePassed,
    JetstreamError,
    RequestError,
    Unauthorized,
    UnavailableError,
    UnknownStream,
)
from jetstream.client.nodes.replica_choice import StreamReplicas
from jetstream.client.nodes.socket_access import SocketAccess
from jetstream.client.nodes.socket_link import SocketLink
from jetstream.protocol.group_requests import FindCoordinator
from jetstream.protocol.group_responses import CoordinatorResponse
from jetstream.protocol.requests import GetMetadata, Request
from jetstream.protocol.responses import MetadataResponse, Response, StreamMetadata

Address = tuple[str, int]

_ANY: Final = None
"""In the place of a node: any of them will do."""


class AddressBook(Protocol):
    """Where the nodes' sockets are."""

    async def addresses(self) -> Sequence[Address]:
        """Return host and port of each node; may raise a typed error."""


class FixedAddresses:
    """Nodes that were named by the application."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = tuple(addresses)

    async def addresses(self) -> Sequence[Address]:
        """Return the fixed addresses."""
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
    """The open connections, re-opened when they are gone, and the places of streams as nodes report them.

    A node may be known by two addresses: the one under which it was reached, which is tried first, and the
    one that it advertises.

    Invariant:
        C2: at most one connection to a node is open, and at most one is being opened, for all callers.
            Held by test_readers_of_one_client_share_a_connection_to_each_node.
    """

    def __init__(self, book: AddressBook, timeout: float, access: SocketAccess | None = None) -> None:
        """``timeout``: seconds for one node to be found, connected and greeted; ``access``: None has none."""
        self._book = book
        self._timeout = timeout
        self._access = access or SocketAccess()
        self._links: dict[str, SocketLink] = {}
        self._reached: dict[str, Address] = {}
        self._advertised: dict[str, Address] = {}
        self._failed: dict[Address, int] = {}
        """The last attempt to reach it, if that failed; attempts are numbered."""
        self._attempts = 0
        self._turn = 0
        self._replicas: dict[str, StreamReplicas] = {}
        self._opening: dict[str | None, asyncio.Future[SocketLink]] = {}
        self._closed = False

    async def link(self) -> SocketLink:
        """Return an open connection to any node, the same one to everybody.

        Raises:
            UnavailableError: no node could be reached; the last node's reason.
            TlsFailed: the last node could not be trusted, or trusts us not.
            Unauthorized: the token is not right; no other node is asked.
            RequestError: the client is closed.
        """
        is_open = (link for link in self._links.values() if not link.closed)
        return next(is_open, None) or await self._opened(_ANY, self._open_any)

    async def link_to(self, node: str) -> SocketLink:
        """Return an open connection to ``node``; raises what `link` raises."""
        link = self._links.get(node)
        if link is not None and not link.closed:
            return link
        return await self._opened(node, lambda: self._open_node(node))

    async def replicas_of(self, stream: str, *, refresh: bool = False) -> StreamReplicas:
        """Return where ``stream`` is, as a node reported last; ``refresh``: as the next node reports now.

        Raises:
            UnknownStream: every node that could be asked reports it.
            JetstreamError: no node could be asked; as `link`.
        """
        if not refresh and stream in self._replicas:
            return self._replicas[stream]
        self._turn += refresh
        reason: JetstreamError = UnavailableError("no node is known")
        async with aclosing(self._each_link()) as links:
            async for link in links:
                if isinstance(link, JetstreamError):
                    reason = reason if isinstance(reason, UnknownStream) else link
                    continue
                try:
                    found = await self._ask_where(stream, link)
                except JetstreamError as error:
                    reason = reason if isinstance(reason, UnknownStream) else error
                    continue
                if found is not None:
                    self._replicas[stream] = found
                    return found
                reason = UnknownStream(f"there is no stream {stream[:256]!r}")
        raise reason

    async def stream_names(self) -> list[str]:
        """Return the names of all streams in their order, as the next node reports them now.

        Raises:
            JetstreamError: no node could be asked; as `link`.
        """
        self._turn += 1
        reason: JetstreamError = UnavailableError("no node is known")
        async with aclosing(self._each_link()) as links:
            async for link in links:
                try:
                    if not isinstance(link, JetstreamError):
                        return await self._ask_names(link)
                    reason = link
                except JetstreamError as error:
                    reason = error
        raise reason

    async def coordinator_of(self, group: str) -> SocketLink:
        """Return an open connection to the node that coordinates ``group``, as the next node reports it now.

        Raises:
            JetstreamError: no node reports it; as `link`. Every node would report an error that is not
                ``retriable``.
        """
        self._turn += 1
        reason: JetstreamError = UnavailableError("no node is known")
        async with aclosing(self._each_link()) as links:
            async for link in links:
                try:
                    if not isinstance(link, JetstreamError):
                        return await self._ask_who_coordinates(group, link)
                    reason = link
                except JetstreamError as error:
                    if not error.retriable:
                        raise
                    reason = error
        raise reason

    def close(self) -> None:
        """Close the connections; readers that are under way end with an error."""
        self._closed = True
        for link in self._links.values():
            link.close()

    # --- asking ----------------------------------------------------------------------------------------

    async def _each_link(self) -> AsyncGenerator[SocketLink | JetstreamError, None]:
        """Yield a connection to one node after the other, or why there is none; each time another first."""
        first = None
        if not self._reached:
            first = await self.link()
            yield first
        nodes = sorted({*self._reached, *self._advertised})
        start = self._turn % len(nodes)
        # Whoever could not be reached is tried again after the others.
        for node in sorted([*nodes[start:], *nodes[:start]], key=self._last_failure):
            if first is not None and node == first.node:
                continue
            try:
                yield await self.link_to(node)
            except Unauthorized:
                raise
            except JetstreamError as error:
                yield error
        if first is None:
            # Nodes may be elsewhere than they were: a node that started again may listen on another port.
            try:
                yield await self._opened(_ANY, self._open_any)
            except Unauthorized:
                raise
            except JetstreamError as error:
                yield error

    def _last_failure(self, node: str) -> int:
        return min((self._failed.get(address, 0) for address in self._addresses_of(node)), default=0)

    async def _ask_where(self, stream: str, link: SocketLink) -> StreamReplicas | None:
        response = await self._ask(link, GetMetadata(id=link.next_id(), streams=[stream]))
        assert isinstance(response, MetadataResponse), "C1: a response has its request's type"
        self._advertised.update({node.id: (node.host, node.port) for node in response.nodes})
        racks = {node.id: node.rack for node in response.nodes}
        return next((_replicas(found, racks) for found in response.streams if found.name == stream), None)

    async def _ask_names(self, link: SocketLink) -> list[str]:
        names: list[str] = []
        while True:
            request = GetMetadata(id=link.next_id(), after=names[-1] if names else None)
            page = await self._ask(link, request)
            assert isinstance(page, MetadataResponse), "C1: a response has its request's type"
            names += [stream.name for stream in page.streams]
            if not page.more or not page.streams:
                return names

    async def _ask_who_coordinates(self, group: str, link: SocketLink) -> SocketLink:
        response = await self._ask(link, FindCoordinator(id=link.next_id(), group=group))
        assert isinstance(response, CoordinatorResponse), "C1: a response has its request's type"
        self._advertised[response.node] = (response.host, response.port)
        return await self.link_to(response.node)

    async def _ask(self, link: SocketLink, request: Request) -> Response:
        try:
            async with asyncio.timeout(self._timeout):
                return (await link.ask(request)).response
        except TimeoutError:
            link.close()
            raise DeadlinePassed(f"node {link.node} did not say within {self._timeout} s") from None

    # --- connecting ------------------------------------------------------------------------------------

    async def _opened(self, node: str | None, connect: Callable[[], Awaitable[SocketLink]]) -> SocketLink:
        """Connect, or share the outcome of an attempt under way."""
        if self._closed:
            raise RequestError("this client is closed")
        opening = self._opening.get(node)
        if opening is not None:
            return await asyncio.shield(opening)
        opening = self._opening[node] = asyncio.get_running_loop().create_future()
        failure: JetstreamError | None = UnavailableError("whoever was connecting gave up")
        try:
            link = await connect()
            failure = None
        except JetstreamError as error:
            failure = error
            raise
        finally:
            del self._opening[node]
            if failure is not None:
                opening.set_exception(failure)
                opening.exception()  # seen: perhaps nobody shares it
        opening.set_result(link)
        return link

    async def _open_any(self) -> SocketLink:
        known = (address for node in self._advertised for address in self._addresses_of(node))
        try:
            named = await self._book.addresses()
        except JetstreamError:
            if not self._advertised:
                raise
            named = ()
        reason: JetstreamError = UnavailableError("no node is known")
        # Whoever could not be reached is tried again after the others.
        addresses = sorted(dict.fromkeys((*named, *known)), key=lambda address: self._failed.get(address, 0))
        for address in addresses:
            try:
                return await self._dial(address)
            except Unauthorized:
                raise  # the token is the cluster's: the next node would refuse it too
            except JetstreamError as error:
                reason = error
        raise reason

    async def _open_node(self, node: str) -> SocketLink:
        reason: JetstreamError = UnavailableError(f"nobody knows where node {node} is")
        for address in self._addresses_of(node):
            try:
                link = await self._dial(address)
            except Unauthorized:
                raise
            except JetstreamError as error:
                reason = error
                continue
            if link.node == node:
                return link
            reason = UnavailableError(f"at {address[0]}:{address[1]} is node {link.node}, not {node}")
        raise reason

    def _addresses_of(self, node: str) -> Sequence[Address]:
        known = (self._reached.get(node), self._advertised.get(node))
        return list(dict.fromkeys(address for address in known if address is not None))

    async def _dial(self, address: Address) -> SocketLink:
        """Connect to ``address``, and return the shared connection to the node there."""
        self._attempts += 1
        try:
            link = await SocketLink.open(*address, self._timeout, self._access)
        except JetstreamError:
            self._failed[address] = self._attempts
            raise
        self._failed.pop(address, None)
        shared = self._links.get(link.node)
        if shared is not None and not shared.closed:
            link.close()
            return shared
        self._links[link.node] = link
        self._reached[link.node] = address
        if self._closed:
            link.close()
        return link


def _replicas(metadata: StreamMetadata, racks: Mapping[str, str | None]) -> StreamReplicas:
    """Return where a stream is; a server of an older version reports only the leader."""
    alone = () if metadata.leader is None else (metadata.leader,)
    return StreamReplicas(
        incarnation=metadata.incarnation,
        leader=metadata.leader,
        replicas=alone if metadata.replicas is None else tuple(metadata.replicas),
        isr=alone if metadata.isr is None else tuple(metadata.isr),
        read_replicas=tuple(metadata.read_replicas or ()),
        racks=racks,
    )
