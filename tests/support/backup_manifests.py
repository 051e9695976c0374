"""Manifests of backups, and the objects that they name."""

from envelope.types import Incarnation, LeaderEpoch, Offset, TimestampUs
from jetstream.log.state.epochs import EpochStart
from jetstream.tier.backups.manifest import BackedUpNamespace, BackedUpStream, BackupManifest, BackupObject
from metadata.api.publisher_responses import SessionInfo, StreamPublishers, TxidPlace
from metadata.api.responses import utc
from metadata.namespaces import NamespaceLimits
from metadata.stream_config import StreamConfig

CREATED = TimestampUs(1_700_000_000_000_001)
NOBODY = StreamPublishers(
    name="orders", incarnation="life", end=0, last_txid=None, txid_set=None, sessions=[], more=False
)
SOMEBODY = NOBODY.model_copy(
    update={
        "last_txid": TxidPlace(txid=7, leader_epoch=3, offset=20),
        "txid_set": TxidPlace(txid=5, leader_epoch=2, offset=10),
        "sessions": [
            SessionInfo(session="\xe9", sequence=4, offset=25, time=utc(CREATED), gapless=True),
            SessionInfo(session="late", sequence=1, offset=99, time=utc(CREATED), gapless=False),
        ],
    }
)


def backup_object(base: int, end: int, *, begins: bool = True, epoch: int = 3) -> BackupObject:
    started = EpochStart(LeaderEpoch(epoch), Offset(base), CREATED)
    return BackupObject(
        sha256=f"{base:064x}",
        size=1000 + end - base,
        base=Offset(base),
        next=Offset(end),
        epochs=(started,),
        begins_segment=begins,
    )


def backed_up_stream(
    *objects: BackupObject,
    start: int = 0,
    end: int = 0,
    publishers: StreamPublishers = NOBODY,
    **config: object,
) -> BackedUpStream:
    return BackedUpStream(
        config=StreamConfig.model_validate({"name": "orders", "subject": "orders.>", **config}),
        incarnation=Incarnation("life"),
        created=CREATED,
        leader_epoch=LeaderEpoch(3),
        start=Offset(start),
        end=Offset(end),
        publishers=publishers,
        objects=objects,
    )


WHOLE = backed_up_stream(
    backup_object(0, 10),
    backup_object(10, 20, begins=False),
    backup_object(20, 30),
    start=4,
    end=30,
    publishers=SOMEBODY,
    replicas=3,
    min_insync_replicas=2,
    tier=True,
)


def backup_manifest(*streams: BackedUpStream) -> BackupManifest:
    return BackupManifest(
        created_at=CREATED,
        version="1.0",
        default_replicas=3,
        namespaces=(BackedUpNamespace("shop", NamespaceLimits(streams=5)),),
        streams=streams,
    )
