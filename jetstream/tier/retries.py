"""Retries after pauses that double, up to a limit."""

from dataclasses import dataclass
from typing import Final

from envelope.errors import JetstreamError
from envelope.types import MonotonicNs

_FIRST_NS: Final = 500_000_000


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """Attempts that failed one after the other.

    Attributes:
        error: of the last one.
        times: number of attempts.
        again_at: time of the next one.
    """

    error: JetstreamError
    times: int
    again_at: MonotonicNs


def failed_again(
    before: FailedAttempts | None, error: JetstreamError, now: MonotonicNs, longest_ns: int
) -> FailedAttempts:
    """Return the attempts after another failure: the pause doubles, up to ``longest_ns``."""
    times = 1 if before is None else before.times + 1
    pause = min(_FIRST_NS * 2 ** min(times - 1, 30), longest_ns)
    return FailedAttempts(error, times, MonotonicNs(now + pause))
