"""The time that published messages take, stage by stage: measured once for each group of them."""

from bisect import bisect_left
from collections.abc import Sequence
from enum import StrEnum

from jetstream.node.runtime.histogram import BOUNDS, Histogram


class PublishStage(StrEnum):
    """The stages of a group, in order; each begins where the one before it ends."""

    GATHERED = "gathered"
    """Since its first message was received: the group has begun, and is sequenced now."""
    WRITTEN = "written"
    """To the log of the leader, not synced."""
    STORED = "stored"
    """As durably as the stream's ``sync`` promises, and the event loop knows it."""
    COMMITTED = "committed"
    """The high watermark has passed it."""
    ACKED = "acked"
    """The acks that wait for the high watermark are handed to the connection."""


class PublishLatency:
    """Of all groups that were committed while this node led their streams.

    Attributes:
        stages: the time that each stage took.
        whole: the time from the first message to the acks.
    """

    __slots__ = ("_histograms", "stages", "whole")

    def __init__(self) -> None:
        self.stages = {stage: Histogram() for stage in PublishStage}
        self._histograms = tuple(self.stages.values())
        self.whole = Histogram()

    def observe(self, times: Sequence[float]) -> None:
        """Count a group by the times, in seconds, when its first message came and when each stage ended."""
        # Written out, as every group needs it.
        first = begun = times[0]
        for histogram, ended in zip(self._histograms, times[1:], strict=True):
            histogram.counts[bisect_left(BOUNDS, ended - begun)] += 1
            histogram.seconds += ended - begun
            begun = ended
        self.whole.observe(begun - first)
