"""Possible gaps: times in which NATS may have delivered messages to nobody.

NATS delivers at most once. While the ingest connection was down, or after the server cut us off as a slow
consumer, messages that nobody waited an ack for may not have been stored. A stream's info lists these times.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from envelope.types import TimestampUs
from metadata.api.responses import GapKind

GAPS_KEPT_MAX: Final = 32
"""The newest gaps that one stream remembers; all of them are counted."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A possible gap, ``since <= t < until``."""

    kind: GapKind
    since: TimestampUs
    until: TimestampUs
    messages: int | None = None
    """Messages known to be dropped; None where nobody can know."""


class PossibleGaps:
    """The newest gaps of one stream; adjacent overloads are merged."""

    def __init__(self) -> None:
        self.total = 0
        self._kept: deque[Gap] = deque(maxlen=GAPS_KEPT_MAX)

    def add(self, gap: Gap) -> None:
        """Remember ``gap``; an overload that continues the last one widens it."""
        last = self._kept[-1] if self._kept else None
        if (
            last is not None
            and last.kind is gap.kind is GapKind.OVERLOAD
            and gap.since - last.until < 1_000_000
        ):
            self._kept[-1] = Gap(gap.kind, last.since, gap.until, (last.messages or 0) + (gap.messages or 0))
            return
        self.total += 1
        self._kept.append(gap)

    def __iter__(self) -> Iterator[Gap]:
        """Yield the kept gaps, oldest first."""
        return iter(self._kept)
