"""Very many connections from one process, without the client library: what a node has to bear.

    python -m benchmarks.socket_swarm KIND --address HOST:PORT --connections N

- ``parked``: each connection waits in a long poll at the end of the stream. An append wakes all; when all
  have it, ``reached`` says when the first and the last had it, and all wait again: ``parked`` says that the
  node has every wait. (Behind each fetch goes a request that is answered at once: a node serves a
  connection's requests in order, so the fetch is parked when that answer comes.)
- ``subscribed``: the same for a NATS server: each connection has a plain subscription.
- ``stalled``: each connection asks for a lot and never reads an answer.
- ``stalled_parts``: the same, of one column: answers that the node makes in memory.
"""

import argparse
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.helper_process import announce
from benchmarks.raw_protocol import BlockingConnection, Frames, Header, encode
from benchmarks.systems import SUBJECT, stream_name
from jetstream.client.nodes.socket_access import parse_address
from jetstream.log.format.batch import decode

STREAM: Final = stream_name(0)
RECEIVE_BYTES: Final = 65_536
STALLED_FETCHES: Final = 200
"""Of each connection that does not read; a node takes 256."""
STALLED_PART_FETCHES: Final = 16
"""As many as the client library asks ahead."""
STALLED_FETCH_BYTES: Final = 64 << 20


class Unexpected(Exception):
    """A connection received something else than its peers, or was closed."""


@dataclass(slots=True)
class Round:
    """One append on its way to all connections."""

    connections: int
    bodies: set[bytes] = field(default_factory=set)
    first_ns: int = 0
    last_ns: int = 0
    reached: int = 0

    def arrived(self, body: bytes, now_ns: int) -> bool:
        """Count one connection; True when all have the append.

        Raises:
            Unexpected: it is not what the others received.
        """
        self.bodies.add(body)
        if len(self.bodies) > 1:
            raise Unexpected("two connections received different bytes")
        self.first_ns = self.first_ns or now_ns
        self.last_ns = now_ns
        self.reached += 1
        return self.reached == self.connections


@dataclass(slots=True)
class ParkedReaders:
    """Long polls of one stream, all at the same offset."""

    address: str
    connections: int
    wait_ms: int
    offset: int = 0
    settled: int = 0
    round: Round = field(default_factory=lambda: Round(0))
    members: list["ParkedReader"] = field(default_factory=list)

    def open(self) -> list["ParkedReader"]:
        """Connect all and park them at the end of the stream."""
        for _ in range(self.connections):
            connection = BlockingConnection(self.address)
            self.offset = connection.ask(op="list_offsets", id=1, stream=STREAM, at="latest")["offset"]
            connection.socket.setblocking(False)
            self.members.append(ParkedReader(self, connection.socket))
        self.park_all()
        return self.members

    def park_all(self) -> None:
        """Begin a round."""
        self.round, self.settled = Round(self.connections), 0
        for member in self.members:
            member.ask(settle=True)

    def on_settled(self) -> None:
        """Hear that a node has one more of the waits."""
        self.settled += 1
        if self.settled == self.connections:
            announce("parked", offset=self.offset)

    def on_record(self, header: Header, body: bytes) -> None:
        """Take in an append that has reached one connection."""
        now_ns = time.time_ns()
        if (header["start_offset"], header["records"]) != (self.offset, 1):
            raise Unexpected(f"waited for the record {self.offset}, got {header}")
        if not self.round.arrived(body, now_ns):
            return
        _, records = decode(body)
        first, last = self.round.first_ns, self.round.last_ns
        announce("reached", append_ns=records.column(1)[0].value * 1000, first_ns=first, last_ns=last)
        self.offset += 1
        self.park_all()


@dataclass(slots=True)
class ParkedReader:
    """One of them. Its fetches have even ids, the requests behind them odd ones."""

    swarm: ParkedReaders
    socket: socket.socket
    frames: Frames = field(default_factory=Frames)
    next_id: int = 2

    def ask(self, *, settle: bool) -> None:
        """Send the next fetch and, to be told that it is parked, a request that does not wait."""
        swarm = self.swarm
        fetch = encode(
            op="fetch", id=self.next_id, stream=STREAM, offset=swarm.offset, max_wait_ms=swarm.wait_ms
        )
        behind = encode(op="list_offsets", id=self.next_id + 1, stream=STREAM, at="latest") if settle else b""
        self.next_id += 2
        self.socket.sendall(fetch + behind)

    def received(self, data: bytes) -> None:
        """Take in responses."""
        for header, body in self.frames.feed(data):
            if header["id"] % 2:
                self.swarm.on_settled()
            elif header["records"]:
                self.swarm.on_record(header, body)
            else:
                self.ask(settle=False)  # the wait is over: wait again


@dataclass(slots=True)
class Subscribers:
    """Plain NATS subscriptions to one subject."""

    address: str
    connections: int
    round: Round = field(default_factory=lambda: Round(0))

    def open(self) -> list["Subscriber"]:
        """Connect all; a PONG says that the server has the subscription."""
        members = [Subscriber(self, self._connect()) for _ in range(self.connections)]
        self.round = Round(self.connections)
        announce("parked", offset=0)
        return members

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(parse_address(self.address))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(b'CONNECT {"verbose":false}\r\nSUB %s 1\r\nPING\r\n' % SUBJECT.encode())
        heard = b""
        while b"PONG\r\n" not in heard:
            received = sock.recv(RECEIVE_BYTES)
            if not received:
                raise Unexpected(f"NATS closed a connection: {heard!r}")
            heard += received
        sock.setblocking(False)
        return sock

    def on_message(self, message: bytes) -> None:
        """Take in a message that has reached one connection."""
        if self.round.arrived(message, time.time_ns()):
            announce("reached", append_ns=0, first_ns=self.round.first_ns, last_ns=self.round.last_ns)
            self.round = Round(self.connections)
            announce("parked", offset=0)


@dataclass(slots=True)
class Subscriber:
    """One of them."""

    swarm: Subscribers
    socket: socket.socket
    held: bytes = b""

    def received(self, data: bytes) -> None:
        """Take in a whole message; one is under way at a time."""
        self.held += data
        if self.held.startswith(b"PING\r\n"):
            self.socket.sendall(b"PONG\r\n")
            self.held = self.held.removeprefix(b"PING\r\n")
        head, newline, rest = self.held.partition(b"\r\n")
        if newline and len(rest) == int(head.split()[-1]) + 2:
            self.held = b""
            self.swarm.on_message(rest)


def stall(address: str, connections: int, fetches: int, **part: object) -> None:
    """Ask for a lot, or for ``part`` of it, on every connection, read nothing, until standard input ends."""
    sockets = []
    for _ in range(connections):
        connection = BlockingConnection(address)
        for number in range(1, fetches + 1):
            connection.socket.sendall(
                encode(op="fetch", id=number, stream=STREAM, offset=0, max_bytes=STALLED_FETCH_BYTES, **part)
            )
        sockets.append(connection.socket)
    announce("stalled", connections=len(sockets))
    sys.stdin.read()


def _watch(members: Sequence[ParkedReader | Subscriber]) -> None:
    """Give every member what arrives for it, until this process is stopped."""
    by_fileno = {member.socket.fileno(): member for member in members}
    poll = select.epoll()
    for fileno in by_fileno:
        poll.register(fileno, select.EPOLLIN)
    while True:
        for fileno, _ in poll.poll():
            member = by_fileno[fileno]
            data = member.socket.recv(RECEIVE_BYTES)
            if not data:
                raise Unexpected("a connection was closed")
            member.received(data)


def main() -> None:
    """Be what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("parked", "subscribed", "stalled", "stalled_parts"))
    parser.add_argument("--address", required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--wait-ms", type=int, default=60_000)
    arguments = parser.parse_args()
    address, connections = arguments.address, arguments.connections
    if arguments.kind == "stalled":
        stall(address, connections, STALLED_FETCHES)
    elif arguments.kind == "stalled_parts":
        stall(address, connections, STALLED_PART_FETCHES, columns=["value"])
    elif arguments.kind == "parked":
        _watch(ParkedReaders(address, connections, arguments.wait_ms).open())
    else:
        _watch(Subscribers(address, connections).open())


if __name__ == "__main__":
    main()
