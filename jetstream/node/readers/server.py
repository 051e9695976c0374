"""The socket server: where readers connect. Listens, accepts, bounds, sweeps, stops.

Raw non-blocking sockets and ``os.sendfile`` instead of transports: uvloop implements neither
``loop.sendfile`` nor ``loop.sock_sendfile``, and refuses ``add_writer`` on a socket that a transport owns.
"""

import asyncio
import logging
import socket
import ssl
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

from pydantic import SecretStr

from envelope.limits import CONNECTIONS_MAX
from envelope.types import StreamName
from jetstream.fetch.selection_budget import SELECTION_BYTES_DEFAULT
from jetstream.node.readers.connection import ConnectionServices, SocketConnection, turn_away
from jetstream.node.readers.dispatcher import GroupRequests, RequestDispatcher
from jetstream.node.readers.line import SocketLine, TlsLine
from jetstream.node.readers.ports import StreamDirectory
from jetstream.node.readers.responses import ServerIdentity
from jetstream.node.readers.selections import Selections
from jetstream.node.readers.ticket_refusals import TicketRefusals
from jetstream.node.runtime.clock import Clock
from jetstream.protocol.liveness import Patience
from jetstream.protocol.rights import Gate, Requirement
from metadata.node.admission.descriptors import DescriptorShare
from metadata.node.admission.door import AdmissionVerdict, Door
from metadata.node.peers.accepting import Acceptor, listeners

_log = logging.getLogger(__name__)

_SWEEP_S_MAX: Final = 1.0
_KEEPALIVE_S: Final = 60


@dataclass(frozen=True, slots=True)
class SocketSettings:
    """How many connections there may be, how long each may take, and whom they are for."""

    connections_max: int = CONNECTIONS_MAX
    patience: Patience = field(default_factory=Patience)
    drain_s: float = 2.0
    """How long a stopping server goes on sending what is queued."""
    require: Requirement = "none"
    """What every peer must show."""
    token: SecretStr | None = None
    """Opens everything to a peer that has it."""
    ticket_grace_us: int = 0
    """How long a ticket is good after its end."""
    tls: ssl.SSLContext | None = None
    """The server's side of TLS; None speaks none."""
    selection_bytes: int = SELECTION_BYTES_DEFAULT
    """Of all answers to fetches that leave something out."""


class SocketServer:
    """Serves readers from `start` to `stop`; to be used on one event loop's thread."""

    def __init__(
        self,
        directory: StreamDirectory,
        identity: ServerIdentity,
        executor: Executor,
        clock: Clock,
        groups: GroupRequests,
        settings: SocketSettings | None = None,
    ) -> None:
        """``executor`` runs what would block on the disk: reading and verifying cold ranges."""
        self._settings = settings or SocketSettings()
        self.door = Door("readers", DescriptorShare.READERS, self._settings.connections_max)
        self._loop = asyncio.get_running_loop()
        self._dispatcher = RequestDispatcher(
            directory=directory,
            identity=identity,
            executor=executor,
            clock=clock,
            groups=groups,
            selection_bytes=self._settings.selection_bytes,
        )
        self.counters = self._dispatcher.counters
        self.ticket_refusals = TicketRefusals(clock)
        self._catch_up_queue = directory.catch_up_queue
        self._services = ConnectionServices(
            loop=self._loop,
            executor=executor,
            clock=clock,
            patience=self._settings.patience,
            requests=self._dispatcher,
            introduced=self._on_introduced,
            closed=self._on_closed,
            selection_taken=self._dispatcher.selections.taken,
            selection_ahead=self._dispatcher.selections.has_spare,
            gate=Gate(
                self._settings.require,
                self._settings.token,
                lambda: directory.catalog.ticket_keys,
                clock.wall,
                self._settings.ticket_grace_us,
            ),
            ticket_refusals=self.ticket_refusals,
            catch_up_queue=self._catch_up_queue,
            counters=self.counters,
        )
        self._connections: set[SocketConnection] = set()
        self._strangers: dict[SocketConnection, None] = {}  # without a hello, in the order in which they came
        self._acceptors: list[Acceptor] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def connections(self) -> int:
        """How many readers are connected."""
        return len(self._connections)

    @property
    def parked(self) -> int:
        """How many fetches wait for records."""
        return self._dispatcher.parked

    @property
    def turns_awaited(self) -> int:
        """How often a reader that catches up had to wait, since something was stored."""
        return self._catch_up_queue.awaited

    @property
    def buffered_bytes(self) -> int:
        """Bytes in memory that wait for readers to take them."""
        return sum(connection.buffered_bytes for connection in self._connections)

    @property
    def selections(self) -> Selections:
        """The answers to fetches that leave something out."""
        return self._dispatcher.selections

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; return the address, with the port that was free if ``port`` is 0.

        Raises:
            OSError: the address cannot be had.
        """
        assert not self._acceptors, "a server is started once"
        found = await listeners(host, port)
        self._acceptors = [Acceptor(listener, self._admit, self._loop) for listener in found]
        self._sweep()
        bound = found[0].getsockname()
        _log.info("socket server listening host=%s port=%d", bound[0], bound[1])
        return str(bound[0]), int(bound[1])

    async def stop(self) -> None:
        """Accept no more, answer what is parked, send what is queued for a moment, then close everything."""
        for acceptor in self._acceptors:
            acceptor.stop()
        self._acceptors.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._dispatcher.stop()
        for connection in tuple(self._connections):
            connection.leave()
        try:
            async with asyncio.timeout(self._settings.drain_s):
                await self._empty.wait()
        except TimeoutError:
            _log.info("socket server stops with slow readers connections=%d", self.connections)
        finally:
            for connection in tuple(self._connections):
                connection.close()
            await self._dispatcher.selections.stop()
        assert not self._connections, "N5: a stopped server has no connections"

    def stream_gone(self, name: StreamName) -> None:
        """Answer the fetches parked on ``name``, which was deleted or went offline."""
        self._dispatcher.stream_gone(name)

    def _admit(self, sock: socket.socket, peer: str) -> None:
        verdict = self.door.verdict(len(self._connections), len(self._strangers), sock.fileno())
        if verdict is AdmissionVerdict.REFUSE:
            if self._settings.tls is None:
                turn_away(sock)
            else:
                sock.close()  # before a handshake nothing can be said
            return
        if verdict is AdmissionVerdict.DISPLACE:
            next(iter(self._strangers)).close()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        tls = self._settings.tls
        line = SocketLine(sock, peer, self._loop) if tls is None else TlsLine(sock, peer, self._loop, tls)
        connection = SocketConnection(line, self._services)
        self._connections.add(connection)
        self._strangers[connection] = None
        self._empty.clear()
        self.counters.connections_opened += 1
        connection.start()

    def _on_introduced(self, connection: SocketConnection) -> None:
        self._strangers.pop(connection, None)

    def _on_closed(self, connection: SocketConnection) -> None:
        self._connections.discard(connection)
        self._strangers.pop(connection, None)
        if not self._connections:
            self._empty.set()

    def _sweep(self) -> None:
        """Look for overdue peers, often enough that no bound is overrun by more than a quarter."""
        for connection in tuple(self._connections):
            connection.check()
        period = min(_SWEEP_S_MAX, self._settings.patience.shortest_ns / 4e9)
        self._sweeper = self._loop.call_later(period, self._sweep)
