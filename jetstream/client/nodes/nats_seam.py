"""The private seam to nats-py: commands written as one block, messages of one subscription taken as a run.

nats-py spends some 20 µs of Python on a message and on its answer. Here commands go into its buffer as they
are, and so through its flusher, its limits and its reconnect; answers are taken out of the bytes that come,
before its parser, which gets everything else. The package pins nats-py's minor version. The node's seam
(`jetstream.node.nats.parser_seam`) replaces the parser; a client's connection is the application's too.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Self

from nats.aio.client import Client as NatsClient
from nats.protocol.parser import Parser

from envelope.errors import ConnectionLost, Overloaded
from jetstream.client.nodes.denials import Denials

# ruff: noqa: SLF001 - this module is the adapter to nats-py's private attributes

Take = Callable[[bytes, int], int]
"""Takes messages out of bytes, from a position on that begins with one of its lines; returns where it ended:
at the position itself if there is no whole message that it takes."""

_PIECES_MAX: Final = 16
"""Pieces that are written as they are: to join few large ones costs a copy, many small ones cost more."""


async def write(client: NatsClient, pieces: Sequence[bytes], messages: int, payload_bytes: int) -> None:
    """Give nats-py commands that are ready, as its `publish` would; wait while its buffer is full.

    Args:
        client: of nats-py.
        pieces: of whole commands.
        messages: how many they publish.
        payload_bytes: of these.

    Raises:
        Overloaded: NATS is away and the buffer for it is full; nothing is sent.
        ConnectionLost: the connection is closed, or about to be; nothing is sent.
    """
    if client.is_closed or client.is_draining_pubs:
        raise ConnectionLost("NATS: the connection is closed")
    size = sum(map(len, pieces))
    room = client._max_pending_size - client._pending_data_size
    if not client.is_connected and (client._max_pending_size <= 0 or size > room):
        raise Overloaded("NATS is away and the buffer for it is full")
    if len(pieces) > _PIECES_MAX:
        pieces = (b"".join(pieces),)
    client.stats["out_msgs"] += messages
    client.stats["out_bytes"] += payload_bytes
    client._pending += pieces[:-1]
    client._pending_data_size += size - len(pieces[-1])
    await client._send_command(pieces[-1])
    if client._flush_queue is not None and client._flush_queue.empty():
        await client._flush_pending()


class RunParser:
    """Stands where nats-py keeps its parser, and takes the messages of one subscription before that does.

    It follows the lines and sizes of all that comes, so that it knows where a message begins. A message of
    the subscription that is not complete is held until it is; anything else goes on at once.
    """

    def __init__(self, parser: Parser) -> None:
        """Pass everything on to ``parser``, until something is to be taken."""
        self._parser = parser
        self._line: bytes | None = None
        """What the lines of the subscription's messages begin with."""
        self._take: Take = lambda _data, position: position
        self.denials = Denials()
        """nats-py reads the server's complaints in lower case."""
        self.reset()

    @classmethod
    def install(cls, client: NatsClient) -> None:
        """Install one into ``client``, which is not connected yet."""
        client._ps = cls(client._ps)  # type: ignore[assignment]  # the seam: same methods, not the same class

    @classmethod
    def of(cls, client: NatsClient) -> Self:
        """Return the one that was installed."""
        parser: object = client._ps
        assert isinstance(parser, cls), "connect_nats installs it"
        return parser

    def take(self, line: bytes, take: Take) -> None:
        """Call ``take`` for messages whose line begins with ``line``."""
        self._line, self._take = line, take

    def reset(self) -> None:
        """Begin with a new connection."""
        self._held = b""
        self._owed = 0
        """Bytes to come of a message that the parser has the beginning of."""
        self._is_lost = False
        self._parser.reset()

    async def parse(self, data: bytes = b"") -> None:
        """Take what is to be taken, and pass everything else on, in order.

        Raises:
            nats.errors.ProtocolError: the server sent garbage; nats-py then reconnects.
        """
        if self._is_lost:
            await self._parser.parse(data)
            return
        if self._held:
            data, self._held = self._held + data, b""
        start = 0
        position = min(self._owed, len(data))
        self._owed -= position
        while position < len(data):
            is_ours = self._line is not None and data.startswith(self._line, position)
            taken = self._take(data, position) if is_ours else position
            if taken > position:
                await self._parser.parse(data[start:position])
                start = position = taken
                continue
            end = _message_end(data, position)
            if end is None:
                self._is_lost = True  # until the next connection: it is for the parser to say what is wrong
                position = len(data)
            elif end < 0 or (is_ours and end > len(data)):
                self._held = data[position:]
                break
            else:
                if data.startswith(b"-ERR", position):
                    self.denials.on_complaint(data[position:end])
                self._owed = max(0, end - len(data))
                position = min(end, len(data))
        if start < position:
            await self._parser.parse(data[start:position])


def is_cancelled() -> bool:
    """Return whether the current task was cancelled, and not just a future of nats-py's that it waits for."""
    return _cancellations() > 0


@contextmanager
def no_lost_cancellation() -> Iterator[None]:
    """Raise at the end of the block if the current task was cancelled in it.

    `asyncio.wait_for` of Python 3.11 loses that where what is waited for comes in the same turn of the loop.
    """
    before = _cancellations()
    try:
        yield
    finally:
        if _cancellations() > before:
            raise asyncio.CancelledError


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _message_end(data: bytes, position: int) -> int | None:
    """Return where the message or control line ends that begins here, perhaps beyond ``data``.

    -1: its line is not complete. None: it has no size.
    """
    line_end = data.find(b"\r\n", position)
    if line_end < 0:
        return -1
    if not data.startswith((b"MSG", b"HMSG"), position):
        return line_end + 2
    size = data[position:line_end].split()[-1]
    return line_end + 2 + int(size) + 2 if size.isdigit() else None
