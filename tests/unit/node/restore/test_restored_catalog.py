from dataclasses import replace

import pytest

from envelope.errors import DamagedBackup
from envelope.types import Incarnation, LeaderEpoch, NodeEpoch, NodeId, Offset, TimestampUs
from jetstream.node.restore.restored_catalog import EPOCHS_SKIPPED, restored_catalog, restored_config
from jetstream.tier.backups.manifest import BackedUpStream
from metadata.catalog.catalog import Catalog
from metadata.catalog.snapshot import decode, encode
from metadata.catalog.tables import ClusterRow, RegisteredNode, TxidSet
from metadata.features import LATEST_LEVEL
from tests.support.backup_manifests import WHOLE, backed_up_stream, backup_manifest, backup_object
from tests.support.catalogs import apply, register

NODE = RegisteredNode(
    node_id=NodeId("n1"),
    node_epoch=NodeEpoch(1),
    directory="disk-of-n1",
    host="127.0.0.1",
    port=1,
    http_port=None,
    version="1.0",
)


NOW = TimestampUs(1_800_000_000_000_000)


def restored(*streams: BackedUpStream) -> Catalog:
    return decode(encode(restored_catalog(backup_manifest(*streams), NODE, NOW)))


def test_one_node_has_every_stream_alone() -> None:
    catalog = restored(WHOLE)
    catalog.audit()
    [orders] = catalog.streams()
    assert orders.replicas == orders.isr_nodes == ("n1",)
    assert (orders.incarnation, orders.created) == (WHOLE.incarnation, WHOLE.created)
    assert orders.txid_set == TxidSet(LeaderEpoch(2), Offset(10), 5)
    assert (orders.tier, orders.begun, orders.leader) == (None, True, None)
    assert (catalog.cluster, catalog.ticket_keys) == (ClusterRow(feature_level=LATEST_LEVEL), ())
    assert catalog.namespaces.limits_of("shop").streams == 5


def test_settings_are_those_of_before_but_for_what_one_node_cannot_have() -> None:
    config = restored_config(WHOLE.config)
    assert config.differing(WHOLE.config) == ["replicas", "min_insync_replicas", "tier"]
    assert config.insync_minimum == 1


def test_epochs_begin_far_above_all_that_the_old_cluster_may_have_come_to() -> None:
    late = LeaderEpoch(1 << 52)
    later = backed_up_stream(backup_object(0, 10, epoch=late), end=10)
    [orders] = restored(later).streams()
    assert orders.leader_epoch == late + EPOCHS_SKIPPED
    [orders] = restored(replace(later, leader_epoch=LeaderEpoch(late + 3))).streams()
    assert orders.leader_epoch == late + 3 + EPOCHS_SKIPPED


def test_two_restores_of_one_backup_give_no_epoch_to_different_records() -> None:
    first, second = (
        restored_catalog(backup_manifest(WHOLE), NODE, TimestampUs(now)).streams()[0].leader_epoch
        for now in (NOW, NOW + 1000)
    )
    assert second - first > 1000, "each may be led anew many times meanwhile"
    assert second < 1 << 53


def test_streams_that_contradict_each_other_are_a_damaged_backup() -> None:
    twin = replace(WHOLE, config=WHOLE.config.model_copy(update={"name": "twin"}))
    for streams in ((WHOLE, WHOLE), (WHOLE, twin)):
        with pytest.raises(DamagedBackup):
            restored_catalog(backup_manifest(*streams), NODE, NOW)


def test_the_node_leads_all_once_it_has_registered() -> None:
    other = replace(
        WHOLE, config=WHOLE.config.model_copy(update={"name": "a"}), incarnation=Incarnation("other")
    )
    catalog = restored(WHOLE, other)
    apply(catalog, register("n1"))
    for command in catalog.due_elections():
        apply(catalog, command)
    assert [stream.leader for stream in catalog.streams()] == ["n1", "n1"]
    catalog.audit()
