"""A TCP proxy that is faulty to the byte: it cuts, flips bits, falls silent or trickles at one of a response.

It runs on the test's own loop, between a client and a node. Each connection that it accepts takes the next
fault of its list; when the list is used up, connections are forwarded faithfully. Bytes are counted per
connection, towards the client only, from 0.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from tests.support.protocol_server import ProtocolServer

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection ends before the byte ``at``; everything before it arrives."""

    at: int


@dataclass(frozen=True, slots=True)
class Flip:
    """The byte ``at`` arrives with the bits of ``mask`` turned over."""

    at: int
    mask: int


@dataclass(frozen=True, slots=True)
class Silence:
    """From the byte ``at`` on nothing passes in either direction, and nobody is told."""

    at: int


@dataclass(frozen=True, slots=True)
class Trickle:
    """From the byte ``at`` on, ``pieces`` of ``piece_bytes`` arrive, one every ``every_s``; then the rest."""

    at: int
    pieces: int
    piece_bytes: int
    every_s: float


Fault = Cut | Flip | Silence | Trickle


class _Upstream(asyncio.Protocol):
    """The node's side of one connection: what it sends passes through the fault."""

    def __init__(self, downstream: "_Downstream") -> None:
        self._downstream = downstream
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports have the methods, not the base class.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._downstream.respond(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._downstream.end()


class _Downstream(asyncio.Protocol):
    """The client's side of one connection."""

    def __init__(self, proxy: "TcpProxy", fault: Fault | None, tasks: asyncio.TaskGroup) -> None:
        self._proxy = proxy
        self._fault = fault
        self._tasks = tasks
        self._upstream: _Upstream | None = None
        self._transport: asyncio.Transport | None = None
        self._silent = False
        self._trickling: bytearray | None = None
        self._timer: asyncio.Handle | None = None
        self.requested = bytearray()
        """What the client has sent."""
        self.response = bytearray() if proxy.keeps_responses else None
        self.response_bytes = 0
        """How many bytes the node has sent."""
        self.is_given_up = False
        """Whether the client has closed it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._proxy.stopped:
            self._transport.abort()
        else:
            self._tasks.create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, upstream = await loop.create_connection(
                lambda: _Upstream(self), "127.0.0.1", self._proxy.target
            )
        except OSError:
            self.end()  # nobody listens there: the client is told by a closed connection
            return
        self._upstream = upstream
        assert upstream.transport is not None
        upstream.transport.write(bytes(self.requested))
        if self._transport is None or self._transport.is_closing():
            upstream.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._silent:
            return
        self.requested += data
        if self._upstream is not None and self._upstream.transport is not None:
            self._upstream.transport.write(data)

    def respond(self, data: bytes) -> None:
        """Pass on what the node says, with the fault in it."""
        start, self.response_bytes = self.response_bytes, self.response_bytes + len(data)
        if self.response is not None:
            self.response += data
        assert self._transport is not None
        at = NEVER if self._fault is None else self._fault.at - start
        if self._trickling is not None:
            self._trickling += data
            return
        if self._silent or at >= len(data):
            self._forward(data)
            return
        match self._fault:
            case Cut():
                self._forward(data[:at])
                self._fault = None
                # After close() nothing is read or written any more, but what was written still arrives.
                self._transport.close()
                self._end_upstream()
            case Flip(_, mask) if at >= 0:
                self._forward(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            case Flip() | None:
                self._forward(data)
            case Trickle() as trickle:
                self._forward(data[:at])
                self._trickling = bytearray(data[at:])
                self._trickle(trickle, trickle.pieces)
            case Silence():
                self._forward(data[:at])
                self._silent = True
                self._transport.pause_reading()
                if self._upstream is not None and self._upstream.transport is not None:
                    self._upstream.transport.pause_reading()

    def _trickle(self, trickle: Trickle, pieces: int) -> None:
        assert self._trickling is not None, "it is called until the rest has gone"
        length = trickle.piece_bytes if pieces else len(self._trickling)
        self._forward(bytes(self._trickling[:length]))
        del self._trickling[:length]
        if pieces:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(trickle.every_s, self._trickle, trickle, pieces - 1)
        else:
            self._trickling = self._fault = None

    def _forward(self, data: bytes) -> None:
        if data and not self._silent and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
        self._proxy.wake()

    def eof_received(self) -> bool:
        return self._silent

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_given_up = True
        self._proxy.wake()
        # The node is not told that a silent connection's client is gone: that is what silence means.
        if not self._silent:
            self._end_upstream()

    def end(self) -> None:
        """Close towards the client, unless it must not know."""
        if self._transport is not None and not self._silent:
            self._transport.close()

    def _end_upstream(self) -> None:
        if self._upstream is not None and self._upstream.transport is not None:
            self._upstream.transport.abort()

    def abort(self) -> None:
        """Close both sides at once."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._end_upstream()


class TcpProxy:
    """Listens on a free port and forwards connections to ``target``, each with the next of ``faults``."""

    def __init__(
        self, target: int, faults: Sequence[Fault | None], tasks: asyncio.TaskGroup, *, keeps_responses: bool
    ) -> None:
        self.target = target
        """Port on loopback; may be changed: new connections go there."""
        self.keeps_responses = keeps_responses
        self.connections: list[_Downstream] = []
        self.stopped = False
        self._faults = list(faults)
        self._tasks = tasks
        self._passed = asyncio.Event()
        self._server = ProtocolServer(self._accept, tasks)
        self.port = self._server.port

    def stop(self) -> None:
        """Close the listener and every connection."""
        self.stopped = True
        self._server.stop()
        for connection in self.connections:
            connection.abort()

    def wake(self) -> None:
        """Have `passed` look again: the node has said something, or the client is gone."""
        self._passed.set()

    async def passed(self, number: int, response_bytes: int) -> None:
        """Wait until connection ``number`` has had ``response_bytes`` bytes from the node."""
        while not self._has_had(number, response_bytes):
            await self._change()

    async def passed_or_given_up(self, number: int, response_bytes: int) -> bool:
        """Wait for that, or for the client to close the connection; tell whether the bytes came."""
        while not self._has_had(number, response_bytes):
            if len(self.connections) > number and self.connections[number].is_given_up:
                return False
            await self._change()
        return True

    def _has_had(self, number: int, response_bytes: int) -> bool:
        return len(self.connections) > number and self.connections[number].response_bytes >= response_bytes

    async def _change(self) -> None:
        self._passed.clear()
        await self._passed.wait()

    def response(self, number: int) -> bytes:
        """Return what the node has sent on connection ``number``."""
        response = self.connections[number].response
        assert response is not None, "the proxy was told to keep responses"
        return bytes(response)

    def _accept(self) -> _Downstream:
        fault = self._faults.pop(0) if self._faults else None
        self.connections.append(_Downstream(self, fault, self._tasks))
        return self.connections[-1]


@asynccontextmanager
async def proxied(
    target: int, *faults: Fault | None, keeps_responses: bool = False
) -> AsyncIterator[TcpProxy]:
    """A proxy in front of the node that listens on ``target``."""
    async with asyncio.TaskGroup() as tasks:
        proxy = TcpProxy(target, faults, tasks, keeps_responses=keeps_responses)
        try:
            yield proxy
        finally:
            proxy.stop()
