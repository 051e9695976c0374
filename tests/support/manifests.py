"""Manifests of a tier."""

from envelope.types import Incarnation, LeaderEpoch, Offset, StreamName, TimestampUs
from jetstream.tier.manifest import TieredSegment, TierManifest
from metadata.stream_config import StreamConfig


def segment(base: int, end: int, epoch: int = 1) -> TieredSegment:
    return TieredSegment(
        base=Offset(base),
        next=Offset(end),
        size=100,
        sha256="0" * 64,
        max_timestamp=TimestampUs(end),
        last_epoch=LeaderEpoch(epoch),
        last_txid=None,
        path=f"d/{base}",
    )


def manifest(*segments: TieredSegment, start: int = 0, end: int = 0) -> TierManifest:
    return TierManifest(
        name=StreamName("orders"),
        incarnation=Incarnation("life"),
        version=3,
        leader_epoch=LeaderEpoch(2),
        written_at=TimestampUs(5),
        config=StreamConfig(name="orders", subject="orders.>", tier=True, labels={"a": "ä"}),
        start=Offset(start),
        end=Offset(end),
        epochs=((LeaderEpoch(1), Offset(0), TimestampUs(1)), (LeaderEpoch(2), Offset(20), TimestampUs(2))),
        segments=segments,
    )


WHOLE = manifest(segment(0, 10), segment(10, 30, 2), segment(25, 40, 2), start=4, end=40)
