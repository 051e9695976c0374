"""Clocks of a node that a test may put forward, or that stand still."""

from dataclasses import dataclass

from envelope.types import MonotonicNs, TimestampUs
from jetstream.node.runtime.clock import SystemClock


@dataclass(slots=True)
class ForwardClock:
    """The machine's clocks, with the monotonic one ahead by as much as the test likes."""

    ahead_ns: int = 0

    def put_forward(self, seconds: float) -> None:
        """Let ``seconds`` have passed."""
        self.ahead_ns += int(seconds * 1e9)

    def wall(self) -> TimestampUs:
        """Return CLOCK_REALTIME."""
        return SystemClock().wall()

    def monotonic(self) -> MonotonicNs:
        """Return CLOCK_MONOTONIC, ahead."""
        return MonotonicNs(SystemClock().monotonic() + self.ahead_ns)


@dataclass(slots=True)
class WrongClock:
    """The machine's clocks, with the wall clock ahead by as much as the test likes, and time that passes."""

    ahead_us: int = 0
    passed_us: int = 0

    def wall(self) -> TimestampUs:
        return TimestampUs(SystemClock().wall() + self.ahead_us + self.passed_us)

    def monotonic(self) -> MonotonicNs:
        return MonotonicNs(SystemClock().monotonic() + self.passed_us * 1000)


class StandingClock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = SystemClock().monotonic()

    def wall(self) -> TimestampUs:
        return SystemClock().wall()

    def monotonic(self) -> MonotonicNs:
        return self.now
