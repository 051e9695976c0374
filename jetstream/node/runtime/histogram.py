"""Durations, counted in buckets."""

from bisect import bisect_left
from itertools import accumulate
from typing import Final

from prometheus_client.utils import floatToGoString

BOUNDS: Final = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Of the buckets, in seconds, each inclusive; the last bucket has no bound."""


class Histogram:
    """The durations of something since the node started.

    Attributes:
        counts: how many there were in each bucket, not in those below it.
        seconds: of all of them.
    """

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return the bounds as Prometheus writes them, each with the number of durations up to it."""
        bounds = (*map(floatToGoString, BOUNDS), "+Inf")
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))
