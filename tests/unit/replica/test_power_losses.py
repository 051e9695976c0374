"""What one death takes from a replicated stream, for each way to force records to disk."""

import pytest

from envelope.types import NodeId, SyncMode
from tests.support.replica_cluster import RETRY, A, B, C, ReplicaCluster, agree, come_together, committed_of


@pytest.mark.parametrize("who", [A, B, C])
@pytest.mark.parametrize("sync", list(SyncMode))
def test_one_power_loss_loses_nothing_that_is_committed_whatever_the_sync(
    sync: SyncMode, who: NodeId
) -> None:
    """The others have it; who may have lost a tail is in sync again only with all of it."""
    cluster = ReplicaCluster("abc", 2, sync=sync, lossy=True)
    come_together(cluster)
    cluster[A].publish("m1", "m2")
    come_together(cluster)
    assert committed_of(cluster) == ["m1", "m2"]
    cluster[who].crash(power=True)
    assert cluster[who].log.values() == (["m1", "m2"] if sync is SyncMode.ALWAYS else [])
    cluster[who].start()
    assert (who in cluster.row.isr_nodes) is (sync is SyncMode.ALWAYS)
    elected = [election.leader for election in cluster.catalog.due_elections()]
    if elected:
        cluster.elect(elected[0])
    leader = cluster.row.leader
    assert leader is not None
    assert leader != who or sync is SyncMode.ALWAYS
    cluster.tell()
    while who not in cluster.row.isr_nodes:
        cluster.pass_time(RETRY)
        while cluster[leader].proposals:
            cluster.decide(leader)
    come_together(cluster)
    agree(cluster, "m1", "m2")


@pytest.mark.parametrize("sync", list(SyncMode))
def test_what_only_its_leader_had_is_gone_with_the_reign_whatever_was_acked(sync: SyncMode) -> None:
    """What ``ack: leader`` risks: it is answered before anybody else has the record."""
    cluster = ReplicaCluster("abc", sync=sync)
    come_together(cluster)
    cluster[A].publish("acked by its leader")
    cluster.wire.clear()
    cluster[A].crash()
    cluster.elect(B)
    cluster[B].publish("m1")
    cluster[A].start()
    come_together(cluster)
    agree(cluster, "m1")
