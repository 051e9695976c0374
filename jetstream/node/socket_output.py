"""What one connection still has to send: headers from memory, bodies from segment files.

A body is a range of a leased segment file, not in our memory; what was selected of one, and one of a few
kilobytes, goes out with its header, from memory. Whether a body's pages are in the page cache is asked
before each turn (``preadv`` with ``RWF_NOWAIT``), because ``sendfile`` would stop the event loop for a disk
read.
"""

import os
from collections import deque
from dataclasses import dataclass
from typing import Final

from envelope.errors import OutOfResources, StorageError
from envelope.limits import KIB
from jetstream.log.readable_log import FileRange
from jetstream.node.socket_line import SocketLine
from metadata.node.descriptors import Share, may_keep

_PROBE_STEP: Final = 128 * KIB
"""The kernel's default read-ahead: pages come and go in about this grain."""

_INLINE_BYTES_MAX: Final = 16 * KIB
"""Below it a copy costs less than the calls that save it."""

_PROBE_BUFFER: Final = bytearray(1)


@dataclass(slots=True, eq=False)
class Body:
    """A leased file range on its way out; ``position`` moves."""

    file_range: FileRange
    fileno: int
    position: int
    end: int
    warm_end: int
    """The page cache held everything below this position a moment ago."""
    catches_up: bool
    """There is more behind it: whoever it is for waits for its turns while something is stored."""

    @classmethod
    def leased(
        cls, file_range: FileRange, *, catches_up: bool = False, share: Share = Share.READERS
    ) -> "Body":
        """Take a lease on the segment, whose file is one of ``share``'s; `release` gives it back.

        Raises:
            UnavailableError: the segment was removed in the meantime.
            OutOfResources: there is no descriptor left for it.
        """
        segment = file_range.segment
        was_open = segment.is_open
        fileno = segment.acquire().fileno()
        if not was_open and not may_keep(share, fileno):
            segment.release()
            raise OutOfResources("no descriptor is left for another segment that is read")
        start = file_range.position
        return cls(file_range, fileno, start, start + file_range.length, start, catches_up)

    def release(self) -> None:
        """Give the segment back."""
        self.file_range.segment.release()

    @property
    def is_small(self) -> bool:
        """Whether it had better go out with its header."""
        return self.end - self.position <= _INLINE_BYTES_MAX

    def taken(self) -> bytes | None:
        """Return all of it from the page cache and release it, if it is small: one call sends it then."""
        if not self.is_small:
            return None
        length = self.end - self.position
        room = bytearray(length)
        try:
            count = os.preadv(self.fileno, [room], self.position, os.RWF_NOWAIT)
        except OSError:  # as in `_cached`
            return None
        if count < length:
            return None
        self.release()
        return bytes(room)

    def is_warm(self, length: int) -> bool:
        """Tell whether the next ``length`` bytes are in the page cache, as far as probes can see."""
        end = min(self.end, self.position + length)
        if end <= self.warm_end:
            return True
        if not all(self._cached(place) for place in (*range(self.position, end, _PROBE_STEP), end - 1)):
            return False
        self.warm_end = end
        return True

    def warm(self, length: int) -> None:
        """Read the next ``length`` bytes into the page cache; blocks, for a thread, with a lease of its own.

        Raises:
            OSError: the disk cannot read them.
        """
        end = min(self.end, self.position + length)
        scratch = bytearray(_PROBE_STEP)
        place = self.position
        while place < end and (count := os.preadv(self.fileno, [scratch], place)):
            place += count
        self.warm_end = end

    def _cached(self, place: int) -> bool:
        try:
            os.preadv(self.fileno, [_PROBE_BUFFER], place, os.RWF_NOWAIT)
        except OSError:
            # EAGAIN: not in memory. EOPNOTSUPP: this file system cannot tell, so a thread goes first.
            return False
        return True


class Output:
    """The queue of one connection.

    Invariants:
        N1: a body follows its header with nothing in between.
        N2: every body that was put in is released exactly once.
    """

    def __init__(self) -> None:
        self._items: deque[memoryview | Body] = deque()
        self.memory_bytes = 0
        """Bytes of memory that wait."""
        self.bodies = 0
        """Bodies that wait."""

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, head: bytes, body: Body | None = None) -> None:
        """Queue one response."""
        self._items.append(memoryview(head))
        self.memory_bytes += len(head)
        if body is not None:
            self._items.append(body)
            self.bodies += 1

    @property
    def catches_up(self) -> bool:
        """Whether the body that is next is one of a reader that catches up."""
        first = next((item for item in self._items if isinstance(item, Body)), None)
        return first is not None and first.catches_up

    @property
    def is_within_body(self) -> bool:
        """Whether some of the body that is next has been sent."""
        first = self._items[0] if self._items else None
        return isinstance(first, Body) and first.position > first.file_range.position

    def cold_body(self, length: int) -> Body | None:
        """Return the body that is next, if its next ``length`` bytes must be read by a thread first."""
        first = self._items[0] if self._items else None
        return first if isinstance(first, Body) and not first.is_warm(length) else None

    def send_some(self, line: SocketLine, length: int) -> int:
        """Send from the first item, at most ``length`` bytes of a body; return how much was taken.

        Raises:
            BlockingIOError: the peer's window is full.
            StorageError: the file ended inside the range: nothing sensible can follow.
            OSError: the connection is gone.
        """
        first = self._items[0]
        if isinstance(first, Body):
            return self._send_body(line, first, length)
        sent = line.send(first, more=len(self._items) > 1)
        self.memory_bytes -= sent
        if sent == len(first):
            self._items.popleft()
        else:
            self._items[0] = first[sent:]
        return sent

    def _send_body(self, line: SocketLine, body: Body, length: int) -> int:
        sent = line.send_file(body.fileno, body.position, min(length, body.end - body.position))
        if sent == 0:
            raise StorageError(f"segment {body.file_range.segment.base} ends at byte {body.position}")
        body.position += sent
        if body.position == body.end:
            self._items.popleft()
            self.bodies -= 1
            body.release()
        return sent

    def clear(self) -> None:
        """Drop everything and release all bodies."""
        for item in self._items:
            if isinstance(item, Body):
                item.release()
        self._items.clear()
        self.memory_bytes = self.bodies = 0
