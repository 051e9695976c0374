"""Which groups are committed at once, by the thread that has them, instead of being handed to the disk's.

A short write only copies into the page cache, some 20 us, and a good disk syncs in some 200 us; to wake
another thread for it, and to be woken when it is done, takes half of that again. But a disk may make anybody
wait, and the kernel may throttle whoever dirties pages faster than it takes them, and whoever serves sockets
must not wait for long: so a commit that took long, or failed, is the last one for a while.
"""

from collections.abc import Sequence
from typing import Final

from envelope.limits import KIB, MIB
from jetstream.log.sync_scheduler import SYNC_ALL_LOGS_MIN

ALONE_BYTES_MAX: Final = MIB
"""Together, where no other replica has to do with it. To copy so much takes a fraction of a millisecond."""

FOLLOWED_BYTES_MAX: Final = 16 * KIB
"""Together, where replicas await each other. What is longer is better written while the loop goes on
(docs/adr/0024)."""

LOGS_MAX: Final = SYNC_ALL_LOGS_MIN - 1
"""More are synced by a call for the whole disk, which waits for whatever anybody has written there."""

SYNC_SECONDS_MAX: Final = 0.001
"""A disk that is expected to take longer is waited for by a thread of its own."""

SLOW_SECONDS: Final = 0.005
REST_SECONDS: Final = 1.0


class InlineCommitPolicy:
    """Decides by sizes, and by how long the commits before took."""

    __slots__ = ("_not_before",)

    def __init__(self) -> None:
        """Begin without a commit that took long."""
        self._not_before = float("-inf")

    def allows(
        self, sizes: Sequence[int], now: float, *, is_followed: bool = False, sync_seconds: float = 0.0
    ) -> bool:
        """Return whether a commit is short.

        Args:
            sizes: bytes to be written, each to a log of its own.
            now: seconds.
            is_followed: whether any of the logs has other replicas.
            sync_seconds: how long the sync is expected to take; 0 if there is none.
        """
        bytes_max = FOLLOWED_BYTES_MAX if is_followed else ALONE_BYTES_MAX
        return (
            len(sizes) <= LOGS_MAX
            and sum(sizes) <= bytes_max
            and sync_seconds <= SYNC_SECONDS_MAX
            and now >= self._not_before
        )

    def took(self, seconds: float, now: float, *, failed: bool) -> None:
        """Take note of how long a commit, or the begin of one, took, and of whether any was refused."""
        if failed or seconds >= SLOW_SECONDS:
            self._not_before = now + REST_SECONDS
