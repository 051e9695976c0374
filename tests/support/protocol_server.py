"""A server of asyncio protocols that loses no connection when it stops.

See `metadata.node.peers.accepting`.
"""

import asyncio
import socket
from collections.abc import Callable

from metadata.node.peers.accepting import Acceptor


class ProtocolServer:
    """Lets peers in at a socket of loopback, each with a protocol of its own, until it is stopped."""

    def __init__(
        self, factory: Callable[[], asyncio.Protocol], tasks: asyncio.TaskGroup, port: int = 0
    ) -> None:
        self._factory = factory
        self._tasks = tasks
        self._stopped = False
        listener = socket.create_server(("127.0.0.1", port))
        self.port: int = listener.getsockname()[1]
        self._acceptor = Acceptor(listener, self._accepted, asyncio.get_running_loop())

    def stop(self) -> None:
        """Refuse peers from now on, those included that have no protocol yet; connections stay."""
        self._stopped = True
        self._acceptor.stop()

    def _accepted(self, sock: socket.socket, peer: str) -> None:
        self._tasks.create_task(self._take_in(sock), name=peer)

    async def _take_in(self, sock: socket.socket) -> None:
        if self._stopped:
            sock.close()
        else:
            await asyncio.get_running_loop().connect_accepted_socket(self._factory, sock)
