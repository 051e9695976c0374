"""Logs that are gone, though everything else of their node is there."""

import pytest

from envelope.types import LeaderEpoch, Offset
from jetstream.replica.follower_events import (
    Distrust,
    LeaderConnected,
    LeaderDisconnected,
    ResetLog,
)
from jetstream.replica.settings import NEVER
from jetstream.replica.wire import StartOverMessage
from tests.support.following import EPOCH, Following, diverging, fetch
from tests.support.replica_cluster import A, B, C, ReplicaCluster, agree, come_together
from tests.support.replica_log import ReplicaLog


def with_records() -> ReplicaCluster:
    """Three replicas with two committed records, of which all know."""
    cluster = ReplicaCluster()
    cluster[A].publish("m1", "m2")
    come_together(cluster)
    return cluster


def test_nobody_deletes_its_log_for_a_leader_that_lost_its_own() -> None:
    cluster = with_records()
    cluster.lossy = True
    cluster[A].crash()
    cluster[A].log = ReplicaLog()
    cluster[A].start()  # and does not say what is lost: nothing but the followers can tell
    cluster.elect(A)
    cluster.flow()
    for node in (B, C):
        assert cluster[node].log.values() == ["m1", "m2"]
        assert cluster[node].distrusts == [Distrust(Offset(0), Offset(2))]
    cluster.elect(B)
    come_together(cluster)
    agree(cluster, "m1", "m2")


def test_who_says_that_its_log_is_lost_is_copied_before_it_counts() -> None:
    cluster = with_records()
    for node in (A, B, C):
        cluster[node].crash()
    cluster[A].log = ReplicaLog()
    cluster[A].start(lost=(cluster.row.incarnation,))
    assert (cluster.row.isr_nodes, cluster.row.blank) == ((B, C), (A,))
    with pytest.raises(AssertionError, match="not in the ISR"):
        cluster.elect(A)
    for node in (B, C):
        cluster[node].start()
    cluster.elect(B)
    come_together(cluster)
    agree(cluster, "m1", "m2")
    assert cluster.decide(B)
    assert (cluster.row.isr_nodes, cluster.row.blank) == ((A, B, C), ())


def test_nothing_committed_is_cut_for_a_leader_that_must_have_it() -> None:
    following = Following(known=9)
    assert following.give(diverging(5, 10, 5, 8)) == (Distrust(Offset(8), Offset(9)),)
    assert following.follower.high_watermark == 9
    assert following.follower.wake_at == NEVER
    assert following.give(LeaderConnected()) == following.give(LeaderDisconnected()) == ()
    assert following.give(diverging(5, 10, 5, 8)) == ()
    assert following.reign(C, 8) == (fetch(5, 10, epoch=8, known=9),), "it asks the next leader"
    assert following.follower.leader == C


def test_nobody_begins_anew_for_an_empty_leader_that_was_elected_cleanly() -> None:
    following = Following(known=4)
    answer = StartOverMessage(EPOCH, LeaderEpoch(5), Offset(10), Offset(0))
    assert following.give(answer) == (Distrust(Offset(0), Offset(4)),)


def test_who_is_behind_what_retention_has_left_begins_anew() -> None:
    following = Following(known=10)
    answer = StartOverMessage(EPOCH, LeaderEpoch(5), Offset(10), Offset(12))
    assert following.give(answer) == (ResetLog(Offset(12), note=b""),)
