"""Segments that upkeep leaves as they are, as they cannot be read: one of them must not stop the rest.

Other replicas may repair them, from files that are as they were written. So the rest is written anew after
a wait only, in which replicas that have lost different parts repair each other.
"""

from typing import Final
from weakref import WeakKeyDictionary

from envelope.types import MonotonicNs, Offset
from jetstream.log.segments.segment import Segment
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.clock import Clock

REPAIR_WAIT_NS: Final = 600_000_000_000
"""Damage of a stream with other replicas is given ten minutes to be repaired."""


class RepairWait:
    """The wait for the repair of one log."""

    def __init__(self) -> None:
        self._damaged: frozenset[Offset] = frozenset()
        self._since = MonotonicNs(0)

    def is_over(self, damaged: frozenset[Offset], now: MonotonicNs) -> bool:
        """Return whether nothing is damaged, or all that is has been so for `REPAIR_WAIT_NS`."""
        if not damaged <= self._damaged:
            self._since = now
        self._damaged = damaged
        return not damaged or now - self._since >= REPAIR_WAIT_NS


class UnreadableSegments:
    """Remembers what could not be read since the node started, beside the damage that the logs refuse."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: WeakKeyDictionary[StreamReplica, set[Segment]] = WeakKeyDictionary()
        self._waits: WeakKeyDictionary[StreamReplica, RepairWait] = WeakKeyDictionary()

    def add(self, stream: StreamReplica, segment: Segment) -> None:
        """Remember a segment that work has failed on; damage that is refused is forgotten with its repair."""
        if segment.base not in stream.log.reader.damaged:
            self._found.setdefault(stream, set()).add(segment)

    def bases(self, stream: StreamReplica) -> frozenset[Offset]:
        """Return where the stream's log is not to be read: see `LogReader.damaged`."""
        reader = stream.log.reader
        found = self._found.get(stream, set()).intersection(reader.segments)
        return reader.damaged.union(segment.base for segment in found)

    def wait_is_over(self, stream: StreamReplica) -> bool:
        """Whether the rest of the log may be written anew."""
        if stream.config.replicas == 1:
            return True
        wait = self._waits.setdefault(stream, RepairWait())
        return wait.is_over(stream.log.reader.damaged, self._clock.monotonic())
