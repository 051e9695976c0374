"""A voter whose disk was lost asks all others, and votes once it holds what it had confirmed."""

import pytest

from envelope.errors import CorruptDataError
from envelope.types import LogIndex, MonotonicNs, Term
from metadata.raft.events import ChangeMembers, MessageReceived
from metadata.raft.messages.voter_messages import (
    AppendRequest,
    AppendResponse,
    Message,
    PreVoteResponse,
    RecoveryRequest,
    RecoveryResponse,
    VoteRequest,
    VoteResponse,
)
from metadata.raft.state import HardState
from tests.support.raft_cluster import (
    HEARTBEAT,
    TIMEOUT,
    A,
    B,
    C,
    D,
    E,
    RaftCluster,
    Voter,
    disk_of,
    entries_of,
)
from tests.support.raft_messages import (
    append,
    appended,
    elect_now,
    heartbeat,
    install,
    pre_vote,
    pre_vote_request,
    snapshot_of,
    vote,
    vote_request,
)

THREE = (A, B, C)


def answer(source: str, term: int, token: int = 1, *, is_empty: bool = False) -> RecoveryResponse:
    return RecoveryResponse({"b": B, "c": C}[source], A, Term(term), token, is_empty)


def without_disk() -> Voter:
    voter = Voter(A, THREE)
    voter.lose_disk(1)
    return voter


def recovering(highest: int = 4) -> Voter:
    """A voter that was told that the others are in that term, and that they have entries."""
    voter = without_disk()
    voter.receive(answer("b", highest), answer("c", highest - 1))
    return voter


def test_it_asks_every_other_voter_again_and_again_until_each_has_answered() -> None:
    voter = without_disk()
    assert voter.tick() == [RecoveryRequest(A, B, Term(0), 1), RecoveryRequest(A, C, Term(0), 1)]
    asked_at = voter.clock.now
    voter.receive(answer("b", 4))
    assert voter.tick() == [RecoveryRequest(A, C, Term(0), 1)], "B has answered"
    assert voter.clock.now == asked_at + HEARTBEAT
    voter.receive(answer("c", 2))
    assert not voter.raft.recovery.unanswered
    assert not voter.raft.recovery.has_vote
    assert voter.disk.hard_state == HardState(Term(5), None, Term(5)), "behind every term that was answered"


@pytest.mark.parametrize(
    "message",
    [
        vote_request(B, A, 9),
        pre_vote_request(B, A, 9),
        append(B, A, 9, entries=entries_of(9)),
        heartbeat(B, A, 9, commit=6),
        install(B, A, 9, snapshot_of(3, 2)),
        elect_now(B, A, 9),
        vote(B, A, 1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_before_all_have_answered_it_says_nothing_and_forgets_nothing(message: Message) -> None:
    voter = without_disk()
    voter.receive(answer("b", 9))
    assert voter.receive(message) == []
    assert (voter.raft.term, voter.raft.leader, voter.disk.stored().is_blank) == (0, None, True)


def test_an_answer_to_an_earlier_start_says_nothing() -> None:
    voter = without_disk()
    voter.lose_disk(2)
    voter.receive(answer("b", 4), answer("c", 4))
    assert voter.raft.recovery.unanswered == (B, C)


def test_every_voter_answers_whatever_it_is_and_does_not_move() -> None:
    asked = RecoveryRequest(B, A, Term(0), 7)
    full, blank = Voter(A, THREE, disk_of(1, term=3)), without_disk()
    assert full.receive(asked) == [RecoveryResponse(A, B, Term(3), 7, is_empty=False)]
    assert blank.receive(asked) == [RecoveryResponse(A, B, Term(0), 7, is_empty=True)]
    full.lead()
    assert full.receive(asked) == [RecoveryResponse(A, B, Term(4), 7, is_empty=False)]
    assert full.leads


def test_it_neither_votes_nor_stands_before_it_holds_an_entry_of_a_term_behind_all_that_were_answered() -> (
    None
):
    voter = recovering(4)
    refused = voter.receive(pre_vote_request(B, A, 6, last=(9, 4)), vote_request(B, A, 7, last=(9, 4)))
    assert [
        message.granted for message in refused if isinstance(message, PreVoteResponse | VoteResponse)
    ] == [
        False,
        False,
    ]
    assert voter.tick() == []
    voter.receive(append(B, A, 7, entries=entries_of(1, 4), commit=2), elect_now(B, A, 7))
    assert (voter.raft.recovery.has_vote, voter.raft.applied) == (False, 2), (
        "of the entries that it may have confirmed"
    )
    voter.receive(append(B, A, 7, (2, 4), entries_of(7, start=3)))
    assert voter.raft.recovery.has_vote
    assert voter.disk.hard_state == HardState(Term(7), None)
    voter.clock.now = MonotonicNs(voter.clock.now + 2 * TIMEOUT)
    [granted] = voter.receive(vote_request(C, A, 8, last=(3, 7)))
    assert granted == VoteResponse(A, C, Term(8), granted=True)


def test_a_leader_of_an_earlier_term_is_deposed_and_nothing_of_it_taken() -> None:
    voter = recovering(4)
    [told] = voter.receive(append(B, A, 4, entries=entries_of(4)))
    assert (told.term, voter.raft.last_index) == (5, 0)


def test_what_it_acknowledges_of_a_later_leader_counts_at_once() -> None:
    voter = recovering(4)
    [acknowledged] = voter.receive(append(B, A, 6, entries=entries_of(2, 3)))
    assert acknowledged == appended(A, B, 6, 2)


def test_it_has_no_vote_before_the_entry_is_durable() -> None:
    """A write is made in parts, of which the first has the hard state."""
    voter = recovering(4)
    voter.holds_writes = True
    voter.receive(append(B, A, 6, entries=entries_of(2, 6)))
    assert [write.hard_state for write in voter.held] == [HardState(Term(6), None, Term(5))]
    voter.write(1)
    assert [write.hard_state for write in voter.held] == [HardState(Term(6), None)], "behind the entries"
    assert voter.raft.recovery.has_vote


def test_a_snapshot_of_such_a_term_will_do() -> None:
    voter = recovering(4)
    voter.receive(install(B, A, 6, snapshot_of(9, 4)))
    assert not voter.raft.recovery.has_vote
    voter.receive(install(B, A, 6, snapshot_of(10, 6)))
    assert voter.raft.recovery.has_vote


def test_a_restart_goes_on_recovering() -> None:
    voter = recovering(4)
    voter.receive(append(B, A, 6, entries=entries_of(2)))
    voter.restart()
    assert (voter.raft.recovery.has_vote, voter.raft.recovery.unanswered) == (False, ())
    voter.receive(append(B, A, 6, (1, 2), entries_of(6, start=2)))
    assert voter.raft.recovery.has_vote


def test_a_group_of_which_nobody_has_an_entry_is_new() -> None:
    voter = without_disk()
    voter.receive(answer("b", 0, is_empty=True), answer("c", 0, is_empty=True))
    assert voter.raft.recovery.has_vote
    assert voter.disk.stored().is_blank, "it has said nothing yet, and may ask again"
    voter.lead()
    assert voter.raft.term == 1


def test_a_new_group_waits_for_no_leader_and_another_does() -> None:
    voter = without_disk()
    voter.receive(answer("b", 0, is_empty=True), answer("c", 0, is_empty=True))
    answered_at = voter.clock.now
    assert voter.tick() == [pre_vote_request(A, B, 0), pre_vote_request(A, C, 0)]
    assert voter.clock.now <= answered_at + HEARTBEAT
    assert recovering().raft.wake_at >= TIMEOUT


def test_in_a_new_group_it_votes_behind_every_term_that_was_answered() -> None:
    """The others may have stood for election, and it may have voted for one of them."""
    voter = without_disk()
    voter.receive(answer("b", 2, is_empty=True), answer("c", 0, is_empty=True))
    assert (voter.raft.recovery.has_vote, voter.raft.term) == (True, 3)
    [refused] = voter.receive(vote_request(B, A, 2))
    assert refused == VoteResponse(A, B, Term(3), granted=False)


def test_a_voter_that_is_alone_asks_nobody() -> None:
    voter = Voter(A, (A,))
    voter.lose_disk(1)
    assert voter.raft.recovery.has_vote


def test_a_follower_whose_disk_is_lost_is_brought_up_by_a_new_leader_and_then_needed() -> None:
    cluster = RaftCluster.led_by_a(*THREE)
    cluster.propose(A, b"2", b"3")
    cluster.run()
    cluster.let_pass(HEARTBEAT)
    term = cluster[A].raft.term
    cluster[B].lose_disk(1)
    cluster.let_pass(8 * TIMEOUT)
    assert cluster[B].raft.recovery.has_vote
    assert cluster[B].terms[:3] == [1, 1, 1]
    assert cluster[B].raft.term > term
    leader = next(name for name in (A, C) if cluster[name].leads)
    cluster.cut = {leader}
    cluster.let_pass(8 * TIMEOUT)
    assert [name for name in THREE if cluster[name].leads and name != leader], str(cluster)


def test_what_the_lost_disk_acknowledged_counts_no_more_once_its_voter_votes() -> None:
    """A alone of the two others has the entry; the late answer of B's lost disk would commit it."""
    cluster = RaftCluster.led_by_a(*THREE)
    cluster.cut = {C}
    cluster.propose(A, b"2")
    cluster.deliver(*cluster.under_way(AppendRequest, A, B))
    [late] = cluster.under_way(AppendResponse, B, A)
    cluster.drop()
    cluster.cut = set()
    cluster[B].lose_disk(1)
    cluster.tick(B)
    cluster.run()
    cluster.tick(A)
    cluster.run()
    assert not cluster[A].leads, "it is told of B's term"
    cluster.deliver(late)
    assert cluster[A].raft.commit == 1


def test_two_votes_of_one_voter_in_one_term_elect_nobody() -> None:
    """B voted for C in term 2 with the lost disk; C has yet to count that, and is asked like all others."""
    cluster = RaftCluster.of(A, B, C, D, E)
    cluster.elect(A)
    cluster.clock.advance(2 * TIMEOUT)
    cluster.cut = {A, D, E}
    cluster.tick(C)
    for peer in (B, D, E):
        cluster.give(C, MessageReceived(pre_vote(peer, C, 1, 1)))
    cluster.deliver(*cluster.under_way(VoteRequest, C, B))
    [late] = cluster.under_way(VoteResponse, B, C)
    cluster.drop()
    cluster[B].lose_disk(1)
    cluster.cut = {C}
    cluster.let_pass(8 * TIMEOUT)
    assert cluster[B].raft.recovery.unanswered == (C,)
    assert not cluster[B].raft.recovery.has_vote, "all but one are not enough"
    cluster.cut = set()
    cluster.let_pass(8 * TIMEOUT)
    assert cluster[B].raft.recovery.has_vote
    assert cluster[B].raft.term > late.term
    cluster.deliver(late)
    assert not cluster[C].leads or cluster[C].raft.term > late.term


def test_a_snapshot_of_another_history_is_told() -> None:
    voter = Voter(A, THREE, disk_of(term=5, snapshot=snapshot_of(4, 5)))
    with pytest.raises(CorruptDataError, match="behind one of term 5"):
        voter.receive(install(B, A, 6, snapshot_of(LogIndex(7), 3)))


def test_who_knows_of_other_voters_does_not_answer_and_of_other_learners_does() -> None:
    """Both ask for the votes of the founders; those of a group that has others would not be all."""
    question = RecoveryRequest(B, A, Term(0), 7)
    cluster = RaftCluster.led_by_a()
    cluster.voters[D] = Voter(D, (), clock=cluster.clock)
    cluster.give(A, ChangeMembers(THREE, (D,)))
    cluster.run()
    [told] = cluster[A].receive(question)
    assert isinstance(told, RecoveryResponse)
    cluster.give(A, ChangeMembers((A, C, D)))
    assert cluster[A].receive(question) == []
    cluster.run()
    assert cluster[A].receive(question) == []
