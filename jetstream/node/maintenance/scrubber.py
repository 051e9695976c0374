"""The scrub of the node's streams: sealed segments are read again, whole, before anybody needs them.

Disks lose bits in what nobody reads. Found while other replicas have the same bytes, such damage is put back
(`repairing`); found when they are gone, it is lost.
"""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from weakref import WeakKeyDictionary

from envelope.types import Incarnation, NodeId
from jetstream.log.rewriting.scrub_plan import ScrubHand
from jetstream.log.rewriting.segment_chunks import check_segment
from jetstream.log.segments.segment import Segment
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.paced_thread import PacedThread


@dataclass(slots=True)
class ScrubCounters:
    """Counts of the scrub since the start of the node; written on the loop, but for the bytes."""

    segments: int = 0
    read_bytes: int = 0
    failures: int = 0


class Scrubber:
    """Reads the segments whose turn it is."""

    def __init__(self, clock: Clock, thread: PacedThread, node: NodeId, interval: timedelta) -> None:
        """``interval``: of one pass over each log; 0: never."""
        self.counters = ScrubCounters()
        self._clock = clock
        self._thread = thread
        self._node = node
        self._interval_us = interval // timedelta(microseconds=1)
        self._hands: WeakKeyDictionary[StreamReplica, ScrubHand] = WeakKeyDictionary()

    def is_due(self, stream: StreamReplica) -> bool:
        """Whether it is a segment's turn."""
        return self._interval_us > 0 and self._next(stream) is not None

    async def work_on(self, stream: StreamReplica) -> bool:
        """Read the segment whose turn it is; return True: it may be another one's at once.

        Raises:
            As `SegmentWork.work_on`.
        """
        segment = self._next(stream)
        assert segment is not None, "it is due"
        # What is damaged is refused, and repaired, from here on: it need not be found again in this pass.
        self._hands[stream].skip(segment)
        await self._thread.work(partial(check_segment, stream.log.reader, segment, self._pace))
        self.counters.segments += 1
        return True

    def _next(self, stream: StreamReplica) -> Segment | None:
        hand = self._hands.get(stream)
        if hand is None:
            phase_us = phase(self._node, stream.incarnation, self._interval_us)
            hand = self._hands[stream] = ScrubHand(self._interval_us, phase_us)
        return hand.due(stream.log.reader.segments, self._clock.wall())

    def _pace(self, size: int) -> None:
        self.counters.read_bytes += size
        self._thread.pace(size)


def phase(node: NodeId, incarnation: Incarnation, interval_us: int) -> int:
    """Return when in the interval the passes of a replica begin, as if by chance."""
    digest = blake2b(f"{node} {incarnation}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % interval_us
