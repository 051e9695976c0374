"""The nodes, the places of streams and of groups' coordinators, and one shared connection to each node."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Final

from envelope.errors import (
    DeadlinePassed,
    InvalidTicket,
    JetstreamError,
    RequestError,
    Unauthorized,
    UnavailableError,
    UnknownStream,
)
from envelope.partition_errors import StreamIsPartitioned
from jetstream.client.nodes.greeter import Greeter
from jetstream.client.nodes.replica_choice import StreamReplicas
from jetstream.client.nodes.shared_attempts import SharedAttempts
from jetstream.client.nodes.socket_access import Address, AddressBook, ReadPass, SocketAccess
from jetstream.client.nodes.socket_link import SocketLink
from jetstream.client.nodes.tickets import HeldRight, ReadRight, TicketWallet
from jetstream.protocol.group_requests import FindCoordinator
from jetstream.protocol.group_responses import CoordinatorResponse
from jetstream.protocol.requests import GetMetadata, Request
from jetstream.protocol.responses import MetadataResponse, Response, StreamMetadata

_ANY: Final = None
"""In the place of a node: any of them will do."""


class NodeLinks:
    """The open connections, re-opened when they are gone, and the places of streams as nodes report them.

    A node may be known by two addresses: the one under which it was reached, which is tried first, and the
    one that it advertises.

    Invariant:
        C2: at most one connection to a node is open, and at most one is being opened, for all callers.
            Held by test_readers_of_one_client_share_a_connection_to_each_node.
    """

    def __init__(
        self,
        book: AddressBook,
        timeout: float,
        access: SocketAccess | None = None,
        tickets: TicketWallet | None = None,
    ) -> None:
        """Connect to nobody yet.

        Args:
            book: of the nodes.
            timeout: seconds for one node to be found, connected and greeted.
            access: to their sockets; None has none.
            tickets: of the client, for nodes that want some; None has no way to get any.
        """
        self._greeter = Greeter(book, timeout, access or SocketAccess(), tickets)
        self.gets_tickets: Final = tickets is not None
        """Whether there is a way to get another ticket."""
        self._timeout = timeout
        self._links: dict[str, SocketLink] = {}
        self._reached: dict[str, Address] = {}
        self._advertised: dict[str, Address] = {}
        self._failed: dict[Address, int] = {}
        """The last attempt to reach it, if that failed; attempts are numbered."""
        self._attempts = 0
        self._turn = 0
        self._replicas: dict[str, StreamReplicas] = {}
        self._attempts_under_way = SharedAttempts[str | None, SocketLink]()
        self._closed = False

    async def link(self, held: HeldRight | None = None) -> SocketLink:
        """Return an open connection to any node, the same one to everybody.

        ``held``: what it is for, where nodes want tickets.

        Raises:
            UnavailableError: no node could be reached; the last node's reason.
            TlsFailed: the last node could not be trusted, or trusts us not.
            Unauthorized: the token is not right, or we get no ticket; no other node is asked.
            RequestError: the client is closed.
        """
        is_open = (link for link in self._links.values() if not link.closed)
        link = next(is_open, None)
        if link is not None:
            return await self._greeter.permitted(link, held)
        return await self._opened(_ANY, held, lambda: self._open_any(held))

    async def link_to(self, node: str, held: HeldRight | None = None) -> SocketLink:
        """Return an open connection to ``node``; as `link`."""
        link = self._links.get(node)
        if link is not None and not link.closed:
            return await self._greeter.permitted(link, held)
        return await self._opened(node, held, lambda: self._open_node(node, held))

    async def read_pass(self, right: ReadRight) -> ReadPass:
        """Return what a reader without NATS needs to use a right; raises as `link`."""
        held = HeldRight(right)
        with suppress(
            InvalidTicket
        ):  # then it is asked for anew; perhaps only that node knew its key no more
            await self.link(held)  # which tells whether nodes want a ticket
        return await self._greeter.read_pass(held)

    def refused(self, held: HeldRight, error: JetstreamError) -> bool:
        """Record that a node refused what is held; return whether another ticket may do."""
        return self._greeter.refused(held, error)

    async def replicas_of(
        self, stream: str, held: HeldRight | None = None, *, refresh: bool = False
    ) -> StreamReplicas:
        """Return where ``stream`` is, as a node reported last; ``refresh``: as the next node reports now.

        Raises:
            UnknownStream: every node that could be asked reports it.
            JetstreamError: no node could be asked; as `link`.
        """
        if not refresh and stream in self._replicas:
            return self._replicas[stream]
        self._turn += refresh
        reason: JetstreamError = UnavailableError("no node is known")
        async with aclosing(self._each_link(held)) as links:
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

    async def stream_names(self, right: ReadRight | None = None) -> list[str]:
        """Return the names of all streams in their order, as the next node reports them now.

        ``right``: only its stream, or those of its partitions, where nodes want tickets for that.

        Raises:
            JetstreamError: no node could be asked; as `link`.
        """
        self._turn += 1
        held = None if right is None else HeldRight(right)
        reason: JetstreamError = UnavailableError("no node is known")
        async with aclosing(self._each_link(held)) as links:
            async for link in links:
                try:
                    if not isinstance(link, JetstreamError):
                        return await self._ask_names(link, right)
                    reason = link
                except JetstreamError as error:
                    reason = error
                    if held is not None:
                        self.refused(held, error)
        raise reason

    async def coordinator_of(self, group: str, held: HeldRight | None = None) -> SocketLink:
        """Return an open connection to the node that coordinates ``group``, as the next node reports it now.

        Raises:
            JetstreamError: no node reports it; as `link`. Every node would report an error that is not
                ``retriable``.
        """
        self._turn += 1
        reason: JetstreamError = UnavailableError("no node is known")
        async with aclosing(self._each_link(held)) as links:
            async for link in links:
                try:
                    if not isinstance(link, JetstreamError):
                        return await self._ask_who_coordinates(group, link, held)
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

    async def _each_link(
        self, held: HeldRight | None = None
    ) -> AsyncGenerator[SocketLink | JetstreamError, None]:
        """Yield a connection to one node after the other, or why there is none; each time another first."""
        first = None
        if not self._reached:
            first = await self.link(held)
            yield first
        nodes = sorted({*self._reached, *self._advertised})
        start = self._turn % len(nodes)
        # Whoever could not be reached is tried again after the others.
        for node in sorted([*nodes[start:], *nodes[:start]], key=self._last_failure):
            if first is not None and node == first.node:
                continue
            try:
                yield await self.link_to(node, held)
            except Unauthorized:
                raise
            except JetstreamError as error:
                yield error
        if first is None:
            # Nodes may be elsewhere than they were: a node that started again may listen on another port.
            try:
                yield await self._opened(_ANY, held, lambda: self._open_any(held))
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

    async def _ask_names(self, link: SocketLink, right: ReadRight | None) -> list[str]:
        names: list[str] = []
        while True:
            request = GetMetadata(id=link.next_id(), after=names[-1] if names else None)
            page = await self._ask(link, request)
            assert isinstance(page, MetadataResponse), "C1: a response has its request's type"
            names += [stream.name for stream in page.streams]
            if not page.more or not page.streams:
                break
        if right is None:
            return names
        # A list leaves out what no ticket is for; this is refused where ours has ended, or is for less.
        with suppress(StreamIsPartitioned, UnknownStream):
            await self._ask(link, GetMetadata(id=link.next_id(), streams=[right.stream]))
        return [name for name in names if right.has_log(name)]

    async def _ask_who_coordinates(self, group: str, link: SocketLink, held: HeldRight | None) -> SocketLink:
        response = await self._ask(link, FindCoordinator(id=link.next_id(), group=group))
        assert isinstance(response, CoordinatorResponse), "C1: a response has its request's type"
        self._advertised[response.node] = (response.host, response.port)
        return await self.link_to(response.node, held)

    async def _ask(self, link: SocketLink, request: Request) -> Response:
        try:
            async with asyncio.timeout(self._timeout):
                return (await link.ask(request)).response
        except TimeoutError:
            link.close()
            raise DeadlinePassed(f"node {link.node} did not say within {self._timeout} s") from None

    # --- connecting ------------------------------------------------------------------------------------

    async def _opened(
        self, node: str | None, held: HeldRight | None, connect: Callable[[], Awaitable[SocketLink]]
    ) -> SocketLink:
        """Connect, or share the outcome of an attempt under way; let the node know what is held."""
        if self._closed:
            raise RequestError("this client is closed")
        return await self._greeter.permitted(await self._attempts_under_way.outcome(node, connect), held)

    async def _open_any(self, held: HeldRight | None) -> SocketLink:
        known = (address for node in self._advertised for address in self._addresses_of(node))
        try:
            named = await self._greeter.addresses(held, self._failed)
        except JetstreamError:
            if not self._advertised:
                raise
            named = ()
        reason: JetstreamError = UnavailableError("no node is known")
        # Whoever could not be reached is tried again after the others.
        addresses = sorted(dict.fromkeys((*named, *known)), key=lambda address: self._failed.get(address, 0))
        for address in addresses:
            try:
                return await self._dial(address, held)
            except Unauthorized:
                raise  # the token is the cluster's: the next node would refuse it too
            except JetstreamError as error:
                reason = error
        raise reason

    async def _open_node(self, node: str, held: HeldRight | None) -> SocketLink:
        reason: JetstreamError = UnavailableError(f"nobody knows where node {node} is")
        for address in self._addresses_of(node):
            try:
                link = await self._dial(address, held)
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

    async def _dial(self, address: Address, held: HeldRight | None) -> SocketLink:
        """Connect to ``address``, and return the shared connection to the node there."""
        self._attempts += 1
        try:
            link = await self._greeter.connected(address, held)
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
