"""Ways in which replicated logs are known to have lost data, each replayed step by step.

The cluster checks after every delivery that what was committed is unchanged and on every member of the ISR,
and that logs which share a record share all before it. Names and numbers are those by which the scenarios are
known.
"""

import pytest

from envelope.types import LeaderEpoch, MonotonicNs, Offset, SyncMode
from jetstream.replica import follower_events as following
from jetstream.replica.leader_events import FollowerLost
from jetstream.replica.wire import FetchMessage, FetchRefusal
from metadata.catalog.commands import ChangeLeader
from metadata.catalog.events import CommandRefused
from metadata.controller.events import Elect, LeaderSilent, NodeHeard
from metadata.controller.machine import Controller
from metadata.lease import Lease, unlimited
from tests.support.replica_cluster import (
    HEARTBEAT,
    LAG_MAX,
    RETRY,
    START,
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
from tests.support.replica_log import Batch, ReplicaLog


def written(*runs: tuple[int, str]) -> ReplicaLog:
    """A log of one batch for each epoch and value."""
    log = ReplicaLog()
    for epoch, value in runs:
        log.append(Batch(log.log_end, LeaderEpoch(epoch), (value,)))
    log.sync()
    return log


def test_d1_kip101_s1_fast_failover_after_follower_restart() -> None:
    cluster = ReplicaCluster("ab")
    cluster[A].publish("m1")
    come_together(cluster)
    assert cluster[B].high_watermark == 1
    cluster[A].publish("m2")
    while committed_of(cluster) != ["m1", "m2"]:
        cluster.deliver(cluster.wire[0])
    cluster.wire.clear()
    assert cluster[B].high_watermark == 1, "it has m2, and does not know that it is committed"
    cluster[B].restart()
    cluster.flow(cut_off=[A])
    assert cluster[B].log.values() == ["m1", "m2"]
    cluster[A].crash()
    cluster.elect(B)
    cluster[A].start()
    come_together(cluster)
    agree(cluster, "m1", "m2")
    assert cluster[B].high_watermark == 2


@pytest.mark.parametrize("sync", [SyncMode.ALWAYS, SyncMode.OS])
def test_d2_kip101_s2_divergence_after_double_hard_failure(sync: SyncMode) -> None:
    """Logs are identical in the end, whatever the disks lost; with a sync before the ack nothing is lost."""
    cluster = ReplicaCluster("ab", 1, sync=sync, lossy=sync is not SyncMode.ALWAYS)
    for value in ("m1", "m2"):
        cluster[A].publish(value)
        come_together(cluster)
    cluster[A].log.durable_end = Offset(2)  # by luck
    cluster[A].crash(power=True)
    cluster[B].crash(power=True)
    cluster[B].start()
    if sync is SyncMode.OS:
        assert cluster.row.isr_nodes == (A,), "b may have lost something"
        cluster[A].start()
        cluster.elect(A)
        cluster[A].publish("m3")
    else:
        cluster.elect(B)
        cluster[B].publish("m3")
        cluster[A].start()
    come_together(cluster)
    agree(cluster, "m1", "m2", "m3")


def test_d2_double_hard_failure_with_an_unclean_election_ends_in_identical_logs_and_is_loud() -> None:
    cluster = ReplicaCluster("ab", 1, sync=SyncMode.OS, lossy=True)
    for value in ("m1", "m2"):
        cluster[A].publish(value)
        come_together(cluster)
    cluster[A].log.durable_end = Offset(2)
    cluster[B].crash(power=True)
    cluster[B].start()
    row = cluster.row
    unclean = ChangeLeader(STREAM, row.incarnation, B, cluster[B].node_epoch, row.leader_epoch, unclean=True)
    cluster.apply(unclean)
    cluster.tell(B)
    cluster[B].publish("m3")
    assert cluster[A].high_watermark == 2
    cluster.tell()
    come_together(cluster)
    agree(cluster, "m3")
    assert cluster[A].lost == [following.ReportLost(Offset(0), Offset(2))]


def test_d2b_offsets_go_backwards() -> None:
    """The follower's end lies inside a batch of the new leader's: it goes back to where both agree."""
    whole = ReplicaLog(*(Batch(Offset(base), LeaderEpoch(1), ("x",) * 10) for base in range(0, 100, 10)))
    half = ReplicaLog(*whole.batches[:5])
    cluster = ReplicaCluster("ab", 1, logs={A: half, B: whole}, leader_epoch=2, lossy=True)
    cluster[A].publish(*("y",) * 77)
    cluster[A].publish(*("z",) * 77)
    come_together(cluster)
    agree(cluster, *("x",) * 50, *("y",) * 77, *("z",) * 77)


def test_d3_kip279_three_fast_leader_changes() -> None:
    cluster = ReplicaCluster("ab", logs={A: written((1, "r0")), B: written((1, "r0"))}, leader_epoch=2)
    for leader, values in ((B, ["b1"]), (A, ["a1", "a2", "a3"]), (B, ["b2"]), (A, ["a4", "a5"])):
        cluster.elect(leader, tell=[leader])
        cluster.wire.clear()
        for value in values:
            cluster[leader].publish(value)
    assert cluster[A].log.values() == ["r0", "a1", "a2", "a3", "a4", "a5"]
    assert cluster[B].log.values() == ["r0", "b1", "b2"]
    cluster.tell()
    come_together(cluster)
    agree(cluster, "r0", "a1", "a2", "a3", "a4", "a5")
    assert cluster[A].high_watermark == 6


def test_d4_kafka7164_missed_epoch() -> None:
    """The leader is the same as in the last epoch that the follower heard of, and still not as before."""
    cluster = ReplicaCluster("abc")
    cluster[A].publish("x")
    cluster.flow(cut_off=[B])
    assert cluster[C].log.values() == ["x"]
    cluster.elect(B, tell=[A, B])
    cluster.flow(cut_off=[C])
    assert cluster[A].log.values() == []
    cluster.elect(A, tell=[A, B])
    cluster[A].publish("y")
    cluster.flow(cut_off=[C])
    assert cluster[C].log.values() == ["x"]
    cluster.tell(C)
    come_together(cluster)
    agree(cluster, "y")


def test_d5_zombie_replica_stale_epoch_fetch() -> None:
    cluster = ReplicaCluster("abc")
    cluster[A].publish("m1")
    come_together(cluster)
    cluster[A].publish("m2")
    cluster.flow(cut_off=[B])
    (late, *_) = (
        message
        for message in reversed(cluster.sent)
        if message.source == C
        and isinstance(message.message, FetchMessage)
        and message.message.synced_end == 2
    )
    cluster.elect(B, tell=[A, B])
    cluster.flow(cut_off=[C])
    cluster.elect(A, tell=[A, B])
    cluster[A].publish("y")
    come_together(cluster, cut_off=(C,))
    assert cluster[A].high_watermark == 1
    cluster.deliver(late)
    assert cluster[A].refusals[-1].reason is FetchRefusal.OTHER_LEADER_EPOCH
    assert cluster[A].high_watermark == 1
    cluster.tell(C)
    come_together(cluster)
    agree(cluster, "m1", "y")
    assert cluster[A].high_watermark == 2


def test_d5b_kafka13141_diverging_fetch_counts() -> None:
    """A follower is told that it diverges: what it said to have does not count, now or later."""
    cluster = ReplicaCluster(
        "ab", logs={A: written((1, "r"), (3, "a")), B: written((1, "r"), (2, "b"))}, leader_epoch=4
    )
    (fetch,) = cluster.wire
    cluster.deliver(fetch)
    cluster[A].publish("new")
    assert cluster[A].high_watermark == 0
    come_together(cluster)
    agree(cluster, "r", "a", "new")


def test_d6_isr_expansion_while_the_high_watermark_lags() -> None:
    """The new leader does not know how much is committed: a joiner must reach the start of its epoch."""
    ten = written(*((1, f"v{row}") for row in range(10)))
    five = ReplicaLog(*ten.batches[:5])
    cluster = ReplicaCluster(
        "abc", 2, logs={A: ten, B: ReplicaLog(*ten.batches), C: five}, isr=(A, B), leader_epoch=2
    )
    cluster.deliver(cluster.between(B, A)[0])
    assert cluster[A].high_watermark == 10
    cluster[A].crash()
    cluster.wire.clear()
    cluster.elect(B)
    assert cluster[B].high_watermark == 0
    cluster[B].batches_max = 1
    cluster[B].lead(FollowerLost(A))
    cluster.deliver(cluster.between(C, B)[0])
    assert not cluster[B].proposals, "c has five, and b knows of nothing that is committed"
    cluster.pass_time(LAG_MAX)
    while cluster[B].proposals:
        cluster.decide(B)
    cluster[B].crash()
    assert cluster.row.isr_nodes == (B, C)
    cluster.elect(C)
    agree(cluster, *(f"v{row}" for row in range(10)))


def test_d7_high_watermark_while_an_isr_expansion_is_pending() -> None:
    cluster = ReplicaCluster("abc", isr=(A, B))
    cluster.flow()
    assert cluster[A].proposals, "c has all of the empty log"
    for row in range(10):
        cluster[A].publish(f"v{row}")
    cluster.flow(cut_off=[C])
    assert cluster[A].high_watermark == 0
    assert cluster.decide(A, tell=False)
    cluster.elect(C, tell=[B, C])
    come_together(cluster, cut_off=(A,))
    assert committed_of(cluster) == []
    cluster.tell()
    come_together(cluster)
    agree(cluster)


def test_d7_high_watermark_while_an_isr_shrink_is_pending() -> None:
    """Whoever is proposed out may still be elected until the catalogue has decided."""
    cluster = ReplicaCluster("abc")
    come_together(cluster)
    cluster[A].publish("m1")
    cluster.pass_time(LAG_MAX, cut_off=[C])
    assert cluster[A].proposals
    assert cluster[A].high_watermark == 0
    cluster.elect(C, tell=[B, C])
    assert not cluster.decide(A, tell=False)
    come_together(cluster, cut_off=(A,))
    cluster.tell()
    come_together(cluster)
    agree(cluster)


def test_d8_kip903_stale_broker_epoch() -> None:
    cluster = ReplicaCluster("ab", 1, isr=(A,))
    cluster[A].publish("m1")
    cluster.flow()
    assert cluster[A].proposals
    assert committed_of(cluster) == ["m1"]
    cluster[B].wipe()
    assert not cluster.decide(A)
    assert cluster.row.isr_nodes == (A,)
    cluster.pass_time(RETRY + HEARTBEAT)
    assert cluster.decide(A), "the new start has copied everything"
    assert cluster[B].log.values() == ["m1"]


def test_d9_remove_readd_quickly() -> None:
    """The leader still holds what a replica acknowledged when its disk was another."""
    cluster = ReplicaCluster("abc", 1)
    come_together(cluster)
    cluster[A].publish("m1")
    cluster.flow()
    assert committed_of(cluster) == ["m1"]
    cluster[B].wipe()
    cluster.wire.clear()
    cluster.tell(A)
    assert cluster.row.isr_nodes == (A, C)
    assert not cluster.decide(A), "the leader knows only the start before"
    while B not in cluster.row.isr_nodes:
        cluster.pass_time(RETRY)
        while cluster[A].proposals:
            cluster.decide(A)
    assert cluster[B].log.values() == ["m1"]


def test_d10_kip966_last_replica_standing() -> None:
    """The last one that kept up loses what it never synced; who left before has it, and is elected."""
    cluster = ReplicaCluster("cab", 2, sync=SyncMode.OS)
    come_together(cluster)
    cluster[C].publish("m1")
    cluster.pass_time(LAG_MAX, cut_off=[A])
    assert cluster.decide(C)
    assert committed_of(cluster) == ["m1"]
    cluster[C].publish("m2")
    cluster.pass_time(2 * LAG_MAX, cut_off=[A, B])
    assert not cluster[C].proposals
    assert set(cluster.row.isr_nodes) == {B, C}
    cluster[C].crash(power=True)
    assert cluster[C].log.values() == []
    cluster[C].start()
    assert cluster.row.isr_nodes == (B,)
    (election,) = cluster.catalog.due_elections()
    assert election.leader == B
    cluster.elect(B)
    come_together(cluster)
    agree(cluster, "m1")


def test_d11_single_node_power_loss() -> None:
    """Those who were paused and the one that lost power never elect each other without the record."""
    cluster = ReplicaCluster("cdeab", 3)
    come_together(cluster)
    cluster[C].publish("m1")
    cluster.pass_time(LAG_MAX, cut_off=[A, B])
    assert cluster.decide(C)
    assert committed_of(cluster) == ["m1"]
    cluster[C].crash(power=True)
    cluster[C].start()
    assert {election.leader for election in cluster.catalog.due_elections()} <= {C, D, E}
    cluster.elect(C)
    come_together(cluster, cut_off=(D, E))
    assert cluster[A].log.values() == ["m1"]
    come_together(cluster)
    agree(cluster, "m1")


def test_d15_unclean_election_is_told_and_the_loss_is_found() -> None:
    cluster = ReplicaCluster("ab", 1, isr=(A,), lossy=True)
    cluster[A].publish("m1")
    cluster.wire.clear()
    cluster[A].crash()
    row = cluster.row
    clean = ChangeLeader(STREAM, row.incarnation, B, cluster[B].node_epoch, row.leader_epoch)
    assert isinstance(cluster.apply(clean)[0], CommandRefused)
    assert cluster.row.leader == A
    unclean = ChangeLeader(STREAM, row.incarnation, B, cluster[B].node_epoch, row.leader_epoch, unclean=True)
    assert len(cluster.apply(unclean)) == 2
    cluster.tell()
    cluster[B].publish("n1")
    cluster[A].start()
    come_together(cluster)
    agree(cluster, "n1")
    assert cluster.row.leader_epoch == 2


@pytest.mark.parametrize("has_lease", [False, True])
def test_d16_zombie_leader_acks(has_lease: bool) -> None:
    """A leader wakes up after another was elected: it commits nothing, and changes no ISR."""
    cluster = ReplicaCluster("abc", 1)
    pause_ends = MonotonicNs(START + 4 * LAG_MAX)
    cluster[A].lease = unlimited() if has_lease else Lease(pause_ends)
    cluster.elect(A)
    cluster[A].publish("m1")
    come_together(cluster)
    cluster.elect(B, tell=[B, C])
    cluster.wire.clear()
    cluster[A].publish("zombie")
    cluster.now = pause_ends
    cluster[A].tick()
    assert bool(cluster[A].proposals) is has_lease
    while cluster[A].proposals:
        assert not cluster.decide(A)
    assert cluster[A].high_watermark == 1
    cluster[B].publish("m2")
    come_together(cluster, cut_off=(A,))
    cluster.tell()
    come_together(cluster)
    agree(cluster, "m1", "m2")
    assert committed_of(cluster) == ["m1", "m2"]


@pytest.mark.parametrize("minimum", [1, 2])
def test_d18_jepsen2013_isr_shrinks_to_isolated_leader(minimum: int) -> None:
    cluster = ReplicaCluster("abc", minimum)
    come_together(cluster)
    cluster[A].publish("lost")
    cluster.pass_time(2 * LAG_MAX, cut_off=[A])
    assert bool(cluster[A].proposals) is (minimum == 1), "and they do not reach the catalogue"
    assert cluster[A].high_watermark == 0
    cluster[A].crash()
    cluster.elect(B)
    cluster[B].publish("m1")
    cluster.pass_time(LAG_MAX)
    assert cluster.decide(B)
    cluster[A].start()
    come_together(cluster)
    agree(cluster, "m1")
    assert committed_of(cluster) == ["m1"]


def test_d19_isr_two_leader_dead_is_elected() -> None:
    cluster = ReplicaCluster("ab")
    cluster[A].publish("m1")
    come_together(cluster)
    cluster[A].crash()
    controller = Controller(cluster.catalog, START)
    controller.handle(NodeHeard(B, cluster[B].node_epoch), START)
    (election,) = controller.handle(LeaderSilent(STREAM, cluster.row.leader_epoch, B), START)
    assert isinstance(election, Elect)
    cluster.apply(election.command)
    cluster.tell()
    assert cluster[B].leader is not None
    agree(cluster, "m1")


def test_d19_empty_stream_with_a_high_watermark_of_zero() -> None:
    """Zero is a high watermark like any other: who has nothing of nothing may join, and must keep up."""
    cluster = ReplicaCluster("abc", isr=(A, B))
    cluster.flow()
    assert cluster.decide(A)
    cluster[A].publish("m1")
    cluster.flow(cut_off=[C])
    assert cluster[A].high_watermark == 0
    come_together(cluster)
    assert cluster[A].high_watermark == 1


def test_d20_epoch_entry_without_records_lost() -> None:
    """Reigns without a record are known only to who led them, and nobody stumbles over them."""
    cluster = ReplicaCluster("abc")
    cluster[A].publish("m1")
    come_together(cluster)
    for leader in (B, C, B, A, C):
        cluster.elect(leader, tell=[leader])
        cluster.wire.clear()
    cluster.tell()
    before = len(cluster.sent)
    come_together(cluster)
    assert len(cluster.sent) - before < 40
    cluster[C].publish("m2")
    come_together(cluster)
    agree(cluster, "m1", "m2")


def test_d23_high_watermark_forgotten_by_all() -> None:
    """Nobody remembers what was committed: it still is."""
    cluster = ReplicaCluster("abc")
    for value in ("m1", "m2"):
        cluster[A].publish(value)
    come_together(cluster)
    for name in (A, B, C):
        cluster[name].crash(power=True)
    cluster.wire.clear()
    for name in (C, B, A):
        cluster[name].start()
        assert cluster[name].high_watermark == 0
    cluster.elect(B)
    come_together(cluster)
    agree(cluster, "m1", "m2")
    assert {member.high_watermark for member in cluster.members.values()} == {2}
