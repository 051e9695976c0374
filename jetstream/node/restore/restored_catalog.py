"""The catalogue of a restored cluster: one node, which has the only replica of every stream."""

from typing import Final

from envelope.errors import DamagedBackup
from envelope.types import LeaderEpoch, LogIndex, Offset, TimestampUs
from jetstream.tier.backups.manifest import BackedUpStream, BackupManifest
from metadata.catalog.catalog import Catalog
from metadata.catalog.tables import (
    ClusterRow,
    InSyncReplica,
    RegisteredNode,
    Stream,
    Tables,
    TxidSet,
    partitions_of,
    uses_of,
)
from metadata.features import LATEST_LEVEL
from metadata.namespaces import Namespace, NamespaceTable
from metadata.stream_config import StreamConfig

FIRST_INDEX: Final = LogIndex(1)
"""Of the metadata log: its first entry is all that was restored."""

EPOCHS_SKIPPED: Final = 1 << 20
"""So far above all leader epochs of the backup those of the restored streams begin: the cluster that was
backed up may have gone on, and a reader of what it stored then must be told that this is another history."""


def restored_catalog(manifest: BackupManifest, node: RegisteredNode, now: TimestampUs) -> Catalog:
    """Return the catalogue with which ``node`` begins alone, restored at ``now``.

    Tickets that were given out are good no more: their keys are not in a backup.

    Raises:
        DamagedBackup: its streams or limits contradict each other.
    """
    streams = {stream.name: _row(stream, node, now) for stream in manifest.streams}
    limits = {each.name: Namespace(each.name, each.limits) for each in manifest.namespaces}
    tables = Tables(
        nodes={node.node_id: node},
        streams=streams,
        cluster=ClusterRow(feature_level=LATEST_LEVEL),
        incarnations={stream.incarnation for stream in streams.values()},
        partitions=partitions_of(streams.values()),
        namespaces=NamespaceTable(limits, uses_of(streams.values())),
    )
    problems = tables.problems()
    if problems or len(streams) != len(manifest.streams):
        raise DamagedBackup(
            f"the backup contradicts itself: {'; '.join(problems[:3]) or 'a stream is there twice'}"
        )
    return Catalog(tables, FIRST_INDEX)


def restored_config(config: StreamConfig) -> StreamConfig:
    """Return the configuration of a stream that one node has alone.

    It has no tier: the objects there are those of the cluster that was backed up, which may still run.
    """
    alone = {"replicas": 1, "min_insync_replicas": None, "read_replicas": 0, "tier": False}
    return config.model_copy(update=alone)


def _txid_set(stream: BackedUpStream) -> TxidSet | None:
    found = stream.publishers.txid_set
    return (
        None if found is None else TxidSet(LeaderEpoch(found.leader_epoch), Offset(found.offset), found.txid)
    )


def _row(stream: BackedUpStream, node: RegisteredNode, now: TimestampUs) -> Stream:
    newest = max(stream.leader_epoch, stream.last_epoch) + EPOCHS_SKIPPED
    # No two restores of one backup may give one epoch to different records; all stay below 2^53.
    newest = max(newest, now // 1000 << 11)
    return Stream(
        config=restored_config(stream.config),
        incarnation=stream.incarnation,
        created=stream.created,
        replicas=(node.node_id,),
        leader=None,
        leader_epoch=LeaderEpoch(newest),
        isr=(InSyncReplica(node.node_id, node.directory),),
        isr_version=1,
        txid_set=_txid_set(stream),
    )
