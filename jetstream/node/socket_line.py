"""The socket under one reader's connection: raw, non-blocking, watched by the event loop.

`SocketLine` is the plain one, whose bodies leave by ``os.sendfile``; what is different with TLS is in
`jetstream.node.socket_tls`.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Final

_LINGERS: Final = socket.MSG_MORE | socket.MSG_NOSIGNAL

Callback = Callable[[], None]


class SocketLine:
    """Owns an accepted socket until `close`.

    Attributes (read only for users):
        peer: its address, for the log.
        is_local: whether it is on this machine.
        sent: bytes that the kernel has taken for the peer.
        reading, writing: whether the socket is watched for it.
    """

    def __init__(self, sock: socket.socket, peer: str, loop: asyncio.AbstractEventLoop) -> None:
        self.peer = peer
        self.is_local = _is_local(sock)
        self.sent = 0
        self.reading = self.writing = False
        self._sock = sock
        self._loop = loop

    @property
    def unsent(self) -> int:
        """Bytes that `send` or `receive` have made and the kernel has not taken: `push` sends them."""
        return 0

    def receive(self, length: int) -> bytes:
        """Return some bytes, not many more than ``length``; none at the end of the connection.

        Raises:
            BlockingIOError: there is nothing to read yet.
            TlsFailed: the peer speaks TLS wrongly or not at all, or one does not trust the other.
            OSError: the connection is gone.
        """
        return self._sock.recv(length)

    def send(self, data: memoryview, *, more: bool) -> int:
        """Send from ``data``; return how much was taken. ``more``: the next bytes follow at once.

        Raises:
            BlockingIOError: the peer takes nothing now.
            OSError: the connection is gone.
        """
        count = self._sock.send(data, _LINGERS if more else socket.MSG_NOSIGNAL)
        self.sent += count
        return count

    def send_file(self, fileno: int, position: int, length: int) -> int:
        """Send from a file; return how much was taken, 0 at its end. Raises as `send`."""
        count = os.sendfile(self._sock.fileno(), fileno, position, length)
        self.sent += count
        return count

    def push(self) -> None:
        """Send of `unsent` what the peer takes now.

        Raises:
            OSError: the connection is gone.
        """

    def watch(self, reading: Callback | None, writing: Callback | None) -> None:
        """Call back when there is something to read, and when something can be sent; None ends it."""
        if reading is not None and not self.reading:
            self._loop.add_reader(self._sock.fileno(), reading)
        elif reading is None and self.reading:
            self._loop.remove_reader(self._sock.fileno())
        if writing is not None and not self.writing:
            self._loop.add_writer(self._sock.fileno(), writing)
        elif writing is None and self.writing:
            self._loop.remove_writer(self._sock.fileno())
        self.reading, self.writing = reading is not None, writing is not None

    def close(self) -> None:
        """Watch no more and close."""
        self.watch(None, None)
        self._sock.close()


def _is_local(sock: socket.socket) -> bool:
    """Tell whether the peer is on this machine: it comes from the address that it has come to."""
    try:
        return bool(sock.getpeername()[0] == sock.getsockname()[0])
    except OSError:  # gone already
        return False
