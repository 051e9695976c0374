"""A connection of the socket protocol: frames come in, responses go out."""

import logging
from typing import assert_never

from envelope.errors import InvalidTicket, JetstreamError, Unauthorized
from jetstream.node.disk.leased_range import Body
from jetstream.node.readers.line import SocketLine
from jetstream.node.readers.reader_connection import ConnectionServices, Pending, ReaderConnection, cancel
from jetstream.protocol.connection import (
    CancelReceived,
    ConnectionBroken,
    RequestReceived,
    RequestRefused,
    ServerConnection,
    ServerEvent,
)
from jetstream.protocol.liveness import PeerState
from jetstream.protocol.responses import Response

_log = logging.getLogger(__name__)


class SocketConnection(ReaderConnection):
    """Speaks the socket protocol with one peer."""

    def __init__(self, line: SocketLine, services: ConnectionServices) -> None:
        super().__init__(line, services)
        self._pending: dict[int, Pending] = {}
        """What is not answered, by its id; each is in one of the queues here, waits, or is worked on."""
        self._machine = ServerConnection(self.rights)

    @property
    def _state(self) -> PeerState:
        machine = self._machine
        return PeerState(machine.awaiting_hello, machine.mid_frame, machine.in_flight, self.taken is not None)

    # --- answering, called by the RequestServer ----------------------------------------------------

    def respond(self, response: Response, body: Body | bytes | memoryview = b"") -> None:
        """Send ``response`` and, after it, ``body``; see `ReaderConnection.respond`."""
        self._pending.pop(response.id).withdraw = None
        if isinstance(body, Body):
            self._send(self._machine.respond(response, body.end - body.position), body)
        elif isinstance(body, memoryview):
            self._send(self._machine.respond(response, len(body)), body)
        else:
            self._send(b"".join((self._machine.respond(response, len(body)), body)))

    def fail(self, request_id: int, error: JetstreamError) -> None:
        """Answer with ``error``."""
        pending = self._pending.pop(request_id)
        pending.withdraw = None
        self._services.note_failure(self.peer, pending.request, error)
        self._send(self._machine.fail(request_id, error))

    # --- reading ---------------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        if not data:
            self.close()
            return
        was_stranger = self._machine.awaiting_hello
        events = self._machine.receive_data(data)
        if was_stranger and not self._machine.awaiting_hello and not self._machine.broken:
            self._services.introduced(self)
        now = self._services.clock.monotonic()
        self._liveness.received(frames=len(events), mid_frame=self._machine.mid_frame, now=now)
        for event in events:
            self._on_event(event)
            if self.closed:
                return

    def _on_event(self, event: ServerEvent) -> None:
        counters = self._services.counters
        match event:
            case RequestReceived(request):
                counters.requests += 1
                pending = self._pending[request.id] = Pending(self, request)
                cursor = pending.cursor
                if cursor is None or self.cursors.enter(cursor, pending):
                    self.requests.append(pending)
            case RequestRefused(_, response):
                counters.requests += 1
                counters.requests_failed += 1
                self._send(response)
            case CancelReceived(request_id):
                cancel(self._pending.get(request_id))
            case ConnectionBroken(error, farewell):
                if isinstance(error, Unauthorized | InvalidTicket):
                    counters.connections_unauthorized += 1
                else:
                    counters.protocol_errors += 1
                if not self.ticket_refusals.note(self.peer, "hello", None, error):
                    _log.info("connection broken peer=%s error=%r", self.peer, error)
                self.requests.clear()
                self._leaving = True
                self._send(farewell)
            case _:
                assert_never(event)

    def close(self) -> None:
        """Close now; what was not sent is dropped."""
        self._pending.clear()
        super().close()
