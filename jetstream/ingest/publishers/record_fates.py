"""Which records are not committed, or were committed late: their names stay in the dedupe window.

Before a record is committed no publisher can have heard its ack. So the window of a name whose record is
committed late begins with the commit. Commits that come soon are not kept in mind: the timestamp is as good.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from envelope.types import NO_OFFSET, Offset, TimestampUs

_LATE_PART: Final = 64
"""A commit that comes later than this part of the window is late; as many late ones are told apart."""

_OBSERVED_MAX: Final = 64
"""Commits kept until their records are known; later ones are dropped, and names stay longer."""

_BEFORE_ALL: Final = -(1 << 62)
_AFTER_ALL: Final = Offset(1 << 62)


class LateCommit(NamedTuple):
    """Names from the one at ``first`` on stay for a window after ``at``."""

    first: Offset
    began: TimestampUs
    at: TimestampUs


class RecordFates:
    """Of one log; until `hold_from`, all records count as committed at their timestamps.

    Attributes:
        newest: last offset with a name, unless that was taken back since.
        uncommitted: first offset whose record's fate is unknown.
        held: first offset whose name does not leave by age.
        window_us: of the names, microseconds.
        observed: commits that `observe` kept, oldest first.
        late: commits that came late and whose names `let_go` still holds, in the order of their records.
    """

    def __init__(self, timestamp_from: Callable[[Offset], int | None]) -> None:
        """Find the timestamp of the first name at an offset up to ``newest``, or after, by that function."""
        self.newest = NO_OFFSET - 1
        self.uncommitted = self.held = _AFTER_ALL
        self.window_us = 0
        self._timestamp_from = timestamp_from
        self._uncommitted_since = _BEFORE_ALL  # no uncommitted name is older
        self.late: deque[LateCommit] = deque()
        self.observed: deque[tuple[Offset, TimestampUs]] = deque()

    def hold_from(self, uncommitted: Offset) -> None:
        """Let no name leave whose record is at ``uncommitted`` or after, until `committed` says more."""
        self.uncommitted = self.held = uncommitted
        self.late.clear()

    def forget_from(self, log_end_offset: Offset) -> None:
        """Take in that the log ends there now, and that other records will follow."""
        self.observed.clear()
        self.newest = min(self.newest, log_end_offset - 1)
        if self.uncommitted != _AFTER_ALL:
            self.uncommitted = min(self.uncommitted, log_end_offset)
            self.held = min(self.held, log_end_offset)

    def observe(self, high_watermark: Offset, now: TimestampUs) -> None:
        """Keep a commit for `apply_observed`. Other threads may call."""
        if len(self.observed) < _OBSERVED_MAX:  # only `apply_observed` removes, as it has looked at the first
            self.observed.append((high_watermark, now))

    def apply_observed(self, end: Offset) -> None:
        """Record the kept commits up to ``end``, below which all names are known."""
        while self.observed and self.observed[0][0] <= end:
            self.committed(*self.observed.popleft())

    def committed(self, high_watermark: Offset, now: TimestampUs) -> None:
        """Note that records below ``high_watermark`` are committed, as is known at the log's time ``now``."""
        first = self.uncommitted
        if high_watermark <= first:
            return
        self.uncommitted = high_watermark
        late_us = self.window_us // _LATE_PART
        if first <= self.newest and now - self._uncommitted_since > late_us:
            oldest = self._timestamp_from(first)
            if oldest is not None:
                if now - oldest > late_us:
                    self._committed_late(first, now, late_us)
                following = self._timestamp_from(high_watermark) if high_watermark <= self.newest else None
                self._uncommitted_since = oldest if following is None else following
        if self.late:
            self.let_go(now)
        else:
            self.held = high_watermark

    def _committed_late(self, first: Offset, now: TimestampUs, late_us: int) -> None:
        late, began = self.late, now
        if late and now - late[-1].began < late_us:
            first, began, _ = late.pop()
        late.append(LateCommit(first, began, now))

    def let_go(self, now: TimestampUs) -> None:
        """Hold no longer what was committed a window before ``now``."""
        late = self.late
        while late and late[0].at + self.window_us <= now:
            late.popleft()
        self.held = late[0].first if late else self.uncommitted
        assert self.held <= self.uncommitted, f"D5: held from {self.held}, unknown from {self.uncommitted}"

    def fall_back(self, now: TimestampUs) -> None:
        """Let the log's time go on from ``now``: what came later counts as of then."""
        self._uncommitted_since = min(self._uncommitted_since, now)
        self.late = deque(
            LateCommit(late.first, min(late.began, now), min(late.at, now)) for late in self.late
        )

    def overdue(self, last_timestamp: TimestampUs) -> Offset | None:
        """Return from where on names are held, if the first `is_old` in a log with that last timestamp.

        Other threads may ask.
        """
        first = self.held
        if first > self.newest:
            return None
        oldest = self._timestamp_from(first)
        return first if oldest is not None and self.is_old(oldest, last_timestamp) else None

    def is_old(self, timestamp: int, last_timestamp: TimestampUs) -> bool:
        """Return whether soon one window of records will not reach back so far: in half a window."""
        return 0 < self.window_us <= 2 * (last_timestamp - timestamp)
