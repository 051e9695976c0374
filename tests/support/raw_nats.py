"""A client of NATS that sends whatever bytes it is given, and takes nothing apart but lines.

Official clients check subjects before they send. An adversary does not.
"""

import asyncio
import json
from typing import Final, Self

from tests.support.parsed_stream import Message, parsed_by_reference

TIMEOUT_S: Final = 30.0
_CONNECT: Final = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":false}\r\n'


class RawNats:
    """One connection; what the server said since the last look is in `heard`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.heard = b""
        self._pings = 0

    @classmethod
    async def connect(cls, port: int) -> Self:
        """Connect, without credentials."""
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await reader.readline()
            writer.write(_CONNECT)
            self = cls(reader, writer)
            await self.flush()
        return self

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)

    def publish(
        self, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes | None = None
    ) -> None:
        """Send a PUB or a HPUB, whatever is in it."""
        target = subject + b" " + (reply + b" " if reply else b"")
        if header is None:
            self.send(b"PUB %b%d\r\n%b\r\n" % (target, len(payload), payload))
        else:
            size = len(header) + len(payload)
            self.send(b"HPUB %b%d %d\r\n%b%b\r\n" % (target, len(header), size, header, payload))

    async def flush(self) -> None:
        """Return when the server has handled what was sent; what it had to say meanwhile is in `heard`."""
        self.send(b"PING\r\n")
        self._pings += 1
        async with asyncio.timeout(TIMEOUT_S):
            await self._writer.drain()
            while len(parsed_by_reference(self.heard).controls) < self._pings:
                chunk = await self._reader.read(1 << 20)
                assert chunk, f"the server closed the connection: {self.heard[-200:]!r}"
                self.heard += chunk

    def forget(self) -> None:
        """Begin anew to hear."""
        self.heard = b""
        self._pings = 0

    async def answer(self, inbox: bytes, count: int = 1) -> list[dict[str, object]]:
        """Return the JSON of the first messages that come on ``inbox``, which this is subscribed to."""
        async with asyncio.timeout(TIMEOUT_S):
            while len(found := [each for each in self.messages() if each[0] == inbox]) < count:
                await self.flush()
        return [json.loads(payload) for _, _, payload, _ in found]

    def messages(self) -> list[Message]:
        """Return the messages that came so far, of all subscriptions."""
        parsed = parsed_by_reference(self.heard)
        return [message for segment in parsed.segments for of_sid in segment.values() for message in of_sid]

    def close(self) -> None:
        """Hang up."""
        self._writer.close()
