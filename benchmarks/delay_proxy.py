"""A TCP proxy that adds time to the way and takes away nothing: half of a round trip in each direction.

    python -m benchmarks.delay_proxy --target HOST:PORT --round-trip-ms 20

Bytes are received as they come, stamped with the moment they are due, and sent on then. What is on the way is
bounded (`ON_THE_WAY_BYTES_MAX`), so a receiver that does not take holds up its sender as it does on a wire;
at 10 ms that bound lets 6 GiB a second through. Each end keeps a TCP connection of loopback: windows, losses
and congestion of a long line are not imitated, only its delay.
"""

import argparse
import socket
import threading
import time
from collections import deque
from typing import Final

from benchmarks.helper_process import announce
from jetstream.client.nodes.socket_access import parse_address

ON_THE_WAY_BYTES_MAX: Final = 64 << 20
RECEIVE_BYTES: Final = 1 << 20


class DelayLine:
    """Chunks in the order they came, each due ``delay_s`` after it came."""

    def __init__(self, delay_s: float, bytes_max: int = ON_THE_WAY_BYTES_MAX) -> None:
        self._delay_s = delay_s
        self._bytes_max = bytes_max
        self._chunks: deque[tuple[float, memoryview]] = deque()
        self._bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether another chunk may be put in."""
        return self._bytes < self._bytes_max

    def put(self, chunk: memoryview, now: float) -> None:
        """Put in a chunk that has arrived ``now``; an empty one is the end of the stream."""
        self._chunks.append((now + self._delay_s, chunk))
        self._bytes += len(chunk)

    def wait_s(self, now: float) -> float | None:
        """Return how long it is until a chunk is due, 0 if one is; None if there is none."""
        return max(0.0, self._chunks[0][0] - now) if self._chunks else None

    def take(self) -> memoryview:
        """Take out the first chunk."""
        _, chunk = self._chunks.popleft()
        self._bytes -= len(chunk)
        return chunk


class _Direction:
    """One direction of one connection: a thread that receives, a thread that sends, a line between them."""

    def __init__(self, source: socket.socket, sink: socket.socket, delay_s: float) -> None:
        self._source = source
        self._sink = sink
        self._line = DelayLine(delay_s)
        self._changed = threading.Condition()
        # Used again, the last one first: fresh memory would cost more than the way through the kernel.
        self._rooms: deque[bytearray] = deque()

    def start(self) -> None:
        for work in (self._receive, self._send):
            threading.Thread(target=work, daemon=True).start()

    def _receive(self) -> None:
        while True:
            room = self._rooms.pop() if self._rooms else bytearray(RECEIVE_BYTES)
            try:
                chunk = memoryview(room)[: self._source.recv_into(room)]
            except OSError:
                chunk = memoryview(b"")  # a connection that breaks ends the direction, as one that is closed
            with self._changed:
                self._changed.wait_for(lambda: self._line.has_room)
                self._line.put(chunk, time.monotonic())
                self._changed.notify_all()
            if not chunk:
                return

    def _send(self) -> None:
        while chunk := self._next():
            try:
                self._sink.sendall(chunk)
            except OSError:
                break
            room = chunk.obj
            assert isinstance(room, bytearray), "every chunk lies in a room"
            self._rooms.append(room)
        # Both threads of the other direction are woken by this as well.
        for sock in (self._sink, self._source):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it is closed already

    def _next(self) -> memoryview:
        """Wait until a chunk is due and return it."""
        with self._changed:
            while (wait_s := self._line.wait_s(time.monotonic())) != 0.0:
                self._changed.wait(wait_s)
            chunk = self._line.take()
            self._changed.notify_all()
            return chunk


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=parse_address, required=True)
    parser.add_argument("--round-trip-ms", type=float, required=True)
    arguments = parser.parse_args()
    delay_s = arguments.round_trip_ms / 2000
    with socket.create_server(("127.0.0.1", 0)) as listener:
        announce("ready", port=listener.getsockname()[1])
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(arguments.target)
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _Direction(client, server, delay_s).start()
            _Direction(server, client, delay_s).start()


if __name__ == "__main__":
    main()
