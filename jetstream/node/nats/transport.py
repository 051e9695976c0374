"""nats-py's TCP transport, with what arrives handed on at once instead of through a stream reader and a task.

nats-py reads through `asyncio.StreamReader`: each chunk is copied twice more and waits for a turn of the
loop. Here it does so until the connection is set up, TLS included; from its first ``read`` on, chunks go to a
sink from within the loop's read callback, and ``read`` returns only when nats-py has something to do.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, cast
from urllib.parse import ParseResult

from nats.aio.transport import TcpTransport

from envelope.limits import MIB

Sink = Callable[[bytes], None]

_EVERYTHING: Final = 64 * MIB


class _Protocol(asyncio.StreamReaderProtocol):
    """A stream reader's protocol until a sink takes over."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self.reader = reader
        self.sink: Sink | None = None
        self.is_read = False
        """Whether nats-py has begun to read: the set-up is over."""
        self.woken = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        if self.sink is None:
            super().data_received(data)
        else:
            self.sink(data)

    def eof_received(self) -> bool | None:
        self.woken.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.woken.set()
        super().connection_lost(exc)


class DirectTransport(TcpTransport):
    """Hands what arrives to ``sink`` once nats-py has set up the connection.

    Attributes:
        write_transport: where to write past nats-py; None before the first connection.
    """

    def __init__(self, sink: Sink) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # nats-py's transport is untyped
        self.write_transport: asyncio.WriteTransport | None = None
        self._sink = sink
        self._protocol: _Protocol | None = None

    def __bool__(self) -> bool:
        """Return True: nats-py replaces a transport that is false by one of its own."""
        return True

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Connect; what an older connection still delivers is dropped from now on."""
        del buffer_size
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # `asyncio.wait_for` of Python 3.11 may lose that
            raise asyncio.CancelledError
        self.close()  # type: ignore[no-untyped-call]  # nats-py leaves one open whose set-up failed
        protocol = self._fresh_protocol()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_timeout):
            transport, _ = await loop.create_connection(lambda: protocol, uri.hostname or "", uri.port or 0)
        self._adopt(cast("asyncio.WriteTransport", transport), protocol)
        self._bare_io_reader, self._bare_io_writer = self._io_reader, self._io_writer

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Upgrade the connection to TLS."""
        del buffer_size
        assert self._io_writer is not None, "nats-py connects before it upgrades"
        protocol = self._fresh_protocol()
        hostname = uri if isinstance(uri, str) else uri.hostname
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_timeout):
            with _broken_connections():
                transport = await loop.start_tls(
                    self._io_writer.transport, protocol, ssl_context, server_hostname=hostname
                )
        if transport is None:
            raise ConnectionResetError("the connection was lost before TLS")
        self._adopt(transport, protocol)

    def write(self, payload: bytes) -> None:
        """Write what nats-py has to say.

        Raises:
            OSError: the connection broke.
        """
        with _broken_connections():
            super().write(payload)  # type: ignore[no-untyped-call]  # nats-py's transport is untyped

    def writelines(self, payload: Iterable[bytes]) -> None:
        """Write several pieces; raises as `write`."""
        with _broken_connections():
            super().writelines(payload)  # type: ignore[no-untyped-call]  # as above

    def _fresh_protocol(self) -> _Protocol:
        if self._protocol is not None:
            self._protocol.sink = _drop
        self._protocol = _Protocol(asyncio.StreamReader())
        return self._protocol

    def _adopt(self, transport: asyncio.WriteTransport, protocol: _Protocol) -> None:
        self.write_transport = transport
        self._io_reader = protocol.reader
        self._io_writer = asyncio.StreamWriter(
            transport, protocol, protocol.reader, asyncio.get_running_loop()
        )

    def drop(self) -> None:
        """Pass on nothing more of the present connection, once nats-py reads it."""
        if self._protocol is not None and self._protocol.is_read:
            self._protocol.sink = _drop

    async def read(self, buffer_size: int) -> bytes:
        """Return what came during the set-up, once; then nothing, when woken or at the end of the connection.

        Raises:
            OSError: the connection broke.
        """
        del buffer_size
        protocol, reader = self._protocol, self._io_reader
        assert protocol is not None, "nats-py reads once it is connected"
        assert reader is not None, "nats-py reads once it is connected"
        if not protocol.is_read:
            protocol.is_read = True
            data = await reader.read(_EVERYTHING)
            if protocol.sink is None:
                protocol.sink = self._sink
                return data
            return b""  # dropped while this waited
        await protocol.woken.wait()
        protocol.woken.clear()
        error = reader.exception()
        if error is not None:
            raise error
        return b""

    def wake(self) -> None:
        """Let nats-py's read loop come round."""
        if self._protocol is not None:
            self._protocol.woken.set()


@contextmanager
def _broken_connections() -> Iterator[None]:
    """Raise uvloop's `RuntimeError` about a transport that is closed as what it is.

    nats-py does not expect another: its task that reconnects would end, and the client never come back.
    """
    try:
        yield
    except RuntimeError as error:
        raise ConnectionResetError(f"the connection was lost: {error}") from None


def _drop(_: bytes) -> None:
    """Ignore what a connection delivers after it was given up."""
