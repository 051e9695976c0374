"""Leader election, a test for each sentence of the Raft paper that speaks of it.

The checklist is raft_paper_test.go of etcd-io/raft. Pre-votes, which the paper does not have, are granted.
"""

from collections.abc import Callable

import pytest

from envelope.types import NodeId
from metadata.raft.election import Role
from metadata.raft.messages.voter_messages import Message, VoteRequest
from tests.support.raft_cluster import HEARTBEAT, TIMEOUT, A, B, C, D, E, RaftCluster, Voter, disk_of
from tests.support.raft_messages import append, elect_now, heartbeat, install, snapshot_of, vote, vote_request

THREE = (A, B, C)


def follower() -> Voter:
    voter = Voter(A, THREE, disk_of(term=1))
    voter.receive(heartbeat(B, A, 1))
    return voter


def candidate() -> Voter:
    voter = Voter(A, THREE)
    voter.stand()
    return voter


def leader() -> Voter:
    voter = Voter(A, THREE)
    voter.lead()
    return voter


# --- section 5.1: terms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [follower, candidate, leader])
def test_whoever_sees_a_higher_term_takes_it_and_follows(make: Callable[[], Voter]) -> None:
    """If one server's current term is smaller than the other's, then it updates its current term."""
    voter = make()
    assert voter.raft.term == 1
    voter.receive(append(B, A, 2))
    assert (voter.raft.term, voter.raft.role, voter.raft.leader) == (2, Role.FOLLOWER, B)
    assert voter.disk.hard_state.term == 2, "durable, before anything is said in it"


@pytest.mark.parametrize(
    "stale",
    [
        append(C, A, 2, entries=()),
        heartbeat(C, A, 2),
        install(C, A, 2, snapshot_of(9, 2)),
        vote_request(C, A, 2, last=(9, 2)),
        elect_now(C, A, 2),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_request_of_an_earlier_term_is_answered_with_the_present_one(stale: Message) -> None:
    """If a server receives a request with a stale term number, it rejects the request."""
    voter = Voter(A, THREE, disk_of(1, term=3))
    [answer] = voter.receive(stale)
    assert (answer.target, answer.term) == (C, 3)
    assert voter.raft.leader is None
    assert voter.terms == [1]


@pytest.mark.parametrize("make", [candidate, leader])
def test_a_candidate_or_leader_that_is_out_of_date_reverts_to_follower(make: Callable[[], Voter]) -> None:
    """If a candidate or leader discovers that its term is out of date, it immediately reverts to follower."""
    voter = make()
    voter.receive(vote(B, A, 5, granted=False))
    assert (voter.raft.term, voter.raft.role, voter.raft.leader) == (5, Role.FOLLOWER, None)


# --- section 5.2: elections -----------------------------------------------------------------------------


def test_servers_start_up_as_followers() -> None:
    """When servers start up, they begin as followers."""
    voter = Voter(A, THREE, disk_of(1, 2, term=4, vote=A))
    assert (voter.raft.role, voter.raft.term, voter.raft.leader) == (Role.FOLLOWER, 4, None)


def test_a_server_stays_follower_while_it_hears_from_a_leader() -> None:
    """A server remains in follower state as long as it receives valid RPCs from a leader or candidate."""
    voter = follower()
    for _ in range(30):
        voter.clock.advance(HEARTBEAT)
        voter.receive(heartbeat(B, A, 1))
        assert voter.raft.wake_at > voter.clock.now + TIMEOUT - 1
    assert voter.raft.role is Role.FOLLOWER


def test_giving_its_vote_makes_a_server_wait_anew() -> None:
    """Figure 2: it converts to candidate if the timeout elapses without granting vote to a candidate."""
    voter = Voter(A, THREE)
    voter.clock.advance(TIMEOUT)
    voter.receive(vote_request(B, A, 1))
    wake_at = voter.raft.wake_at
    assert wake_at >= voter.clock.now + TIMEOUT
    voter.clock.advance(TIMEOUT // 2)
    voter.receive(vote_request(C, A, 1))
    assert voter.raft.wake_at == wake_at, "refusing it does not"


def test_a_leader_sends_heartbeats_to_all_followers_to_keep_its_authority() -> None:
    """Leaders send periodic heartbeats to all followers in order to maintain their authority."""
    voter = leader()
    for number in (1, 2, 3):
        assert voter.raft.wake_at == voter.clock.now + HEARTBEAT
        assert voter.tick() == [heartbeat(A, B, 1, number=number), heartbeat(A, C, 1, number=number)]


@pytest.mark.parametrize(("make", "term"), [(follower, 2), (candidate, 2)])
def test_without_a_leader_a_server_votes_for_itself_in_a_new_term(
    make: Callable[[], Voter], term: int
) -> None:
    """To begin an election, a follower increments its current term and transitions to candidate state.

    It then votes for itself and issues RequestVote RPCs in parallel to each of the other servers. A candidate
    that times out starts a new election by incrementing its term.
    """
    voter = make()
    sent = voter.stand()
    assert (voter.raft.role, voter.raft.term) == (Role.CANDIDATE, term)
    assert (voter.disk.hard_state.term, voter.disk.hard_state.vote) == (term, A)
    asked = [message for message in sent if isinstance(message, VoteRequest)]
    assert asked == [vote_request(A, B, term), vote_request(A, C, term)]


WON, OPEN = Role.LEADER, Role.CANDIDATE


@pytest.mark.parametrize(
    ("size", "votes", "role"),
    [
        (1, {}, WON),
        (2, {}, OPEN),
        (2, {B: True}, WON),
        (3, {B: True, C: True}, WON),
        (3, {B: True}, WON),
        (5, {B: True, C: True, D: True, E: True}, WON),
        (5, {B: True, C: True}, WON),
        (5, {B: True, C: False, D: False, E: True}, WON),
        (3, {}, OPEN),
        (3, {B: False, C: False}, OPEN),
        (5, {B: True}, OPEN),
        (5, {B: True, C: False, D: False, E: False}, OPEN),
    ],
)
def test_a_candidate_wins_with_the_votes_of_a_majority(
    size: int, votes: dict[NodeId, bool], role: Role
) -> None:
    """A candidate wins an election if it receives votes from a majority of the servers in the cluster."""
    voter = Voter(A, (A, B, C, D, E)[:size])
    voter.stand()
    for name, granted in votes.items():
        voter.receive(vote(name, A, 1, granted=granted))
    assert voter.raft.role is role
    assert voter.raft.leader == (A if role is WON else None)


def test_a_vote_that_arrives_twice_counts_once() -> None:
    voter = Voter(A, (A, B, C, D, E))
    voter.stand()
    voter.receive(vote(B, A, 1), vote(B, A, 1), vote(B, A, 1))
    assert voter.raft.role is Role.CANDIDATE


def test_votes_for_another_term_do_not_count() -> None:
    voter = candidate()
    voter.stand()
    assert voter.raft.term == 2
    voter.receive(vote(B, A, 1), vote(C, A, 1))
    assert voter.raft.role is Role.CANDIDATE


@pytest.mark.parametrize(
    ("voted", "asking", "granted"),
    [
        (None, B, True),
        (None, C, True),
        (B, B, True),
        (C, C, True),
        (B, C, False),
        (C, B, False),
        (A, B, False),
    ],
)
def test_a_server_votes_for_one_candidate_a_term_the_first_that_asks(
    voted: NodeId | None, asking: NodeId, granted: bool
) -> None:
    """Each server will vote for at most one candidate in a given term, on a first-come-first-served basis."""
    voter = Voter(A, THREE, disk_of(term=1, vote=voted))
    assert voter.receive(vote_request(asking, A, 1)) == [vote(A, asking, 1, granted=granted)]


def test_once_a_candidate_wins_it_tells_all_others_to_prevent_new_elections() -> None:
    """It then sends heartbeat messages to all of the other servers; here, the entry that begins its term."""
    voter = Voter(A, THREE)
    sent = voter.lead()
    assert [(type(message).__name__, message.target) for message in sent] == [
        ("AppendRequest", B),
        ("AppendRequest", C),
    ]


@pytest.mark.parametrize("term", [1, 2])
def test_a_candidate_that_hears_of_a_leader_follows_it(term: int) -> None:
    """If the leader's term is at least as large as its own, the candidate returns to follower state."""
    voter = candidate()
    voter.receive(append(B, A, term))
    assert (voter.raft.role, voter.raft.term, voter.raft.leader) == (Role.FOLLOWER, term, B)


def test_a_candidate_rejects_a_leader_of_an_earlier_term() -> None:
    """If the term in the RPC is smaller, the candidate rejects the RPC and continues in candidate state."""
    voter = candidate()
    voter.stand()
    voter.receive(append(B, A, 1))
    assert (voter.raft.role, voter.raft.term) == (Role.CANDIDATE, 2)


def test_late_votes_do_not_make_a_follower_lead() -> None:
    voter = candidate()
    voter.receive(append(B, A, 1))
    voter.receive(vote(B, A, 1), vote(C, A, 1))
    assert voter.raft.role is Role.FOLLOWER


def test_election_timeouts_spread_over_once_to_twice_the_base() -> None:
    """Raft uses randomized election timeouts, chosen from a fixed interval."""
    waits = []
    for term in range(200):
        voter = Voter(A, THREE, disk_of(term=term))
        waits.append(voter.raft.wake_at - voter.clock.now)
    assert TIMEOUT <= min(waits) < 1.1 * TIMEOUT
    assert 1.9 * TIMEOUT < max(waits) < 2 * TIMEOUT


def test_a_server_that_heard_a_leader_begins_its_timeouts_from_the_first() -> None:
    """So that what a voter waits does not depend on how often it has waited for earlier leaders."""
    patient = Voter(A, THREE, disk_of(term=1))
    for _ in range(3):
        patient.tick()
    assert patient.raft.wake_at - patient.clock.now != follower().raft.wake_at - follower().clock.now
    patient.receive(heartbeat(B, A, 1))
    assert patient.raft.wake_at - patient.clock.now == follower().raft.wake_at - follower().clock.now


def test_in_most_cases_a_single_server_times_out_first() -> None:
    """In most cases only a single server will time out; it wins before any other servers time out."""
    close = 0
    for term in range(500):
        first, second, *_ = sorted(
            Voter(name, (A, B, C, D, E), disk_of(term=term)).raft.wake_at for name in (A, B, C, D, E)
        )
        close += second - first < TIMEOUT / 50
    assert close < 500 * 0.2


def test_a_split_vote_is_resolved_in_a_later_term() -> None:
    """Each candidate restarts its randomized election timeout at the start of an election."""
    cluster = RaftCluster.of(A, B)
    cluster[A].stand()
    cluster[B].stand()
    cluster.drop(cluster.pool)
    assert cluster[A].raft.term == cluster[B].raft.term == 1
    for voter in cluster.voters.values():
        voter.take()
    cluster.let_pass(10 * TIMEOUT)
    assert {cluster[A].raft.leader, cluster[B].raft.leader} in ({A}, {B})


# --- section 5.4.1: election restriction ----------------------------------------------------------------


@pytest.mark.parametrize(("terms", "last"), [((1,), (1, 1)), ((1, 2), (2, 2))])
def test_a_vote_request_tells_about_the_candidates_log(terms: tuple[int, ...], last: tuple[int, int]) -> None:
    """The RequestVote RPC includes information about the candidate's log."""
    voter = Voter(A, THREE, disk_of(*terms))
    asked = [message for message in voter.stand() if isinstance(message, VoteRequest)]
    term = max(terms) + 1
    assert asked == [vote_request(A, B, term, last), vote_request(A, C, term, last)]


@pytest.mark.parametrize(
    ("terms", "last", "granted"),
    [
        ((1,), (1, 1), True),
        ((1,), (2, 1), True),
        ((1, 1), (1, 1), False),
        ((1,), (1, 2), True),
        ((1,), (2, 2), True),
        ((1, 1), (1, 2), True),
        ((2,), (1, 1), False),
        ((2,), (2, 1), False),
        ((2, 2), (1, 1), False),
    ],
)
def test_a_voter_denies_its_vote_if_its_own_log_is_newer(
    terms: tuple[int, ...], last: tuple[int, int], granted: bool
) -> None:
    """The voter denies its vote if its own log is more up-to-date than that of the candidate."""
    voter = Voter(A, THREE, disk_of(*terms))
    assert voter.receive(vote_request(B, A, 3, last)) == [vote(A, B, 3, granted=granted)]


def test_a_server_without_every_committed_entry_cannot_win() -> None:
    """5.4.1: only one whose log is as up-to-date as any in a majority holds all committed entries."""
    cluster = RaftCluster.led_by_a()
    cluster.cut.add(C)
    cluster.propose(A, b"committed without C")
    cluster.run()
    cluster.cut.clear()
    cluster.drop()
    cluster.clock.advance(2 * TIMEOUT)
    cluster.tick(C)
    cluster.run()
    assert cluster[C].raft.role is not Role.LEADER
    cluster.let_pass(5 * TIMEOUT)
    assert cluster[C].raft.leader in (A, B)
    assert b"committed without C" in [entry.payload for entry in cluster[C].applied]
