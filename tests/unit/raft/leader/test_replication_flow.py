"""What a leader sends to a follower, when, and how it finds out about what was lost."""

from dataclasses import dataclass

import pytest

from envelope.types import LogIndex, NodeId
from metadata.raft.events import CompactLog, PeerDisconnected, ProposalRefused, Propose, RefusalReason, Tick
from metadata.raft.messages.voter_messages import (
    AppendRejection,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    Message,
    SnapshotRequest,
    VoterHeartbeatResponse,
)
from metadata.raft.settings import RaftSettings
from tests.support.raft_cluster import HEARTBEAT, TIMEOUT, A, B, C, RaftCluster, Voter, disk_of
from tests.support.raft_messages import alive, append, appended, heartbeat, rejected

TWO = (A, B)
THREE = (A, B, C)


def leader(settings: RaftSettings | None = None, *terms: int) -> Voter:
    """A leader of two; its first append, of the entry that begins its term, is under way to B."""
    voter = Voter(A, TWO, disk_of(*terms), settings=settings or RaftSettings())
    voter.lead()
    return voter


def replicating(settings: RaftSettings | None = None) -> Voter:
    """A leader of two whose follower has acknowledged everything: one entry."""
    voter = leader(settings)
    voter.receive(appended(B, A, 1, 1))
    return voter


def indexes(messages: list[Message]) -> list[list[int]]:
    """The entries of each append that was sent."""
    return [
        [entry.index for entry in message.entries]
        for message in messages
        if isinstance(message, AppendRequest)
    ]


# --- probing --------------------------------------------------------------------------------------------


def test_while_probing_one_append_is_sent_until_it_is_answered() -> None:
    voter = leader()
    assert voter.give(Propose((b"2",))) == []
    assert indexes(voter.receive(appended(B, A, 1, 1))) == [[2]]


def test_while_probing_an_append_is_repeated_for_each_answered_heartbeat() -> None:
    voter = leader()
    assert indexes(voter.tick()) == []
    assert indexes(voter.receive(alive(B, A, 1, number=1))) == [[1]]
    assert indexes(voter.tick()) == []
    assert indexes(voter.receive(alive(B, A, 1, number=2))) == [[1]]


def test_a_follower_that_has_everything_is_not_asked_again() -> None:
    voter = replicating()
    voter.tick()
    assert voter.receive(alive(B, A, 1, number=1)) == []


# --- replicating ----------------------------------------------------------------------------------------


def test_appends_are_sent_ahead_of_their_answers_within_the_window() -> None:
    voter = replicating(RaftSettings(appends_in_flight_max=3))
    sent = [message for number in range(5) for message in voter.give(Propose((b"x",)))]
    assert indexes(sent) == [[2], [3], [4]]
    sent = voter.receive(appended(B, A, 1, 3))
    assert indexes(sent) == [[5, 6]], "what gathered goes together"
    assert voter.give(Propose((b"x",))) != []
    assert voter.give(Propose((b"x",))) == []


def test_a_late_acknowledgement_moves_nothing_back() -> None:
    voter = replicating()
    voter.give(Propose((b"2", b"3")))
    assert voter.receive(appended(B, A, 1, 3)) != []
    assert voter.receive(appended(B, A, 1, 2), appended(B, A, 1, 1)) == []
    assert indexes(voter.give(Propose((b"4",)))) == [[4]]
    assert voter.raft.commit == 3
    assert voter.tick() == [heartbeat(A, B, 1, commit=3)]


def test_a_message_has_entries_within_its_bytes() -> None:
    voter = replicating(RaftSettings(append_bytes_max=1000))
    sent = voter.give(Propose((b"x" * 400, b"x" * 400, b"x" * 5000, b"x")))
    assert indexes(sent) == [[2, 3], [4], [5]]


def test_more_than_may_wait_for_commitment_is_refused_as_overload() -> None:
    voter = Voter(A, THREE, settings=RaftSettings(entries_in_flight_max=3))
    voter.lead()
    assert voter.give(Propose((b"2", b"3", b"4"))) == []
    assert voter.news[-1] == ProposalRefused(RefusalReason.OVERLOADED, A)
    assert voter.raft.last_index == 1
    voter.give(Propose((b"2", b"3")))
    assert voter.raft.last_index == 3
    voter.receive(appended(B, A, 1, 1))
    voter.give(Propose((b"4",)))
    assert voter.raft.last_index == 4


def test_only_a_leader_takes_proposals() -> None:
    voter = Voter(A, THREE)
    voter.give(Propose((b"x",)))
    voter.receive(heartbeat(B, A, 1))
    voter.give(Propose((b"x",)))
    refusals = [news for news in voter.news if isinstance(news, ProposalRefused)]
    assert refusals == [ProposalRefused(RefusalReason.NOT_LEADER, leader) for leader in (None, B)]
    assert voter.raft.last_index == 0


def test_an_empty_proposal_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="empty payload"):
        replicating().give(Propose((b"x", b"")))


# --- losses ---------------------------------------------------------------------------------------------


def test_a_lost_append_is_found_by_the_next_heartbeat() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.propose(A, b"lost on the way to C")
    cluster.drop(cluster.under_way(AppendRequest, A, C))
    cluster.run()
    assert cluster[C].raft.last_index == 1
    cluster.tick(A)
    cluster.run()
    assert cluster[C].terms == [1, 1]
    cluster.let_pass(HEARTBEAT)
    assert cluster[C].applied == cluster[A].applied


def test_a_lost_acknowledgement_is_found_by_the_next_heartbeat() -> None:
    cluster = RaftCluster.led_by_a(A, B)
    cluster.propose(A, b"command")
    cluster.deliver(*cluster.under_way(AppendRequest))
    assert len(cluster.drop(cluster.under_way(AppendResponse))) == 1
    assert cluster[A].raft.commit == 1
    cluster.tick(A)
    cluster.run()
    assert cluster[A].raft.commit == 2


def test_a_whole_lost_window_is_found_by_the_next_heartbeat() -> None:
    cluster = RaftCluster.led_by_a(A, B, settings=RaftSettings(appends_in_flight_max=2))
    for number in range(10):
        cluster.propose(A, f"{number}".encode())
    assert len(cluster.drop(cluster.under_way(AppendRequest))) == 2
    cluster.tick(A)
    cluster.run()
    assert cluster[B].terms == [1] * 11
    assert cluster[A].raft.commit == 11


def test_a_lost_commit_is_told_by_the_next_heartbeat() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.propose(A, b"command")
    cluster.deliver(*cluster.under_way(AppendRequest))
    cluster.deliver(*cluster.under_way(AppendResponse))
    assert [message.entries for message in cluster.under_way(AppendRequest)] == [(), ()]
    cluster.drop()
    assert (cluster[A].raft.commit, cluster[B].raft.commit) == (2, 1)
    cluster.tick(A)
    cluster.deliver(*cluster.under_way(Heartbeat))
    assert cluster[B].raft.commit == 2


def test_a_heartbeat_never_tells_more_than_its_follower_is_known_to_hold() -> None:
    voter = Voter(A, THREE)
    voter.lead()
    voter.receive(appended(B, A, 1, 1))
    assert voter.raft.commit == 1
    assert voter.tick() == [heartbeat(A, B, 1, commit=1), heartbeat(A, C, 1, commit=0)]


def test_a_rejection_of_what_was_acknowledged_since_is_ignored() -> None:
    voter = replicating()
    voter.give(Propose((b"2",)))
    voter.receive(appended(B, A, 1, 2))
    assert indexes(voter.give(Propose((b"3",)))) == [[3]]
    assert voter.receive(rejected(B, A, 1, 2, hint=(0, 0)), rejected(B, A, 1, 1, hint=(0, 0))) == []
    assert indexes(voter.give(Propose((b"4",)))) == [[4]]


def test_a_rejection_of_what_is_under_way_begins_again_behind_what_was_acknowledged() -> None:
    voter = replicating()
    for payload in (b"2", b"3", b"4"):
        voter.give(Propose((payload,)))
    assert indexes(voter.receive(rejected(B, A, 1, 3, hint=(1, 1)))) == [[2, 3, 4]]
    assert voter.receive(rejected(B, A, 1, 2, hint=(1, 1))) == [], "the answer to what was sent before that"


def test_a_broken_connection_begins_again_behind_what_was_acknowledged() -> None:
    voter = replicating()
    voter.give(Propose((b"2",)))
    voter.give(Propose((b"3",)))
    assert indexes(voter.give(PeerDisconnected(B, refused=True))) == [[2, 3]]
    assert voter.give(Propose((b"4",))) == [], "and once"
    assert indexes(voter.receive(appended(B, A, 1, 3))) == [[4]]


def test_what_a_broken_connection_lost_takes_no_room_in_the_window() -> None:
    voter = replicating(RaftSettings(appends_in_flight_max=2, append_bytes_max=1))
    assert indexes(voter.give(Propose((b"2", b"3", b"4", b"5")))) == [[2], [3]]
    assert indexes(voter.give(PeerDisconnected(B, refused=False))) == [[2]]
    assert indexes(voter.receive(appended(B, A, 1, 2))) == [[3], [4]]


def test_a_broken_connection_to_a_follower_that_has_everything_costs_nothing() -> None:
    voter = replicating()
    assert voter.give(PeerDisconnected(B, refused=False)) == []
    assert indexes(voter.give(Propose((b"2",)))) == [[2]]


# --- where two logs agree -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Logs:
    """A leader's log and a follower's, and what they say to find out where they agree."""

    leader: tuple[int, ...]
    follower: tuple[int, ...]
    hint: tuple[int, int]
    next_previous: tuple[int, int]


# TestFastLogRejection of etcd-io/raft, without the case in which the follower forgets what is committed.
LOGS = [
    Logs((1, 2, 2, 4, 4, 4, 4), (1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3), (7, 3), (3, 2)),
    Logs((1, 2, 2, 3, 4, 4, 4, 5), (1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3), (8, 3), (4, 3)),
    Logs((1, 1, 1, 1), (1, 2, 2, 4), (1, 1), (1, 1)),
    Logs((1, 1, 1, 1, 1, 1), (1, 2, 2, 4), (1, 1), (1, 1)),
    Logs((1, 1, 1, 1), (1, 2, 2, 4, 4, 4), (1, 1), (1, 1)),
    Logs((1, 1, 1, 4, 5), (1, 1, 1, 4), (4, 4), (4, 4)),
    Logs((2, 5, 5, 5, 5, 5, 5, 5, 5), (2, 4, 4, 4, 4, 4), (6, 4), (1, 2)),
    Logs((2, 2, 2, 2, 2), (2, 4, 4, 4, 4, 4, 4, 4), (1, 2), (1, 2)),
]


@pytest.mark.parametrize("logs", LOGS)
def test_a_rejection_tells_where_the_logs_may_agree_and_the_leader_goes_there(logs: Logs) -> None:
    term = 9
    leading = Voter(A, THREE, disk_of(*logs.leader, term=term - 1))
    following = Voter(B, THREE, disk_of(*logs.follower, term=term - 1))
    first = next(message for message in leading.lead() if message.target == B)
    [rejection] = following.receive(first)
    assert rejection == rejected(B, A, term, len(logs.leader), logs.hint)
    [second] = leading.receive(rejection)
    assert isinstance(second, AppendRequest)
    assert (second.previous_index, second.previous_term) == logs.next_previous
    [answer] = following.receive(second)
    assert answer == appended(B, A, term, len(logs.leader) + 1)


def test_long_logs_of_other_terms_are_reconciled_in_one_question_a_term() -> None:
    """Without hints it would be one question for each of the 3000 entries."""
    other_terms = tuple(term for term in (2, 4, 6, 8) for _ in range(700))
    leader_terms = tuple(term for term in (3, 5, 7, 9) for _ in range(700))
    disks = {A: disk_of(*([1] * 100), *leader_terms), B: disk_of(*([1] * 100), *other_terms, term=9)}
    cluster = RaftCluster.of(A, B, disks=disks)
    cluster.win(A)
    rejections = 0
    while cluster.pool:
        rejections += isinstance(cluster.pool[0], AppendRejection)
        cluster.deliver(cluster.pool[0])
    assert rejections <= 5
    assert cluster[B].terms == cluster[A].terms
    assert cluster[B].raft.last_index == 2901


def disagreeing() -> RaftCluster:
    """C leads term 2 with an entry that nobody else has yet; A holds two others that only it has."""
    disks = {A: disk_of(1, 1, 1), B: disk_of(1), C: disk_of(1)}
    cluster = RaftCluster.of(A, B, C, disks=disks, settings=RaftSettings(append_bytes_max=1))
    cluster.cut = {A}
    cluster.win(C)
    cluster.propose(C, b"3 of term 2")
    return cluster


def begin_far_back(cluster: RaftCluster) -> None:
    """Let C send A its first entry, which A has, alone: A has acknowledged nothing of C's log so far."""
    cluster.cut.clear()
    cluster.drop()
    cluster.give(C, PeerDisconnected(A, refused=False))
    [request] = cluster.under_way(AppendRequest, C, A)
    assert [entry.index for entry in request.entries] == [1]
    cluster.deliver(request)


def test_a_follower_acknowledges_what_it_was_sent_and_nothing_that_it_has_behind_that() -> None:
    cluster = disagreeing()
    begin_far_back(cluster)
    cluster.deliver(*cluster.under_way(AppendResponse, A, C))
    assert cluster[A].terms == [1, 1, 1]
    assert cluster[C].raft.commit == 0, "C alone holds its second and its third entry"


def test_a_follower_commits_of_what_it_was_sent_and_nothing_that_it_has_behind_that() -> None:
    cluster = disagreeing()
    cluster.run()
    assert cluster[C].raft.commit == 3, "B holds it, too"
    begin_far_back(cluster)
    assert [(entry.index, entry.term) for entry in cluster[A].applied] == [(1, 1)]
    cluster.run()
    assert cluster[A].terms == cluster[C].terms == [1, 2, 2]


# --- snapshots ------------------------------------------------------------------------------------------


def compacted() -> RaftCluster:
    """Three voters; A leads and has compacted entries that C, cut off until now, lacks."""
    cluster = RaftCluster.led_by_a()
    cluster.cut.add(C)
    for number in range(5):
        cluster.propose(A, f"{number}".encode())
        cluster.run()
    cluster.give(A, CompactLog(LogIndex(4), b"state after 4"))
    cluster.cut.clear()
    cluster.drop()
    return cluster


def test_a_follower_that_lacks_what_was_compacted_gets_the_snapshot_and_then_the_entries() -> None:
    cluster = compacted()
    cluster.let_pass(2 * HEARTBEAT)
    assert cluster[C].snapshot.payload == b"state after 4"
    assert cluster[C].applied == cluster[A].applied[4:]
    assert cluster[C].raft.commit == 6


def test_while_a_snapshot_is_on_its_way_nothing_else_is_sent() -> None:
    cluster = compacted()
    cluster.tick(A)
    cluster.deliver(*cluster.under_way(Heartbeat, A, C))
    cluster.deliver(*cluster.under_way(VoterHeartbeatResponse, C, A))
    cluster.deliver(*cluster.under_way(AppendRequest, A, C))
    cluster.deliver(*cluster.under_way(AppendRejection, C, A))
    [snapshot] = cluster.under_way(SnapshotRequest, A, C)
    cluster.propose(A, b"later")
    cluster.give(A, Tick())
    assert cluster.under_way(AppendRequest, A, C) == []
    cluster.deliver(snapshot)
    cluster.run()
    assert cluster[C].terms == [1, 1, 1]
    assert cluster[C].raft.commit == 7


def test_a_lost_snapshot_is_sent_again_after_an_election_timeout_to_a_follower_that_is_alive() -> None:
    cluster = compacted()
    sent_at: list[int] = []
    for _ in range(15):
        cluster.tick(A)
        while cluster.pool:
            for snapshot in cluster.drop(cluster.under_way(SnapshotRequest)):
                sent_at.append(cluster.clock.now)
                assert snapshot.target == C
            if cluster.pool:
                cluster.deliver(cluster.pool[0])
    assert len(sent_at) >= 2
    assert TIMEOUT <= sent_at[1] - sent_at[0] <= TIMEOUT + HEARTBEAT
    cluster.let_pass(2 * TIMEOUT)
    assert cluster[C].raft.commit == 6


def test_a_snapshot_is_sent_again_when_the_connection_broke() -> None:
    cluster = compacted()
    while not cluster.under_way(SnapshotRequest):
        cluster.deliver(*cluster.pool) if cluster.pool else cluster.tick(A)
    cluster.drop()
    cluster.give(A, PeerDisconnected(C, refused=False))
    assert len(cluster.under_way(SnapshotRequest, A, C)) == 1


def test_a_log_that_was_compacted_again_while_a_snapshot_was_on_its_way_needs_another() -> None:
    cluster = compacted()
    while not cluster.under_way(SnapshotRequest):
        cluster.deliver(*cluster.pool) if cluster.pool else cluster.tick(A)
    cluster.give(A, CompactLog(LogIndex(6), b"state after 6"))
    cluster.run()
    assert cluster[C].snapshot.payload == b"state after 6"
    cluster.propose(A, b"later")
    cluster.run()
    assert cluster[C].raft.commit == 7


def test_an_acknowledgement_of_less_than_the_snapshot_changes_nothing() -> None:
    cluster = compacted()
    while not cluster.under_way(SnapshotRequest):
        cluster.deliver(*cluster.pool) if cluster.pool else cluster.tick(A)
    cluster.drop()
    cluster.deliver(appended(C, A, 1, 1))
    assert cluster.pool == []


def test_a_new_leader_whose_log_begins_behind_a_follower_sends_its_snapshot() -> None:
    """The follower's hint lies below the leader's first entry, which nothing can be compared with."""
    cluster = compacted()
    cluster[A].restart()
    cluster.cut.add(B)
    cluster.elect(A)
    cluster.cut.clear()
    cluster.let_pass(2 * HEARTBEAT)
    assert cluster[C].snapshot.payload == b"state after 4"
    assert cluster[C].raft.commit == cluster[A].raft.commit == 7


def test_a_vote_is_for_who_has_the_entries_not_for_who_has_the_snapshot() -> None:
    cluster = compacted()
    cluster.let_pass(2 * HEARTBEAT)
    cluster.give(A, CompactLog(LogIndex(6), b"state after 6"))
    cluster.cut.add(A)
    cluster.elect(C)
    assert cluster[B].raft.leader == C
    assert cluster[C].raft.commit == 7


@pytest.mark.parametrize("name", [B, C])
def test_every_append_names_its_source_target_and_term(name: NodeId) -> None:
    voter = Voter(A, THREE)
    sent = [message for message in voter.lead() if message.target == name]
    assert sent == [append(A, name, 1, (0, 0), voter.disk.stored().entries)]
