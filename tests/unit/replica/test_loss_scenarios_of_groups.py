"""More ways in which replicated logs are known to have lost data: where several nodes fail or change at once.

As `tests.unit.replica.test_loss_scenarios`.
"""

from metadata.catalog.commands import FinishReassignment, ReassignReplicas
from tests.support.replica_cluster import (
    HEARTBEAT,
    LAG_MAX,
    STREAM,
    A,
    B,
    C,
    D,
    E,
    ReplicaCluster,
    agree,
    come_together,
    committed_of,
)


def test_d14_membership_plus_partition_plus_kill() -> None:
    """One is cut off, three are killed, a fifth is removed: what was acked is there when they come back."""
    cluster = ReplicaCluster("abcde", 3)
    cluster[A].publish("m1")
    come_together(cluster)
    assert committed_of(cluster) == ["m1"]
    cluster[A].publish("unacked")
    cluster.pass_time(HEARTBEAT, cut_off=[A])
    row = cluster.row
    cluster.apply(ReassignReplicas(STREAM, row.incarnation, (A, B, C, E)))
    for name in (A, B, C):
        cluster[name].crash(power=True)
    cluster.apply(
        FinishReassignment(STREAM, row.incarnation, cluster.row.isr_version, cluster.row.leader_epoch)
    )
    assert D not in cluster.row.replicas
    cluster[D].crash()
    for name in (B, C, A):
        cluster[name].start()
    assert {election.leader for election in cluster.catalog.due_elections()} <= {A, B, C, E}
    cluster.elect(B)
    cluster[B].publish("m2")
    come_together(cluster)
    agree(cluster, "m1", "m2")
    assert committed_of(cluster) == ["m1", "m2"]


def test_d17_promote_without_fencing() -> None:
    """A follower that has not heard of the new reign acknowledges to the old leader: that commits nothing."""
    cluster = ReplicaCluster("abc", 2)
    cluster[A].publish("m1")
    come_together(cluster)
    cluster.elect(B, tell=[B])
    cluster[A].publish("old")
    come_together(cluster)
    assert cluster[C].log.values() == ["m1", "old"], "it is not fenced, and takes what the old leader has"
    assert cluster[A].high_watermark == 1, "the next leader is in sync until it is said that it is not"
    cluster[B].publish("m2")
    come_together(cluster)
    assert cluster[B].high_watermark == 1, "who is not fenced has acknowledged nothing to the new leader"
    cluster.tell()
    come_together(cluster)
    agree(cluster, "m1", "m2")
    assert committed_of(cluster) == ["m1", "m2"]


def test_d24_slides_replica_recovery_example() -> None:
    """The leader that comes back keeps what it shares with the new one, and loses what was never acked."""
    cluster = ReplicaCluster("abc", 1)
    cluster[A].publish("m1")
    come_together(cluster)
    cluster[A].publish("m2")
    cluster.flow(cut_off=[C])
    cluster[A].publish("m3")
    cluster.wire.clear()
    assert [cluster[name].log.values() for name in (A, B, C)] == [["m1", "m2", "m3"], ["m1", "m2"], ["m1"]]
    cluster[A].crash()
    cluster.elect(B)
    cluster.pass_time(LAG_MAX)
    assert cluster.decide(B)
    assert committed_of(cluster) == ["m1", "m2"]
    for value in ("m4", "m5"):
        cluster[B].publish(value)
        come_together(cluster)
    cluster[A].start()
    before = len(cluster.sent)
    come_together(cluster)
    agree(cluster, "m1", "m2", "m4", "m5")
    fetched = [batch for message in cluster.sent[before:] if message.target == A for batch in message.batches]
    assert [value for batch in fetched for value in batch.values] == ["m4", "m5"], "it kept m2"
    assert set(cluster.row.isr_nodes) == {B, C}
    assert cluster.decide(B)
    assert set(cluster.row.isr_nodes) == {A, B, C}
