"""A client's tickets: asked for over NATS once a node wants them, shown to nodes, renewed while in use.

A right that nobody holds any more, such as that of a reader that has ended, is renewed no more. A ticket that
cannot be renewed now, because NATS is away, is shown as before: nodes say when it is good no more.
"""

import asyncio
import logging
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

from pydantic import BaseModel, SecretStr

from envelope.errors import (
    Forbidden,
    InvalidTicket,
    JetstreamError,
    NoResponders,
    RequestError,
    Unauthorized,
    UnavailableError,
)
from envelope.partitions import whole_in
from envelope.subjects import first_level, name_matches
from jetstream.client.nodes.background import Background
from jetstream.client.nodes.shared_attempts import SharedAttempts
from jetstream.client.nodes.socket_access import Address
from jetstream.client.nodes.socket_link import Answer, SocketLink
from jetstream.protocol.requests import ShowTicket
from metadata.api.ticket_responses import TicketResponse

_log = logging.getLogger(__name__)

_AGAIN_S: Final = 1.0
"""After a renewal that failed."""
_Model = TypeVar("_Model", bound=BaseModel)


class ReadRight(NamedTuple):
    """To read a stream, or those of a namespace, or what of them is on the subjects of a pattern."""

    stream: str
    subject: str | None = None

    def has_log(self, name: str) -> bool:
        """Return whether a name is that of such a stream, or of what may be a partition of it."""
        return any(each is not None and name_matches(self.stream, each) for each in (name, whole_in(name)))

    def question(self) -> tuple[str, dict[str, object]]:
        """Return the request for a ticket: operation and fields."""
        return "read", {"stream": self.stream, "subject": self.subject}

    def first_level(self) -> "ReadRight | None":
        """Return the right whose ticket has to be shown for one to this; None: no other is needed."""
        subject = None if self.subject is None else first_level(self.subject)
        return None if subject is None else ReadRight(self.stream, subject)

    def wider(self) -> Iterator["ReadRight"]:
        """Yield the rights that contain this one: first its partitioned stream's, if it may have one."""
        whole = whole_in(self.stream)
        for stream in (self.stream,) if whole is None else (whole, self.stream):
            for subject in dict.fromkeys((self.subject, None)):
                yield ReadRight(stream, subject)


class GroupRight(NamedTuple):
    """To be a member of a group."""

    group: str

    def question(self) -> tuple[str, dict[str, object]]:
        """Return the request for a ticket: operation and fields."""
        return "group.join", {"group": self.group}

    def first_level(self) -> None:
        """Return that no other ticket is needed."""

    def wider(self) -> Iterator["GroupRight"]:
        """Yield the right itself."""
        yield self


Right = ReadRight | GroupRight


class TicketRequests(Protocol):
    """Asks nodes over NATS."""

    async def ask(self, name: str, fields: dict[str, object], *models: type[_Model]) -> _Model:
        """Return the response to one request; raise the refusal."""


@dataclass(eq=False)
class HeldRight:
    """A right that somebody needs for as long as this is there."""

    right: Right


@dataclass(slots=True, eq=False)
class _Granted:
    """A ticket, and who needs it."""

    right: Right
    response: TicketResponse
    renew_at: float
    """On the monotonic clock."""
    holders: WeakSet[HeldRight] = field(default_factory=WeakSet)
    is_failing: bool = False
    """The last attempt to renew it has failed."""

    @property
    def text(self) -> SecretStr:
        return SecretStr(self.response.ticket)


class TicketWallet:
    """The tickets of one client; used on the loop's thread.

    Invariant:
        C29: while somebody holds a right whose ticket was granted, it is asked for anew from half of the
            ticket's time on.
            Held by test_a_reader_goes_on_beyond_the_end_of_its_first_ticket.
    """

    def __init__(self, requests: TicketRequests, tasks: Background) -> None:
        """Ask through ``requests``; ``tasks``: run the renewals."""
        self._requests = requests
        self._tasks = tasks
        self.is_wanted = False
        """Whether a node has wanted a ticket, or NATS refuses to say where the nodes are without one."""
        self._granted: dict[Right, _Granted] = {}
        self._found: dict[Right, Right] = {}
        """Of each right that was asked for, the one that was granted for it."""
        self._attempts = SharedAttempts[Right, None]()
        self._ended: set[Right] = set()
        """Rights whose last ticket a node took no more, until there is another."""
        self._too_wide: set[Right] = set()
        """Rights whose tickets were granted, and did not do: the stream is no partition of theirs."""
        self._links: WeakSet[SocketLink] = WeakSet()
        self._news = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None

    async def addresses(self, held: HeldRight, failed: Container[Address]) -> Sequence[Address]:
        """Return where the nodes' sockets are, as the newest ticket says.

        Nodes that start again may listen elsewhere: another is asked for if all places it names ``failed``.

        Raises:
            JetstreamError: there is no ticket for what is held; as `ticket`.
        """
        await self.ticket(held)
        named = self._newest_addresses()
        if all(address in failed for address in named):
            try:
                await self._ask(self._found[held.right])
            except JetstreamError as error:  # they may be back where they were
                _log.info("where the nodes are now is not known right=%s error=%r", held.right, error)
            named = self._newest_addresses()
        return named

    def _newest_addresses(self) -> Sequence[Address]:
        newest = max(self._granted.values(), key=lambda granted: granted.response.expires)
        return [(node.host, node.port) for node in newest.response.nodes]

    async def ticket(self, held: HeldRight) -> SecretStr:
        """Return a ticket that allows what is held, renewed from now on for as long as it is.

        Raises:
            Unauthorized: NATS does not let us ask for one; it says which right is missing.
            JetstreamError: nobody has answered.
        """
        granted = await self._grant(held.right)
        granted.holders.add(held)
        return granted.text

    async def show(self, link: SocketLink, held: HeldRight) -> None:
        """Let a node know what we have, if it does not yet.

        Raises:
            InvalidTicket: it does not take our ticket; the next attempt asks for another.
            JetstreamError: as `ticket`; or the connection is lost.
        """
        text = await self.ticket(held)
        if link.shown.get(self._found[held.right]) == text:
            return
        try:
            await link.ask(ShowTicket(id=link.next_id(), ticket=text))
        except InvalidTicket as error:
            self.refused(held, error)
            raise
        self.has_shown(link, held, text)

    def has_shown(self, link: SocketLink, held: HeldRight, text: SecretStr) -> None:
        """Record that a node has taken a ticket: it is to have the next one, too."""
        link.shown[self._found[held.right]] = text
        self._links.add(link)

    def refused(self, held: HeldRight, error: JetstreamError) -> bool:
        """Record that a node refused what is held; return whether another ticket may do."""
        granted = self._found.get(held.right)
        if granted is None or not isinstance(error, InvalidTicket | Forbidden):
            return False
        if isinstance(error, InvalidTicket):
            self._granted.pop(granted, None)
            self._ended.add(granted)
            return True
        is_own = granted == held.right
        if not is_own:
            self._too_wide.add(granted)
            del self._found[held.right]
        return not is_own

    # --- asking ------------------------------------------------------------------------------------------

    async def _grant(self, right: Right) -> _Granted:
        known = self._granted.get(self._found.get(right, right))
        if known is not None:
            self._found[right] = known.right
            return known
        refusal: Unauthorized | None = None
        absence: NoResponders | None = None
        for wider in right.wider():
            if wider in self._too_wide and wider != right:
                continue
            try:
                if wider not in self._granted:
                    await self._ask(wider)
            except Unauthorized as error:
                if wider == right:
                    refusal = error
                continue
            except UnavailableError as error:
                if wider in self._ended:
                    raise InvalidTicket(f"the ticket has ended, and there is no new one: {error}") from error
                if not isinstance(error, NoResponders):
                    raise
                absence = error  # or that right is not imported into our account, and another one may be
                continue
            self._found[right] = wider
            return self._granted[wider]
        reason = absence or refusal
        assert reason is not None, "C29: every right is wide enough for itself"
        raise reason

    async def _ask(self, right: Right) -> None:
        """Ask for a ticket, once for all who want it now."""
        await self._attempts.outcome(right, lambda: self._answered(right))

    async def _answered(self, right: Right) -> None:
        first = right.first_level()
        shown = {} if first is None else {"first_level": await self._first_level(first, right)}
        try:
            response = await self._response(right, **shown)
        except RequestError as error:
            if error.detail.get("field") not in shown:
                raise
            response = await self._response(right)  # an older node knows no such field
        before = self._granted.get(right)
        granted = _Granted(right, response, time.monotonic() + max(response.valid_s / 2, _AGAIN_S))
        if before is not None:
            granted.holders = before.holders
        self._granted[right] = granted
        self._ended.discard(right)
        if self._renewing is None:
            self._renewing = self._tasks.start(self._renew())
        self._news.set()

    async def _first_level(self, first: Right, right: Right) -> str:
        """Return the ticket to be shown for ``right``, which NATS names where it refuses both."""
        try:
            return (await self._response(first)).ticket
        except Unauthorized as refusal:
            missing: RequestError = refusal
            try:
                await self._response(right)
            except RequestError as whole:  # of NATS, or of a node: then the first level alone is missing
                missing = whole if isinstance(whole, Unauthorized) else refusal
            raise missing from None

    async def _response(self, right: Right, **shown: str) -> TicketResponse:
        operation, fields = right.question()
        given = {name: value for name, value in (fields | shown).items() if value is not None}
        return await self._requests.ask(operation, given, TicketResponse)

    # --- renewing ----------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        while True:
            self._news.clear()
            for granted in tuple(self._granted.values()):
                if granted.renew_at <= time.monotonic():
                    await self._renewed(granted)
            next_at = min((granted.renew_at for granted in self._granted.values()), default=None)
            try:
                async with asyncio.timeout(None if next_at is None else max(0, next_at - time.monotonic())):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _renewed(self, granted: _Granted) -> None:
        if not granted.holders:
            self._granted.pop(granted.right, None)
            return
        granted.renew_at = time.monotonic() + _AGAIN_S
        try:
            await self._ask(granted.right)
        except JetstreamError as error:
            if not granted.is_failing:
                _log.warning("a ticket is not renewed right=%s error=%r", granted.right, error)
            granted.is_failing = True
            return
        newest = self._granted[granted.right]
        for link in tuple(self._links):
            if granted.right in link.shown and not link.closed:
                self._show_anew(link, newest)

    def _show_anew(self, link: SocketLink, granted: _Granted) -> None:
        def done(outcome: Answer | JetstreamError) -> None:
            if isinstance(outcome, JetstreamError):  # a node that does not know the newest key yet, perhaps
                _log.info("a renewed ticket is not taken node=%s error=%r", link.node, outcome)
                granted.renew_at = min(granted.renew_at, time.monotonic() + _AGAIN_S)
                self._news.set()
            else:
                link.shown[granted.right] = granted.text

        try:
            link.send(ShowTicket(id=link.next_id(), ticket=granted.text), done)
        except JetstreamError as error:
            done(error)
