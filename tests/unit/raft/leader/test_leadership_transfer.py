"""A leader hands over to a voter that holds everything.

Source: Ongaro, "Consensus: Bridging Theory and Practice", section 3.10.
"""

import pytest

from envelope.types import LogIndex
from metadata.raft.events import (
    CompactLog,
    ProposalRefused,
    Propose,
    Proposed,
    RefusalReason,
    TransferLeadership,
)
from metadata.raft.messages.voter_messages import AppendRequest, ElectNow, VoteRequest
from tests.support.raft_cluster import TIMEOUT, A, B, C, RaftCluster, Voter
from tests.support.raft_messages import alive, appended, elect_now, heartbeat

THREE = (A, B, C)
HANDING_OVER = ProposalRefused(RefusalReason.HANDING_OVER, A)


def leader() -> Voter:
    """A leader; only B has acknowledged its entry."""
    voter = Voter(A, THREE)
    voter.lead()
    voter.receive(appended(B, A, 1, 1))
    return voter


def test_a_target_that_holds_everything_is_told_to_stand_at_once_and_wins() -> None:
    cluster = RaftCluster.led_by_a()
    began_at = cluster.clock.now
    cluster.give(A, TransferLeadership(B))
    assert cluster.pool == [elect_now(A, B, 1)]
    cluster.run()
    assert cluster[B].leads
    assert cluster.clock.now == began_at
    assert [voter.raft.leader for voter in cluster.voters.values()] == [B, B, B]
    assert cluster[B].raft.term == 2


def test_a_transferred_election_needs_no_pre_vote_and_says_so() -> None:
    voter = Voter(B, THREE)
    sent = voter.receive(elect_now(A, B, 1))
    assert [(type(message), message.term) for message in sent] == [(VoteRequest, 2)] * 2
    assert all(message.transferred for message in sent if isinstance(message, VoteRequest))


def test_a_lagging_target_first_gets_what_it_lacks() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.cut.add(B)
    cluster.propose(A, b"unknown to B")
    cluster.run()
    cluster.cut.clear()
    cluster.give(A, TransferLeadership(B))
    assert cluster.under_way(ElectNow) == []
    cluster.tick(A)
    cluster.run()
    assert cluster[B].leads
    assert b"unknown to B" in [entry.payload for entry in cluster[B].applied]


def test_a_target_that_needs_a_snapshot_gets_it_first() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.cut.add(B)
    cluster.propose(A, b"2", b"3")
    cluster.run()
    cluster.give(A, CompactLog(LogIndex(3), b"state"))
    cluster.cut.clear()
    cluster.give(A, TransferLeadership(B))
    cluster.tick(A)
    cluster.run()
    assert cluster[B].leads
    assert cluster[B].snapshot.payload == b"state"


def test_while_it_hands_over_a_leader_refuses_proposals() -> None:
    voter = leader()
    voter.give(TransferLeadership(C))
    assert voter.give(Propose((b"x",))) == []
    assert voter.news[-1] == HANDING_OVER
    assert voter.raft.last_index == 1


def test_a_transfer_is_given_up_after_an_election_timeout() -> None:
    voter = leader()
    began_at = voter.clock.now
    voter.give(TransferLeadership(C))
    while voter.clock.now < began_at + TIMEOUT:
        voter.give(Propose((b"x",)))
        assert voter.news[-1] == HANDING_OVER
        voter.tick()
        voter.receive(alive(B, A, 1))
    assert voter.leads
    voter.give(Propose((b"x",)))
    assert voter.raft.last_index == 2


def test_a_lost_wish_is_repeated_when_the_target_shows_that_it_is_alive() -> None:
    voter = leader()
    assert voter.give(TransferLeadership(B)) == [elect_now(A, B, 1)]
    voter.tick()
    assert voter.receive(alive(C, A, 1, number=1)) != [elect_now(A, B, 1)]
    assert voter.receive(alive(B, A, 1, number=1)) == [elect_now(A, B, 1)]


def test_the_same_transfer_asked_again_does_not_take_longer() -> None:
    voter = leader()
    voter.give(TransferLeadership(C))
    gives_up_at = voter.clock.now + TIMEOUT
    voter.clock.advance(TIMEOUT // 2)
    voter.receive(alive(B, A, 1))
    assert voter.give(TransferLeadership(C)) == []
    while voter.clock.now < gives_up_at:
        voter.tick()
        voter.receive(alive(B, A, 1))
    assert voter.clock.now == gives_up_at
    voter.give(Propose((b"x",)))
    assert voter.raft.last_index == 2


def test_a_transfer_to_another_target_replaces_the_first() -> None:
    voter = leader()
    voter.give(TransferLeadership(C))
    assert voter.give(TransferLeadership(B)) == [elect_now(A, B, 1)]
    sent = voter.receive(appended(C, A, 1, 1))
    assert [type(message) for message in sent] == [AppendRequest], (
        "C holds everything, and is not told to stand"
    )


def test_a_transfer_is_a_leaders_affair() -> None:
    voter = Voter(A, THREE)
    voter.receive(heartbeat(B, A, 1))
    assert voter.give(TransferLeadership(C)) == []


@pytest.mark.parametrize("target", [A, "nobody"])
def test_a_transfer_to_no_other_voter_is_ignored(target: str) -> None:
    voter = leader()
    assert voter.give(TransferLeadership(type(A)(target))) == []
    voter.give(Propose((b"x",)))
    assert isinstance(voter.news[-1], Proposed), "nothing is handed over"


def test_a_wish_that_arrives_when_it_was_given_up_does_no_harm() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.give(A, TransferLeadership(B))
    late = cluster.drop(cluster.under_way(ElectNow))
    cluster.cut.add(B)
    cluster.let_pass(TIMEOUT)
    cluster.propose(A, b"while it was under way")
    cluster.run()
    assert cluster[A].raft.commit == 2
    cluster.cut.clear()
    cluster.deliver(*late)
    cluster.run()
    assert cluster[B].raft.term == 2
    assert not cluster[B].leads, "it lacks what is committed"
    cluster.let_pass(5 * TIMEOUT)
    assert len({voter.raft.leader for voter in cluster.voters.values()}) == 1
    assert all(b"while it was under way" in [e.payload for e in v.applied] for v in cluster.voters.values())
