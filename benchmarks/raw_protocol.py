"""The socket protocol spoken without the client library: for a thousand connections of one process.

Source: docs/protocol.md, frames of a JSON header and a body.
"""

import json
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any, Final

from jetstream.client.nodes.socket_access import parse_address

PREFIX: Final = struct.Struct("<IQ")
TIMEOUT_SECONDS: Final = 30.0

# Headers are JSON objects of a shape for each request.
Header = dict[str, Any]


class RefusedByNode(Exception):
    """The node answered a request of the benchmark's own with an error."""


def encode(**request: object) -> bytes:
    """Return one request as it travels."""
    header = json.dumps(request).encode()
    return PREFIX.pack(len(header), 0) + header


@dataclass(slots=True)
class Frames:
    """Takes any bytes, gives whole responses."""

    held: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[tuple[Header, bytes]]:
        """Return the headers and bodies that are complete now.

        Raises:
            RefusedByNode: one of them is an error.
        """
        self.held += data
        frames = []
        position = 0
        while len(self.held) - position >= PREFIX.size:
            header_length, body_length = PREFIX.unpack_from(self.held, position)
            middle = position + PREFIX.size + header_length
            if middle + body_length > len(self.held):
                break
            header: Header = json.loads(self.held[position + PREFIX.size : middle])
            if "error" in header:
                raise RefusedByNode(f"{header['error']}")
            position = middle + body_length
            frames.append((header, bytes(self.held[middle:position])))
        del self.held[:position]
        return frames


class BlockingConnection:
    """One connection that asks and waits."""

    def __init__(self, address: str, **shown: str) -> None:
        """Connect to ``host:port`` and say hello; ``shown``: a token or a ticket, where it needs one."""
        self.socket = socket.create_connection(parse_address(address), TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = Frames()
        self.ask(op="hello", id=0, protocol=1, client="benchmark", **shown)

    def ask(self, **request: object) -> Header:
        """Send one request and return the header of its answer."""
        (answer,) = self.exchange(encode(**request), 1)
        return answer

    def exchange(self, requests: bytes, count: int) -> list[Header]:
        """Send so many requests at once and return the headers of their answers."""
        self.socket.sendall(requests)
        answers: list[Header] = []
        while len(answers) < count:
            data = self.socket.recv(65536)
            if not data:
                raise RefusedByNode("the node closed the connection")
            answers += [header for header, _ in self._frames.feed(data)]
        return answers


def ping_us(address: str, stream: str) -> float:
    """Return the time of a request that reads nothing, in microseconds."""
    connection = BlockingConnection(address)
    times = []
    for number in range(1, 22):
        start = time.perf_counter()
        connection.ask(op="list_offsets", id=number, stream=stream, at="latest")
        times.append(time.perf_counter() - start)
    connection.socket.close()
    return 1e6 * sorted(times)[len(times) // 2]
