"""Time as one injected object: the only place of the node that reads a clock."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from envelope.types import MonotonicNs, TimestampUs


class Clock(Protocol):
    """The time, as the shell reads it."""

    def wall(self) -> TimestampUs:
        """Microseconds since the Unix epoch; may jump."""

    def monotonic(self) -> MonotonicNs:
        """Nanoseconds since an arbitrary start; never decreases."""


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's clocks."""

    def wall(self) -> TimestampUs:
        """Return CLOCK_REALTIME."""
        return TimestampUs(time.time_ns() // 1000)

    monotonic = staticmethod(cast("Callable[[], MonotonicNs]", time.monotonic_ns))
    """CLOCK_MONOTONIC."""
