"""The unsent output of a connection: headers from memory, bodies from segment files.

A body is a range of a leased segment file, not in our memory; what was selected of one, and one of a few
kilobytes, goes out with its header, from memory. Whether a body's pages are in the page cache is asked
before each turn (``preadv`` with ``RWF_NOWAIT``), because ``sendfile`` would stop the event loop for a disk
read.

`stored_range` is for short-circuit reads: the place of a body, for readers on this machine that may read the
file themselves.

Nothing is lent: a reader opens the file by its name, if the system lets it, and knows by device and inode
whether it is still that one. The bytes have the checksums, offsets and epoch that a body has on the way.
"""

import os
from collections import deque

from pydantic import ValidationError

from envelope.errors import StorageError
from jetstream.node.disk.leased_range import Body
from jetstream.node.readers.line import SocketLine
from jetstream.protocol.responses import StoredRangeResponse


def stored_range(body: Body) -> StoredRangeResponse | None:
    """Return where ``body``, which is leased, lies; None: it is small or has no such place, send it."""
    if body.is_small:
        return None
    try:
        path = os.readlink(f"/proc/self/fd/{body.fileno}")
        status = os.fstat(body.fileno)
    except OSError:
        return None
    if not status.st_nlink:  # removed, and open only by its leases
        return None
    try:
        return StoredRangeResponse(
            path=path,
            device=status.st_dev,
            inode=status.st_ino,
            position=body.position,
            length=body.end - body.position,
        )
    except ValidationError:  # a path that is no text or not within our root, a number beyond the protocol's
        return None


class SocketOutput:
    """The queue of one connection.

    Invariants:
        N1: a body follows its header with nothing in between.
            Held by test_socket_server.py.
        N2: every body that was put in is released exactly once.
            Held by test_socket_peers.py.
    """

    def __init__(self) -> None:
        self.items: deque[memoryview | Body] = deque()
        """What waits, in order; for others to look at."""
        self.memory_bytes = 0
        """Bytes of memory that wait."""
        self.bodies = 0
        """Bodies that wait."""

    def put(self, head: bytes, body: Body | memoryview | None = None) -> None:
        """Queue one response."""
        self.items.append(memoryview(head))
        self.memory_bytes += len(head)
        if body is None:
            return
        self.items.append(body)
        if isinstance(body, Body):
            self.bodies += 1
        else:
            self.memory_bytes += len(body)

    @property
    def catches_up(self) -> bool:
        """Whether the body that is next is one of a reader that catches up."""
        first = next((item for item in self.items if isinstance(item, Body)), None)
        return first is not None and first.catches_up

    @property
    def is_within_body(self) -> bool:
        """Whether some of the body that is next has been sent."""
        first = self.items[0] if self.items else None
        return isinstance(first, Body) and first.position > first.file_range.position

    def send_some(self, line: SocketLine, length: int) -> int:
        """Send from the first item, at most ``length`` bytes; return how much was taken.

        Raises:
            BlockingIOError: the peer's window is full.
            StorageError: the file ended inside the range: nothing sensible can follow.
            OSError: the connection is gone.
        """
        first = self.items[0]
        if isinstance(first, Body):
            return self._send_body(line, first, length)
        data = first if len(first) <= length else first[:length]
        sent = line.send(data, more=len(self.items) > 1)
        self.memory_bytes -= sent
        if sent == len(first):
            self.items.popleft()
        else:
            self.items[0] = first[sent:]
        return sent

    def _send_body(self, line: SocketLine, body: Body, length: int) -> int:
        sent = line.send_file(body.fileno, body.position, min(length, body.end - body.position))
        if sent == 0:
            raise StorageError(f"segment {body.file_range.segment.base} ends at byte {body.position}")
        body.position += sent
        if body.position == body.end:
            self.items.popleft()
            self.bodies -= 1
            body.release()
        return sent

    def clear(self) -> None:
        """Drop everything and release all bodies."""
        for item in self.items:
            if isinstance(item, Body):
                item.release()
        self.items.clear()
        self.memory_bytes = self.bodies = 0
