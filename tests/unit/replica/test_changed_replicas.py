"""Followers come and go while a leader reigns."""

import pytest

from envelope.types import LeaderEpoch, NodeId, Offset
from jetstream.replica.leader import sole_replica
from jetstream.replica.leader_events import (
    AnswerFollower,
    FollowerLost,
    ReplicasChanged,
    ServeFollower,
)
from jetstream.replica.role_events import AdvanceHighWatermark, Tick
from jetstream.replica.settings import NEVER
from jetstream.replica.wire import FetchRefusal, RefusedMessage
from tests.support.reigns import EPOCH, Reign, named, proposals, steady
from tests.support.replica_cluster import LAG_MAX, START, A, B, C, D, E


def changed(*replicas: NodeId, isr: tuple[NodeId, ...], version: int = 2) -> ReplicasChanged:
    return ReplicasChanged(replicas, isr, version)


def test_a_replica_that_comes_is_served_and_joins_once_it_has_everything() -> None:
    reign = steady(Reign())
    assert reign.fetch(E) == (AnswerFollower(E, RefusedMessage(EPOCH, FetchRefusal.UNKNOWN_REPLICA)),)
    reign.give(changed(A, B, C, E, isr=(A, B, C)))
    assert [state.node for state in reign.leader.follower_states()] == [B, C, E]
    assert reign.leader.isr.maximal == {A, B, C}
    [served] = reign.fetch(E, 0, last=0)
    assert isinstance(served, ServeFollower)
    assert (served.follower, served.log_end) == (E, 0)
    assert proposals(reign.fetch(E, 10, 9)) == []
    assert proposals(reign.fetch(E, 10)) == [named((A, 1), (B, 1), (C, 1), (E, 1))]


def test_a_replica_that_comes_holds_up_no_commit() -> None:
    reign = steady(Reign())
    reign.give(changed(A, B, C, E, isr=(A, B, C)))
    reign.written(12)
    reign.fetch(B, 12, last=EPOCH)
    assert AdvanceHighWatermark(Offset(12)) in reign.fetch(C, 12, last=EPOCH)


def test_a_replica_that_goes_is_waited_for_no_more() -> None:
    reign = steady(Reign())
    reign.written(12)
    reign.fetch(B, 12, last=EPOCH)
    assert reign.high_watermark == 10
    actions = reign.give(changed(A, B, isr=(A, B)))
    assert AdvanceHighWatermark(Offset(12)) in actions
    assert proposals(actions) == [], "nobody wants it back"
    assert reign.fetch(C, 12) == (AnswerFollower(C, RefusedMessage(EPOCH, FetchRefusal.UNKNOWN_REPLICA)),)
    assert reign.give(FollowerLost(C)) == ()


def test_what_was_proposed_with_a_replica_that_goes_is_void() -> None:
    reign = Reign(isr=(A, B))
    reign.fetch(B)
    reign.fetch(C)
    assert proposals(reign.fetch(C)) == [named((A, 1), (B, 1), (C, 1))]
    assert reign.leader.isr.maximal == {A, B, C}
    reign.give(changed(A, B, isr=(A, B)))
    assert reign.leader.isr.maximal == {A, B}
    assert reign.leader.isr.proposal is None


def test_a_member_of_the_isr_does_not_go() -> None:
    reign = steady(Reign())
    with pytest.raises(AssertionError, match="L5"):
        reign.give(changed(A, B, isr=(A, B, C)))


def test_what_is_known_of_those_who_stay_is_kept() -> None:
    reign = steady(Reign())
    before = reign.leader.follower_states()[0]
    reign.give(changed(A, B, E, isr=(A, B)))
    assert reign.leader.follower_states()[0] == before
    assert reign.leader.follower_states()[1].log_end is None


def test_a_leader_that_is_left_alone_commits_what_it_has_and_wants_no_ticks() -> None:
    reign = steady(Reign(minimum=1))
    reign.written(12)
    actions = reign.give(changed(A, isr=(A,)))
    assert AdvanceHighWatermark(Offset(12)) in actions
    assert not reign.leader.is_replicated
    assert reign.leader.takes_followers
    assert reign.leader.wake_at == NEVER
    assert reign.written(13) == (AdvanceHighWatermark(Offset(13)),)
    assert reign.after(10 * LAG_MAX).give(Tick()) == ()


def test_a_leader_that_was_alone_takes_followers() -> None:
    reign = steady(Reign(minimum=1))
    reign.give(changed(A, isr=(A,)))
    reign.written(14)
    reign.give(changed(A, D, isr=(A,), version=3))
    assert reign.leader.is_replicated
    [served] = reign.fetch(D, 10)
    assert isinstance(served, ServeFollower)
    assert proposals(reign.fetch(D, 14, last=EPOCH)) == [named((A, 1), (D, 1))]


def test_who_leads_a_log_that_takes_no_epoch_takes_no_followers() -> None:
    assert not sole_replica(LeaderEpoch(3), Offset(5), Offset(5), START).takes_followers


def test_a_leader_that_is_not_in_sync_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="L5"):
        steady(Reign()).give(changed(A, B, C, isr=(B, C)))
