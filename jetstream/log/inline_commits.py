"""The decision which groups the event loop commits itself, instead of handing them to the disk thread.

A short write only copies into the page cache, some 20 us, and a good disk syncs in some 200 us; waking
another thread for it, and being woken when it is done, costs half of that again. But a disk may stall, the
kernel may throttle a process that dirties pages too fast, and the loop must not wait for long: so after a
commit that took long, or failed, there are none on the loop for a while.
"""

from typing import Final

from envelope.limits import KIB, MIB
from jetstream.log.sync_scheduler import SYNC_ALL_LOGS_MIN

ALONE_BYTES_MAX: Final = MIB
"""Total of a commit without other replicas. Copying so much takes a fraction of a millisecond."""

FOLLOWED_BYTES_MAX: Final = 16 * KIB
"""Total of a commit that other replicas await. More is better written while the loop goes on
(ADR 0002)."""

LOGS_MAX: Final = SYNC_ALL_LOGS_MIN - 1
"""More logs are synced by a call for the whole disk, which waits for all dirty bytes there."""

SYNC_SECONDS_MAX: Final = 0.001
"""A sync that is expected to take longer is left to the disk thread."""

SLOW_SECONDS: Final = 0.005
REST_SECONDS: Final = 1.0


class InlineCommitPolicy:
    """Decides by sizes, and by the durations of earlier commits."""

    __slots__ = ("_not_before",)

    def __init__(self) -> None:
        self._not_before = float("-inf")

    def allows(
        self, logs: int, size: int, now: float, *, is_followed: bool = False, sync_seconds: float = 0.0
    ) -> bool:
        """Return whether a commit is short.

        Args:
            logs: how many are written to.
            size: bytes to be written to all of them together.
            now: seconds.
            is_followed: whether any of the logs has other replicas.
            sync_seconds: expected duration of the sync; 0 if there is none.
        """
        bytes_max = FOLLOWED_BYTES_MAX if is_followed else ALONE_BYTES_MAX
        return (
            logs <= LOGS_MAX
            and size <= bytes_max
            and sync_seconds <= SYNC_SECONDS_MAX
            and now >= self._not_before
        )

    def took(self, seconds: float, now: float, *, failed: bool) -> None:
        """Record the duration of a commit, or of its first step, and whether an append was refused."""
        if failed or seconds >= SLOW_SECONDS:
            self._not_before = now + REST_SECONDS
