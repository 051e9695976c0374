"""What happens to one NATS connection: counted, logged, and told as a possible gap once it is over."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nats.aio.client import Client

from envelope.types import TimestampUs
from jetstream.node.clock import Clock
from jetstream.node.gaps import Gap
from metadata.api.responses import GapKind

_log = logging.getLogger(__name__)

_DENIED: Final = re.compile(
    r'permissions violation for subscription to "([^"]+)"(?: using queue "([^"]+)")?', re.IGNORECASE
)


def denied_subscription(error: Exception) -> tuple[str, str] | None:
    """Return subject and queue (or "") of a subscription that the server refuses, in nats-py's lower case."""
    denied = _DENIED.search(str(error))
    return None if denied is None else (denied[1], denied[2] or "")


@dataclass(slots=True)
class LinkCounters:
    """What happened on a connection since the start."""

    reconnects: int = 0
    slow_consumers: int = 0
    errors: int = 0


class LinkWatch:
    """Holds nats-py's callbacks for one connection.

    ``on_gap`` is called when an interruption is over, with its time span.
    """

    def __init__(self, role: str, clock: Clock, on_gap: Callable[[Gap], None] | None = None) -> None:
        self.role = role
        self.counters = LinkCounters()
        self.last_error: Exception | None = None
        self.refusal: Exception | None = None
        """What a server said before it broke the connection: it tells more than the break after it."""
        self._clock = clock
        self._on_gap = on_gap
        self._interrupted: tuple[GapKind, TimestampUs] | None = None
        self._ending = False

    @property
    def interruption(self) -> Gap | None:
        """The interruption that lasts now, up to this moment; None while messages flow."""
        if self._interrupted is None:
            return None
        kind, since = self._interrupted
        return Gap(kind, since, self._clock.wall())

    async def error(self, error: Exception) -> None:
        """Take an error of nats-py or of the server in (``error_cb``)."""
        if "slow consumer" in str(error).lower():
            self.counters.slow_consumers += 1
            self._begin(GapKind.SLOW_CONSUMER)
        self.note(error)

    async def disconnected(self) -> None:
        """Begin an interruption (``disconnected_cb``)."""
        if not self._ending:
            _log.warning("nats disconnected role=%s", self.role)
            self._begin(GapKind.RECONNECT)

    def note(self, error: Exception) -> None:
        """Count an error; log it unless it repeats the last one: a server that is away refuses often."""
        self.counters.errors += 1
        if repr(error) != repr(self.last_error):
            _log.warning("nats error role=%s error=%r", self.role, error)
        self.last_error = error
        if not isinstance(error, OSError):
            self.refusal = error

    def connected(self, client: Client) -> None:
        """End an interruption, if there was one."""
        url = client.connected_url
        server = "none" if url is None else f"{url.hostname}:{url.port}"
        _log.info("nats connected role=%s server=%s", self.role, server)
        self.last_error = self.refusal = None
        gap, self._interrupted = self.interruption, None
        if gap is not None:
            self.counters.reconnects += 1
            if self._on_gap is not None:
                self._on_gap(gap)

    def lost(self) -> None:
        """Note that nats-py has given a client up."""
        self._begin(GapKind.RECONNECT)

    def ending(self) -> None:
        """Expect the connection to go: the node stops."""
        self._ending = True

    def _begin(self, kind: GapKind) -> None:
        if self._interrupted is None:
            self._interrupted = (kind, self._clock.wall())
        elif kind is GapKind.SLOW_CONSUMER:
            self._interrupted = (kind, self._interrupted[1])
