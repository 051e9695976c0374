"""Which groups are written at once, by the thread that has them, instead of being handed to the disk's.

A short write only copies into the page cache, some 20 us; to wake another thread for it, and to be woken when
it is done, takes several times as long. But the kernel may make any write wait, to throttle whoever dirties
pages faster than a disk takes them, and whoever serves sockets must not wait for long: so a write that took
long, or failed, is the last one for a while.
"""

from collections.abc import Sequence
from typing import Final

SHORT_BYTES_MAX: Final = 16 * 1024
"""Together. What is longer is better written while the other thread goes on (docs/adr/0024)."""

LOGS_MAX: Final = 4

SLOW_SECONDS: Final = 0.005
REST_SECONDS: Final = 1.0


class ShortWrites:
    """Decides by sizes, and by how long the writes before took."""

    __slots__ = ("_bytes_max", "_not_before")

    def __init__(self, bytes_max: int = SHORT_BYTES_MAX) -> None:
        """Call writes of up to ``bytes_max`` bytes short; 0 has none written at once."""
        self._bytes_max = bytes_max
        self._not_before = float("-inf")

    def allows(self, sizes: Sequence[int], now: float) -> bool:
        """Tell whether writes of so many bytes, each to a log of its own, are short; ``now`` in seconds."""
        return len(sizes) <= LOGS_MAX and sum(sizes) <= self._bytes_max and now >= self._not_before

    def wrote(self, seconds: float, now: float, *, failed: bool) -> None:
        """Take note of how long the writes took, and of whether any was refused."""
        if failed or seconds >= SLOW_SECONDS:
            self._not_before = now + REST_SECONDS
