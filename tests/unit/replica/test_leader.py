"""What is committed, which fetches count and who is served: one rule of a leader after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.types import LeaderEpoch, NodeId, Offset
from jetstream.replica.leader import Leader, sole_replica
from jetstream.replica.leader_events import (
    AnswerFollower,
    FollowerLost,
    LeaderLogSynced,
    MinimumChanged,
    ServeFollower,
)
from jetstream.replica.progress import FollowerState, min_synced_end
from jetstream.replica.role_events import AdvanceHighWatermark, LogStartMoved, Tick
from jetstream.replica.settings import NEVER
from jetstream.replica.wire import DivergingMessage, FetchRefusal, RefusedMessage, StartOverMessage
from tests.support.reigns import EPOCH, OLD, Reign, log, named, proposals, steady
from tests.support.replica_cluster import HEARTBEAT, LAG_MAX, RETRY, START, A, B, C, D


def served(follower: NodeId, log_end: int, limit: int, *, known: int = 0, last: int = OLD) -> ServeFollower:
    return ServeFollower(follower, LeaderEpoch(last), Offset(log_end), Offset(limit), Offset(known))


# --- the only replica ---------------------------------------------------------------------------------


def sole(end: int) -> Leader:
    return sole_replica(LeaderEpoch(3), Offset(end), Offset(end), START)


def test_what_was_durable_before_the_epoch_is_committed_at_its_start() -> None:
    assert sole(7).high_watermark == 7


def test_an_empty_log_has_nothing_committed() -> None:
    assert sole(0).high_watermark == 0


def test_what_is_synced_is_committed_and_told_once() -> None:
    leader = sole(0)
    synced = LeaderLogSynced(Offset(5), Offset(5))
    assert leader.handle(synced, START) == (AdvanceHighWatermark(Offset(5)),)
    assert leader.handle(synced, START) == ()
    assert leader.high_watermark == 5


def test_a_synced_end_that_goes_back_is_our_bug() -> None:
    leader = sole(5)
    with pytest.raises(AssertionError, match="L1"):
        leader.handle(LeaderLogSynced(Offset(4), Offset(5)), START)
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
            for action in leader.handle(LeaderLogSynced(Offset(synced), Offset(end)), START)
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
    assert ServeFollower(D, OLD, Offset(10), Offset(12), Offset(10)) in actions
    assert proposals(actions + reign.fetch(D, 12, last=EPOCH)) == []
    assert reign.high_watermark == 10


def test_an_isr_below_the_minimum_commits_nothing() -> None:
    reign = Reign(isr=(A,), known=4)
    for end in (11, 12):
        reign.written(end)
        assert reign.high_watermark == 4
    reign.give(MinimumChanged(1))
    assert reign.high_watermark == 12


# --- which fetches count ------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH + 1])
def test_a_fetch_of_another_reign_is_refused_and_changes_nothing(epoch: int) -> None:
    reign = Reign(isr=(A, B))
    refused = AnswerFollower(B, RefusedMessage(LeaderEpoch(epoch), FetchRefusal.OTHER_LEADER_EPOCH))
    assert reign.fetch(B, epoch=epoch, node_epoch=9) == (refused,)
    assert reign.high_watermark == 0
    assert AdvanceHighWatermark(Offset(10)) in reign.fetch(B, node_epoch=1)


@pytest.mark.parametrize("stranger", [A, NodeId("x")])
def test_who_is_no_follower_is_refused(stranger: NodeId) -> None:
    refused = AnswerFollower(stranger, RefusedMessage(EPOCH, FetchRefusal.UNKNOWN_REPLICA))
    assert Reign().fetch(stranger) == (refused,)


def test_an_older_start_of_a_follower_is_refused() -> None:
    reign = Reign(isr=(A, B))
    reign.fetch(B, 4, node_epoch=3)
    assert reign.fetch(B, node_epoch=2) == (
        AnswerFollower(B, RefusedMessage(EPOCH, FetchRefusal.OLD_NODE_EPOCH)),
    )
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
    answer = AnswerFollower(B, DivergingMessage(EPOCH, LeaderEpoch(6), Offset(11), OLD, Offset(10)))
    assert reign.fetch(B, 11, last=6) == (answer,)
    assert reign.high_watermark == 0
    reign.written(12)
    assert reign.high_watermark == 0, "nor is it remembered"


def test_a_follower_that_ends_before_the_log_starts_begins_anew() -> None:
    reign = Reign(isr=(A, B), known=10)
    reign.give(LogStartMoved(Offset(8)))
    assert reign.fetch(C, 7) == (AnswerFollower(C, StartOverMessage(EPOCH, OLD, Offset(7), Offset(8))),)
    assert ServeFollower(C, LeaderEpoch(0), Offset(8), Offset(10), Offset(10)) in reign.fetch(C, 8, last=0)


def test_a_fetch_is_told_to_begin_anew_if_the_log_moves_on_while_it_waits() -> None:
    reign = Reign(isr=(A, B), known=10, lease_until=START)
    reign.fetch(C, 9)
    reign.give(LogStartMoved(Offset(10)))
    assert reign.renew(1) == (AnswerFollower(C, StartOverMessage(EPOCH, OLD, Offset(9), Offset(10))),)


# --- serving ------------------------------------------------------------------------------------------


def test_a_follower_is_served_what_is_written_before_it_is_synced() -> None:
    reign = steady(Reign())
    assert reign.written(12, synced_end=10)[0] == served(B, 10, 12, known=10)
    assert reign.written(12) == ()


def test_nobody_is_served_what_the_leader_was_not_told_to_be_written() -> None:
    reign = steady(Reign())
    served_then = reign.written(12)
    reign.written(14)
    assert served_then == (served(B, 10, 12, known=10), served(C, 10, 12, known=10))
    assert reign.fetch(B, 12, last=EPOCH) == (served(B, 12, 14, known=10, last=EPOCH),)


def test_a_follower_that_knows_the_high_watermark_is_never_served_for_nothing() -> None:
    reign = steady(Reign())
    assert reign.leader.wake_at == NEVER
    assert reign.after(1000 * HEARTBEAT).give(Tick()) == ()


def test_a_follower_that_does_not_know_the_high_watermark_is_told_after_a_heartbeat() -> None:
    reign = steady(Reign())
    reign.written(12)
    reign.fetch(C, 12, last=EPOCH, known=12)
    reign.after(5).fetch(B, 12, last=EPOCH, known=10)
    assert reign.high_watermark == 12
    assert reign.wakes_after == HEARTBEAT
    assert reign.after(HEARTBEAT - 1).give(Tick()) == ()
    assert reign.after(1).give(Tick()) == (served(B, 12, 12, known=12, last=EPOCH),)
    assert reign.fetch(B, 12, last=EPOCH, known=12) == ()


def test_a_follower_is_told_at_once_that_the_log_begins_elsewhere() -> None:
    reign = steady(Reign())
    assert reign.give(LogStartMoved(Offset(4))) == (served(B, 10, 10, known=10), served(C, 10, 10, known=10))
    assert reign.fetch(B, known=10) == ()
    assert reign.fetch(B, known=10, node_epoch=2) == (served(B, 10, 10, known=10),), "it may not know"


def test_an_acknowledgement_is_not_served_what_is_on_its_way() -> None:
    reign = Reign()
    reign.written(12)
    assert reign.fetch(B, 10, 4) == (served(B, 10, 12),)
    assert reign.fetch(B, 10, 10, asks=False) == ()
    assert reign.after(RETRY).fetch(B, 10, 10) == (served(B, 10, 12),), "it asks again"


def test_an_acknowledgement_that_overtook_what_it_asked_for_is_served() -> None:
    reign = Reign()
    reign.written(12)
    assert reign.fetch(B, 10, 4, asks=False) == (served(B, 10, 12),)


# --- time and what others are told ----------------------------------------------------------------------


def test_time_alone_makes_a_member_lag_and_a_proposal_be_repeated() -> None:
    reign = steady(Reign())
    reign.written(12)
    reign.fetch(B, 12, last=EPOCH, known=10)
    assert reign.wakes_after == LAG_MAX
    assert proposals(reign.after(LAG_MAX).give(Tick())) == [named((A, 1), (B, 1))]
    assert reign.wakes_after == RETRY
    assert proposals(reign.after(RETRY).give(Tick())) == [named((A, 1), (B, 1))]


def test_a_member_that_may_not_be_left_out_keeps_nobody_awake() -> None:
    reign = steady(Reign(minimum=3))
    reign.written(12)
    reign.fetch(B, 12, last=EPOCH, known=10)
    assert reign.after(LAG_MAX).give(Tick()) == ()
    assert reign.leader.wake_at == NEVER


def test_the_only_replica_keeps_nobody_awake_and_has_no_followers() -> None:
    leader = sole(0)
    leader.handle(LeaderLogSynced(Offset(5), Offset(5)), START)
    assert (leader.wake_at, leader.is_replicated, leader.follower_states()) == (NEVER, False, ())
    assert leader.log.synced_end == 5


def test_what_is_known_of_the_followers_can_be_told() -> None:
    reign = Reign(isr=(A, B), known=3)
    reign.fetch(B, 9, 7, known=2)
    reign.fetch(D, 10, 8, known=1)
    assert reign.leader.follower_states() == (
        FollowerState(B, Offset(9), Offset(7), Offset(2), in_sync=True),
        FollowerState(C, None, None, None, in_sync=False),
        FollowerState(D, Offset(10), Offset(8), Offset(1), in_sync=False),
    )
    assert [state.lags_since for state in reign.leader.follower_states()] == [START, START, START]
    reign.after(1).fetch(B, reign.leader.log.log_end_offset)
    assert [state.lags_since for state in reign.leader.follower_states()] == [None, START, START]
    reign.fetch(B, 11, last=6, node_epoch=2)
    assert reign.leader.follower_states()[0] == FollowerState(B, None, None, None, in_sync=True)


# --- how far every replica is -----------------------------------------------------------------------------

AWAY_MAX = 1_000 * LAG_MAX


def passed(reign: Reign) -> int:
    leader = reign.leader
    return min_synced_end(leader.log.synced_end, leader.follower_states(), reign.now, AWAY_MAX)


def test_the_only_replica_has_passed_what_it_has_on_disk() -> None:
    leader = sole(7)
    leader.handle(LeaderLogSynced(Offset(8), Offset(9)), START)
    assert min_synced_end(leader.log.synced_end, leader.follower_states(), START, 1) == 8


def test_all_have_passed_what_the_last_of_them_has_on_disk() -> None:
    reign = Reign()
    for follower, synced in ((B, 8), (C, 6), (D, 9)):
        assert passed(reign) == 0, "who was not heard of may have nothing"
        reign.fetch(follower, 10, synced)
    assert passed(reign) == 6
    reign.fetch(C, 10, 10)
    assert passed(reign) == 8


def test_who_is_slow_is_waited_for_and_who_is_dead_for_a_time() -> None:
    reign = Reign()
    for follower, synced in ((B, 8), (C, 6), (D, 9)):
        reign.fetch(follower, 10, synced)
    reign.after(2 * AWAY_MAX)
    assert passed(reign) == 6, "it lives"
    reign.give(FollowerLost(C))
    assert passed(reign) == 8
    reign.fetch(C, 10, 7)
    assert passed(reign) == 7, "it is back"


def test_who_is_not_heard_of_in_a_reign_is_waited_for_as_long() -> None:
    reign = Reign()
    for follower in (B, C):
        reign.fetch(follower)
    assert passed(reign.after(AWAY_MAX - 1)) == 0
    assert passed(reign.after(1)) == 10
