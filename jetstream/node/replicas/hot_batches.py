"""The newest batches of a stream that this node leads, in memory for followers that keep up.

A follower in sync asks for what was written a moment ago. From memory it costs neither a look into the index
nor a lease on the segment nor a read; whoever is further behind is served from the files.
"""

from collections import deque
from collections.abc import Iterable

from envelope.types import Buffer, Offset
from jetstream.log.format.batch import UnsealedBatch


class HotBatches:
    """Written, and not committed yet: without a gap, and without the oldest where they are too many."""

    def __init__(self, bytes_max: int, answer_bytes_max: int) -> None:
        """Keep at most ``bytes_max`` bytes, find at most ``answer_bytes_max``; one batch may have more."""
        self._bytes_max = bytes_max
        self._answer_bytes_max = answer_bytes_max
        self._batches: deque[UnsealedBatch] = deque()
        self._bytes = 0
        self._found: tuple[Offset, Offset, Buffer] | None = None

    def add(self, batches: Iterable[UnsealedBatch]) -> None:
        """Keep batches that have been written behind those before."""
        for batch in batches:
            if self._batches and self._batches[-1].next != batch.base:
                self.forget(self._batches[-1].next)  # nobody followed when those between were written
            self._batches.append(batch)
            self._bytes += batch.size
        while self._bytes > self._bytes_max and len(self._batches) > 1:
            self._bytes -= self._batches.popleft().size

    def forget(self, end: Offset) -> None:
        """Drop what ends at or below ``end``."""
        while self._batches and self._batches[0].next <= end:
            self._bytes -= self._batches.popleft().size
        self._found = None

    def find(self, base: Offset) -> tuple[Offset, Buffer] | None:
        """Return the batches from ``base`` on that one answer holds, and where they end; None if not here."""
        batches = self._batches
        if not batches or base < batches[0].base:
            return None
        if self._found is not None and self._found[:2] == (base, batches[-1].next):
            return self._found[1:]
        frames: list[Buffer] = []
        size, end = 0, base
        for batch in batches:
            if batch.base == end and (not frames or size + batch.size <= self._answer_bytes_max):
                frames.append(batch.frame)
                size, end = size + batch.size, batch.next
        if not frames:
            return None
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        self._found = (base, end, data)  # the other followers are about to ask for the same
        return end, data
