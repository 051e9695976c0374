"""The socket server: where readers connect with the socket protocol."""

import asyncio
import ssl
from concurrent.futures import Executor
from dataclasses import dataclass, field

from pydantic import SecretStr

from envelope.limits import CONNECTIONS_MAX
from envelope.types import StreamName
from jetstream.fetch.selection_budget import SELECTION_BYTES_DEFAULT
from jetstream.node.readers.connection import SocketConnection
from jetstream.node.readers.dispatcher import GroupRequests, RequestDispatcher
from jetstream.node.readers.port import ReaderPort
from jetstream.node.readers.ports import StreamDirectory
from jetstream.node.readers.reader_connection import ConnectionServices
from jetstream.node.readers.responses import ServerIdentity
from jetstream.node.readers.selections import Selections
from jetstream.node.readers.ticket_refusals import TicketRefusals
from jetstream.node.runtime.clock import Clock
from jetstream.protocol.connection import encode_farewell
from jetstream.protocol.liveness import Patience
from jetstream.protocol.rights import Gate, Requirement
from metadata.node.admission.descriptors import DescriptorShare
from metadata.node.admission.door import Door


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
    """Serves readers from `start` to `stop`; to be used on one event loop's thread.

    Attributes:
        door: has decided who was let in.
        dispatcher: answers the requests, those of other ports included.
    """

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
        self.dispatcher = RequestDispatcher(
            directory=directory,
            identity=identity,
            executor=executor,
            clock=clock,
            groups=groups,
            selection_bytes=self._settings.selection_bytes,
        )
        self.counters = self.dispatcher.counters
        self.ticket_refusals = TicketRefusals(clock)
        self.gate = Gate(
            self._settings.require,
            self._settings.token,
            lambda: directory.catalog.ticket_keys,
            clock.wall,
            self._settings.ticket_grace_us,
        )
        self._catch_up_queue = directory.catch_up_queue
        self._port = ReaderPort(
            self.door,
            self._settings.patience,
            self._settings.tls,
            lambda line: SocketConnection(line, self._services),
            encode_farewell,
        )
        self._services = ConnectionServices(
            loop=asyncio.get_running_loop(),
            executor=executor,
            clock=clock,
            patience=self._settings.patience,
            requests=self.dispatcher,
            introduced=self._port.introduced,
            closed=self._port.closed,
            gate=self.gate,
            ticket_refusals=self.ticket_refusals,
            catch_up_queue=self._catch_up_queue,
            counters=self.counters,
        )

    @property
    def connections(self) -> int:
        """How many readers are connected."""
        return self._port.connections

    @property
    def parked(self) -> int:
        """How many fetches wait for records."""
        return self.dispatcher.parked

    @property
    def turns_awaited(self) -> int:
        """How often a reader that catches up had to wait, since something was stored."""
        return self._catch_up_queue.awaited

    @property
    def buffered_bytes(self) -> int:
        """Bytes in memory that wait for readers to take them."""
        return self._port.buffered_bytes

    @property
    def selections(self) -> Selections:
        """The answers to fetches that leave something out."""
        return self.dispatcher.selections

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; return the address, with the port that was free if ``port`` is 0.

        Raises:
            OSError: the address cannot be had.
        """
        return await self._port.start(host, port)

    async def stop(self) -> None:
        """Accept no more, answer what is parked, send what is queued for a moment, then close everything."""
        self._port.stop_accepting()
        self.dispatcher.stop()
        try:
            await self._port.stop(self._settings.drain_s)
        finally:
            await self.dispatcher.selections.stop()

    def stream_gone(self, name: StreamName) -> None:
        """Answer the fetches parked on ``name``, which was deleted or went offline."""
        self.dispatcher.stream_gone(name)
