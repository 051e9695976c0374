"""What is committed, which fetches count and who is served: one rule of a leader after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.types import LeaderEpoch, MonotonicNs, NodeId, Offset
from jetstream.replica.leader import Leader, sole_replica
from jetstream.replica.leader_events import (
    AdvanceHighWatermark,
    Diverging,
    FetchRefusal,
    LeaseRenewed,
    LogStartMoved,
    MinimumChanged,
    RefuseFetch,
    Serve,
    StartOver,
    Synced,
    Tick,
)
from tests.support.reigns import EPOCH, OLD, Reign, log, proposals
from tests.support.replica_cluster import HEARTBEAT, RETRY, START, A, B, C, D

# --- the only replica ---------------------------------------------------------------------------------


def sole(end: int) -> Leader:
    return sole_replica(LeaderEpoch(3), Offset(end), Offset(end), START)


def test_what_was_durable_before_the_epoch_is_committed_at_its_start() -> None:
    assert sole(7).high_watermark == 7


def test_an_empty_log_has_nothing_committed() -> None:
    assert sole(0).high_watermark == 0


def test_what_is_synced_is_committed_and_told_once() -> None:
    leader = sole(0)
    synced = Synced(Offset(5), Offset(5))
    assert leader.handle(synced, START) == (AdvanceHighWatermark(Offset(5)),)
    assert leader.handle(synced, START) == ()
    assert leader.high_watermark == 5


def test_a_synced_end_that_goes_back_is_our_bug() -> None:
    leader = sole(5)
    with pytest.raises(AssertionError, match="L1"):
        leader.handle(Synced(Offset(4), Offset(5)), START)
    assert leader.high_watermark == 5


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3))))
def test_the_high_watermark_is_the_synced_end_and_never_decreases(steps: list[tuple[int, int]]) -> None:
    leader = sole(0)
    synced = end = 0
    told = [0]
    for grown, unsynced in steps:
        synced = max(synced, min(synced + grown, end + grown))
        end = max(end, synced + unsynced)
        told += [
            action.high_watermark
            for action in leader.handle(Synced(Offset(synced), Offset(end)), START)
            if isinstance(action, AdvanceHighWatermark)
        ]
        assert leader.high_watermark == synced == told[-1]
    assert told == sorted(set(told))


# --- commit -------------------------------------------------------------------------------------------


def test_what_the_whole_isr_has_on_disk_is_committed() -> None:
    reign = Reign()
    reign.fetch(B, 10, 8)
    assert AdvanceHighWatermark(Offset(6)) in reign.fetch(C, 10, 6)
    assert reign.fetch(C, 10, 7) == (AdvanceHighWatermark(Offset(7)),)


def test_a_member_that_was_not_heard_of_in_this_reign_holds_up_every_commit() -> None:
    reign = Reign(known=3)
    reign.written(20)
    reign.fetch(B)
    assert reign.high_watermark == 3
    reign.fetch(C)
    assert reign.high_watermark == 10


def test_what_is_in_memory_only_is_not_committed() -> None:
    reign = Reign(isr=(A, B))
    reign.written(12, synced_end=11)
    reign.fetch(B, 12, 12, last=EPOCH)
    assert reign.high_watermark == 11
    reign.written(12)
    assert reign.high_watermark == 12


def test_a_follower_has_no_more_on_disk_than_it_has() -> None:
    reign = Reign(isr=(A, B))
    reign.written(20)
    reign.fetch(B, 10, 20)
    assert reign.high_watermark == 10


def test_a_late_fetch_takes_no_acknowledgement_back() -> None:
    reign = Reign(isr=(A, B), own_log=log((OLD, 0), (EPOCH, 10), end=10, synced=4))
    reign.fetch(B, 10, 9)
    reign.fetch(B, 10, 5)
    assert reign.high_watermark == 4
    reign.written(10)
    assert reign.high_watermark == 9


def test_a_read_replica_is_served_and_never_counted() -> None:
    reign = Reign(isr=(A, B))
    reign.fetch(B)
    actions = reign.written(12) + reign.fetch(D)
    assert Serve(D, OLD, Offset(10), Offset(10)) in actions
    assert proposals(actions + reign.fetch(D, 12, last=EPOCH)) == []
    assert reign.high_watermark == 10


def test_an_isr_below_the_minimum_commits_nothing() -> None:
    reign = Reign(isr=(A,), known=4)
    reign.written(12)
    assert reign.high_watermark == 4
    reign.give(MinimumChanged(1))
    assert reign.high_watermark == 12


# --- which fetches count ------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH + 1])
def test_a_fetch_of_another_reign_is_refused_and_changes_nothing(epoch: int) -> None:
    reign = Reign(isr=(A, B))
    refused = RefuseFetch(B, EPOCH, FetchRefusal.OTHER_LEADER_EPOCH)
    assert reign.fetch(B, epoch=epoch, node_epoch=9) == (refused,)
    assert reign.high_watermark == 0
    assert AdvanceHighWatermark(Offset(10)) in reign.fetch(B, node_epoch=1)


@pytest.mark.parametrize("stranger", [A, NodeId("x")])
def test_who_is_no_follower_is_refused(stranger: NodeId) -> None:
    refused = RefuseFetch(stranger, EPOCH, FetchRefusal.UNKNOWN_REPLICA)
    assert Reign().fetch(stranger) == (refused,)


def test_an_older_start_of_a_follower_is_refused() -> None:
    reign = Reign(isr=(A, B))
    reign.fetch(B, 4, node_epoch=3)
    assert reign.fetch(B, node_epoch=2) == (RefuseFetch(B, EPOCH, FetchRefusal.OLD_NODE_EPOCH),)
    assert reign.high_watermark == 4


def test_a_newer_start_of_a_follower_has_acknowledged_nothing_yet() -> None:
    reign = Reign(isr=(A, B))
    reign.written(12, synced_end=10)
    reign.fetch(B, 12, last=EPOCH)
    reign.fetch(B, 0, last=0, node_epoch=2)
    reign.written(12)
    assert reign.high_watermark == 10


def test_a_fetch_that_diverges_is_told_where_and_does_not_count() -> None:
    reign = Reign(isr=(A, B))
    answer = Diverging(B, LeaderEpoch(6), Offset(11), OLD, Offset(10))
    assert reign.fetch(B, 11, last=6) == (answer,)
    assert reign.high_watermark == 0
    reign.written(12)
    assert reign.high_watermark == 0, "nor is it remembered"


def test_a_follower_that_ends_before_the_log_starts_begins_anew() -> None:
    reign = Reign(isr=(A, B), known=10)
    reign.give(LogStartMoved(Offset(8)))
    assert reign.fetch(C, 7) == (StartOver(C, OLD, Offset(7), Offset(8)),)
    assert Serve(C, LeaderEpoch(0), Offset(8), Offset(10)) in reign.fetch(C, 8, last=0)


def test_a_fetch_is_told_to_begin_anew_if_the_log_moves_on_while_it_waits() -> None:
    reign = Reign(isr=(A, B), known=10, lease_until=START)
    reign.fetch(C, 9)
    reign.give(LogStartMoved(Offset(10)))
    answers = reign.give(LeaseRenewed(MonotonicNs(START + 1)))
    assert answers == (StartOver(C, OLD, Offset(9), Offset(10)),)


# --- serving ------------------------------------------------------------------------------------------


def test_a_follower_is_served_what_is_written_before_it_is_synced() -> None:
    reign = Reign()
    assert reign.fetch(B) == ()
    assert reign.written(12, synced_end=10) == (Serve(B, OLD, Offset(10), Offset(0)),)
    assert reign.written(12) == ()


def test_a_fetch_without_news_is_answered_after_a_heartbeat() -> None:
    reign = Reign(isr=(A, B), known=10)
    reign.fetch(B)
    assert reign.after(HEARTBEAT - 1).give(Tick()) == ()
    assert reign.after(1).give(Tick()) == (Serve(B, OLD, Offset(10), Offset(10)),)
    assert reign.after(HEARTBEAT).give(Tick()) == ()


def test_an_acknowledgement_is_not_served_what_is_on_its_way() -> None:
    reign = Reign()
    reign.written(12)
    assert reign.fetch(B, 10, 4) == (Serve(B, OLD, Offset(10), Offset(0)),)
    assert reign.fetch(B, 10, 10) == ()
    assert reign.after(RETRY).fetch(B, 10, 10) == (Serve(B, OLD, Offset(10), Offset(0)),)
