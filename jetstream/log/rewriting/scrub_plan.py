"""The decision when each sealed segment is read again, to find damage, by the clock; pure.

A pass over a log takes one interval, at an even pace: when half of it is over, half of the log's bytes are
read. The progress of a pass follows from the time of day alone, so nothing is kept on disk: a node that
starts goes on at the clock's place, and segments it missed while it was down come in the next pass. So do
segments that are sealed during a pass: otherwise a growing log would be read as fast as it is written,
seconds later.
"""

from collections.abc import Sequence
from typing import Final

from envelope.types import Offset, TimestampUs
from jetstream.log.segments.segment import Segment

_START: Final = Offset(0)


class ScrubHand:
    """The hand of the clock on one log.

    Invariants:
        Y1: a segment that is there and sealed throughout a pass in which the node runs is due once in it.
            Held by test_each_segment_has_one_turn_in_each_pass.
        Y2: within a pass no segment is due before its share of the interval begins.
            Held by test_each_segment_has_one_turn_in_each_pass.
        Y3: no segment is due in the pass in which it is sealed, unless the node starts anew in it.
            Held by test_a_log_that_grows_and_shrinks_has_no_segment_left_out.
    """

    __slots__ = ("_end", "_interval_us", "_pass", "_phase_us", "_position")

    def __init__(self, interval_us: int, phase_us: int) -> None:
        """Begin at the clock's place.

        Args:
            interval_us: length of a pass, microseconds, above 0.
            phase_us: microseconds before multiples of the interval at which the passes begin; another value
                for each replica, so that they do not all read at once, nor the same segment.
        """
        assert interval_us > 0, "a pass takes time"
        self._interval_us = interval_us
        self._phase_us = phase_us
        self._pass: int | None = None
        self._position = _START
        self._end = _START  # of the segments that were sealed when the pass began

    def due(self, segments: Sequence[Segment], now: TimestampUs) -> Segment | None:
        """Return the next segment that is due, None if none is yet.

        Args:
            segments: of the log, as they are now; the active one is left out.
            now: wall clock.
        """
        sealed = [segment for segment in segments if segment.sealed]
        number, elapsed_us = divmod(now + self._phase_us, self._interval_us)
        if self._pass is not None and number == self._pass + 1:
            rest = self._next(sealed, self._end)
            if rest is not None:
                return rest
            self._begin(number, sealed, _START)
        elif number != self._pass:  # the node has just started, or the clock was set
            self._begin(number, sealed, _place(sealed, elapsed_us, self._interval_us))
        of_pass = [segment for segment in sealed if segment.base < self._end]
        return self._next(of_pass, _place(of_pass, elapsed_us, self._interval_us))

    def _begin(self, number: int, sealed: Sequence[Segment], position: Offset) -> None:
        self._pass, self._position = number, position
        self._end = sealed[-1].next if sealed else _START

    def _next(self, sealed: Sequence[Segment], end: Offset) -> Segment | None:
        return next((segment for segment in sealed if self._position <= segment.base < end), None)

    def skip(self, segment: Segment) -> None:
        """Go on behind a segment that was due, even if it was not read."""
        assert segment.next > self._position, f"Y1: {segment.next}, the hand is at {self._position}"
        self._position = segment.next


def _place(sealed: Sequence[Segment], elapsed_us: int, interval_us: int) -> Offset:
    """Return the offset behind the last segment whose share of the interval has begun."""
    total = sum(segment.size for segment in sealed)
    place, before = _START, 0
    for segment in sealed:
        if before * interval_us > elapsed_us * total:
            break
        place, before = segment.next, before + segment.size
    return place
