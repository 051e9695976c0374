"""What is late, repeated or out of order neither commits what is not held nor loses what is."""

import pytest

from envelope.errors import CorruptDataError
from metadata.raft.messages.voter_messages import AppendRequest, AppendResponse, Message
from tests.support.raft_cluster import TIMEOUT, A, B, C, D, E, RaftCluster, Voter, disk_of, entries_of
from tests.support.raft_messages import (
    alive,
    append,
    appended,
    heartbeat,
    install,
    pre_vote,
    rejected,
    snapshot_of,
    vote,
)

THREE = (A, B, C)


def test_an_acknowledgement_of_an_earlier_term_does_not_commit_what_its_sender_has_lost() -> None:
    """B's answer to A in term 1 arrives when A leads term 3; since then B's entries were replaced.

    With A and D it would make a majority of five for an index at which B holds nothing.
    """
    cluster = RaftCluster.led_by_a(A, B, C, D, E)
    cluster.cut = {C, D, E}
    cluster.propose(A, b"2", b"3", b"4", b"5")
    cluster.deliver(*cluster.under_way(AppendRequest, A, B))
    [late] = cluster.under_way(AppendResponse, B, A)
    assert (late.term, late.match) == (1, 5)
    cluster.drop()
    cluster.cut = {A}
    cluster.elect(C)
    cluster.cut.clear()
    cluster.let_pass(2 * TIMEOUT)
    assert cluster[A].terms == cluster[B].terms == [1, 2], "what B acknowledged is gone"
    cluster.elect(A)
    assert (cluster[A].raft.term, cluster[A].raft.commit) == (3, 3)
    cluster.cut = {B, C, E}
    cluster.propose(A, b"4 of term 3", b"5 of term 3")
    cluster.run()
    cluster.cut.clear()
    cluster.deliver(late)
    assert cluster[A].raft.commit == 3, "only A and D hold the rest"


@pytest.mark.parametrize(
    "late",
    [
        appended(B, A, 1, 3),
        rejected(B, A, 1, 2, hint=(1, 1)),
        alive(B, A, 1, number=7),
        vote(B, A, 1),
        pre_vote(B, A, 1, 1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_an_answer_of_an_earlier_term_is_ignored(late: Message) -> None:
    voter = Voter(A, THREE, disk_of(1, 1, term=1))
    voter.lead()
    before = str(voter.raft)
    assert voter.receive(late) == []
    assert str(voter.raft) == before


def test_a_late_append_does_not_truncate_what_later_ones_have_brought() -> None:
    """5.3, step 3 of AppendEntries: only a conflict deletes; the acknowledged rest must stay."""
    voter = Voter(A, THREE)
    late = append(B, A, 1, (1, 1), entries_of(1, start=2))
    voter.receive(append(B, A, 1, entries=entries_of(1, 1, 1, 1)))
    assert voter.receive(late) == [appended(A, B, 1, 2)], "no more than what the message speaks of"
    assert voter.terms == [1, 1, 1, 1]


def test_appends_that_overtake_each_other_are_put_in_order_by_asking_again() -> None:
    cluster = RaftCluster.led_by_a()
    for number in range(4):
        cluster.propose(A, f"{number}".encode())
    for message in reversed(cluster.under_way(AppendRequest)):
        cluster.deliver(message)
    cluster.run()
    assert [entry.payload for entry in cluster[C].applied] == [b"", b"0", b"1", b"2", b"3"]


def test_an_append_that_speaks_of_what_is_committed_is_answered_with_all_of_it() -> None:
    voter = Voter(A, THREE, disk_of(1, 1, 1, term=1))
    voter.receive(heartbeat(B, A, 1, commit=3))
    assert voter.receive(append(B, A, 1, (1, 1), entries_of(1, start=2))) == [appended(A, B, 1, 3)]


def test_a_commit_is_never_learned_beyond_what_the_message_speaks_of() -> None:
    """What lies behind may be of another history, although it is below the leader's commit index."""
    voter = Voter(A, THREE, disk_of(1, 1, 1, term=1))
    voter.receive(append(B, A, 2, (1, 1), commit=3))
    assert voter.raft.commit == 1


# --- snapshots ------------------------------------------------------------------------------------------


def test_a_late_snapshot_does_not_wipe_entries_that_were_acknowledged() -> None:
    """What it holds is a part of this log: it says no more than that this part is committed."""
    voter = Voter(A, THREE)
    voter.receive(append(B, A, 1, entries=entries_of(1, 1, 1, 1, 1), commit=1))
    assert voter.receive(install(B, A, 1, snapshot_of(3, 1))) == [appended(A, B, 1, 3)]
    assert (voter.terms, voter.raft.commit, voter.snapshot.index) == ([1] * 5, 3, 0)
    assert voter.applied == list(entries_of(1, 1, 1))


def test_a_snapshot_of_what_is_committed_changes_nothing() -> None:
    voter = Voter(A, THREE)
    voter.receive(append(B, A, 1, entries=entries_of(1, 1, 1, 1, 1), commit=4))
    assert voter.receive(install(B, A, 1, snapshot_of(3, 1))) == [appended(A, B, 1, 4)]
    assert (voter.terms, voter.raft.commit) == ([1] * 5, 4)


def test_a_snapshot_of_another_history_replaces_all_entries() -> None:
    """Section 7: if it describes a history that the log does not continue, the entire log is discarded."""
    voter = Voter(A, THREE, disk_of(1, 1, 1, 1, 1))
    assert voter.receive(install(B, A, 3, snapshot_of(3, 2))) == [appended(A, B, 3, 3)]
    assert (voter.terms, voter.raft.last_index, voter.snapshot) == ([], 3, snapshot_of(3, 2))


def test_a_snapshot_that_comes_twice_is_restored_once() -> None:
    voter = Voter(A, THREE)
    snapshot = install(B, A, 1, snapshot_of(3, 1))
    voter.receive(snapshot, append(B, A, 1, (3, 1), entries_of(1, start=4), commit=4))
    assert voter.receive(snapshot) == [appended(A, B, 1, 4)]
    assert (voter.applied, voter.terms) == (list(entries_of(1, start=4)), [1])


def test_a_snapshot_on_its_way_may_be_overtaken_by_a_leader_that_has_the_entries() -> None:
    """C gets the entries from the next leader, B, and then the snapshot that A sent in its term."""
    voter = Voter(C, THREE)
    late = install(A, C, 1, snapshot_of(3, 1))
    voter.receive(append(B, C, 2, entries=entries_of(1, 1, 1, 1, 2)))
    [answer] = voter.receive(late)
    assert answer.term == 2
    assert (voter.terms, voter.raft.commit, voter.raft.leader) == ([1, 1, 1, 1, 2], 0, B)


# --- not for this voter ---------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [append(B, C, 9), vote(A, B, 9)])
def test_messages_for_others_are_ignored(message: Message) -> None:
    voter = Voter(A, THREE)
    assert voter.receive(message) == []
    assert voter.raft.term == 0


def test_a_voter_that_hears_two_leaders_of_one_term_stops_with_an_error_that_says_why() -> None:
    voter = Voter(A, THREE, disk_of(term=1))
    voter.receive(heartbeat(B, A, 1))
    with pytest.raises(CorruptDataError, match=r"lead metadata term 1: .* runbook=RB-07"):
        voter.receive(heartbeat(C, A, 1))
    leading = Voter(A, THREE)
    leading.lead()
    with pytest.raises(CorruptDataError, match=r"lead metadata term 1: .* runbook=RB-07"):
        leading.receive(heartbeat(C, A, 1))


def test_a_voter_whose_disk_lost_what_it_acknowledged_stops() -> None:
    voter = Voter(A, THREE, disk_of(1, term=1))
    with pytest.raises(CorruptDataError, match=r"the log ends at 1: .* runbook=RB-07"):
        voter.receive(heartbeat(B, A, 1, commit=2))


def test_a_follower_cannot_hold_more_than_its_leader() -> None:
    voter = Voter(A, THREE)
    voter.lead()
    with pytest.raises(CorruptDataError, match=r"of this leader, whose log ends at 1: .* runbook=RB-07"):
        voter.receive(appended(B, A, 1, 2))
