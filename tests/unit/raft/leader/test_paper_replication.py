"""Log replication and commitment, a test for each sentence of the Raft paper that speaks of it.

The checklist is raft_paper_test.go of etcd-io/raft.
"""

import pytest

from envelope.types import LogIndex, NodeId, Term
from metadata.raft.election import Role
from metadata.raft.events import Propose, Proposed
from metadata.raft.messages.voter_messages import AppendRejection, AppendRequest, AppendResponse, Message
from metadata.raft.settings import RaftSettings
from metadata.raft.state import Entry
from tests.support.raft_cluster import TIMEOUT, A, B, C, D, E, RaftCluster, Voter, disk_of, entries_of
from tests.support.raft_messages import append, appended, rejected

FIVE = (A, B, C, D, E)
THREE = FIVE[:3]


def leader_of(*names: NodeId) -> Voter:
    """A leader whose first entry is committed everywhere."""
    voter = Voter(A, names)
    voter.lead()
    for name in names[1:]:
        voter.receive(appended(name, A, 1, 1))
    assert voter.raft.commit == 1
    return voter


# --- section 5.3: the leader ----------------------------------------------------------------------------


def test_a_leader_appends_a_proposal_and_sends_it_to_all_with_what_precedes_it() -> None:
    """The leader appends the command to its log, then issues AppendEntries RPCs in parallel to the others.

    It includes the index and term of the entry in its log that immediately precedes the new entries.
    """
    voter = leader_of(*THREE)
    entry = Entry(LogIndex(2), Term(1), b"command")
    sent = voter.give(Propose((b"command",)))
    assert sent == [append(A, to, 1, (1, 1), (entry,), commit=1) for to in (B, C)]
    assert voter.raft.commit == 1
    assert voter.disk.stored().entries[-1] == entry, "also, it writes the new entry to stable storage"
    assert voter.news[-1] == Proposed(LogIndex(2), Term(1))


def test_a_leader_replicates_while_its_own_disk_writes() -> None:
    """Dissertation 10.2.1: a leader may replicate in parallel with writing to its own disk."""
    voter = leader_of(*THREE)
    voter.holds_writes = True
    assert len(voter.give(Propose((b"command",)))) == 2
    assert voter.terms == [1]


def test_an_entry_that_a_majority_holds_is_applied_and_told_as_committed() -> None:
    """The leader keeps track of the highest index it knows to be committed, and includes it in future RPCs.

    Idle followers are told at once, and each of them once.
    """
    voter = leader_of(*THREE)
    voter.give(Propose((b"command",)))
    sent = voter.receive(appended(B, A, 1, 2))
    assert [entry.payload for entry in voter.applied] == [b"", b"command"]
    assert sent == [append(A, B, 1, (2, 1), commit=2)], "C is told with the answer to what is under way to it"
    assert voter.receive(appended(C, A, 1, 2)) == [append(A, C, 1, (2, 1), commit=2)]
    assert voter.receive(appended(B, A, 1, 2), appended(C, A, 1, 2)) == []


@pytest.mark.parametrize(
    ("names", "acknowledging", "committed"),
    [
        (FIVE[:1], (), True),
        (FIVE[:2], (), False),
        (FIVE[:2], (B,), True),
        (FIVE[:3], (), False),
        (FIVE[:3], (B,), True),
        (FIVE[:3], (B, C), True),
        (FIVE, (), False),
        (FIVE, (B,), False),
        (FIVE, (B, C), True),
        (FIVE, (B, C, D), True),
        (FIVE, (B, C, D, E), True),
    ],
)
def test_an_entry_is_committed_once_a_majority_has_it(
    names: tuple[NodeId, ...], acknowledging: tuple[NodeId, ...], committed: bool
) -> None:
    """A log entry is committed once the leader that created it has replicated it on a majority."""
    voter = leader_of(*names)
    voter.give(Propose((b"command",)))
    for name in acknowledging:
        voter.receive(appended(name, A, 1, 2))
    assert (voter.raft.commit == 2) is committed


@pytest.mark.parametrize("terms", [(), (2,), (1, 2), (1,)])
def test_committing_an_entry_commits_all_that_precede_it(terms: tuple[int, ...]) -> None:
    """This also commits all preceding entries in the leader's log, including those by previous leaders."""
    voter = Voter(A, THREE, disk_of(*terms, term=2))
    voter.lead()
    voter.give(Propose((b"command",)))
    last = len(terms) + 2
    voter.receive(appended(B, A, 3, last))
    assert voter.raft.commit == last
    assert [entry.term for entry in voter.applied] == [*terms, 3, 3]
    assert [entry.index for entry in voter.applied] == list(range(1, last + 1)), "in log order"


# --- section 5.3: followers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "commit", "applied"),
    [((1,), 1, 1), ((1, 1), 2, 2), ((1, 1), 1, 1), ((1, 1), 9, 2), ((1,), 0, 0)],
)
def test_a_follower_applies_what_it_learns_to_be_committed(
    terms: tuple[int, ...], commit: int, applied: int
) -> None:
    """Once a follower learns that a log entry is committed, it applies the entry, in log order."""
    voter = Voter(A, THREE)
    voter.receive(append(B, A, 1, entries=entries_of(*terms), commit=commit))
    assert voter.applied == list(entries_of(*terms)[:applied])


@pytest.mark.parametrize(
    ("previous", "answer"),
    [
        ((0, 0), appended(A, B, 2, 1)),  # below what is committed, which needs no asking
        ((1, 1), appended(A, B, 2, 1)),
        ((2, 2), appended(A, B, 2, 2)),
        ((2, 1), rejected(A, B, 2, previous=2, hint=(1, 1))),  # another entry is there
        ((3, 3), rejected(A, B, 2, previous=3, hint=(2, 2))),  # none is there
    ],
)
def test_a_follower_refuses_entries_if_it_lacks_what_precedes_them(
    previous: tuple[int, int], answer: Message
) -> None:
    """If the follower does not find an entry with the same index and term, it refuses the new entries."""
    voter = Voter(A, THREE, disk_of(1, 2))
    voter.receive(append(B, A, 2, (1, 1), commit=1))
    assert voter.raft.commit == 1
    assert voter.receive(append(B, A, 2, previous)) == [answer]


@pytest.mark.parametrize(
    ("previous", "terms", "result"),
    [
        ((2, 2), (3,), [1, 2, 3]),
        ((1, 1), (3, 4), [1, 3, 4]),
        ((0, 0), (1,), [1, 2]),
        ((0, 0), (3,), [3]),
    ],
)
def test_a_follower_deletes_what_conflicts_and_appends_what_is_new(
    previous: tuple[int, int], terms: tuple[int, ...], result: list[int]
) -> None:
    """Conflicting entries in follower logs will be overwritten with entries from the leader's log."""
    voter = Voter(A, THREE, disk_of(1, 2))
    match = previous[0] + len(terms)
    message = append(B, A, 4, previous, entries_of(*terms, start=previous[0] + 1))
    assert voter.receive(message) == [appended(A, B, 4, match)]
    assert voter.terms == result, "also, it writes the new entries to stable storage"
    assert voter.receive(message) == [appended(A, B, 4, match)], "a repeated message does no harm"
    assert voter.terms == result


# Figure 7: when the leader at the top comes to power, it is possible that any of these follows.
FIGURE_7_LEADER = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
FIGURE_7_FOLLOWERS = {
    "a": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b": (1, 1, 1, 4),
    "c": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e": (1, 1, 1, 4, 4, 4, 4),
    "f": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


@pytest.mark.parametrize("terms", FIGURE_7_FOLLOWERS.values(), ids=FIGURE_7_FOLLOWERS.keys())
def test_a_leader_brings_any_follower_to_its_own_log(terms: tuple[int, ...]) -> None:
    """Figure 7: a leader brings the followers' logs into consistency with its own, without touching its own.

    The third voter votes for A where the follower, whose log may be newer, does not.
    """
    disks = {A: disk_of(*FIGURE_7_LEADER, term=7), B: disk_of(*terms, term=7), C: disk_of(1, term=7)}
    cluster = RaftCluster.of(*THREE, disks=disks)
    cluster.elect(A)
    cluster.propose(A, b"command")
    cluster.run()
    assert cluster[A].terms == cluster[B].terms == cluster[C].terms == [*FIGURE_7_LEADER, 8, 8]
    assert cluster[B].raft.commit == len(FIGURE_7_LEADER) + 2


def test_followers_crashes_and_lost_messages_do_not_stop_replication() -> None:
    """If followers crash or packets are lost, the leader retries AppendEntries RPCs until all store all."""
    cluster = RaftCluster.led_by_a()
    cluster.propose(A, b"lost on the way to C")
    cluster.drop(cluster.under_way(AppendRequest, A, C))
    cluster.run()
    cluster[B].restart()
    cluster.propose(A, b"after B crashed")
    cluster.run()
    cluster.let_pass(TIMEOUT)
    for voter in cluster.voters.values():
        assert [entry.payload for entry in voter.applied] == [
            b"",
            b"lost on the way to C",
            b"after B crashed",
        ]


# --- section 5.4.2: entries of earlier terms ------------------------------------------------------------


@pytest.mark.parametrize(("match", "commit"), [(1, 0), (2, 0), (3, 3)])
def test_only_entries_of_the_leaders_term_are_committed_by_counting(match: int, commit: int) -> None:
    """Only log entries from the leader's current term are committed by counting replicas."""
    voter = Voter(A, (A, B), disk_of(1, 2))
    voter.lead()
    voter.receive(appended(B, A, 3, match))
    assert voter.raft.commit == commit


def test_figure_8_an_old_entry_on_a_majority_may_still_be_overwritten() -> None:
    """Figure 8: A leads again, its entry of term 2 is on a majority, and E, which has another, still wins.

    Had A called its entry committed, two voters would have applied different ones.
    """
    disks = {
        A: disk_of(1, 2, term=3),
        B: disk_of(1, 2, term=2),
        C: disk_of(1, term=3),
        D: disk_of(1, term=3),
        E: disk_of(1, 3, term=3, vote=E),
    }
    cluster = RaftCluster.of(*FIVE, disks=disks, settings=RaftSettings(append_bytes_max=1))
    cluster.win(A)
    # (c) the old entry goes to C and D, the one of A's own term, 4, to nobody
    for name in (C, D):
        cluster.deliver(*cluster.under_way(AppendRequest, A, name))
        cluster.deliver(*cluster.under_way(AppendRejection, name, A))
        cluster.deliver(*cluster.under_way(AppendRequest, A, name))
        cluster.deliver(*cluster.under_way(AppendResponse, name, A))
        assert cluster[name].terms == [1, 2]
    assert (cluster[A].terms, cluster[A].raft.commit) == ([1, 2, 4], 0)
    # (d) A crashes; E wins, for its last entry is of a later term, and overwrites the old one
    cluster.drop()
    cluster.cut.add(A)
    cluster.elect(E)
    assert cluster[B].terms == cluster[C].terms == cluster[D].terms == [1, 3, 5]
    assert cluster[E].raft.commit == 3
    cluster[A].restart()
    cluster.cut.clear()
    cluster.let_pass(3 * TIMEOUT)
    assert cluster[A].terms == [1, 3, 5]
    assert cluster[A].raft.leader == E


def test_figure_8_once_an_entry_of_its_own_term_is_on_a_majority_nobody_else_can_win() -> None:
    """Figure 8 (e): then the old entry is committed with it, and E cannot win."""
    disks = {A: disk_of(1, 2, term=3), E: disk_of(1, 3, term=3, vote=E), B: disk_of(1, term=3)}
    cluster = RaftCluster.of(A, B, E, disks=disks)
    cluster.win(A)
    cluster.cut.add(E)
    cluster.run()
    assert cluster[A].raft.commit == 3
    cluster.cut = {A}
    cluster.clock.advance(2 * TIMEOUT)
    cluster.tick(E)
    cluster.run()
    assert cluster[E].raft.role is not Role.LEADER
