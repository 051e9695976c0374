"""How fast a node serves followers that are not in sync, so that their catching up leaves room for acks."""

from typing import Final

from envelope.types import MonotonicNs

_NS_PER_SECOND: Final = 1_000_000_000


class Throttle:
    """A token bucket that may be overdrawn by one answer: what one costs is known only when it is made.

    Invariant:
        T1: over any time, what was spent is at most the rate times that time and one answer.
            Held by test_over_any_time_at_most_the_rate_and_one_answer_is_spent.
    """

    def __init__(self, bytes_per_second: int | None) -> None:
        """Begin with nothing spent.

        Args:
            bytes_per_second: at least 1; None is without a limit.
        """
        assert bytes_per_second is None or bytes_per_second >= 1, f"{bytes_per_second} bytes a second"
        self._rate = bytes_per_second
        self._ready_at = MonotonicNs(0)

    def ready_at(self) -> MonotonicNs:
        """Return from when on something may be spent."""
        return self._ready_at

    def spend(self, count: int, now: MonotonicNs) -> None:
        """Note that ``count`` bytes are served now."""
        assert count >= 0, f"T1: {count} bytes are given back"
        if self._rate is not None:
            cost = count * _NS_PER_SECOND // self._rate
            self._ready_at = MonotonicNs(max(self._ready_at, now) + cost)
