"""A connection of a replication session: messages in, bytes out."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from envelope.errors import RemoteProtocolError
from envelope.limits import KIB, MIB
from jetstream.replica.wire import WireMessage, WireReader

_log = logging.getLogger(__name__)

_FULL_BYTES: Final = 8 * MIB
"""Unsent, above which a line takes nothing large: with one body of `BATCH_BYTES_MAX` more, 16 MiB."""
_ROOM_BYTES: Final = 2 * MIB
"""Unsent, below which it takes more again: enough to keep the wire busy until more is read."""
_JOINED_BYTES_MAX: Final = 64 * KIB
"""Up to it a copy into one piece is cheaper than a list of pieces for the kernel."""

Piece = bytes | bytearray | memoryview


class ConnectionListener(Protocol):
    """The owner of a connection; called on the loop's thread."""

    def received(self, handle: int, message: WireMessage) -> None:
        """Handle a message that came under ``handle``.

        Raises:
            RemoteProtocolError: it may not come from there; the connection is closed.
        """

    def has_room(self) -> None:
        """Send more: the line is no longer full, and this was awaited."""


class PeerConnection(asyncio.Protocol):
    """Made for a connection that has greeted; over once `carry` has returned.

    Messages sent in one turn of the loop go out together at its end.

    Attributes:
        has_sent: whether anything was sent since the owner last set it to false.
        has_received: whether bytes have arrived since the owner last set it to false.
        is_full: whether something large had better wait for `ConnectionListener.has_room`.
        is_awaited: whether the owner waits for `ConnectionListener.has_room`; set by the owner.
    """

    def __init__(
        self, end: ConnectionListener, crashed: Callable[[BaseException], None], writer: asyncio.StreamWriter
    ) -> None:
        """``crashed`` is told an error of ours in what ``end`` does with what arrives."""
        loop = asyncio.get_running_loop()
        self.has_sent = self.has_received = self.is_full = self.is_awaited = False
        self._end = end
        self._crashed = crashed
        self._loop = loop
        self._messages = WireReader()
        self._over: asyncio.Future[None] = loop.create_future()
        self._is_over = False
        self._transport = writer.transport
        self._transport.set_write_buffer_limits(high=_FULL_BYTES, low=_ROOM_BYTES)
        self._pieces: list[Piece] = []
        self._piece_bytes = 0
        self._is_paused = False

    async def carry(self, reader: asyncio.StreamReader) -> None:
        """Take the connection over from its streams; return when it has ended.

        Raises:
            RemoteProtocolError: what arrives makes no sense.
        """
        self._transport.set_protocol(self)
        reader.feed_eof()
        early = await reader.read()  # does not wait: what came with the greeting is all there
        try:
            if early:
                self.data_received(early)
            await self._over
        finally:
            self.close()

    def send(self, *pieces: Piece) -> None:
        """Send in order, or drop it if the line is over; the pieces are not to be changed any more."""
        if self._is_over:
            return
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces += pieces
        self._piece_bytes += sum(map(len, pieces))
        self.has_sent = True
        if self._piece_bytes + self._transport.get_write_buffer_size() > _FULL_BYTES:
            self.is_full = True

    def close(self) -> None:
        """Cut the connection; nothing is received any more."""
        self._end_with(None)
        self._transport.abort()

    def _end_with(self, error: RemoteProtocolError | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._messages.end()
        if self._over.done():  # cancelled with the task
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)

    def _flush(self) -> None:
        pieces, length = self._pieces, self._piece_bytes
        self._pieces, self._piece_bytes = [], 0
        if self._is_over or self._transport.is_closing():
            return
        if length <= _JOINED_BYTES_MAX:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)
        self.is_full = self._is_paused
        if self.is_awaited and not self.is_full:
            self._notify_owner()

    def _notify_owner(self) -> None:
        self.is_awaited = False
        self._end.has_room()

    # --- asyncio.Protocol -------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Hand on what is complete now."""
        self.has_received = True
        try:
            self._messages.feed(data, self._end.received)
        except RemoteProtocolError as error:
            self._end_with(error)
        except Exception as error:  # noqa: BLE001 - ends the sessions, see `ReplicaSessions.run`
            self._crashed(error)
            self.close()

    def pause_writing(self) -> None:
        """Note that much is unsent."""
        self._is_paused = self.is_full = True

    def resume_writing(self) -> None:
        """Note that little is unsent, and notify the owner."""
        self._is_paused = self.is_full = False
        if self.is_awaited:
            self._notify_owner()

    def connection_lost(self, exc: Exception | None) -> None:
        """End `carry`: the connection is gone."""
        if exc is not None:
            _log.debug("a session broke error=%r", exc)
        self._end_with(None)
