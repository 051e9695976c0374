"""A bound on how often something may happen."""

from dataclasses import dataclass


@dataclass(slots=True)
class TokenBucket:
    """Admits ``at_once`` events, and then ``per_second``; times are the caller's, in seconds."""

    at_once: float
    per_second: float
    _left: float
    """As of `_since`."""
    _since: float

    def __init__(self, at_once: float, per_second: float, now: float) -> None:
        """Begin full, at ``now``."""
        self.at_once = self._left = at_once
        self.per_second = per_second
        self._since = now

    def left(self, now: float) -> float:
        """Return how many events would be admitted now."""
        return min(self._left + (now - self._since) * self.per_second, self.at_once)

    def take(self, now: float) -> bool:
        """Return whether another event is admitted; it is counted."""
        left = self.left(now)
        is_admitted = left >= 1
        self._left, self._since = left - is_admitted, now
        return is_admitted
