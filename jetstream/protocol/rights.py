"""A reader's rights on its connection: all, or what its tickets say.

A ticket is looked at when it is shown: its signature, its end. Each request is compared with the tickets that
there are, so that one that has ended, or whose key was given up, ends what it allowed.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import SecretStr

from envelope.errors import Forbidden, InvalidTicket, LimitReached, Unauthorized
from envelope.subjects import name_matches
from envelope.types import TimestampUs
from jetstream.protocol.group_requests import SendHeartbeat
from jetstream.protocol.requests import Fetch, GetMetadata, Hello, ListOffsets, Request, ShowTicket
from metadata.tickets import Ticket, TicketKey, opened

Requirement = Literal["none", "token", "ticket"]
"""What a reader must show: nothing; the token; a ticket, or the token if there is one."""

TICKETS_MAX: Final = 4096
"""Of one connection."""

WholeOf = Callable[[str], str | None]
"""Returns the partitioned stream that a stream is a partition of; None: of none."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Decides who is let in, and proves tickets."""

    require: Requirement = "none"
    token: SecretStr | None = None
    """Opens everything."""
    ticket_keys: Callable[[], tuple[TicketKey, ...]] = tuple
    """Returns the keys that prove tickets now."""
    now: Callable[[], TimestampUs] = lambda: TimestampUs(0)
    grace_us: int = 0
    """How long a ticket is good after its end: clocks differ, and NATS, which gives new ones, may be away."""


class ReaderRights:
    """Of one connection.

    Invariant:
        P12: a request that is permitted needs nothing that neither the token gives nor a ticket that is good
            at that moment.
            Held by test_nothing_outside_of_the_tickets_is_permitted.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._tickets: dict[tuple[str | None, str | None, str | None], Ticket] = {}
        """All of them, by what they allow."""
        self._of_stream: dict[str, list[Ticket]] = {}
        """The same to read, by stream or namespace: a fetch looks at these alone."""
        self._namespaces: set[str] = set()
        """Of the keys of that, those that may be of several streams."""
        self.sees_all = False
        """Whether nothing is refused."""

    def admit(self, hello: Hello) -> None:
        """Let a peer in that has shown what it must.

        The token is compared in a time that does not tell how much of it was right.

        Raises:
            Unauthorized: it has shown no token or ticket, or another token.
            InvalidTicket: the ticket is not good now.
        """
        gate = self._gate
        if gate.require == "none" or _is_same(hello.token, gate.token):
            self.sees_all = True
        elif gate.require == "token" or hello.token is not None:
            raise Unauthorized("this node needs a token" if hello.token is None else "the token is not right")
        elif hello.ticket is None:
            raise Unauthorized("this node needs a ticket: a client gets one over NATS", wants="ticket")
        else:
            self.show(hello.ticket)

    def show(self, text: SecretStr) -> Ticket:
        """Add a ticket, in the place of one for the same; return it.

        Raises:
            InvalidTicket: it is not good now.
            LimitReached: there are `TICKETS_MAX`.
        """
        ticket = opened(text.get_secret_value(), self._gate.ticket_keys())
        if not self._is_good(ticket):
            target = {"group": ticket.group or ""} if ticket.stream is None else {"stream": ticket.stream}
            raise InvalidTicket("the ticket has ended: ask for a new one", **target)
        if len(self._tickets) >= TICKETS_MAX:
            good = [other for other in self._tickets.values() if self._is_good(other)]
            self._tickets.clear()
            self._of_stream.clear()
            self._namespaces.clear()
            for other in good:
                self._keep(other)
        if ticket.right not in self._tickets and len(self._tickets) >= TICKETS_MAX:
            raise LimitReached(f"{TICKETS_MAX} tickets were shown on this connection", limit=TICKETS_MAX)
        self._keep(ticket)
        return ticket

    def _keep(self, ticket: Ticket) -> None:
        before = self._tickets.get(ticket.right)
        self._tickets[ticket.right] = ticket
        if ticket.stream is not None:
            of_stream = self._of_stream.setdefault(ticket.stream, [])
            if before is not None:
                of_stream.remove(before)
            of_stream.append(ticket)
            if "*" in ticket.stream:
                self._namespaces.add(ticket.stream)

    def permitted(self, request: Request, whole_of: WholeOf) -> Request:
        """Return the request, with the subject of a ticket that is for some subjects only.

        Raises:
            Forbidden: no ticket is for that.
            InvalidTicket: one was, which has ended.
        """
        match request:
            case _ if self.sees_all:
                return request
            case Hello() | ShowTicket():
                pass
            case Fetch():
                return self._selected(request, self._to_read(request.stream, whole_of))
            case ListOffsets():
                _ = self._good(self._to_read(request.stream, whole_of))
            case GetMetadata():
                for stream in request.streams or ():
                    _ = self._good(self._to_read(stream, whole_of))
            case SendHeartbeat():
                pass  # refused member by member: the others go on
            case _:
                self.require_membership(request.group)
        return request

    def sees(self, stream: str, whole_of: WholeOf) -> bool:
        """Return whether a stream stands in the list of all that there are."""
        return self.sees_all or any(map(self._is_good, self._to_read_some(stream, whole_of)))

    def _selected(self, fetch: Fetch, tickets: list[Ticket]) -> Fetch:
        subject = fetch.subject
        if subject is None and len(tickets) == 1:
            subject = tickets[0].subject
        covering = [ticket for ticket in tickets if ticket.covers_subject(subject)]
        if not covering:
            allowed = ", ".join(sorted(str(ticket.subject) for ticket in tickets))
            raise Forbidden(f"the tickets to read {fetch.stream} are for {allowed}"[:512])
        if any(ticket.subject is None for ticket in self._good(covering)):
            return fetch
        # Not where it lies: a file has the records on other subjects, too.
        return fetch.model_copy(update={"subject": subject, "short_circuit": None})

    def _to_read(self, stream: str, whole_of: WholeOf) -> list[Ticket]:
        """Return the tickets for some of a stream's records or all, also those that have ended.

        Raises:
            Forbidden: there are none.
        """
        tickets = self._to_read_some(stream, whole_of)
        if not tickets:
            raise Forbidden(f"no ticket was shown to read {stream[:256]}")
        return tickets

    def require_membership(self, group: str) -> None:
        """Do nothing if the peer may be a member of ``group``.

        Raises:
            Forbidden: no ticket is for that.
            InvalidTicket: one was, which has ended.
        """
        if self.sees_all:
            return
        ticket = self._tickets.get((None, None, group))
        if ticket is None:
            raise Forbidden(f"no ticket was shown to be a member of group {group[:256]}")
        _ = self._good([ticket])

    def _to_read_some(self, stream: str, whole_of: WholeOf) -> list[Ticket]:
        whole = whole_of(stream)
        names = (stream,) if whole is None else (stream, whole)
        keys = [
            *names,
            *(each for each in self._namespaces if any(name_matches(each, name) for name in names)),
        ]
        return [ticket for key in keys for ticket in self._of_stream.get(key, ())]

    def _good(self, tickets: list[Ticket]) -> list[Ticket]:
        """Return those that have not ended.

        Raises:
            InvalidTicket: all have.
        """
        good = [ticket for ticket in tickets if self._is_good(ticket)]
        if not good:
            raise InvalidTicket("the ticket has ended: ask for a new one")
        return good

    def _is_good(self, ticket: Ticket) -> bool:
        gate = self._gate
        return ticket.is_good(gate.ticket_keys(), gate.now(), gate.grace_us)


def _is_same(credential: SecretStr | None, token: SecretStr | None) -> bool:
    if credential is None or token is None:
        return False
    credential_bytes, token_bytes = (secret.get_secret_value().encode() for secret in (credential, token))
    return hmac.compare_digest(credential_bytes, token_bytes)
