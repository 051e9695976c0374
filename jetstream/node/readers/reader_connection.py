"""A peer's connection below its protocol: the socket, the output, the requests that are not answered.

A subclass speaks the protocol: it makes requests of the received bytes, and bytes of the responses. The
`RequestServer` answers the requests. A connection that cannot send is not read from any further, so what a
slow reader holds is bounded: its requests in flight, a few leased file ranges, a few hundred kilobytes of
headers, one selected body. All selected bodies of a node share a budget (`selections`).
"""

import asyncio
import errno
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from envelope.errors import JetstreamError, RequestCancelled, StorageError, TlsFailed
from envelope.limits import KIB
from envelope.types import MonotonicNs
from jetstream.fetch.catch_up_scheduler import TURN_BYTES
from jetstream.fetch.cursors import ConnectionCursors, CursorPlace
from jetstream.fetch.selection import Encoder
from jetstream.fetch.selection_budget import SELECTED_BYTES_FIRST
from jetstream.node.disk.leased_range import Body
from jetstream.node.readers.line import SocketLine
from jetstream.node.readers.output import SocketOutput
from jetstream.node.readers.ticket_refusals import TicketRefusals
from jetstream.node.runtime.catch_up_queue import CatchUpQueue, ReaderTurn
from jetstream.node.runtime.clock import Clock
from jetstream.protocol.liveness import Liveness, Patience, PeerState
from jetstream.protocol.requests import Fetch, Request
from jetstream.protocol.responses import Response
from jetstream.protocol.rights import Gate, ReaderRights

_log = logging.getLogger(__name__)

_RECEIVE_BYTES: Final = 16 * KIB
_BODIES_MAX: Final = 4
"""Answered fetches that wait to be sent, each with a lease on its segment."""

_KEPT_BYTES_MIN: Final = 128 * KIB
"""Selected bytes in the kernel that are not on their way yet; more for a reader whose answers are larger."""

CANCELLED: Final = "the reader needs no answer any more"

_MEMORY_BYTES_MAX: Final = 256 * KIB
"""What waits in memory to be sent before the connection is read no further."""

_GONE: Final = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTUNREACH})


@dataclass(slots=True)
class SocketCounters:
    """Counts of a server of connections since it started."""

    connections_opened: int = 0
    connections_closed: int = 0
    connections_overdue: int = 0
    connections_unauthorized: int = 0
    protocol_errors: int = 0
    requests: int = 0
    requests_failed: int = 0
    requests_cancelled: int = 0
    fetches_parked: int = 0
    ranges_verified: int = 0
    ranges_warmed: int = 0
    short_circuit_bytes: int = 0
    bytes_sent: int = 0


@dataclass(slots=True, eq=False)
class Pending:
    """A request that is not answered yet."""

    connection: "ReaderConnection"
    request: Request
    encode: Encoder | None = None
    """Makes the body of the answer to a fetch out of its decoded records; None: it is stored batches."""
    deadline: MonotonicNs | None = None
    """Until when a fetch may wait; set when it first finds nothing."""
    withdraw: Callable[[], object] | None = None
    """Ends its wait without an answer; None while it does not wait, or waits in a queue of its connection."""
    is_cancelled: bool = False
    """The reader needs no answer, and gets `RequestCancelled` as soon as nothing works on the request."""

    @property
    def cursor(self) -> int | None:
        """The cursor it goes on at, if it is such a fetch."""
        return self.request.cursor if isinstance(self.request, Fetch) else None


class SelectedAnswers(Protocol):
    """The answers to fetches that leave something out."""

    def taken(self, connection: "ReaderConnection") -> None:
        """Give back what a connection holds, which its peer has taken."""

    def has_spare(self, connection: "ReaderConnection") -> bool:
        """Return whether the next one may be made while the connection takes the last."""


class RequestServer(Protocol):
    """Answers the requests of all connections."""

    def serve(self, connection: "ReaderConnection") -> None:
        """Answer what waits in ``connection.requests`` while `ReaderConnection.has_room`."""

    def forget(self, connection: "ReaderConnection") -> None:
        """Drop whatever is parked for a connection that is gone."""

    @property
    def selections(self) -> SelectedAnswers:
        """Return what makes them."""


@dataclass(slots=True, kw_only=True)
class ConnectionServices:
    """The parts of the server that a connection uses."""

    loop: asyncio.AbstractEventLoop
    executor: Executor
    clock: Clock
    patience: Patience
    requests: RequestServer
    introduced: Callable[["ReaderConnection"], None]
    """Called once the peer has shown what it must to be no stranger."""
    closed: Callable[["ReaderConnection"], None]
    catch_up_queue: CatchUpQueue
    gate: Gate
    ticket_refusals: TicketRefusals
    counters: SocketCounters = field(default_factory=SocketCounters)

    def note_failure(self, peer: str, request: Request, error: JetstreamError) -> None:
        """Count a request that is answered with ``error``."""
        _ = self.ticket_refusals.note(peer, request.op, _target(request), error)
        if isinstance(error, RequestCancelled):
            self.counters.requests_cancelled += 1
        else:
            self.counters.requests_failed += 1


class ReaderConnection(ABC):
    """Owns one accepted socket from `start` to `close`.

    Invariants:
        N3: the socket is watched for reading only while the output is below its limits.
            Held by test_a_peer_that_floods_without_reading_is_bounded.
        N4: the socket is watched for writing only while there is something to send, nothing to warm, and
            no turn to wait for.
            Held by test_what_is_not_in_the_page_cache_is_read_on_a_thread_first.
        N5: after `close` no callback does anything and all leases are given back; a stopped server has no
            connection.
    """

    def __init__(self, line: SocketLine, services: ConnectionServices) -> None:
        self.peer = line.peer
        """Its address, for the log."""
        self.requests: deque[Pending] = deque()
        """What can be answered now, in order; what is parked or waits for its turn is not among them."""
        self.cursors = ConnectionCursors[Pending]()
        self.preparing = False
        """A request's answer is being prepared on a thread; the next ones wait."""
        self.turn = ReaderTurn(services.catch_up_queue, self._on_writable, is_local=line.is_local)
        """Of this reader, while it catches up."""
        self.selected_max = SELECTED_BYTES_FIRST
        """Bytes of its next selected answer; more with each that the peer has taken."""
        self.rights = ReaderRights(services.gate)
        """What its requests may ask for."""
        self.ticket_refusals: Final = services.ticket_refusals
        """Where a request that they do not allow is noted."""
        self.closed = False
        self._holds_selection = False
        self._line = line
        self._services = services
        self._liveness = Liveness(services.patience, services.clock.monotonic())
        self._output = SocketOutput()
        self._warming = False
        self._leaving = False
        self._is_deaf = False
        """The protocol has no use for more bytes now."""

    def start(self) -> None:
        """Begin to read."""
        self._services.counters.connections_opened += 1
        self._settle()

    @property
    def has_room(self) -> bool:
        """Whether another response may be queued."""
        output = self._output
        if self._holds_selection:  # which the peer takes: one response may be queued behind it
            is_below_limits = len(output.items) == 1 and self._services.requests.selections.has_spare(self)
        else:
            is_below_limits = output.memory_bytes < _MEMORY_BYTES_MAX
        return (
            is_below_limits
            and not self.closed
            and not self._leaving
            and not self.preparing
            and not self.turn.is_awaited
            and output.bodies < _BODIES_MAX
        )

    @property
    def buffered_bytes(self) -> int:
        """Bytes in memory that wait for the peer to take them; what is in files is not among them."""
        return self._output.memory_bytes + self._line.unsent

    @property
    def taken(self) -> int | None:
        """Bytes that the peer has taken since it came; None: there is nothing for it to take now."""
        is_sending = (bool(self._output.items) or self._line.unsent > 0) and not self.turn.is_awaited
        return self._line.taken if is_sending else None

    # --- the protocol ----------------------------------------------------------------------------

    @abstractmethod
    def respond(self, response: Response, body: Body | bytes | memoryview = b"") -> None:
        """Send ``response`` and, after it, ``body``.

        It is bytes, or a file range whose lease passes to us, or the view of a selected answer, which
        `SelectedAnswers.taken` gives back.
        """

    @abstractmethod
    def fail(self, request_id: int, error: JetstreamError) -> None:
        """Answer with ``error``."""

    @abstractmethod
    def _received(self, data: bytes) -> None:
        """Take what the peer has sent; nothing is its end."""

    @property
    @abstractmethod
    def _state(self) -> PeerState:
        """Return whom the next step is waited for from."""

    def end_turn(self, pending: Pending, place: CursorPlace | None) -> None:
        """Let the next fetch of a cursor begin where the answered one ended; nowhere if that failed."""
        if pending.cursor is None or self.closed:
            return
        successor = self.cursors.leave(pending.cursor, place)
        if successor is not None:
            self.requests.append(successor)

    # --- reading ---------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            data = self._line.receive(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            self._settle()  # a handshake may have something to send
            return
        except (OSError, TlsFailed) as error:
            self._lost(error)
            return
        self._received(data)
        if self.closed:
            return
        self._services.requests.serve(self)
        self._settle()

    # --- writing ---------------------------------------------------------------------------------

    def _send(self, head: bytes, body: Body | memoryview | None = None) -> None:
        """Send ``head`` and ``body`` after what is queued; a view is of a selected answer."""
        assert not self.closed, "N5: nothing is sent on a closed connection"
        if isinstance(body, memoryview):
            self._holds_selection = True
            self._line.keep(max(_KEPT_BYTES_MIN, self.selected_max // 4))
        now = self._services.clock.monotonic()
        if not self._output.items:
            self._liveness.sending(now)
        self._output.put(head, body)
        if not self._line.writing and not self._warming and not self.turn.is_awaited:
            self._flush(now)

    def _on_writable(self) -> None:
        self._flush(self._services.clock.monotonic())
        self._services.requests.serve(self)

    def _flush(self, now: MonotonicNs) -> None:
        """Send one turn's worth, and of one body; the rest waits until the others had theirs."""
        catches_up = self._output.catches_up
        if catches_up and not self.turn.comes(goes_on=self._output.is_within_body):
            self._settle()
            return
        budget, before = self._services.catch_up_queue.bytes_at_once, self._line.sent
        bodies = self._output.bodies
        try:
            self._line.push()
            while self._output.items and budget > 0 and not (catches_up and self._output.bodies < bodies):
                first = self._output.items[0]
                if isinstance(first, Body) and not first.is_warm(budget):
                    self._warm(first)
                    break
                budget -= self._output.send_some(self._line, budget)
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, StorageError) as error:
            self._lost(error)
            return
        if catches_up:
            self.turn.took(now, self._line.sent - before)
        if self._line.sent > before:
            self._services.counters.bytes_sent += self._line.sent - before
            self._liveness.sending(now)
        if self._holds_selection and not self._output.memory_bytes:
            self._holds_selection = False
            self._services.requests.selections.taken(self)
        self._settle()

    def _warm(self, body: Body) -> None:
        """Let a thread read what comes next into the page cache, then go on."""
        segment = body.file_range.segment
        segment.acquire(beside=True)  # the connection may be gone before the thread is done
        self._warming = True
        self._services.counters.ranges_warmed += 1
        work = partial(body.warm, TURN_BYTES)
        future = self._services.loop.run_in_executor(self._services.executor, work)

        def warmed(done: asyncio.Future[None]) -> None:
            segment.release()
            self._warming = False
            if self.closed:
                return
            error = done.exception()
            if error is not None:
                self._lost(error)
                return
            self._on_writable()

        future.add_done_callback(warmed)

    # --- settling what to watch ----------------------------------------------------------------------

    def _settle(self) -> None:
        if self.closed:
            return
        unsent = self._line.unsent
        sending = bool(self._output.items) or unsent > 0
        if self._leaving and not sending:
            self.close()
            return
        reading = (
            not self._leaving and self._output.memory_bytes + unsent < _MEMORY_BYTES_MAX and not self._is_deaf
        )
        writing = sending and not self._warming and not self.turn.is_awaited
        self._line.watch(self._on_readable if reading else None, self._on_writable if writing else None)

    # --- ending ------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Read no more; close once everything queued is sent."""
        self._leaving = True
        self.requests.clear()
        self._settle()

    def check(self) -> None:
        """Close if the peer is overdue."""
        overdue = self._liveness.overdue(self._state, self._services.clock.monotonic())
        if overdue is not None:
            _log.info("connection closed peer=%s overdue=%s", self.peer, overdue)
            self._services.counters.connections_overdue += 1
            self.close()

    def _lost(self, error: BaseException) -> None:
        if isinstance(error, TlsFailed):
            self._services.counters.protocol_errors += 1
            _log.info("connection broken peer=%s error=%r", self.peer, error)
        elif not (isinstance(error, OSError) and error.errno in _GONE):
            _log.error("connection closed peer=%s error=%r runbook=RB-02", self.peer, error)
        self.close()

    def close(self) -> None:
        """Close now; what was not sent is dropped."""
        if self.closed:
            return
        self.closed = True
        self.requests.clear()
        self.turn.leave()
        self.cursors.clear()
        self._output.clear()
        self._services.requests.forget(self)
        self._line.close()
        self._services.counters.connections_closed += 1
        self._services.closed(self)


def cancel(pending: Pending | None) -> None:
    """Take a request back and answer it so: at once, or when a thread has done its work.

    None: it was answered before.
    """
    if pending is None or pending.is_cancelled or not pending.request.can_be_cancelled:
        return
    pending.is_cancelled = True
    connection, cursor = pending.connection, pending.cursor
    has_turn = cursor is None or not connection.cursors.drop(cursor, pending)
    if has_turn:
        if pending in connection.requests:
            connection.requests.remove(pending)
        elif pending.withdraw is not None:
            pending.withdraw()
        else:
            return
    connection.fail(pending.request.id, RequestCancelled(CANCELLED))
    if has_turn:
        connection.end_turn(pending, None)


def _target(request: Request) -> str | None:
    """Return the stream or the group that a request is about, if it is about one."""
    found = getattr(request, "stream", None) or getattr(request, "group", None)
    return found if isinstance(found, str) else None
