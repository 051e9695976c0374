"""Listening: sockets, connections that come in, and a task for each, so that stopping leaves none behind.

`asyncio.start_server` loses those that it has accepted and not handed on yet when it is closed: nobody can
close them, and their peers wait until the process ends.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from envelope.errors import StorageError
from metadata.node.admission.descriptors import DescriptorShare
from metadata.node.admission.door import AdmissionVerdict, Door

_log = logging.getLogger(__name__)

ACCEPTS_PER_TURN: Final = 64
"""Connections taken in before the loop does something else."""
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NO_DESCRIPTORS_PAUSE_S: Final = 0.5
_OF_THE_CONNECTION: Final = frozenset(
    (
        *(errno.ENETDOWN, errno.EPROTO, errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.ENONET, errno.EHOSTUNREACH),
        *(errno.EOPNOTSUPP, errno.ENETUNREACH, errno.EPERM, errno.ECONNABORTED, errno.ETIMEDOUT),
    )
)
"""Errors of accept(2) for a connection that is gone, or that a firewall forbids: the next may be good."""
_BACKLOG: Final = 1024
HANDSHAKE_SECONDS: Final = 5.0
"""For TLS, before anything is heard of a peer."""
_CONNECTIONS_MAX: Final = 1024
_NOT_HERE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


async def listeners(host: str, port: int) -> list[socket.socket]:
    """Listen at every address of ``host`` that this machine has; return a socket for each, in their order.

    Raises:
        OSError: the host has none here, or the port is taken at one of them.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    missing: OSError | None = None
    with contextlib.ExitStack() as unless_all:
        listening = []
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                listener = _listener(socket.socket(family, kind, protocol), address)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
            else:
                listening.append(unless_all.enter_context(listener))
        if not listening and missing is not None:
            raise missing
        unless_all.pop_all()
    return listening


def _listener(sock: socket.socket, address: tuple[Any, ...]) -> socket.socket:
    with contextlib.ExitStack() as unless_bound:
        unless_bound.enter_context(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
        unless_bound.pop_all()
    return sock


class Acceptor:
    """Accepts connections at one socket; on one event loop's thread."""

    def __init__(
        self,
        listener: socket.socket,
        accepted: Callable[[socket.socket, str], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Accept them from now on.

        Args:
            listener: listens; belongs to the acceptor now.
            accepted: gets each connection, which does not block, and the peer's address.
            loop: that runs.
        """
        self._listener = listener
        self._accepted = accepted
        self._loop = loop
        self._is_pausing = False
        listener.setblocking(False)
        self._watch()

    def stop(self) -> None:
        """Close the socket; calling again does nothing."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()

    def _watch(self) -> None:
        if self._listener.fileno() >= 0:  # else it was closed during a pause
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OF_THE_CONNECTION:
                    continue
                if error.errno not in _NO_DESCRIPTORS:
                    raise StorageError(f"accept failed: {error}") from error
                if not self._is_pausing:  # told once, however often it is tried in vain
                    _log.warning("accepting paused error=%r runbook=RB-12", error)
                self._is_pausing = True
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(_NO_DESCRIPTORS_PAUSE_S, self._watch)
                return
            self._is_pausing = False
            sock.setblocking(False)
            self._accepted(sock, f"{address[0]}:{address[1]}")


class StreamServer:
    """Talks to peers over asyncio's streams, from `start` to `stop`; on one event loop's thread."""

    def __init__(
        self,
        talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
        *,
        limit: int,
        tls: ssl.SSLContext | None = None,
        door: Door | None = None,
    ) -> None:
        """Prepare to ``talk`` with peers.

        Args:
            talk: gets each connection, which is cut when it returns, and ends when the connection does.
            limit: bytes of a line, and half the bytes that wait to be read.
            tls: the server's side of TLS; None speaks none.
            door: decides about admission; None: one that lets many in.
        """
        self.door = Door("any", DescriptorShare.NODE, _CONNECTIONS_MAX) if door is None else door
        self._talk = talk
        self._limit = limit
        self._tls = tls
        self._acceptors: list[Acceptor] = []
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter | None] = {}
        self._strangers: dict[asyncio.Task[None], None] = {}  # in the order in which they came

    def __len__(self) -> int:
        """How many peers are connected."""
        return len(self._connections)

    def start(self, listener: socket.socket) -> None:
        """Let peers in.

        Args:
            listener: listens, and belongs to the server now; another one at each call.
        """
        self._acceptors.append(Acceptor(listener, self._accepted, asyncio.get_running_loop()))

    async def stop(self) -> None:
        """Let nobody in, cut every connection and wait for their tasks."""
        for acceptor in self._acceptors:
            acceptor.stop()
        self._acceptors.clear()
        for task in self._connections:
            self._cut(task)
        if self._connections:
            await asyncio.wait(tuple(self._connections))

    def introduced(self) -> None:
        """Record that the peer of the running task has introduced itself."""
        task = asyncio.current_task()
        assert task is not None, "a connection has a task"
        self._strangers.pop(task, None)

    def _cut(self, task: asyncio.Task[None]) -> None:
        writer = self._connections[task]
        if writer is None:
            task.cancel()  # between the kernel and us: there is nothing to cut yet
        else:
            writer.transport.abort()

    def _accepted(self, sock: socket.socket, peer: str) -> None:
        verdict = self.door.verdict(len(self._connections), len(self._strangers), sock.fileno())
        if verdict is AdmissionVerdict.REFUSE:
            sock.close()
            return
        if verdict is AdmissionVerdict.DISPLACE:
            first = next(iter(self._strangers))
            del self._strangers[first]
            self._cut(first)
        task = asyncio.get_running_loop().create_task(self._serve(sock), name=f"connection of {peer}")
        self._connections[task] = None
        self._strangers[task] = None
        task.add_done_callback(partial(self._ended, sock))

    async def _serve(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(self._limit, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        patience = None if self._tls is None else HANDSHAKE_SECONDS
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, sock, ssl=self._tls, ssl_handshake_timeout=patience
            )
        except OSError as error:
            _log.debug("an incoming connection broke error=%r", error)
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        task = asyncio.current_task()
        assert task is not None, "a connection has a task"
        self._connections[task] = writer
        try:
            await self._talk(reader, writer)
        finally:
            writer.transport.abort()

    def _ended(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        del self._connections[task]
        self._strangers.pop(task, None)
        sock.close()  # no transport has taken it if the task was cancelled before its first step
        error = None if task.cancelled() else task.exception()
        if error is not None:
            what = f"the {task.get_name()} ended with an error"
            asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})
