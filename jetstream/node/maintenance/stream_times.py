"""Streams whose time is ahead of the clock: their records' times stand still until the clock reaches them."""

import logging
from collections.abc import Mapping
from typing import Final

from envelope.types import StreamName, TimestampUs
from jetstream.log.segments.retention import TIME_AHEAD_US
from jetstream.node.replicas.replica import StreamReplica

_log = logging.getLogger(__name__)


def time_ahead_us(stream: StreamReplica, now: TimestampUs) -> int:
    """Return by how much a stream's time is ahead of the clock; 0 if it is not."""
    return max(0, stream.context.opened.history.last_timestamp - now)


class StreamTimes:
    """Notices when a stream's time begins to be ahead of the clock, and when the clock has reached it."""

    def __init__(self) -> None:
        self._ahead: set[StreamName] = set()

    def handle(self, ahead_us: Mapping[StreamName, int]) -> tuple[list[StreamName], list[StreamName]]:
        """Return the streams that have got ahead, and those that no longer are, of all that are led here."""
        begun = [
            name for name, ahead in ahead_us.items() if ahead > TIME_AHEAD_US and name not in self._ahead
        ]
        over = [name for name in sorted(self._ahead) if not ahead_us.get(name)]
        self._ahead = self._ahead.union(begun).difference(over)
        return begun, over

    def warn(self, ahead_us: Mapping[StreamName, int]) -> None:
        """Log what `handle` returns."""
        begun, over = self.handle(ahead_us)
        for name in begun:
            text = "time of stream ahead of clock stream=%s seconds=%.1f runbook=RB-15"
            _log.warning(text, name, ahead_us[name] / 1e6)
        for name in over:
            _log.warning("time of stream no longer ahead of clock, or not led here any more stream=%s", name)


AHEAD_HELP: Final = (
    "Seconds by which the time of the stream's newest record is ahead of this node's clock; until that is "
    "reached, its records all get the same time."
)
