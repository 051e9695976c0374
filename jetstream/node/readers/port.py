"""A listening port of readers: accepts, bounds, sweeps, stops.

Raw non-blocking sockets and ``os.sendfile`` instead of transports: uvloop implements neither
``loop.sendfile`` nor ``loop.sock_sendfile``, and refuses ``add_writer`` on a socket that a transport owns.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Final

from envelope.errors import JetstreamError, Overloaded, TlsFailed
from jetstream.node.readers.line import NO_TLS, SocketLine, TlsLine
from jetstream.node.readers.reader_connection import ReaderConnection
from jetstream.protocol.liveness import Patience
from metadata.node.admission.door import AdmissionVerdict, Door
from metadata.node.peers.accepting import Acceptor, listeners

_log = logging.getLogger(__name__)

_SWEEP_S_MAX: Final = 1.0
_KEEPALIVE_S: Final = 60


class ReaderPort:
    """The connections of one port, from `start` to `stop`; to be used on one event loop's thread.

    Attributes:
        door: has decided who was let in.
    """

    def __init__(
        self,
        door: Door,
        patience: Patience,
        tls: ssl.SSLContext | None,
        connection: Callable[[SocketLine], ReaderConnection],
        refusal: Callable[[JetstreamError], bytes],
    ) -> None:
        """Prepare to listen.

        Args:
            door: decides about admission, and names the port in the log.
            patience: how long peers may take.
            tls: the server's side of TLS; None speaks none.
            connection: makes a connection of an accepted socket.
            refusal: returns the bytes that tell a peer of an error before anything is heard of it.
        """
        self.door = door
        self._patience = patience
        self._tls = tls
        self._connection = connection
        self._refusal = refusal
        self._loop = asyncio.get_running_loop()
        self._connections: set[ReaderConnection] = set()
        self._strangers: dict[ReaderConnection, None] = {}  # in the order in which they came
        self._acceptors: list[Acceptor] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def __iter__(self) -> Iterator[ReaderConnection]:
        """Yield the connections that there are now."""
        return iter(tuple(self._connections))

    @property
    def connections(self) -> int:
        """How many readers are connected."""
        return len(self._connections)

    @property
    def buffered_bytes(self) -> int:
        """Bytes in memory that wait for readers to take them."""
        return sum(connection.buffered_bytes for connection in self._connections)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; return the address, with the port that was free if ``port`` is 0.

        Raises:
            OSError: the address cannot be had.
        """
        assert not self._acceptors, "a port is started once"
        found = await listeners(host, port)
        self._acceptors = [Acceptor(listener, self._admit, self._loop) for listener in found]
        self._sweep()
        bound = found[0].getsockname()
        _log.info("listening for %s host=%s port=%d", self.door.port, bound[0], bound[1])
        return str(bound[0]), int(bound[1])

    def stop_accepting(self) -> None:
        """Let nobody in any more; calling again does nothing."""
        for acceptor in self._acceptors:
            acceptor.stop()
        self._acceptors.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def stop(self, drain_s: float) -> None:
        """Let nobody in, send what is queued for so many seconds at most, then close everything."""
        self.stop_accepting()
        for connection in self:
            connection.leave()
        try:
            async with asyncio.timeout(drain_s):
                await self._empty.wait()
        except TimeoutError:
            _log.info(
                "the port for %s stops with slow peers connections=%d", self.door.port, self.connections
            )
        finally:
            self.close_connections()
        assert not self._connections, "N5: a stopped server has no connections"

    def close_connections(self) -> None:
        """Close all that there are now."""
        for connection in self:
            connection.close()

    def introduced(self, connection: ReaderConnection) -> None:
        """Record that the peer is no stranger."""
        self._strangers.pop(connection, None)

    def estranged(self, connection: ReaderConnection) -> None:
        """Record that the peer may be cut off for another one, after all that are strangers already."""
        self._strangers[connection] = None

    def closed(self, connection: ReaderConnection) -> None:
        """Forget a connection that is closed."""
        self._connections.discard(connection)
        self._strangers.pop(connection, None)
        if not self._connections:
            self._empty.set()

    def _admit(self, sock: socket.socket, peer: str) -> None:
        verdict = self.door.verdict(len(self._connections), len(self._strangers), sock.fileno())
        if verdict is AdmissionVerdict.REFUSE:
            self._turn_away(sock)
            return
        if verdict is AdmissionVerdict.DISPLACE:
            next(iter(self._strangers)).close()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        if self._tls is None:
            line = SocketLine(sock, peer, self._loop)
        else:
            line = TlsLine(sock, peer, self._loop, self._tls, self._refusal(TlsFailed(NO_TLS)))
        connection = self._connection(line)
        self._connections.add(connection)
        self._strangers[connection] = None
        self._empty.clear()
        connection.start()

    def _turn_away(self, sock: socket.socket) -> None:
        """Refuse a peer for which there is no room, if it reads that, and close."""
        try:
            if self._tls is None:  # before a handshake nothing can be said
                sock.send(self._refusal(Overloaded("too many connections")), socket.MSG_NOSIGNAL)
        except OSError as error:
            _log.debug("peer left before it was turned away: %r", error)
        finally:
            sock.close()

    def _sweep(self) -> None:
        """Look for overdue peers, often enough that no bound is overrun by more than a quarter."""
        for connection in self:
            connection.check()
        period = min(_SWEEP_S_MAX, self._patience.shortest_ns / 4e9)
        self._sweeper = self._loop.call_later(period, self._sweep)
