"""Whom a leader wants in the ISR, what it does until that is decided, and when it says nothing."""

import pytest

from envelope.types import LeaderEpoch, MonotonicNs, NodeId, Offset
from jetstream.replica.leader_events import (
    AnswerFollower,
    Deposed,
    FollowerLost,
    IsrRefused,
    MinimumChanged,
    ProposeIsr,
    ReplicasChanged,
    ServeFollower,
)
from jetstream.replica.role_events import AdvanceHighWatermark, Tick
from jetstream.replica.settings import NEVER
from jetstream.replica.wire import DivergingMessage, FetchRefusal, RefusedMessage
from tests.support.reigns import EPOCH, OLD, Reign, log, named, proposals, steady
from tests.support.replica_cluster import LAG_MAX, RETRY, START, A, B, C, D

# --- who is in sync -----------------------------------------------------------------------------------


def test_a_member_that_lags_too_long_is_proposed_out() -> None:
    reign = steady(Reign())
    reign.written(12)
    reign.fetch(B, 12, last=EPOCH)
    assert proposals(reign.after(LAG_MAX - 1).give(Tick())) == []
    assert proposals(reign.after(1).give(Tick())) == [named((A, 1), (B, 1))]
    assert reign.leader.isr.maximal == {A, B, C}


def test_a_member_that_was_never_heard_of_lags_from_the_beginning() -> None:
    reign = Reign()
    reign.fetch(B)
    assert proposals(reign.after(LAG_MAX).give(Tick())) == [named((A, 1), (B, 1))]


def test_a_member_that_has_everything_does_not_lag_however_long_it_is_silent() -> None:
    reign = steady(Reign())
    assert proposals(reign.after(10 * LAG_MAX).give(Tick())) == []
    assert proposals(reign.written(12)) == []
    reign.fetch(B, 12, last=EPOCH)
    assert proposals(reign.after(LAG_MAX - 1).give(Tick())) == []


def test_a_member_that_keeps_up_with_a_steady_stream_does_not_lag() -> None:
    """What it has on disk never reaches where the leader was at the fetch before, and is not late either."""
    reign = steady(Reign(minimum=1))
    for end in range(13, 60):
        assert proposals(reign.after(LAG_MAX // 5).written(end)) == []
        for follower in (B, C):
            assert proposals(reign.fetch(follower, end, end - 2, last=EPOCH)) == []
    assert reign.high_watermark == 57


def test_an_isr_below_the_minimum_is_not_proposed() -> None:
    reign = Reign(isr=(A, B))
    reign.fetch(B)
    reign.written(12)
    assert proposals(reign.after(2 * LAG_MAX).give(Tick())) == []
    assert proposals(reign.fetch(C)) == [], "it lags as well"
    assert proposals(reign.fetch(C, 12, last=EPOCH)) == [named((A, 1), (C, 1))]


def test_a_replica_that_caught_up_is_proposed_in_by_its_start() -> None:
    reign = Reign(isr=(A, B), known=4)
    reign.fetch(B)
    assert proposals(reign.fetch(C, node_epoch=5)) == [], "it is answered first"
    assert proposals(reign.fetch(C, node_epoch=5)) == [named((A, 1), (B, 1), (C, 5))]
    reign.give(ReplicasChanged((A, B, C), (A, B, C), 2))
    assert reign.leader.isr.committed == {A, B, C}


def test_who_only_acknowledges_may_not_have_taken_in_its_answer_yet() -> None:
    reign = Reign(isr=(A, B))
    reign.fetch(B)
    assert ServeFollower(C, OLD, Offset(10), Offset(10), Offset(10)) in reign.fetch(C)
    assert proposals(reign.fetch(C, asks=False)) == []
    assert proposals(reign.fetch(C)) != []


def test_a_read_replica_that_becomes_a_replica_is_answered_before_it_joins() -> None:
    """It has everything, but may have copied it after some was compacted: it lacks the leader's note."""
    reign = steady(Reign())
    for _ in range(2):
        reign.fetch(D, known=10)
    promoted = reign.give(ReplicasChanged((A, B, C, D), (A, B, C), 2))
    assert promoted == (ServeFollower(D, OLD, Offset(10), Offset(10), Offset(10)),)
    assert proposals(reign.fetch(D, known=10, asks=False)) == []
    assert proposals(reign.fetch(D, known=10)) == [named((A, 1), (B, 1), (C, 1), (D, 1))]


def test_a_replica_below_the_start_of_the_epoch_stays_out() -> None:
    reign = Reign(isr=(A, B))
    reign.fetch(B, 10, 5)
    assert reign.high_watermark == 5, "as far as this leader knows"
    assert proposals(reign.fetch(C, 10, 9)) == []
    assert proposals(reign.fetch(C, 10, 10)) != []


def test_a_replica_must_have_what_was_committed_since_the_epoch_began() -> None:
    reign = Reign(isr=(A, B))
    reign.written(12)
    reign.fetch(B, 12, last=EPOCH)
    assert proposals(reign.fetch(C, 11, last=EPOCH)) == []
    assert proposals(reign.fetch(C, 12, last=EPOCH)) != []


def test_who_is_known_to_be_dead_is_proposed_out_at_once() -> None:
    reign = steady(Reign())
    assert proposals(reign.give(FollowerLost(C))) == [named((A, 1), (B, 1))]
    assert reign.give(FollowerLost(NodeId("x"))) == ()


def test_who_was_said_to_be_dead_is_heard_again() -> None:
    reign = steady(Reign(isr=(A, B, C), minimum=3))
    reign.give(FollowerLost(C))
    reign.fetch(C)
    reign.give(MinimumChanged(2))
    assert proposals(reign.give(Tick())) == []


def test_a_member_that_starts_again_and_again_still_lags() -> None:
    reign = steady(Reign())
    reign.written(12)
    reign.fetch(B, 12, last=EPOCH)
    for start in range(2, 6):
        reign.after(LAG_MAX // 4).fetch(C, 10, node_epoch=start)
    assert reign.leader.isr.proposal is not None


def test_silence_while_the_leader_had_no_lease_is_no_lag() -> None:
    reign = Reign(lease_until=START + LAG_MAX)
    reign.fetch(B)
    reign.after(2 * LAG_MAX)
    assert reign.give(Tick()) == ()
    assert reign.leader.wake_at == NEVER
    assert reign.renew(2 * LAG_MAX) == ()
    assert reign.wakes_after == LAG_MAX
    assert proposals(reign.after(LAG_MAX).give(Tick())) == [named((A, 1), (B, 1))]


# --- proposals in flight ------------------------------------------------------------------------------


def joining() -> tuple[Reign, ProposeIsr]:
    """c, which has ten records, is proposed in, and that is all that is known."""
    reign = Reign(isr=(A, B))
    reign.fetch(B)
    reign.fetch(C)
    proposal = reign.fetch(C)[-1]
    assert isinstance(proposal, ProposeIsr)
    reign.written(12)
    reign.fetch(B, 12, last=EPOCH)
    return reign, proposal


def test_a_proposed_member_holds_up_commits_until_the_proposal_is_decided() -> None:
    reign, proposal = joining()
    assert reign.high_watermark == 10
    assert AdvanceHighWatermark(Offset(12)) in reign.give(IsrRefused(proposal.number, version_moved=False))


def test_a_leader_is_one_line_in_a_log() -> None:
    reign, _ = joining()
    assert str(reign.leader) == "leader e7 hw=10 synced=12 end=12 isr=a,b v1 maximal=a,b,c"


def test_a_member_proposed_out_holds_up_commits_until_that_is_committed() -> None:
    reign = steady(Reign())
    reign.written(12)
    reign.fetch(B, 12, last=EPOCH)
    reign.after(LAG_MAX).give(Tick())
    assert reign.high_watermark == 10
    assert AdvanceHighWatermark(Offset(12)) in reign.give(ReplicasChanged((A, B, C), (A, B), 2))


def test_an_unknown_outcome_is_asked_for_with_the_same_proposal() -> None:
    reign, proposal = joining()
    assert proposals(reign.after(RETRY - 1).give(Tick())) == []
    assert reign.after(1).give(Tick())[-1] == proposal
    assert reign.high_watermark == 10


def test_an_outcome_that_stays_unknown_is_asked_for_ever_later() -> None:
    """Faster than the metadata log applies them, repeats would keep it from ever coming to the first."""
    reign, proposal = joining()
    for times in (1, 2, 4, 8, 16, 16):
        assert proposals(reign.after(times * RETRY - 1).give(Tick())) == []
        assert reign.wakes_after == 1
        assert reign.after(1).give(Tick())[-1] == proposal


def test_a_moved_version_is_no_refusal_but_the_new_row_decides() -> None:
    reign, proposal = joining()
    reign.give(IsrRefused(proposal.number, version_moved=True))
    assert reign.high_watermark == 10
    reign.give(ReplicasChanged((A, B, C), (A, B, C), 2))
    assert reign.high_watermark == 10
    assert reign.leader.isr.committed == {A, B, C}


def test_a_newer_row_without_the_proposal_means_that_it_came_too_late() -> None:
    reign, _ = joining()
    reign.give(ReplicasChanged((A, B, C), (A, B), 2))
    assert reign.high_watermark == 12


def test_an_older_row_changes_nothing() -> None:
    reign, _ = joining()
    reign.give(ReplicasChanged((A, B, C), (A, B), 1))
    assert reign.leader.isr.maximal == {A, B, C}
    assert reign.high_watermark == 10


def test_a_late_refusal_of_an_earlier_proposal_changes_nothing() -> None:
    reign, proposal = joining()
    reign.give(IsrRefused(proposal.number, version_moved=False))
    again = reign.after(RETRY).fetch(C, 12, last=EPOCH)[-1]
    assert isinstance(again, ProposeIsr)
    reign.written(14)
    reign.fetch(B, 14, last=EPOCH)
    reign.give(IsrRefused(proposal.number, version_moved=False))
    assert reign.high_watermark == 12
    assert reign.leader.isr.maximal == {A, B, C}


def test_a_refused_proposal_is_not_made_again_at_once() -> None:
    reign, proposal = joining()
    reign.fetch(C, 12, last=EPOCH)
    assert proposals(reign.give(IsrRefused(proposal.number, version_moved=False))) == []
    assert proposals(reign.after(RETRY - 1).give(Tick())) == []
    assert proposals(reign.after(1).give(Tick())) == [proposal.isr]


def test_nobody_is_named_whose_start_is_not_known() -> None:
    reign = Reign(isr=(A, B))
    reign.fetch(C)
    assert proposals(reign.fetch(C)) == [], "b is not heard of, and not late either"
    assert proposals(reign.fetch(B)) == [named((A, 1), (B, 1), (C, 1))]


# --- lease and end of the reign -----------------------------------------------------------------------


def test_without_a_lease_nothing_is_committed_served_or_proposed() -> None:
    reign = Reign(isr=(A, B), lease_until=START)
    assert not reign.leader.holds_leadership(reign.now)
    assert reign.fetch(B) + reign.fetch(C) + reign.written(12) + reign.after(LAG_MAX).give(Tick()) == ()
    assert reign.high_watermark == 0
    renewed = reign.renew(1)
    assert renewed[:2] == (
        AdvanceHighWatermark(Offset(10)),
        ServeFollower(B, OLD, Offset(10), Offset(12), Offset(10)),
    )
    assert proposals(renewed) == []
    assert proposals(reign.fetch(C)) == [named((A, 1), (B, 1), (C, 1))]


def test_without_a_lease_who_diverges_is_refused_so_that_it_asks_again() -> None:
    reign = Reign(isr=(A, B), lease_until=START)
    assert reign.fetch(C, 11, last=6) == (AnswerFollower(C, RefusedMessage(EPOCH, FetchRefusal.NO_LEASE)),)
    reign.renew(1)
    assert reign.fetch(C, 11, last=6) == (
        AnswerFollower(C, DivergingMessage(EPOCH, LeaderEpoch(6), Offset(11), OLD, Offset(10))),
    )


def test_a_lease_that_is_renewed_in_time_is_no_event() -> None:
    reign = Reign(isr=(A, B), lease_until=START + 1)
    reign.lease.until = MonotonicNs(START + 3)
    assert AdvanceHighWatermark(Offset(10)) in reign.after(2).fetch(B)
    assert reign.after(1).written(12) == ()


@pytest.mark.parametrize("epoch", [EPOCH, EPOCH + 1])
def test_a_deposed_leader_refuses_and_is_silent(epoch: int) -> None:
    reign = steady(Reign())
    assert reign.give(Deposed(LeaderEpoch(epoch))) == ()
    assert (
        reign.written(12)
        + reign.give(ReplicasChanged((A, B, C), (A,), 9))
        + reign.after(LAG_MAX).give(Tick())
        == ()
    )
    assert not reign.leader.holds_leadership(reign.now)
    assert reign.fetch(B) == (AnswerFollower(B, RefusedMessage(EPOCH, FetchRefusal.DEPOSED)),)
    assert reign.high_watermark == 10
    assert reign.leader.wake_at == NEVER


def test_news_of_an_older_reign_deposes_nobody() -> None:
    reign = Reign()
    reign.give(Deposed(OLD))
    assert not reign.leader.deposed


def test_whom_a_deposed_leader_refuses_knows_that_it_is_meant() -> None:
    reign = Reign()
    for epoch in (EPOCH + 2, EPOCH + 1):
        reign.give(Deposed(LeaderEpoch(epoch)))
    refused = AnswerFollower(B, RefusedMessage(LeaderEpoch(EPOCH + 2), FetchRefusal.DEPOSED))
    assert reign.fetch(B, epoch=EPOCH + 2) == (refused,)


def test_a_reign_begins_with_its_epoch_on_record_and_the_leader_in_the_isr() -> None:
    with pytest.raises(AssertionError, match="L4"):
        Reign(own_log=log((OLD, 0), end=10))
    with pytest.raises(AssertionError, match="L5"):
        Reign(isr=(B, C))
    with pytest.raises(AssertionError, match="L1"):
        Reign(known=11)
