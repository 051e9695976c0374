"""Both sides of TLS on the socket: the server's settings, a client's context, and raw peers."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from jetstream.node.readers.server import SocketSettings
from jetstream.node.settings.credentials import server_context
from jetstream.node.settings.node_config import ServerTlsConfig
from jetstream.protocol.liveness import Patience
from tests.support.nats_identities import TlsFiles
from tests.support.sockets import WAIT_SECONDS, RawPeer, World

T = TypeVar("T")


def settings(
    files: TlsFiles, client_ca: Path | None = None, patience: Patience | None = None
) -> SocketSettings:
    config = ServerTlsConfig(certificate=files.server_certificate, key=files.server_key, client_ca=client_ca)
    return SocketSettings(tls=server_context(config, "socket.tls"), patience=patience or Patience())


def context(files: TlsFiles, identity: TlsFiles | None = None) -> ssl.SSLContext:
    """A client's context that trusts the authority of ``files``, with the certificate of ``identity``."""
    made = ssl.create_default_context(cafile=str(files.ca))
    if identity is not None:
        made.load_cert_chain(identity.client_certificate, identity.client_key)
    return made


class TlsPeer(RawPeer):
    """The same over TLS, taking in what has come only when it is told to receive."""

    def __init__(self, port: int, context: ssl.SSLContext, receive_buffer: int | None = None) -> None:
        super().__init__(port, receive_buffer)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")
        self.was_cut = False
        """Whether the connection ended before the server had said that nothing follows."""

    def client_hello(self) -> bytes:
        """Begin the handshake; return what has to be sent for it."""
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._outgoing.read()

    async def shake_hands(self, piece: int = 1 << 16) -> None:
        """Agree on keys, sending at most ``piece`` bytes at a time."""
        await self._until_done(self._tls.do_handshake, piece)

    async def send(self, data: bytes) -> None:
        self._tls.write(data)
        await super().send(self._outgoing.read())

    async def receive(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            part = await self._until_done(partial(self._tls.read, length - len(data)))
            if not part:
                break
            data += part
        return bytes(data)

    async def _until_done(self, step: Callable[[], T], piece: int = 1 << 16) -> T | None:
        """Repeat ``step``, carrying bytes between it and the socket; None at the end of the connection."""
        while True:
            done: tuple[T] | None = None
            with suppress(ssl.SSLWantReadError):
                done = (step(),)
            while self._outgoing.pending:
                await super().send(self._outgoing.read(piece))
            if done is not None:
                return done[0]
            async with asyncio.timeout(WAIT_SECONDS):
                data = await asyncio.get_running_loop().sock_recv(self.socket, 1 << 16)
            if not data:
                self.was_cut = True
                return None
            self._incoming.write(data)


async def tls_peer(world: World, files: TlsFiles, receive_buffer: int | None = None) -> TlsPeer:
    """A peer that has said hello over TLS."""
    peer = TlsPeer(world.port, context(files), receive_buffer)
    await peer.shake_hands()
    await peer.ask(op="hello", id=0, protocol=1)
    return peer
