"""A read is answered when a majority has said, since it came, that its leader still leads.

Source: Ongaro, "Consensus: Bridging Theory and Practice", section 6.4.
"""

from envelope.types import LogIndex
from metadata.raft.events import Propose, Read, ReadReady, ReadRefused, Tick
from metadata.raft.messages.voter_messages import AppendRequest, Heartbeat, VoterHeartbeatResponse
from tests.support.raft_cluster import TIMEOUT, A, B, C, D, E, RaftCluster, Voter, disk_of
from tests.support.raft_messages import alive, append, appended, heartbeat

THREE = (A, B, C)


def leader(*terms: int) -> Voter:
    voter = Voter(A, THREE, disk_of(*terms))
    voter.lead()
    return voter


def answers(voter: Voter) -> list[ReadReady | ReadRefused]:
    return [news for news in voter.news if isinstance(news, ReadReady | ReadRefused)]


def ready(*tokens: int, index: int) -> ReadReady:
    return ReadReady(tokens, LogIndex(index))


def test_a_read_asks_everybody_and_is_ready_with_a_majority() -> None:
    voter = leader()
    voter.receive(appended(B, A, 1, 1))
    assert voter.give(Read(7)) == [heartbeat(A, B, 1, commit=1, number=1), heartbeat(A, C, 1, number=1)]
    assert answers(voter) == []
    voter.receive(alive(C, A, 1, number=1))
    assert answers(voter) == [ready(7, index=1)]
    voter.receive(alive(B, A, 1, number=1))
    assert answers(voter) == [ready(7, index=1)], "once"


def test_a_majority_of_five_is_needed() -> None:
    voter = Voter(A, (A, B, C, D, E))
    voter.lead()
    voter.receive(appended(B, A, 1, 1), appended(C, A, 1, 1))
    voter.give(Read(7))
    voter.receive(alive(B, A, 1, number=1), alive(B, A, 1, number=1))
    assert answers(voter) == []
    voter.receive(alive(E, A, 1, number=1))
    assert answers(voter) == [ready(7, index=1)]


def test_a_heartbeat_sent_before_the_read_came_does_not_confirm_it() -> None:
    """Its receiver may have voted for another leader since, which has committed what the read must see."""
    voter = leader()
    voter.receive(appended(B, A, 1, 1))
    voter.tick()
    voter.give(Read(7))
    voter.receive(alive(B, A, 1, number=1), alive(C, A, 1, number=1))
    assert answers(voter) == []
    voter.receive(alive(B, A, 1, number=2))
    assert answers(voter) == [ready(7, index=1)]


def test_an_answer_from_a_later_term_to_something_else_confirms_no_read() -> None:
    voter = leader()
    voter.receive(appended(B, A, 1, 1))
    voter.give(Read(7))
    voter.receive(alive(B, A, 1, number=0))
    assert answers(voter) == []


def test_a_new_leader_answers_no_read_before_it_has_committed_in_its_term() -> None:
    """Until then it may not know of everything that its predecessors committed."""
    voter = leader(1, 1, 1)
    assert voter.give(Read(7)) == []
    voter.tick()
    voter.receive(alive(B, A, 2, number=1), alive(C, A, 2, number=1))
    assert answers(voter) == []
    sent = voter.receive(appended(B, A, 2, 4))
    assert [message.round for message in sent if isinstance(message, Heartbeat)] == [2, 2]
    voter.receive(alive(B, A, 2, number=2))
    assert answers(voter) == [ready(7, index=4)]


def test_reads_that_come_during_a_round_share_the_next_one() -> None:
    voter = leader()
    voter.receive(appended(B, A, 1, 1))
    voter.give(Read(1))
    assert voter.give(Read(2)) == voter.give(Read(3)) == []
    voter.give(Propose((b"command",)))
    voter.receive(appended(B, A, 1, 2))
    sent = voter.receive(alive(B, A, 1, number=1))
    assert answers(voter) == [ready(1, index=1)]
    assert {message.round for message in sent if isinstance(message, Heartbeat)} == {2}
    voter.receive(alive(B, A, 1, number=2))
    assert answers(voter)[1:] == [ready(2, 3, index=2)]


def test_a_later_round_confirms_the_reads_of_an_earlier_one() -> None:
    """The first round is lost; a heartbeat that was due confirms it, and the read that came meanwhile."""
    voter = leader()
    voter.receive(appended(B, A, 1, 1))
    voter.give(Read(1))
    voter.give(Read(2))
    voter.tick()
    voter.receive(alive(C, A, 1, number=2))
    assert answers(voter) == [ready(1, index=1), ready(2, index=1)]


def test_a_leader_deposed_while_it_asks_refuses_its_reads_and_names_the_new_one() -> None:
    voter = leader()
    voter.receive(appended(B, A, 1, 1))
    voter.give(Read(1))
    voter.give(Read(2))
    voter.receive(append(B, A, 2, (1, 1)))
    assert answers(voter) == [ReadRefused((1, 2), B)]
    voter.receive(alive(C, A, 1, number=1))
    assert len(answers(voter)) == 1


def test_a_leader_that_steps_down_refuses_its_reads() -> None:
    voter = leader()
    voter.give(Read(1))
    voter.clock.advance(TIMEOUT)
    voter.give(Tick())
    assert answers(voter) == [ReadRefused((1,), None)]


def test_only_a_leader_answers_reads() -> None:
    voter = Voter(A, THREE, disk_of(term=1))
    voter.give(Read(1))
    voter.receive(heartbeat(B, A, 1))
    voter.give(Read(2))
    assert answers(voter) == [ReadRefused((1,), None), ReadRefused((2,), B)]


def test_a_single_voter_answers_reads_at_once() -> None:
    voter = Voter(A, (A,))
    voter.tick()
    assert voter.give(Read(1)) == []
    assert answers(voter) == [ready(1, index=1)]


def test_a_leader_that_does_not_know_it_is_deposed_answers_no_read() -> None:
    """C leads a later term and has committed; A, which hears of neither, must not answer from its state."""
    cluster = RaftCluster.led_by_a()
    cluster.cut.add(A)
    cluster.elect(C)
    cluster.propose(C, b"unknown to A")
    cluster.run()
    assert cluster[C].raft.commit == 3
    assert cluster[A].leads, "it was not woken since"
    cluster.cut.clear()
    cluster.give(A, Read(1))
    cluster.drop(cluster.under_way(AppendRequest, C, A))
    cluster.run()
    assert answers(cluster[A]) == [ReadRefused((1,), None)]


def test_heartbeats_that_a_read_sends_are_answered_like_any_other() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.give(A, Read(1))
    cluster.deliver(*cluster.under_way(Heartbeat))
    assert [message.round for message in cluster.under_way(VoterHeartbeatResponse)] == [1, 1]
    cluster.run()
    assert answers(cluster[A]) == [ready(1, index=1)]
