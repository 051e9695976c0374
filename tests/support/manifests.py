"""Manifests of a tier."""

from envelope.types import Incarnation, LeaderEpoch, Offset, StreamName, TimestampUs
from jetstream.tier.manifest import TieredSegment, TierManifest
from metadata.stream_config import StreamConfig


def segment(base: int, end: int, epoch: int = 1) -> TieredSegment:
    return TieredSegment(
        Offset(base), Offset(end), 100, "0" * 64, TimestampUs(end), LeaderEpoch(epoch), None, f"d/{base}"
    )


def manifest(*segments: TieredSegment, start: int = 0, end: int = 0) -> TierManifest:
    return TierManifest(
        StreamName("orders"),
        Incarnation("life"),
        3,
        LeaderEpoch(2),
        TimestampUs(5),
        StreamConfig(name="orders", subject="orders.>", tier=True, labels={"a": "ä"}),
        Offset(start),
        Offset(end),
        ((LeaderEpoch(1), Offset(0), TimestampUs(1)), (LeaderEpoch(2), Offset(20), TimestampUs(2))),
        segments,
    )


WHOLE = manifest(segment(0, 10), segment(10, 30, 2), segment(25, 40, 2), start=4, end=40)
