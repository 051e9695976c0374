"""A stream whose beginning lies in the object store, with the interface of its log.

Records of the local log are read there. Earlier ones are read from downloaded segments; a segment that is not
here is named by `SegmentAway`: a caller that may wait has it downloaded and tries again. So nothing here
waits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from envelope.errors import OffsetOutOfRange, TierUnavailable, UnavailableError
from envelope.types import NO_OFFSET, LeaderEpoch, Offset, TimestampUs
from jetstream.log.reader import FileRange, LogReader
from jetstream.log.search import batches_within, first_with_txid, joined, offset_for_txid
from jetstream.log.segments.index import StoredBatches
from jetstream.tier.manifest import TieredSegment, TierManifest
from metadata.catalog.tables import TierMark

_NOTHING_TIERED = Offset(0)


class SegmentAway(UnavailableError):
    """A segment has to be downloaded first, or (None) the list of segments."""

    def __init__(self, segment: TieredSegment | None) -> None:
        super().__init__("it is in the object store")
        self.wanted = segment

    def not_in_time(self) -> TierUnavailable:
        """Return the error for a caller that waited in vain."""
        wanted = self.wanted
        if wanted is None:
            return TierUnavailable("the object store does not answer: where these offsets are is not known")
        return TierUnavailable(
            f"offsets {wanted.base} to {wanted.next} are in the object store alone, and not here yet",
            base=wanted.base,
            next=wanted.next,
        )


class KnownTier(Protocol):
    """The part of a stream in the object store, as far as this node knows of it.

    A log drops nothing for a mark before that mark is known here: who looks at the log's start first, and at
    the mark then, finds all between them in the store.
    """

    @property
    def mark(self) -> TierMark | None:
        """The catalogue's newest mark; None: none, as far as this node knows."""

    @property
    def manifest(self) -> TierManifest | None:
        """The list that the mark names; None: not here yet."""


@dataclass(frozen=True, slots=True)
class TieredLog:
    """A stream across both places; for any thread, while the log drops what the store has.

    Attributes:
        log: the local part.
        tier: the part in the object store.
        leads: this node leads the stream, so the mark covers all that the log has dropped for the tier.
        held: finds a downloaded segment.
        used: called with each tiered segment that was read.
    """

    log: LogReader
    tier: KnownTier
    leads: bool
    held: Callable[[TieredSegment], LogReader | None]
    used: Callable[[TierManifest, TieredSegment], None]

    @property
    def log_start_offset(self) -> Offset:
        """First offset of the stream."""
        local, mark = self.log.log_start_offset, self.tier.mark  # in this order, see `KnownTier`
        if mark is not None and mark.end >= local:
            return mark.start
        # A leader has removed the offsets between the mark and the log for good. A follower may have dropped
        # them because the leader has, before it knows the mark that covers them.
        if self.leads:
            return local
        return mark.start if mark is not None else _NOTHING_TIERED

    @property
    def log_end_offset(self) -> Offset:
        """Next offset to be written."""
        return self.log.log_end_offset

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Return the epoch that wrote ``offset``; raises as `plan_read`."""
        if offset >= self.log.log_start_offset:
            return self.log.epoch_at(offset)
        manifest = self._list()
        if offset >= manifest.end:
            raise SegmentAway(None)  # as in `_tiered`
        return manifest.history.at(offset)

    def plan_read(
        self,
        offset: Offset,
        max_bytes: int,
        end: Offset,
        *,
        max_records: int | None = None,
        load: bool = True,
    ) -> FileRange:
        """Return whole batches from the one that holds ``offset``, as `LogReader.plan_read`.

        Raises:
            SegmentAway: it has to be downloaded first.
            JetstreamError: as there.
        """
        if offset >= self.log.log_start_offset:
            try:
                return self.log.plan_read(offset, max_bytes, end, max_records=max_records, load=load)
            except OffsetOutOfRange:
                if offset >= self.log.log_start_offset:
                    raise  # otherwise it was dropped just now
        manifest = self._list()
        segment = self._tiered(manifest, offset)
        found = self._held(segment).plan_read(offset, max_bytes, end, max_records=max_records, load=load)
        self.used(manifest, segment)
        return found

    def batches_within(self, offset: Offset, max_bytes: int, end: Offset) -> StoredBatches:
        """Return the batches that take ``max_bytes`` at most, as `search.batches_within`.

        Segments that are away and fit whole count by their length, and no segment but the first is downloaded
        only to be divided: so the batches may end before a segment that would fit in part.

        Raises:
            SegmentAway: the first one has to be downloaded first.
            JetstreamError: as there.
        """
        return joined(offset, max_bytes, end, lambda taken: self._piece(taken, max_bytes, end))

    def verify_range(self, file_range: FileRange) -> None:
        """Check batches as `LogReader.verify_range`; those of downloaded segments have been checked."""
        self.log.verify_range(file_range)

    def read_range(self, file_range: FileRange) -> bytes:
        """Return the bytes of a range, not verified."""
        return self.log.read_range(file_range)

    def offset_for_timestamp(self, timestamp: TimestampUs) -> Offset:
        """Return the first offset from that time on, as `LogReader.offset_for_timestamp`.

        Raises:
            SegmentAway: a segment has to be brought in first.
        """

        def find(local: Offset) -> Offset:
            for segment in self._before(local):
                if segment.max_timestamp >= timestamp:
                    held = self._held(segment)
                    found = held.offset_for_timestamp(timestamp)
                    if found < held.log_end_offset:  # compaction may have left no such record there
                        return max(found, self.log_start_offset)
            return self.log.offset_for_timestamp(timestamp)

        return self._found(find)

    def first_with_txid(self, txid: int, start: Offset = NO_OFFSET) -> Offset:
        """Return the first offset from ``start`` on whose transaction id is at least ``txid``.

        As `offset_for_txid`.

        Raises:
            SegmentAway: a segment has to be brought in first.
        """

        def find(local: Offset) -> Offset:
            first = max(start, self.log_start_offset)
            for segment in self._before(local):
                # An object and its entry in the list never change. But only records below the local log
                # count: above, compaction may have removed records from the log that the object still has.
                has_one = segment.last_txid is not None and segment.last_txid >= txid
                if has_one and segment.next > first:
                    end = min(segment.next, local)
                    found = first_with_txid(self._held(segment), txid, first, end)
                    if found is not None:
                        return found
                first = max(first, segment.next)
            return offset_for_txid(self.log, txid, first)

        return self._found(find)

    def _piece(self, taken: StoredBatches, max_bytes: int, end: Offset) -> StoredBatches:
        """Return the batches behind ``taken`` in one place, for `joined`."""
        offset, left = taken.next, max_bytes - taken.bytes
        if offset >= self.log.log_start_offset:
            try:
                return batches_within(self.log, offset, left, end)
            except OffsetOutOfRange:
                if offset >= self.log.log_start_offset:
                    raise  # otherwise it was dropped just now
        try:
            segment = self._tiered(self._list(), offset)
            if segment.base == offset and segment.next <= end and segment.batch_bytes <= left:
                return StoredBatches(segment.next, segment.batch_bytes)
            return batches_within(self._held(segment), offset, left, min(end, segment.next))
        except SegmentAway:
            if taken.bytes == 0:
                raise
            return StoredBatches(offset, 0)

    def _found(self, find: Callable[[Offset], Offset]) -> Offset:
        """Return what ``find`` finds, told where the log begins; again if some was dropped meanwhile."""
        local = self.log.log_start_offset
        while True:
            found, before = find(local), local
            local = self.log.log_start_offset
            if local == before:
                return found

    def _before(self, local: Offset) -> tuple[TieredSegment, ...]:
        """Return the segments of offsets below ``local``, where the log begins, oldest first."""
        start = self.log_start_offset
        if start >= local:
            return ()
        return tuple(segment for segment in self._list().kept(start) if segment.base < local)

    def _list(self) -> TierManifest:
        manifest = self.tier.manifest
        if manifest is None:
            raise SegmentAway(None)
        return manifest

    def _tiered(self, manifest: TierManifest, offset: Offset) -> TieredSegment:
        if not manifest.segments or offset >= manifest.end:
            raise SegmentAway(None)  # a follower does not know the mark yet
        return manifest.at(offset)

    def _held(self, segment: TieredSegment) -> LogReader:
        held = self.held(segment)
        if held is None:
            raise SegmentAway(segment)
        return held
