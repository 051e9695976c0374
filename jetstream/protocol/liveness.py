"""How long a peer may take: for its hello, for one frame, for doing nothing, for taking its answer.

A peer that breaks one of these bounds is disconnected, because it holds something of the server's: a place
among the connections, or a segment file that cannot be removed while it is being sent.
"""

from dataclasses import dataclass
from typing import Final

from envelope.types import MonotonicNs

_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Patience:
    """The bounds, in nanoseconds."""

    hello_ns: int = 10 * _SECOND
    """From the connection to the answered hello."""
    frame_ns: int = 30 * _SECOND
    """From the first to the last byte of one request: a request has 64 KiB at most."""
    idle_ns: int = 600 * _SECOND
    """Without a request in flight; clients reconnect when they need to."""
    stalled_ns: int = 120 * _SECOND
    """With bytes to send of which the peer takes none."""

    @property
    def shortest_ns(self) -> int:
        """The bound that needs the closest look."""
        return min(self.hello_ns, self.frame_ns, self.idle_ns, self.stalled_ns)


@dataclass(frozen=True, slots=True)
class PeerState:
    """The pending wait of a connection."""

    awaiting_hello: bool
    mid_frame: bool
    in_flight: int
    sending: bool


class Liveness:
    """When one peer last did what it owes.

    Invariant:
        P9: times never run backwards.
            Held by test_liveness.py.
    """

    def __init__(self, patience: Patience, now: MonotonicNs) -> None:
        self._patience = patience
        self._connected = self._active = self._progress = now
        self._frame_began: MonotonicNs | None = None

    def received(self, *, frames: int, mid_frame: bool, now: MonotonicNs) -> None:
        """Take in that bytes came that completed ``frames`` and perhaps began another."""
        assert now >= self._active, "P9"
        if frames:
            self._active = now
        if not mid_frame:
            self._frame_began = None
        elif frames or self._frame_began is None:
            self._frame_began = now

    def sending(self, now: MonotonicNs) -> None:
        """Take in that the output was empty and is not any more, or that the peer took some of it."""
        assert now >= self._progress, "P9"
        self._progress = self._active = now

    def overdue(self, state: PeerState, now: MonotonicNs) -> str | None:
        """Return which bound is broken, or None."""
        patience = self._patience
        if state.awaiting_hello and now - self._connected > patience.hello_ns:
            return "hello"
        if state.sending:
            # While the output is full we do not read: an unfinished frame is not the peer's fault then.
            return "stalled" if now - self._progress > patience.stalled_ns else None
        if state.mid_frame and self._frame_began is not None and now - self._frame_began > patience.frame_ns:
            return "frame"
        if not state.in_flight and now - self._active > patience.idle_ns:
            return "idle"
        return None
