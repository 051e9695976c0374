"""TLS under one reader's connection: the same raw socket, with `ssl.MemoryBIO` between it and us.

The handshake is bytes that come and go like all others, so it holds up nobody; its deadline is that of the
hello, which follows it. ``sendfile`` cannot be used: a body is read from the page cache (into which a thread
has read what was cold, as without TLS), encrypted on the loop's thread and sent, a chunk at a time.

Why not a non-blocking `ssl.SSLSocket`: there a write may want to read first, and a read to write; here only
the socket can be full.
"""

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from typing import Final

from envelope.errors import TlsFailed
from envelope.limits import KIB
from jetstream.node.socket_line import SocketLine
from jetstream.protocol.connection import encode_farewell

_CHUNK_BYTES: Final = 64 * KIB
"""Encrypted at once: four TLS records."""

_HANDSHAKE: Final = 0x16
"""Type of a TLS record, its first byte: what a client begins with (RFC 8446, 5.1)."""


class TlsLine(SocketLine):
    """The server's end of TLS on a socket.

    Invariant:
        N9: nothing is encrypted while something encrypted waits for the socket.
    """

    def __init__(
        self, sock: socket.socket, peer: str, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext
    ) -> None:
        super().__init__(sock, peer, loop)
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
        """Take in what has come and return what it says; most of a handshake says nothing."""
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
            self.push()  # our part of the handshake, or the alert that says what is wrong

    def _received(self, length: int) -> bytes:
        """Return what has come; an end in the middle of the handshake is the peer's way to say no."""
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
        """Look at the first bytes: a peer without TLS is told in a way that it understands."""
        self._begun = True
        if data[0] != _HANDSHAKE:
            error = TlsFailed("this port speaks TLS, and the peer does not")
            self._sock.send(encode_farewell(error), socket.MSG_NOSIGNAL)
            raise error

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
        """Say that nothing follows, if the peer can still be told, and close."""
        if self._established:
            with suppress(ssl.SSLError):  # wants to hear the same of the peer, which nobody waits for
                self._tls.unwrap()
            with suppress(OSError):  # it is gone already
                self.push()
        super().close()
