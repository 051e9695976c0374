"""A socket connection to one node: many requests in flight, bodies received in place.

`WakeUp` sets the socket so that the system wakes the receiver of a body once enough of it has arrived, not
for each piece.

A part of a body cannot be read, and with more processes than cores each wake-up makes two of them take
turns and fills their caches anew. With TLS the number of bytes that a body still takes on the connection is
unknown, so there each piece wakes.

Source: Linux, ``SO_RCVLOWAT`` and ``FIONREAD``. Since 4.18 the kernel makes room for the bytes waited for,
and wakes earlier where it cannot; before, a receiver could wait for more than fits, for ever.

`BufferPool` is memory for bodies, used again when the last view of it is gone.

A body stays where it is received: Arrow batches view it, and so does everything that an application makes of
them. Memory fresh from the system costs a page fault and a cleared page for every 4 KiB, a sixth of a
reader's time; so returned memory is kept for the next body, up to a bound.
"""

import asyncio
import fcntl
import re
import socket
import ssl
import sys
import termios
import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from os import uname
from typing import Any, Final, assert_never, cast

import numpy as np
from pydantic import SecretStr

from envelope.errors import ConnectionLost, DeadlinePassed, JetstreamError, TlsFailed
from envelope.limits import KIB, MIB
from jetstream.client.nodes.local_ranges import LocalRanges
from jetstream.client.nodes.socket_access import SocketAccess, tls_problem
from jetstream.log.disk.machine_id import machine_id
from jetstream.protocol.connection import (
    ClientConnection,
    ClientEvent,
    ConnectionBroken,
    ResponseFailed,
    ResponseReceived,
    ResponseStarted,
)
from jetstream.protocol.requests import PROTOCOL_VERSION, Hello, Request
from jetstream.protocol.responses import HelloResponse, Response

_ROOM_BYTES_MIN: Final = 256 * KIB
"""Smaller ones come from the heap, which is as fast."""

KEPT_BYTES_MAX: Final = 32 * MIB

_WAKE_BYTES: Final = 4 * MIB
"""So much is enough: a fetch of the usual size."""

_KERNEL_MIN: Final = (4, 18)
_KERNEL: Final = re.compile(r"(\d+)\.(\d+)")

_SCRATCH_BYTES: Final = 64 * KIB

_Room = np.ndarray[Any, np.dtype[np.uint8]]


class BufferPool:
    """Lends writable memory.

    Invariant:
        C13: memory is lent again only after the last view of it is gone.
            Held by test_two_living_rooms_share_nothing.
    """

    def __init__(self) -> None:
        self._kept: dict[int, list[_Room]] = {}

    @property
    def kept_bytes(self) -> int:
        """Bytes that wait to be lent again."""
        return sum(size * len(rooms) for size, rooms in tuple(self._kept.items()))

    def take(self, length: int) -> memoryview:
        """Return room for ``length`` bytes, with any content; called by one thread.

        It comes back by itself, from whichever thread drops the last view.
        """
        if length < _ROOM_BYTES_MIN:
            return np.empty(length, np.uint8).data
        size = 1 << (length - 1).bit_length()
        kept = self._kept.setdefault(size, [])
        room = kept.pop() if kept else np.empty(size, np.uint8)
        view = room[:length]
        weakref.finalize(view, self._give_back, room).atexit = False
        return view.data

    def _give_back(self, room: _Room) -> None:
        if self.kept_bytes + len(room) <= KEPT_BYTES_MAX:
            self._kept[len(room)].append(room)


def can_wait(platform: str, release: str) -> bool:
    """Return whether a system makes room for the bytes waited for; impostors name an old release."""
    found = _KERNEL.match(release)
    return platform == "linux" and found is not None and (int(found[1]), int(found[2])) >= _KERNEL_MIN


_CAN_WAIT: Final = can_wait(sys.platform, uname().release)


class WakeUp:
    """Of one open connection; not to be used once it is closed."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        """Wake for each piece, to begin with."""
        is_plain = transport.get_extra_info("sslcontext") is None
        self._socket: socket.socket | None = None
        if _CAN_WAIT and is_plain:
            self._socket = transport.get_extra_info("socket")
        self._enough = 1

    @property
    def waiting(self) -> int:
        """Bytes that have arrived without a wake-up."""
        if self._socket is None:
            return 0
        found = fcntl.ioctl(self._socket.fileno(), termios.FIONREAD, bytes(4))
        return int.from_bytes(found, sys.byteorder)

    def when_filled(self, window: memoryview | None) -> None:
        """Wake when ``window``, the rest of a body, or enough of it can be filled; None: for any byte."""
        enough = 1 if window is None else min(len(window), _WAKE_BYTES)
        if enough != self._enough and self._socket is not None:
            self._enough = enough
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, enough)


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete response; the receiver owns ``body``."""

    response: Response
    body: memoryview


Started = Callable[[Response, int], None]
"""Called with a response and the length of its body, before the body is there."""

Done = Callable[[Answer | JetstreamError], None]
"""Called once, with the complete answer or with what went wrong."""


class SocketLink(asyncio.BufferedProtocol):
    """The client's end of a connection.

    Invariant:
        C1: every request that was sent is done exactly once: answered, failed, or lost with the connection.
    """

    def __init__(self) -> None:
        self.rooms: Final = BufferPool()
        """Memory for bodies."""
        self.local = LocalRanges(usable=False)
        """The node's files, as far as they can be read here."""
        self._machine = ClientConnection(self.rooms.take)
        self._transport: asyncio.Transport | None = None
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._window: memoryview | None = None
        self._waiting: dict[int, tuple[Started | None, Done]] = {}
        self._lost: JetstreamError | None = None
        self.greeted = False
        """Whether the node has answered the hello."""
        self.node = ""
        """The node that answered it."""
        self.shown: dict[Hashable, SecretStr] = {}
        """The tickets that the node has taken, by what they are for."""
        self._taken = 0
        self._wake_up: WakeUp | None = None
        """Of the open connection."""

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        timeout: float,  # noqa: ASYNC109 - one bound for connect and hello together
        access: SocketAccess,
        ticket: SecretStr | None = None,
    ) -> "SocketLink":
        """Connect and say hello, within ``timeout`` seconds.

        Raises:
            ConnectionLost: nobody listens there, or not for long.
            DeadlinePassed: no answer in time.
            TlsFailed: a certificate is not trusted, or only one side speaks TLS.
            Unauthorized: the node wants another token, or a ticket.
            InvalidTicket: the ticket is not good there now.
            Unsupported: the node speaks no version of ours.
        """
        try:
            async with asyncio.timeout(timeout):
                _, link = await asyncio.get_running_loop().create_connection(cls, host, port, ssl=access.tls)
                try:
                    await link.hello(access, ticket)
                finally:
                    if not link.greeted:
                        link.close()
        except TimeoutError:
            raise DeadlinePassed(f"{host}:{port} did not answer within {timeout} s") from None
        except ssl.SSLError as error:
            raise TlsFailed(f"{host}:{port}: {tls_problem(error)}") from error
        except OSError as error:
            raise ConnectionLost(f"{host}:{port} cannot be reached: {error}") from error
        return link

    async def hello(self, access: SocketAccess, ticket: SecretStr | None = None) -> HelloResponse:
        """Agree on the protocol version and show token or ticket; the first request of a connection."""
        hello = Hello(
            id=self.next_id(),
            protocol=PROTOCOL_VERSION,
            client="jetstream-python",
            token=access.token,
            ticket=ticket or access.ticket,
        )
        response = (await self.ask(hello)).response
        assert isinstance(response, HelloResponse), "C1: a response has its request's type"
        self.greeted = True
        self.node = response.node
        is_here = response.machine is not None and response.machine == machine_id()
        self.local = LocalRanges(usable=access.short_circuit and is_here)
        return response

    @property
    def closed(self) -> bool:
        """Whether the connection is gone."""
        return self._lost is not None

    @property
    def in_flight(self) -> int:
        """How many requests await their answer."""
        return self._machine.in_flight

    @property
    def received(self) -> int:
        """Bytes that have arrived so far: what stands still is a node that is silent."""
        return self._taken + (self._wake_up.waiting if self._wake_up is not None else 0)

    def next_id(self) -> int:
        """Return the id for the next request."""
        return self._machine.next_id()

    async def ask(self, request: Request) -> Answer:
        """Send ``request`` and wait for its answer; cancelling takes the request back, if it changes nothing.

        Raises:
            JetstreamError: the answer, if it is an error; ConnectionLost if there is none.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def done(outcome: Answer | JetstreamError) -> None:
            if future.done():
                return
            if isinstance(outcome, JetstreamError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.send(request, done)
        try:
            return await future
        except asyncio.CancelledError:
            self.cancel((request.id,))
            raise

    def send(self, request: Request, done: Done, started: Started | None = None) -> None:
        """Send ``request``; ``started`` and ``done`` are called from the loop, never from here.

        Raises:
            ConnectionLost: the connection is gone; ``done`` will not be called.
            Overloaded: too many requests are in flight here; ``done`` will not be called.
        """
        if self._lost is not None:
            raise self._lost
        assert self._transport is not None, "a link is used once it is connected"
        data = self._machine.send(request)
        self._waiting[request.id] = (started, done)
        self._transport.write(data)

    def cancel(self, request_ids: Iterable[int]) -> None:
        """Take back, in this order, those requests that are in flight, as far as the node knows how.

        Each is done with its answer all the same, which then comes at once.
        """
        data = b"".join(map(self._machine.cancel, request_ids))
        if data and self._lost is None and self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close; requests in flight fail."""
        self._fail_all(ConnectionLost("the connection was closed"))
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.BufferedProtocol --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # Not isinstance: uvloop's transports have the methods, not the base class.
        self._transport = cast("asyncio.Transport", transport)
        self._wake_up = WakeUp(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Offer the rest of the arriving body, so that it is received where it stays."""
        del sizehint
        self._window = self._machine.body_window()
        return self._scratch if self._window is None else self._window

    def buffer_updated(self, nbytes: int) -> None:
        """Handle received bytes."""
        self._taken += nbytes
        if self._window is None:
            events = self._machine.receive_data(self._scratch[:nbytes])
        else:
            self._window = None
            events = self._machine.body_filled(nbytes)
        for event in events:
            self._on_event(event)
        if self._wake_up is not None:
            self._wake_up.when_filled(self._machine.body_window())

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all requests in flight."""
        if isinstance(exc, ssl.SSLError):
            self._fail_all(TlsFailed(f"the connection was lost: {tls_problem(exc)}"))
        else:
            reason = "closed by the node" if exc is None else str(exc)
            self._fail_all(ConnectionLost(f"the connection was lost: {reason}"))

    # --- events --------------------------------------------------------------------------------------

    def _on_event(self, event: ClientEvent) -> None:
        match event:
            case ResponseStarted(response, body_length):
                # Absent if the connection was closed by an earlier event of the same bytes.
                started, _ = self._waiting.get(response.id, (None, None))
                if started is not None:
                    started(response, body_length)
            case ResponseReceived(response, body):
                self._finish(response.id, Answer(response, body))
            case ResponseFailed(request_id, error):
                self._finish(request_id, error)
            case ConnectionBroken(error, _):
                self._fail_all(error)
                if self._transport is not None:
                    self._transport.abort()
            case _:
                assert_never(event)

    def _finish(self, request_id: int, outcome: Answer | JetstreamError) -> None:
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            waiting[1](outcome)

    def _fail_all(self, error: JetstreamError) -> None:
        self._wake_up = None
        if self._lost is None:
            self._lost = error
        waiting, self._waiting = self._waiting, {}
        for _, done in waiting.values():
            done(error)
