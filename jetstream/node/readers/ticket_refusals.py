"""The audit of refused tickets: of peers whose ticket is not good, or does not allow what they ask for.

Every peer that reaches the socket can cause any number of refusals, so few of them are noted: a record tells
how many before it were not. All of a node's fill less than half of the 1 GiB that the audit keeps in 90 days.
"""

from collections.abc import Callable
from typing import Final

from envelope.errors import Forbidden, InvalidTicket, JetstreamError
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.token_bucket import TokenBucket
from metadata.api.audit import AuditEvent

TICKET_REFUSED: Final = "ticket.refused"
"""The operation, as the audit calls it."""

HOST_AT_ONCE: Final = 10
HOST_PER_SECOND: Final = 2 / 60
ALL_AT_ONCE: Final = 100
ALL_PER_SECOND: Final = 5 / 60

_NS_PER_SECOND: Final = 1_000_000_000


class RefusalRates:
    """Admits refusals, some of each host and not many of all; times are in seconds."""

    def __init__(self, now: float) -> None:
        self._all = TokenBucket(ALL_AT_ONCE, ALL_PER_SECOND, now)
        self._hosts: dict[str, TokenBucket] = {}
        """Of those with a refusal that was admitted lately: so there are few, whoever connects."""
        self._withheld = 0

    def admitted(self, host: str, now: float) -> int | None:
        """Return how many refusals of any host were withheld before this one; None: this one is, too."""
        bucket = self._hosts.get(host) or TokenBucket(HOST_AT_ONCE, HOST_PER_SECOND, now)
        if bucket.left(now) < 1 or not self._all.take(now):
            self._withheld += 1
            return None
        _ = bucket.take(now)
        self._hosts[host] = bucket
        for other, old in tuple(self._hosts.items()):
            if old.left(now) >= HOST_AT_ONCE:
                del self._hosts[other]
        withheld, self._withheld = self._withheld, 0
        return withheld


def _unaudited(event: AuditEvent) -> None:
    """Note nothing."""


class TicketRefusals:
    """Notes refusals of tickets, in the bounds of `RefusalRates`; used on the loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self.audit: Callable[[AuditEvent], None] = _unaudited
        """Puts a refusal on record."""
        self._clock = clock
        self._rates = RefusalRates(self._now())

    def note(self, peer: str, request: str, target: str | None, error: JetstreamError) -> bool:
        """Note that a request was refused, if that is for want of a ticket; return whether it is noted.

        Args:
            peer: its address.
            request: of the socket protocol, such as ``fetch``.
            target: the stream or the group, if that is known.
            error: the answer.
        """
        if not isinstance(error, InvalidTicket | Forbidden):
            return False
        withheld = self._rates.admitted(peer.rpartition(":")[0], self._now())
        if withheld is None:
            return False
        found = target or error.detail.get("stream") or error.detail.get("group")
        self.audit(
            AuditEvent(
                operation=TICKET_REFUSED,
                name=None if found is None else str(found),
                time=self._clock.wall(),
                error=error,
                peer=peer,
                request=request,
                withheld=withheld,
            )
        )
        return True

    def _now(self) -> float:
        return self._clock.monotonic() / _NS_PER_SECOND
