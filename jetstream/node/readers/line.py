"""The socket under one reader's connection: raw, non-blocking, watched by the event loop.

`SocketLine` is the plain one, whose bodies leave by ``os.sendfile``; `TlsLine` is the one with TLS.

`TlsLine` is the same raw socket, with `ssl.MemoryBIO` between it and us.

The handshake is bytes that come and go like all others, so it holds up nobody; its deadline is that of the
hello, which follows it. ``sendfile`` cannot be used: a body is read from the page cache (into which a thread
has read what was cold, as without TLS), encrypted on the loop's thread and sent, a chunk at a time.

Why not a non-blocking `ssl.SSLSocket`: there a write may want to read first, and a read to write; here only
the socket can be full.
"""

import asyncio
import fcntl
import os
import socket
import ssl
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from envelope.errors import TlsFailed
from envelope.limits import KIB

NO_TLS: Final = "this port speaks TLS, and the peer does not"

_CHUNK_BYTES: Final = 64 * KIB
"""Encrypted at once: four TLS records."""

_HANDSHAKE: Final = 0x16
"""Type of a TLS record, its first byte: what a client begins with (RFC 8446, 5.1)."""

_INT: Final = struct.Struct("i")

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
        self._kept_bytes: int | None = None
        self._sock = sock
        self._loop = loop

    @property
    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    @property
    def taken(self) -> int:
        """Bytes of `sent` that the peer's machine has received."""
        try:
            waiting = fcntl.ioctl(self._sock, termios.TIOCOUTQ, bytes(_INT.size))
        except OSError:  # it is gone, which the next call finds
            return self.sent
        return self.sent - int(_INT.unpack(waiting)[0])

    def keep(self, length: int) -> None:
        """Let the kernel take no more than ``length`` bytes beyond those on their way."""
        if length != self._kept_bytes:
            self._kept_bytes = length
            with suppress(OSError):
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, length)

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

    def end(self) -> None:
        """Send no more; the peer may still do so."""
        with suppress(OSError):  # it is gone, which the next call finds
            self._sock.shutdown(socket.SHUT_WR)

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
    """Return whether the peer is on this machine: it comes from the address that it has come to."""
    try:
        return bool(sock.getpeername()[0] == sock.getsockname()[0])
    except OSError:  # gone already
        return False


class TlsLine(SocketLine):
    """The server's end of TLS on a socket.

    Invariant:
        N9: nothing is encrypted while something encrypted waits for the socket.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        in_clear: bytes,
    ) -> None:
        """``in_clear`` is sent to a peer that does not speak TLS."""
        super().__init__(sock, peer, loop)
        self._in_clear = in_clear
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._rest = memoryview(b"")
        self._begun = False
        self._established = False

    @property
    def unsent(self) -> int:
        """Encrypted bytes that wait for the socket."""
        return len(self._rest) + self._outgoing.pending

    def receive(self, length: int) -> bytes:
        """Decrypt the received bytes and return the plain ones; most of a handshake has none."""
        data = self._received(length)
        if not data:
            return data
        if not self._begun:
            self._begin(data)
        self._incoming.write(data)
        try:
            if not self._established:
                self._tls.do_handshake()
                self._established = True
            return self._decrypted(length)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise TlsFailed(f"{error.reason or error}") from None
        finally:
            self.push()  # our part of the handshake, or the alert with the reason

    def _received(self, length: int) -> bytes:
        """Return the received bytes; an end in the middle of the handshake is a refusal by the peer."""
        try:
            data = super().receive(length)
        except ConnectionError as error:
            if self._begun and not self._established:
                raise TlsFailed(f"the peer has left the handshake: {error}") from None
            raise
        if not data and self._begun and not self._established:
            raise TlsFailed("the peer has left the handshake: perhaps it does not trust the certificate")
        return data

    def _begin(self, data: bytes) -> None:
        """Look at the first bytes: a peer without TLS is refused in plain text."""
        self._begun = True
        if data[0] != _HANDSHAKE:
            self._sock.send(self._in_clear, socket.MSG_NOSIGNAL)
            raise TlsFailed(NO_TLS)

    def _decrypted(self, length: int) -> bytes:
        parts: list[bytes] = []
        try:
            while part := self._tls.read(length):
                parts.append(part)
        except ssl.SSLWantReadError:
            if not parts:
                raise
        return b"".join(parts)

    def send(self, data: memoryview, *, more: bool) -> int:
        """Encrypt a chunk of ``data`` and send it; what the socket does not take at once waits."""
        self._make_room()
        count = self._tls.write(data[:_CHUNK_BYTES])
        self.push()
        return count

    def send_file(self, fileno: int, position: int, length: int) -> int:
        """Read a chunk of the file, which should be in memory, and send it as `send` does."""
        self._make_room()
        data = os.pread(fileno, min(length, _CHUNK_BYTES), position)
        return self.send(memoryview(data), more=False) if data else 0

    def _make_room(self) -> None:
        self.push()
        if self.unsent:
            raise BlockingIOError
        assert not self._outgoing.pending, "N9: everything encrypted is on its way"

    def push(self) -> None:
        """Send what is encrypted."""
        with suppress(BlockingIOError):  # the rest goes when the socket can be written to
            while self.unsent:
                if not self._rest:
                    self._rest = memoryview(self._outgoing.read())
                count = self._sock.send(self._rest, socket.MSG_NOSIGNAL)
                self.sent += count
                self._rest = self._rest[count:]

    def close(self) -> None:
        """Send the end of TLS, if the peer can still get it, and close."""
        if self._established:
            with suppress(ssl.SSLError):  # wants to hear the same of the peer, which nobody waits for
                self._tls.unwrap()
            with suppress(OSError):  # it is gone already
                self.push()
        super().close()
