"""Who cannot win deposes nobody, who cannot lead steps down, who is dead is replaced soon."""

import itertools

import pytest

from metadata.raft.election import Role
from metadata.raft.events import MetadataLeaderChanged, PeerDisconnected, Tick
from metadata.raft.messages.voter_messages import PreVoteRequest, VoteRequest
from tests.support.raft_cluster import HEARTBEAT, TIMEOUT, A, B, C, D, E, RaftCluster, Voter, disk_of
from tests.support.raft_messages import (
    alive,
    append,
    elect_now,
    heartbeat,
    pre_vote,
    pre_vote_request,
    vote,
    vote_request,
)

THREE = (A, B, C)


def following_b(term: int = 3, *terms: int) -> Voter:
    voter = Voter(A, THREE, disk_of(*terms, term=term))
    voter.receive(heartbeat(B, A, term))
    return voter


# --- pre-vote (dissertation 9.6) ------------------------------------------------------------------------


def test_asking_for_pre_votes_changes_nothing() -> None:
    voter = Voter(A, THREE, disk_of(1, 2, term=3, vote=C))
    assert voter.tick() == [pre_vote_request(A, B, 3, (2, 2)), pre_vote_request(A, C, 3, (2, 2))]
    assert (voter.raft.role, voter.raft.term, voter.disk.hard_state.vote) == (Role.PRE_CANDIDATE, 3, C)


def test_a_voter_that_is_asked_for_a_pre_vote_stays_in_its_term_and_keeps_its_vote() -> None:
    voter = Voter(A, THREE, disk_of(term=3))
    assert voter.receive(pre_vote_request(B, A, 8)) == [pre_vote(A, B, 3, 8)]
    assert voter.receive(pre_vote_request(C, A, 8)) == [pre_vote(A, C, 3, 8)], "it is no vote: both get it"
    assert (voter.raft.term, voter.disk.hard_state.vote) == (3, None)


@pytest.mark.parametrize(
    ("candidate_term", "last", "granted"),
    [
        (3, (2, 2), True),
        (4, (2, 2), True),
        (2, (2, 2), False),
        (1, (9, 9), False),
        (3, (3, 2), True),
        (3, (1, 2), False),
        (3, (1, 3), True),
        (3, (9, 1), False),
    ],
)
def test_a_pre_vote_is_granted_for_a_later_term_to_a_log_that_is_no_older(
    candidate_term: int, last: tuple[int, int], granted: bool
) -> None:
    voter = Voter(A, THREE, disk_of(1, 2, term=3))
    request = pre_vote_request(B, A, candidate_term, last)
    assert voter.receive(request) == [pre_vote(A, B, 3, candidate_term, granted=granted)]


def test_pre_votes_of_a_majority_begin_the_election() -> None:
    voter = Voter(A, (A, B, C, D, E), disk_of(term=3))
    voter.tick()
    voter.receive(pre_vote(B, A, 3, 3), pre_vote(B, A, 3, 3), pre_vote(C, A, 3, 3, granted=False))
    assert voter.raft.role is Role.PRE_CANDIDATE
    sent = voter.receive(pre_vote(D, A, 1, 3))
    assert sent == [vote_request(A, name, 4) for name in (B, C, D, E)], "also with one of an earlier term"


@pytest.mark.parametrize("candidate_term", [2, 4])
def test_a_pre_vote_for_another_term_does_not_count(candidate_term: int) -> None:
    voter = Voter(A, THREE, disk_of(term=3))
    voter.tick()
    voter.receive(pre_vote(B, A, 3, candidate_term), pre_vote(C, A, 3, candidate_term))
    assert (voter.raft.role, voter.raft.term) == (Role.PRE_CANDIDATE, 3)


def test_a_pre_vote_that_comes_when_a_leader_was_found_does_not_count() -> None:
    voter = Voter(A, THREE, disk_of(term=3))
    voter.tick()
    voter.receive(heartbeat(B, A, 3), pre_vote(C, A, 3, 3))
    assert (voter.raft.role, voter.raft.term) == (Role.FOLLOWER, 3)


def test_a_refusal_from_a_later_term_teaches_that_term() -> None:
    voter = Voter(A, THREE, disk_of(term=3))
    voter.tick()
    voter.receive(pre_vote(B, A, 7, 3, granted=False))
    assert (voter.raft.role, voter.raft.term) == (Role.FOLLOWER, 7)


def test_a_voter_that_gives_its_vote_no_longer_asks_for_itself() -> None:
    voter = Voter(A, THREE, disk_of(term=3))
    voter.tick()
    assert voter.receive(vote_request(B, A, 3)) == [vote(A, B, 3)]
    voter.receive(pre_vote(C, A, 3, 3))
    assert (voter.raft.role, voter.raft.term) == (Role.FOLLOWER, 3)


def test_a_candidate_that_times_out_asks_for_pre_votes_before_it_goes_to_a_further_term() -> None:
    voter = Voter(A, THREE)
    voter.stand()
    assert voter.tick() == [pre_vote_request(A, B, 1), pre_vote_request(A, C, 1)]
    assert voter.raft.term == 1


def test_a_voter_that_was_cut_off_keeps_its_term_and_deposes_nobody() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.cut.add(C)
    cluster.let_pass(20 * TIMEOUT)
    assert (cluster[C].raft.role, cluster[C].raft.term) == (Role.PRE_CANDIDATE, 1)
    cluster.cut.clear()
    cluster.let_pass(5 * TIMEOUT)
    assert cluster[A].leads
    assert {voter.raft.term for voter in cluster.voters.values()} == {1}
    assert cluster[C].raft.leader == A


def test_a_voter_that_was_stopped_asks_and_is_refused_before_it_hears_the_leader() -> None:
    """A stopped process goes on with its timeout, before it reads what has come in the meantime."""
    cluster = RaftCluster.led_by_a()
    cluster.cut.add(C)
    cluster.let_pass(3 * TIMEOUT)
    cluster.cut.clear()
    cluster.give(C, Tick())
    cluster.run()
    assert cluster[A].leads
    assert {voter.raft.term for voter in cluster.voters.values()} == {1}


# --- the lease (dissertation 4.2.3) ---------------------------------------------------------------------


def test_whoever_has_heard_of_a_leader_lately_refuses_pre_votes() -> None:
    voter = following_b()
    voter.clock.advance(TIMEOUT - 1)
    assert voter.receive(pre_vote_request(C, A, 3)) == [pre_vote(A, C, 3, 3, granted=False)]
    voter.clock.advance(1)
    assert voter.receive(pre_vote_request(C, A, 3)) == [pre_vote(A, C, 3, 3)]


def test_whoever_has_heard_of_a_leader_lately_ignores_candidates_of_later_terms() -> None:
    voter = following_b()
    voter.clock.advance(TIMEOUT - 1)
    assert voter.receive(vote_request(C, A, 9)) == []
    assert (voter.raft.term, voter.raft.leader) == (3, B)
    voter.clock.advance(1)
    assert voter.receive(vote_request(C, A, 9)) == [vote(A, C, 9)]


def test_a_leader_helps_nobody_to_depose_it() -> None:
    voter = Voter(A, THREE)
    voter.lead()
    voter.clock.advance(TIMEOUT - 1)
    assert voter.receive(vote_request(C, A, 9, (9, 9))) == []
    assert voter.receive(pre_vote_request(C, A, 9, (9, 9))) == [pre_vote(A, C, 1, 9, granted=False)]
    assert voter.leads


def test_a_transferred_candidate_is_heard_whoever_leads() -> None:
    voter = following_b()
    assert voter.receive(vote_request(C, A, 4, transferred=True)) == [vote(A, C, 4)]
    leading = Voter(A, THREE)
    leading.lead()
    assert leading.receive(vote_request(C, A, 2, (1, 1), transferred=True)) == [vote(A, C, 2)]
    assert not leading.leads


def test_the_lease_of_a_leader_ends_with_its_term() -> None:
    voter = following_b(3, 1, 1)
    assert voter.receive(vote_request(C, A, 4, transferred=True)) == [vote(A, C, 4, granted=False)]
    assert voter.receive(pre_vote_request(C, A, 4, (2, 1))) == [pre_vote(A, C, 4, 4)]


def test_a_restarted_voter_knows_of_no_leader() -> None:
    voter = following_b()
    voter.restart()
    assert voter.receive(pre_vote_request(C, A, 3)) == [pre_vote(A, C, 3, 3)]


# --- check-quorum (dissertation 6.2) --------------------------------------------------------------------


def test_a_leader_that_hears_from_no_majority_steps_down_in_its_term() -> None:
    voter = Voter(A, (A, B, C, D, E))
    voter.lead()
    for _ in range(4):
        voter.clock.advance(TIMEOUT // 2)
        voter.receive(alive(B, A, 1), alive(C, A, 1))
        voter.give(Tick())
        assert voter.leads
    voter.clock.advance(TIMEOUT // 2)
    voter.receive(alive(B, A, 1))
    voter.clock.advance(TIMEOUT // 2 - 1)
    voter.give(Tick())
    assert voter.leads
    assert voter.raft.wake_at == voter.clock.now + 1
    voter.tick()
    assert (voter.raft.role, voter.raft.term, voter.raft.leader) == (Role.FOLLOWER, 1, None)
    assert voter.news[-1] == MetadataLeaderChanged(None, voter.raft.term)
    assert voter.raft.wake_at >= voter.clock.now + TIMEOUT, "it waits before it asks for an election"


def test_a_leader_that_is_deposed_waits_before_it_asks_for_an_election() -> None:
    voter = Voter(A, THREE)
    voter.lead()
    voter.clock.advance(2 * TIMEOUT)
    voter.receive(vote(B, A, 7, granted=False))
    assert (voter.raft.role, voter.raft.term) == (Role.FOLLOWER, 7)
    assert voter.raft.wake_at >= voter.clock.now + TIMEOUT


def test_a_leader_that_slept_steps_down_before_it_says_anything() -> None:
    voter = Voter(A, THREE)
    voter.lead()
    voter.clock.advance(TIMEOUT)
    assert voter.give(Tick()) == []
    assert not voter.leads


def test_a_leader_on_the_smaller_side_of_a_partition_steps_down_and_the_other_side_elects() -> None:
    cluster = RaftCluster.led_by_a(A, B, C, D, E)
    cluster.cut = {A}
    cluster.let_pass(5 * TIMEOUT)
    assert not cluster[A].leads
    [leader] = [voter for voter in cluster.voters.values() if voter.leads]
    cluster.cut.clear()
    cluster.let_pass(5 * TIMEOUT)
    assert leader.leads, "and when A is back, nothing happens to its successor"
    assert cluster[A].raft.leader == leader.name


def test_a_follower_that_hears_its_leader_of_an_earlier_term_deposes_it_by_its_answer() -> None:
    """It gave its vote in term 2 to a candidate that died; A must learn of that term to lead it again."""
    cluster = RaftCluster.led_by_a()
    cluster[C].receive(vote_request(B, C, 2, (1, 1), transferred=True))
    cluster[C].take()
    cluster.tick(A)
    cluster.run()
    assert (cluster[A].raft.role, cluster[A].raft.term) == (Role.FOLLOWER, 2)
    cluster.let_pass(5 * TIMEOUT)
    assert {voter.raft.term for voter in cluster.voters.values()} == {3}


# --- a leader that is known to be dead ------------------------------------------------------------------


def test_a_leader_whose_process_is_dead_is_replaced_within_a_few_heartbeats() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.cut.add(A)
    died_at = cluster.clock.now
    cluster.give(B, PeerDisconnected(A, refused=True))
    cluster.give(C, PeerDisconnected(A, refused=True))
    while not (cluster[B].leads or cluster[C].leads):
        cluster.tick(min((B, C), key=lambda name: cluster[name].raft.wake_at))
        cluster.run()
    assert cluster.clock.now - died_at <= HEARTBEAT


def test_whoever_learns_first_that_the_leader_is_dead_asks_until_the_others_know() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.tick(A)
    cluster.run()
    cluster.cut.add(A)
    cluster.give(B, PeerDisconnected(A, refused=True))
    asked_at = []
    for _ in range(3):
        cluster.tick(B)
        cluster.run()
        asked_at.append(cluster.clock.now)
    assert not cluster[B].leads, "C has a lease"
    assert {later - earlier for earlier, later in itertools.pairwise(asked_at)} == {HEARTBEAT}
    cluster.give(C, PeerDisconnected(A, refused=True))
    cluster.tick(B)
    cluster.run()
    assert cluster[B].leads


def test_a_broken_connection_alone_does_not_make_a_leader_dead() -> None:
    voter = following_b()
    wake_at = voter.raft.wake_at
    voter.give(PeerDisconnected(B, refused=False))
    voter.give(PeerDisconnected(C, refused=True))
    assert (voter.raft.leader, voter.raft.wake_at) == (B, wake_at)


def test_a_leader_that_was_thought_dead_and_is_heard_is_followed() -> None:
    voter = following_b()
    voter.give(PeerDisconnected(B, refused=True))
    assert (voter.raft.leader, voter.news[-1]) == (None, MetadataLeaderChanged(None, voter.raft.term))
    voter.receive(heartbeat(B, A, 3))
    assert voter.raft.leader == B
    assert voter.raft.wake_at >= voter.clock.now + TIMEOUT


# --- one and two voters ---------------------------------------------------------------------------------


def test_a_single_voter_leads_as_soon_as_its_vote_is_durable() -> None:
    voter = Voter(A, (A,))
    assert voter.raft.wake_at == voter.clock.now, "it has nobody to wait for"
    voter.holds_writes = True
    voter.tick()
    assert (voter.raft.role, voter.raft.term) == (Role.CANDIDATE, 1)
    voter.write(1)
    assert (voter.raft.role, voter.raft.commit) == (Role.LEADER, 0)
    voter.write(1)
    assert (voter.raft.commit, voter.raft.applied) == (1, 1)


def test_a_single_voter_goes_on_in_a_new_term_after_a_restart() -> None:
    voter = Voter(A, (A,))
    voter.tick()
    voter.restart()
    voter.tick()
    assert (voter.raft.role, voter.raft.term, voter.raft.commit) == (Role.LEADER, 2, 2)
    assert voter.raft.wake_at > voter.clock.now + 1000 * TIMEOUT, "nothing is ever due"


def test_a_single_voter_that_is_woken_for_nothing_goes_on_leading() -> None:
    voter = Voter(A, (A,))
    voter.tick()
    voter.clock.advance(9 * TIMEOUT)
    assert voter.give(Tick()) == []
    assert voter.leads


def test_a_single_voter_with_a_stalled_disk_does_not_spin() -> None:
    voter = Voter(A, (A,))
    voter.holds_writes = True
    for _ in range(3):
        voter.tick()
        assert voter.raft.wake_at >= voter.clock.now + TIMEOUT


def test_two_voters_need_each_other() -> None:
    cluster = RaftCluster.led_by_a(A, B)
    cluster.cut.add(B)
    cluster.propose(A, b"command")
    cluster.let_pass(5 * TIMEOUT)
    assert not cluster[A].leads
    assert (cluster[A].raft.commit, cluster[A].raft.term) == (1, 1)
    cluster.cut.clear()
    cluster.let_pass(5 * TIMEOUT)
    assert cluster[B].applied == cluster[A].applied
    assert b"command" in [entry.payload for entry in cluster[B].applied]


# --- who leads is told ----------------------------------------------------------------------------------


def test_a_change_of_leader_is_told_once() -> None:
    voter = Voter(A, THREE)
    voter.receive(heartbeat(B, A, 1), heartbeat(B, A, 1), append(B, A, 1))
    voter.receive(append(C, A, 2))
    voter.receive(append(C, A, 3))
    assert [(news.leader, news.term) for news in voter.news if isinstance(news, MetadataLeaderChanged)] == [
        (B, 1),
        (C, 2),
        (C, 3),
    ]


def test_a_voter_tells_that_it_leads_only_once_it_does() -> None:
    voter = Voter(A, THREE)
    voter.stand()
    assert voter.news == []
    voter.receive(vote(B, A, 1))
    assert voter.news == [MetadataLeaderChanged(A, voter.raft.term)]


def test_a_candidate_that_hears_the_leaders_wish_goes_to_no_further_term() -> None:
    voter = Voter(A, THREE)
    voter.stand()
    assert voter.receive(elect_now(B, A, 1)) == []
    assert voter.raft.term == 1


def test_the_requests_of_an_election_go_to_everybody_else() -> None:
    voter = Voter(B, (A, B, C, D))
    asked = voter.tick()
    assert [m.target for m in asked if isinstance(m, PreVoteRequest)] == [A, C, D]
    voter.receive(pre_vote(A, B, 0, 0))
    sent = voter.receive(pre_vote(C, B, 0, 0))
    assert [m.target for m in sent if isinstance(m, VoteRequest)] == [A, C, D]
