"""The lease of a node: until when the metadata leader vouches that nobody else leads the node's streams."""

from dataclasses import dataclass
from typing import Final

from envelope.types import MonotonicNs

_LONG_AGO: Final = MonotonicNs(0)
_NEVER: Final = MonotonicNs(2**63 - 1)


@dataclass(slots=True)
class Lease:
    """The lease for all streams of a node: a renewal costs the same for one stream and for a thousand.

    Attributes:
        until: by the node's own monotonic clock, nanoseconds; from then on the node may not act as a
            leader. It counts from when the lease was asked for, not from when the answer came.
    """

    until: MonotonicNs = _LONG_AGO

    def is_valid(self, now: MonotonicNs) -> bool:
        """Return whether the node may act as a leader."""
        return now < self.until


def unlimited() -> Lease:
    """Return the lease of a node beside which nobody else can be elected."""
    return Lease(_NEVER)
