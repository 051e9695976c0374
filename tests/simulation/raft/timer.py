"""The clock and the one timer of a simulated machine."""

from collections.abc import Callable

from envelope.types import MonotonicNs
from tests.simulation.clock import DriftingClock
from tests.simulation.timeline import Timeline


class Timer:
    """Fires when the machine's own clock shows what it was planned for; only the earliest plan counts."""

    __slots__ = ("_clock", "_fire", "_fires_at", "_timeline")

    def __init__(self, timeline: Timeline, clock: DriftingClock, fire: Callable[[], None]) -> None:
        self._timeline, self._clock, self._fire = timeline, clock, fire
        self._fires_at = -1

    def now(self) -> MonotonicNs:
        """Return what the machine's clock shows."""
        return self._clock.local(self._timeline.now)

    def is_due(self, moment: MonotonicNs) -> bool:
        """Tell whether the clock shows ``moment`` or more."""
        return self._clock.virtual(moment) <= self._timeline.now

    def plan(self, moment: MonotonicNs) -> None:
        """Fire when the clock shows ``moment``, unless that comes earlier anyway."""
        fires_at = max(self._clock.virtual(moment), self._timeline.now)
        if self._fires_at < 0 or fires_at < self._fires_at:
            self._fires_at = fires_at
            self._timeline.at(fires_at, self._wake, fires_at)

    def stop(self) -> None:
        """Forget what was planned."""
        self._fires_at = -1

    def jump(self, by: int) -> None:
        """Let the clock skip ``by`` ns."""
        self._clock.jump(self._timeline.now, by)

    def _wake(self, fires_at: int) -> None:
        if fires_at == self._fires_at:
            self._fires_at = -1
            self._fire()
