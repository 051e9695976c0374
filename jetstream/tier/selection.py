"""The decision which segments are uploaded; pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile

from envelope.types import Offset
from jetstream.log.segments.corrupt_ranges import OffsetRange
from jetstream.log.segments.segment import Segment, is_damaged


@dataclass(frozen=True, slots=True)
class UploadBounds:
    """The bounds of uploads: no rewrite changes an uploaded segment, so the store gets the final file, once.

    Attributes:
        high_watermark: only committed records are uploaded, which are never cut off.
        cleaned_end: end of the clean part of a compacted log; None: it is not compacted.
        rewritten_end: end of the sealed rewrite; None: small batches are not merged.
    """

    high_watermark: Offset
    cleaned_end: Offset | None = None
    rewritten_end: Offset | None = None

    @property
    def end(self) -> Offset:
        """Segments that end at or below it will not change any more."""
        ends = (self.high_watermark, self.cleaned_end, self.rewritten_end)
        return min(end for end in ends if end is not None)


def due_segments(
    segments: Sequence[Segment], tiered_end: Offset, bounds: UploadBounds, corrupt: Sequence[OffsetRange]
) -> tuple[Segment, ...]:
    """Return the segments that go on where the tier ends, oldest first.

    Only whole ones, sealed and intact: nothing behind damage is uploaded before a replica has repaired it, so
    that the tier has no holes.
    """
    reached = dropwhile(lambda segment: segment.next <= tiered_end, segments)
    return tuple(
        takewhile(
            lambda segment: (
                segment.sealed and segment.next <= bounds.end and not is_damaged(segment, corrupt)
            ),
            reached,
        )
    )


def damage_in_the_way(
    segments: Sequence[Segment], tiered_end: Offset, bounds: UploadBounds, corrupt: Sequence[OffsetRange]
) -> Segment | None:
    """Return the first damaged segment that uploads wait for, None if they wait for none.

    The clean part of a log ends where it is damaged: uploads that follow compaction wait for any damage.
    """
    waits_for_any = bounds.cleaned_end is not None
    for segment in segments:
        is_next = segment.sealed and tiered_end < segment.next <= bounds.high_watermark
        if (is_next or waits_for_any) and is_damaged(segment, corrupt):
            return segment
    return None
