"""The clock by which records are removed: a wall clock that has just jumped ahead is not believed at once.

A clock that is ahead for a moment must not make retention take all that a stream has. So what decides to
remove by age goes on from the time before the jump, for so long that the clock can be put right. As the node
starts there is no time before: so long, each log goes on from its newest record.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from envelope.types import MonotonicNs, TimestampUs
from jetstream.node.runtime.clock import Clock

JUMP_US: Final = 60_000_000
"""What a wall clock may gain on the monotonic one from one reading to the next."""
HOLD_NS: Final = 3_600_000_000_000
"""How long a jump is not believed."""

_NO_RECORD: Final = TimestampUs(0)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Reading:
    wall: TimestampUs
    monotonic: MonotonicNs


@dataclass(slots=True)
class JumpGuard:
    """Turns readings of both clocks into the time to go by; pure.

    Attributes:
        ahead_us: by how much the wall clock is ahead of that time; 0 unless a jump is held back.

    Invariants:
        J1: the time is never later than the wall clock.
            Held by test_removal_clock.py.
        J2: within `HOLD_NS` from a jump on, the time gains `JUMP_US` on the monotonic clock at most with each
            reading.
            Held by test_removal_clock.py.
    """

    ahead_us: int = 0
    _believed: _Reading | None = field(default=None, init=False)
    _jumped_at: MonotonicNs | None = field(default=None, init=False)
    _started_at: MonotonicNs | None = field(default=None, init=False)

    def handle(self, wall: TimestampUs, monotonic: MonotonicNs) -> TimestampUs:
        """Handle a reading; return the time to go by."""
        self._started_at = monotonic if self._started_at is None else self._started_at
        expected = self._expected(wall, monotonic)
        self.ahead_us = wall - expected if wall - expected > JUMP_US else 0
        if self.ahead_us and self._jumped_at is None:
            self._jumped_at = monotonic
        if self._jumped_at is not None and self.ahead_us and monotonic - self._jumped_at < HOLD_NS:
            return expected
        self.ahead_us, self._jumped_at = 0, None
        self._believed = _Reading(wall, monotonic)
        return wall

    def handle_for(self, found_until: TimestampUs, wall: TimestampUs, monotonic: MonotonicNs) -> TimestampUs:
        """Handle a reading; return the time to go by for one log.

        ``found_until``: timestamp of its newest record when it was opened; 0: it had none.
        """
        now = self.handle(wall, monotonic)
        assert self._started_at is not None, "it has had a reading"
        passed_ns = monotonic - self._started_at
        if not found_until or passed_ns >= HOLD_NS:
            return now
        return min(now, TimestampUs(found_until + passed_ns // 1000 + JUMP_US))

    def _expected(self, wall: TimestampUs, monotonic: MonotonicNs) -> TimestampUs:
        before = self._believed
        if before is None:
            return wall
        return TimestampUs(before.wall + (monotonic - before.monotonic) // 1000)


class RemovalClock:
    """A node's clock for all that removes records by age; read on the loop's thread only."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._guard = JumpGuard()
        # Else the first look for old records would not notice a jump since the start.
        _ = self.wall()

    @property
    def ahead_us(self) -> int:
        """By how much the wall clock is ahead of this one, as of the last reading."""
        return self._guard.ahead_us

    def wall(self) -> TimestampUs:
        """Return the time to go by, which is that of the wall clock unless it has just jumped ahead."""
        return self.wall_for(_NO_RECORD)

    def wall_for(self, found_until: TimestampUs) -> TimestampUs:
        """Return the time to go by for a log; see `JumpGuard.handle_for`."""
        before = self._guard.ahead_us
        now = self._guard.handle_for(found_until, self.clock.wall(), self.clock.monotonic())
        ahead = self._guard.ahead_us
        if ahead and not before:
            text = "clock jumped ahead seconds=%d: retention by age waits up to %d s runbook=RB-15"
            _log.warning(text, ahead // 1_000_000, HOLD_NS // 10**9)
        elif before and not ahead:
            _log.warning("clock is believed again, retention by age goes on: it was ahead for a while")
        return now

    def monotonic(self) -> MonotonicNs:
        """Return CLOCK_MONOTONIC."""
        return self.clock.monotonic()
