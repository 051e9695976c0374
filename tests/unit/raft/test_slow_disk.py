"""Nothing is promised before it is durable, whatever comes in while the disk writes."""

import pytest

from envelope.types import LogIndex, Term
from metadata.raft.election import Role
from metadata.raft.events import CompactLog, MessageReceived, Persist, Persisted, Propose, Send, Tick
from metadata.raft.machine import Raft
from metadata.raft.messages.voter_messages import AppendResponse, VoteRequest, VoteResponse
from metadata.raft.state import HardState
from tests.support.raft_cluster import (
    SETTINGS,
    START,
    TIMEOUT,
    A,
    B,
    C,
    RaftCluster,
    Voter,
    disk_of,
    entries_of,
)
from tests.support.raft_messages import (
    alive,
    append,
    appended,
    heartbeat,
    install,
    rejected,
    snapshot_of,
    vote,
    vote_request,
)

THREE = (A, B, C)


def slow(*terms: int, term: int = 0) -> Voter:
    """A voter whose writes are held."""
    voter = Voter(A, THREE, disk_of(*terms, term=term))
    voter.holds_writes = True
    return voter


# --- votes ----------------------------------------------------------------------------------------------


def test_a_vote_leaves_with_the_write_that_makes_it_durable() -> None:
    raft = Raft(A, frozenset(THREE), SETTINGS, disk_of().stored(), START)
    actions = raft.handle(MessageReceived(vote_request(B, A, 1)), START)
    assert actions == (Persist(1, HardState(Term(1), B), then=(Send(vote(A, B, 1)),)),), "and in no other way"


def test_a_repeated_vote_waits_for_the_first_one() -> None:
    voter = slow()
    assert voter.receive(vote_request(B, A, 1), vote_request(B, A, 1)) == []
    assert voter.write(1) == [vote(A, B, 1)]
    assert voter.write(1) == [vote(A, B, 1)]


def test_a_vote_is_remembered_over_a_restart() -> None:
    """5.2 and figure 2: votedFor is persistent, else a restart would let a voter vote twice in a term."""
    voter = Voter(A, THREE)
    assert voter.receive(vote_request(B, A, 1)) == [vote(A, B, 1)]
    voter.restart()
    assert voter.receive(vote_request(C, A, 1)) == [vote(A, C, 1, granted=False)]
    assert voter.receive(vote_request(B, A, 1)) == [vote(A, B, 1)]


def test_a_vote_that_a_crash_forgot_was_never_sent() -> None:
    voter = slow()
    assert voter.receive(vote_request(B, A, 1)) == []
    voter.restart()
    assert voter.receive(vote_request(C, A, 1)) == []
    assert voter.write() == [vote(A, C, 1)]


def test_a_candidate_asks_when_its_own_vote_is_durable() -> None:
    voter = slow()
    assert [message for message in voter.stand() if isinstance(message, VoteRequest)] == []
    assert voter.disk.hard_state == HardState(Term(0), None)
    assert voter.write() == [vote_request(A, B, 1), vote_request(A, C, 1)]
    assert voter.disk.hard_state == HardState(Term(1), A)


def test_a_candidates_own_vote_counts_when_it_is_durable() -> None:
    voter = Voter(A, (A, B))
    voter.holds_writes = True
    voter.stand()
    voter.receive(vote(B, A, 1))
    assert not voter.leads
    voter.write(1)
    assert voter.leads


def test_a_candidate_may_win_before_it_is_told_that_its_own_vote_is_durable() -> None:
    voter = Voter(A, THREE)
    voter.holds_writes = True
    voter.stand()
    voter.receive(vote(B, A, 1), vote(C, A, 1))
    assert voter.raft.role is Role.LEADER
    voter.write()
    assert (voter.raft.role, voter.raft.term, voter.terms) == (Role.LEADER, 1, [1])


def test_a_candidate_whose_disk_is_slow_waits_for_it_instead_of_going_to_a_further_term() -> None:
    voter = slow()
    voter.stand()
    for _ in range(5):
        assert voter.tick() == []
    assert (voter.raft.role, voter.raft.term, len(voter.held)) == (Role.CANDIDATE, 1, 1)
    voter.write()
    voter.receive(vote(B, A, 1))
    assert voter.raft.role is Role.LEADER


def test_the_vote_of_an_abandoned_election_does_not_count_in_the_next_term() -> None:
    """A stands in term 1, is overtaken by term 2 while its disk writes, and stands in term 3."""
    voter = slow()
    voter.stand()
    voter.receive(vote_request(C, A, 2))
    voter.stand()
    assert (voter.raft.role, voter.raft.term) == (Role.CANDIDATE, 3)
    voter.receive(vote(B, A, 3))
    voter.write(2)
    assert not voter.leads, "durable is its vote of term 1, and the one for C in term 2"
    voter.write()
    assert voter.leads


def test_a_vote_given_while_the_disk_writes_an_earlier_answer_leaves_behind_it() -> None:
    voter = slow(1)
    voter.receive(append(B, A, 1, (1, 1), entries_of(1, start=2)))
    voter.clock.advance(2 * TIMEOUT)
    voter.receive(vote_request(C, A, 2, last=(2, 1)))
    assert voter.write(1) == [appended(A, B, 1, 2)]
    assert voter.write(1) == [vote(A, C, 2)]


# --- appends --------------------------------------------------------------------------------------------


def test_an_append_is_acknowledged_when_it_is_durable() -> None:
    voter = slow()
    assert voter.receive(append(B, A, 1, entries=entries_of(1, 1))) == []
    assert voter.write() == [appended(A, B, 1, 2)]
    assert voter.terms == [1, 1]


def test_a_repeated_append_is_acknowledged_behind_the_write_of_the_first() -> None:
    voter = slow()
    voter.receive(append(B, A, 1, entries=entries_of(1)))
    assert voter.receive(append(B, A, 1, entries=entries_of(1))) == []
    barrier = voter.held[-1]
    assert (barrier.hard_state, barrier.snapshot, barrier.entries) == (None, None, ())
    assert voter.write(1) == [appended(A, B, 1, 1)]
    assert voter.write(1) == [appended(A, B, 1, 1)]


def test_with_nothing_to_write_a_promise_leaves_at_once() -> None:
    voter = slow(1, 1, term=1)
    assert voter.receive(append(B, A, 1, (2, 1))) == [appended(A, B, 1, 2)]
    assert voter.receive(append(B, A, 1, (7, 1))) == [rejected(A, B, 1, 7, hint=(2, 1))]
    assert not voter.held


def test_a_heartbeat_is_answered_while_the_disk_writes() -> None:
    voter = slow()
    voter.receive(append(B, A, 1, entries=entries_of(1)))
    assert voter.receive(heartbeat(B, A, 1, number=4)) == [alive(A, B, 1, number=4)]


def test_a_follower_applies_when_an_entry_is_committed_and_durable() -> None:
    voter = slow()
    voter.receive(append(B, A, 1, entries=entries_of(1, 1), commit=1))
    assert (voter.raft.commit, voter.applied) == (1, [])
    voter.write()
    assert voter.applied == list(entries_of(1))
    voter.receive(heartbeat(B, A, 1, commit=2))
    assert voter.applied == list(entries_of(1, 1))


def test_entries_replaced_while_they_were_written_do_not_count_as_durable() -> None:
    """B's entries are still being written when the next leader, C, replaces the second of them."""
    voter = slow()
    voter.receive(append(B, A, 1, entries=entries_of(1, 1, 1)))
    voter.receive(append(C, A, 2, (1, 1), entries_of(2, start=2), commit=2))
    assert voter.write(1) == [appended(A, B, 1, 3)], "which was true when this was decided"
    assert voter.terms == [1, 1, 1]
    assert voter.applied == list(entries_of(1)), "the second entry on disk is not the one that is committed"
    assert voter.write(1) == [appended(A, C, 2, 2)]
    assert voter.applied == list(entries_of(1, 2))
    assert voter.terms == [1, 2]


def test_entries_replaced_twice_while_they_were_written_count_when_the_last_write_is_durable() -> None:
    voter = slow()
    voter.receive(append(B, A, 1, entries=entries_of(1, 1)))
    voter.receive(append(C, A, 2, entries=entries_of(2, 2, 2)))
    voter.receive(append(B, A, 3, (2, 2), entries_of(3, start=3), commit=3))
    voter.write(2)
    assert voter.applied == list(entries_of(2, 2))
    voter.write(1)
    assert voter.applied == list(entries_of(2, 2, 3))


def test_a_restart_between_two_writes_finds_the_first() -> None:
    voter = slow()
    voter.receive(append(B, A, 1, entries=entries_of(1, 1, 1)))
    voter.receive(append(C, A, 2, (1, 1), entries_of(2, start=2)))
    voter.write(1)
    voter.restart()
    assert (voter.raft.term, voter.raft.last_index, voter.raft.commit) == (1, 3, 0)


def test_one_report_may_stand_for_several_writes() -> None:
    raft = Raft(A, frozenset(THREE), SETTINGS, disk_of().stored(), START)
    raft.handle(MessageReceived(append(B, A, 1, entries=entries_of(1), commit=1)), START)
    raft.handle(MessageReceived(append(B, A, 1, (1, 1), entries_of(1, start=2), commit=2)), START)
    raft.handle(Persisted(2), START)
    assert raft.applied == 2
    assert raft.handle(Persisted(1), START) == (), "a late report says nothing new"


def test_a_write_that_was_never_begun_cannot_be_reported() -> None:
    raft = Raft(A, frozenset(THREE), SETTINGS, disk_of().stored(), START)
    with pytest.raises(AssertionError, match="never begun"):
        raft.handle(Persisted(1), START)


# --- a leader's own disk --------------------------------------------------------------------------------


def test_a_leaders_own_entry_counts_when_it_is_durable() -> None:
    voter = Voter(A, (A, B))
    voter.lead()
    voter.holds_writes = True
    voter.give(Propose((b"command",)))
    voter.receive(appended(B, A, 1, 2))
    assert voter.raft.commit == 1
    voter.write()
    assert voter.raft.commit == 2


def test_followers_may_commit_what_the_leaders_disk_still_writes_and_it_applies_it_later() -> None:
    voter = Voter(A, THREE)
    voter.lead()
    voter.holds_writes = True
    voter.give(Propose((b"command",)))
    voter.receive(appended(B, A, 1, 2), appended(C, A, 1, 2))
    assert (voter.raft.commit, voter.raft.applied) == (2, 1)
    voter.write()
    assert voter.raft.applied == 2


def test_a_leader_that_crashes_before_its_own_write_gets_its_entries_back_from_its_followers() -> None:
    cluster = RaftCluster.led_by_a()
    cluster[A].holds_writes = True
    cluster.propose(A, b"on the followers only")
    cluster.run()
    assert cluster[B].raft.commit == 2
    cluster[A].restart()
    assert cluster[A].raft.last_index == 1
    cluster[A].holds_writes = False
    cluster.drop()
    cluster.let_pass(5 * TIMEOUT)
    assert cluster[A].applied[1].payload == b"on the followers only"


def test_a_deposed_leaders_entries_are_replaced_while_it_still_writes_them() -> None:
    voter = Voter(A, THREE)
    voter.lead()
    voter.receive(appended(B, A, 1, 1))
    voter.holds_writes = True
    voter.give(Propose((b"mine", b"mine too")))
    voter.receive(append(B, A, 2, (1, 1), entries_of(2, start=2), commit=2))
    assert (voter.raft.role, voter.raft.last_index, voter.raft.applied) == (Role.FOLLOWER, 2, 1)
    voter.write(1)
    assert (voter.terms, voter.raft.applied) == ([1, 1, 1], 1)
    voter.write()
    assert (voter.terms, voter.raft.applied) == ([1, 2], 2)


# --- snapshots ------------------------------------------------------------------------------------------


def test_a_received_snapshot_is_restored_and_acknowledged_when_it_is_durable() -> None:
    voter = slow(1, term=1)
    assert voter.receive(install(B, A, 1, snapshot_of(5, 1))) == []
    assert (voter.raft.commit, voter.raft.applied, voter.snapshot.index) == (5, 0, 0)
    assert voter.write() == [appended(A, B, 1, 5)]
    assert (voter.raft.applied, voter.snapshot) == (5, snapshot_of(5, 1))
    assert (voter.disk.snapshot, voter.terms) == (snapshot_of(5, 1), [])


def test_entries_behind_a_snapshot_that_is_being_written_are_applied_after_it() -> None:
    voter = slow()
    voter.receive(install(B, A, 2, snapshot_of(5, 1)))
    voter.receive(append(B, A, 2, (5, 1), entries_of(2, 2, start=6), commit=6))
    assert voter.write(1) == [appended(A, B, 2, 5)]
    assert (voter.raft.applied, voter.snapshot.index) == (5, 5)
    assert voter.write(1) == [appended(A, B, 2, 7)]
    assert voter.applied == list(entries_of(2, start=6))


def test_a_second_snapshot_may_replace_one_that_is_being_written() -> None:
    voter = slow(1, 1, term=1)
    voter.receive(heartbeat(B, A, 1, commit=1))
    voter.receive(install(B, A, 1, snapshot_of(5, 1)))
    voter.receive(install(B, A, 1, snapshot_of(9, 1)))
    voter.write(1)
    assert (voter.raft.applied, voter.snapshot.index) == (1, 0), "the first is not restored: it is outdated"
    voter.write(1)
    assert (voter.raft.applied, voter.snapshot.index) == (9, 9)


def test_a_snapshot_may_replace_entries_that_are_being_written() -> None:
    """They are of another history, longer than the snapshot; none of them counts as durable any more."""
    voter = slow(1, term=1)
    voter.receive(append(B, A, 1, (1, 1), entries_of(1, 1, 1, 1, start=2), commit=1))
    voter.receive(install(C, A, 3, snapshot_of(3, 2)))
    voter.write(1)
    assert (voter.raft.applied, voter.snapshot.index, voter.terms) == (1, 0, [1, 1, 1, 1, 1])
    voter.write(1)
    assert (voter.raft.applied, voter.snapshot.index, voter.terms) == (3, 3, [])


def test_a_snapshot_of_ones_own_is_outdated_when_a_newer_one_was_received() -> None:
    voter = slow(1, 1, term=1)
    voter.receive(heartbeat(B, A, 1, commit=2))
    voter.receive(install(B, A, 1, snapshot_of(9, 1)))
    assert voter.give(CompactLog(LogIndex(2), b"state")) == []
    assert len(voter.held) == 1
    voter.write()
    voter.give(CompactLog(LogIndex(2), b"state"))
    assert not voter.held
    assert voter.disk.snapshot == snapshot_of(9, 1)


def test_a_voter_may_win_while_it_writes_a_snapshot_and_applies_it_afterwards() -> None:
    voter = slow(term=1)
    voter.receive(install(B, A, 1, snapshot_of(5, 1)))
    voter.stand()
    voter.receive(vote(B, A, 2), vote(C, A, 2))
    assert (voter.raft.role, voter.raft.last_index, voter.raft.applied) == (Role.LEADER, 6, 0)
    voter.receive(appended(B, A, 2, 6))
    assert voter.raft.commit == 5, "its own entry is on no disk but B's"
    voter.write()
    assert (voter.raft.commit, voter.raft.applied, voter.snapshot.index) == (6, 6, 5)


def test_a_compaction_writes_the_snapshot_and_keeps_what_is_behind_it() -> None:
    voter = Voter(A, THREE, disk_of(1, 1, 1, term=1))
    voter.receive(heartbeat(B, A, 1, commit=2))
    voter.give(CompactLog(LogIndex(2), b"state"))
    assert (voter.disk.snapshot.index, voter.disk.snapshot.term, voter.terms) == (2, 1, [1])
    voter.holds_writes = True
    voter.give(CompactLog(LogIndex(2), b"state"))
    assert not voter.held, "it is there already"
    voter.restart()
    assert (voter.raft.applied, voter.raft.commit, voter.raft.last_index) == (2, 2, 3)


def test_what_is_not_applied_cannot_be_compacted() -> None:
    voter = Voter(A, THREE, disk_of(1, 1, term=1))
    voter.receive(heartbeat(B, A, 1, commit=1))
    with pytest.raises(AssertionError, match="R12"):
        voter.give(CompactLog(LogIndex(2), b"state"))


# --- everything at once ---------------------------------------------------------------------------------


def test_all_that_one_event_changes_leaves_in_one_write() -> None:
    raft = Raft(A, frozenset(THREE), SETTINGS, disk_of(1).stored(), START)
    actions = raft.handle(MessageReceived(append(B, A, 4, (1, 1), entries_of(3, 4, start=2))), START)
    persists = [action for action in actions if isinstance(action, Persist)]
    then = (Send(appended(A, B, 4, 3)),)
    assert persists == [Persist(1, HardState(Term(4), None), None, entries_of(3, 4, start=2), then)]


def test_a_tick_before_its_time_does_nothing() -> None:
    voter = Voter(A, THREE)
    assert voter.raft.handle(Tick(), voter.clock.now) == ()


@pytest.mark.parametrize("kind", [VoteResponse, AppendResponse])
def test_what_a_crash_may_forget_was_never_sent_plainly(kind: type) -> None:
    """A promise is in no Send of its own while a write is under way."""
    raft = Raft(A, frozenset(THREE), SETTINGS, disk_of().stored(), START)
    for message in (
        vote_request(B, A, 1),
        append(B, A, 1, entries=entries_of(1)),
        append(B, A, 1, entries=entries_of(1)),
        vote_request(B, A, 1),
        vote_request(C, A, 2, last=(9, 9), transferred=True),
        install(C, A, 2, snapshot_of(4, 2)),
    ):
        actions = raft.handle(MessageReceived(message), START)
        assert not [a for a in actions if isinstance(a, Send) and isinstance(a.message, kind)]
        assert [a for a in actions if isinstance(a, Persist)]
