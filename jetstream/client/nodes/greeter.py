"""Connects to nodes and greets them: with the token, or with a ticket where they want one."""

from collections.abc import Container, Sequence

from envelope.errors import InvalidTicket, JetstreamError, NoResponders, Unauthorized
from jetstream.client.nodes.socket_access import (
    Address,
    AddressBook,
    ReadPass,
    SocketAccess,
    address_text,
)
from jetstream.client.nodes.socket_link import SocketLink
from jetstream.client.nodes.tickets import HeldRight, TicketWallet


class Greeter:
    """The ways to the nodes of one cluster; ``held`` is what a connection is for, None: anything."""

    def __init__(
        self, book: AddressBook, timeout: float, access: SocketAccess, tickets: TicketWallet | None
    ) -> None:
        """Connect to nobody yet.

        Args:
            book: of the nodes.
            timeout: seconds for one node to be connected and greeted.
            access: to their sockets.
            tickets: of the client; None has no way to get any.
        """
        self._book = book
        self._timeout = timeout
        self._access = access
        self._tickets = tickets

    async def addresses(self, held: HeldRight | None, failed: Container[Address] = ()) -> Sequence[Address]:
        """Return where the nodes are: as the book says, or what the ticket for what is held came with.

        ``failed``: where nobody could be reached; another ticket is asked for if ours names no other place.

        Raises:
            Unauthorized: NATS lets us ask for neither.
            JetstreamError: nobody has answered.
        """
        tickets = self._tickets
        if tickets is None or held is None:
            return await self._book.addresses()
        if not tickets.is_wanted:
            try:
                return await self._book.addresses()
            except Unauthorized:
                tickets.is_wanted = True
            except NoResponders as absence:
                # There is no node now, or no more than the right to read is imported into our account.
                try:
                    return await tickets.addresses(held, failed)
                except JetstreamError:  # a reader by token has no right to one, and waits for a node
                    raise absence from None
        return await tickets.addresses(held, failed)

    async def connected(self, address: Address, held: HeldRight | None) -> SocketLink:
        """Connect to a node, with a ticket for what is held if it wants one; raises as `SocketLink.open`."""
        tickets = self._tickets
        if tickets is None or held is None:
            return await SocketLink.open(*address, self._timeout, self._access)
        if not tickets.is_wanted:
            try:
                return await SocketLink.open(*address, self._timeout, self._access)
            except Unauthorized as refusal:
                if refusal.detail.get("wants") != "ticket":
                    raise
                tickets.is_wanted = True
        text = await tickets.ticket(held)
        try:
            link = await SocketLink.open(*address, self._timeout, self._access, text)
        except InvalidTicket as refusal:
            tickets.refused(held, refusal)
            raise
        tickets.has_shown(link, held, text)
        return link

    async def permitted(self, link: SocketLink, held: HeldRight | None) -> SocketLink:
        """Return ``link`` once its node knows what is held, if it wants tickets; as `TicketWallet.show`."""
        if self._tickets is not None and self._tickets.is_wanted and held is not None:
            await self._tickets.show(link, held)
        return link

    async def read_pass(self, held: HeldRight) -> ReadPass:
        """Return what somebody else needs for what is held; raises as `addresses`."""
        addresses = tuple(map(address_text, await self.addresses(held)))
        tickets = self._tickets
        is_wanted = tickets is not None and tickets.is_wanted
        return ReadPass(addresses, await tickets.ticket(held) if tickets is not None and is_wanted else None)

    def refused(self, held: HeldRight, error: JetstreamError) -> bool:
        """Record that a node refused what is held; return whether another ticket may do."""
        return self._tickets is not None and self._tickets.refused(held, error)
