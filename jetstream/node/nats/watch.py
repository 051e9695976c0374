"""The events of a NATS connection: counted, logged, and recorded as a possible gap once they are over."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nats.aio.client import Client

from envelope.types import MonotonicNs, TimestampUs
from jetstream.node.nats.gaps import Gap
from jetstream.node.nats.parser_seam import DropKind
from jetstream.node.runtime.clock import Clock
from metadata.api.responses import GapKind

_log = logging.getLogger(__name__)

_WARNING_NS: Final = 60_000_000_000
"""Between two warnings of what publishers send: they may send much of it."""
_LINES_AT_ONCE: Final = 10
_LINE_NS: Final = 1_000_000_000
"""How long it takes until one line more may be logged."""


@dataclass(slots=True)
class LinkCounters:
    """Counts of a connection since the start."""

    reconnects: int = 0
    slow_consumers: int = 0
    errors: int = 0
    dropped: Counter[DropKind] = field(default_factory=Counter)
    """Messages of publishers that were dropped."""


class LinkWatch:
    """Holds nats-py's callbacks for one connection.

    Attributes:
        on_gap: called when an interruption is over, with its time span.
        heard_at: returns when the server was heard last: a connection that breaks may have been dead since.
        silent_ns_max: how long a server that is there may be silent.
    """

    def __init__(self, role: str, clock: Clock) -> None:
        self.role = role
        self.counters = LinkCounters()
        self.last_error: Exception | None = None
        self.refusal: Exception | None = None
        """The server's last error before it broke the connection, which explains the break."""
        self.clock = clock
        self.on_gap: Callable[[Gap], None] = lambda _: None
        self.heard_at: Callable[[], MonotonicNs] = clock.monotonic
        self.silent_ns_max = 0
        self._silent_until = clock.monotonic()
        self._unlogged = 0
        self._interrupted: tuple[GapKind, TimestampUs] | None = None
        self._ending = False
        self._warned_at: MonotonicNs | None = None

    @property
    def is_heard(self) -> bool:
        """Whether messages flow, as far as is known: the server has been heard of lately."""
        return self._interrupted is None and self._silent_ns < self.silent_ns_max

    @property
    def _silent_ns(self) -> int:
        return self.clock.monotonic() - self.heard_at()

    @property
    def interruption(self) -> Gap | None:
        """The interruption that lasts now, up to this moment; None while messages flow."""
        if self._interrupted is None:
            return None
        kind, since = self._interrupted
        return Gap(kind, since, self.clock.wall())

    async def error(self, error: Exception) -> None:
        """Handle an error of nats-py or of the server (``error_cb``)."""
        if "slow consumer" in str(error).lower():
            self.counters.slow_consumers += 1
            self._begin(GapKind.SLOW_CONSUMER)
        self.note(error)

    def dropped(self, kind: DropKind, number: int) -> None:
        """Count dropped messages of publishers; warn of them once a minute."""
        self.counters.dropped[kind] += number
        if self._may_warn():
            counts = " ".join(f"{kind}={count}" for kind, count in sorted(self.counters.dropped.items()))
            _log.warning("dropped what publishers sent role=%s %s runbook=RB-03", self.role, counts)

    def _may_warn(self) -> bool:
        now = self.clock.monotonic()
        if self._warned_at is not None and now - self._warned_at < _WARNING_NS:
            return False
        self._warned_at = now
        return True

    async def disconnected(self) -> None:
        """Begin an interruption (``disconnected_cb``)."""
        if not self._ending:
            if self._interrupted is None:
                _log.warning("nats disconnected role=%s", self.role)
            self._begin(GapKind.RECONNECT)

    def note(self, error: Exception) -> None:
        """Count an error; log it unless it repeats the last one, or there are many.

        A server that is away refuses often; one that is there may have something to say about every message.
        """
        self.counters.errors += 1
        if repr(error) != repr(self.last_error):
            self._log_error(error)
        self.last_error = error
        if not isinstance(error, OSError):
            self.refusal = error

    def _log_error(self, error: Exception) -> None:
        now = self.clock.monotonic()
        if self._silent_until - now > _LINES_AT_ONCE * _LINE_NS:
            self._unlogged += 1
            return
        unlogged, self._unlogged = self._unlogged, 0
        self._silent_until = MonotonicNs(max(self._silent_until, now) + _LINE_NS)
        _log.warning("nats error role=%s error=%r unlogged_before=%d", self.role, error, unlogged)

    def reason(self, error: Exception) -> Exception:
        """Return why there is no connection: what a server has said, or else the latest error."""
        return self.refusal or self.last_error or error

    def waiting(self, urls: str, reason: Exception) -> None:
        """Say that a node that starts waits for NATS; once a minute."""
        if self._may_warn():
            _log.warning("waiting for NATS role=%s urls=%s error=%s runbook=RB-07", self.role, urls, reason)

    def connected(self, client: Client) -> None:
        """End an interruption, if there was one."""
        url = client.connected_url
        server = "none" if url is None else f"{url.hostname}:{url.port}"
        _log.info("nats connected role=%s server=%s", self.role, server)
        self.last_error = self.refusal = None
        gap, self._interrupted = self.interruption, None
        if gap is not None:
            self.counters.reconnects += 1
            self.on_gap(gap)

    def lost(self) -> None:
        """Handle a client that nats-py has given up."""
        self._begin(GapKind.RECONNECT)

    def ending(self) -> None:
        """Expect the connection to go: the node stops."""
        self._ending = True

    def _begin(self, kind: GapKind) -> None:
        if self._interrupted is None:
            self._interrupted = (kind, TimestampUs(self.clock.wall() - self._silent_ns // 1000))
        elif kind is GapKind.SLOW_CONSUMER:
            self._interrupted = (kind, self._interrupted[1])
