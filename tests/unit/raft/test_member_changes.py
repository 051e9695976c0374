"""Voters and learners come and go while the group works.

Source: Ongaro and Ousterhout, section 6; Ongaro, "Consensus: Bridging Theory and Practice", chapter 4.
"""

import pytest

from envelope.types import LogIndex, NodeId
from metadata.raft.configuration import Configuration, QuorumState, encode_configuration
from metadata.raft.election import Role
from metadata.raft.events import (
    ChangeMembers,
    CompactLog,
    ProposalRefused,
    Propose,
    Proposed,
    Read,
    ReadRefused,
    RefusalReason,
    TransferLeadership,
)
from metadata.raft.messages.voter_messages import (
    AppendRequest,
    AppendResponse,
    ElectNow,
    PreVoteRequest,
    PreVoteResponse,
    SnapshotRequest,
    VoteResponse,
)
from tests.support.raft_cluster import TIMEOUT, A, B, C, D, E, RaftCluster, Voter
from tests.support.raft_messages import elect_now

THREE = (A, B, C)


def joining(cluster: RaftCluster, *names: NodeId) -> RaftCluster:
    """Add machines that know of no voters."""
    for name in names:
        cluster.voters[name] = Voter(name, (), clock=cluster.clock)
    return cluster


def change(cluster: RaftCluster, voters: tuple[NodeId, ...], learners: tuple[NodeId, ...] = ()) -> object:
    """Have A's group change; return the answer, with the messages of it under way."""
    cluster.give(A, ChangeMembers(voters, learners))
    return next(news for news in reversed(cluster[A].news) if isinstance(news, Proposed | ProposalRefused))


def changed(cluster: RaftCluster, voters: tuple[NodeId, ...], learners: tuple[NodeId, ...] = ()) -> None:
    """Have A's group change, and let everybody know."""
    assert isinstance(change(cluster, voters, learners), Proposed)
    cluster.run()


def refused(reason: RefusalReason) -> ProposalRefused:
    return ProposalRefused(reason, A)


def three_and_two_learners() -> RaftCluster:
    """A, B and C, which A leads, and D and E that have learned all there is."""
    cluster = joining(RaftCluster.led_by_a(), D, E)
    changed(cluster, THREE, (D, E))
    return cluster


def configurations(cluster: RaftCluster) -> set[Configuration]:
    return {voter.raft.configuration for voter in cluster.voters.values()}


# --- growing ------------------------------------------------------------------------------------------------


def test_one_voter_becomes_three() -> None:
    cluster = joining(RaftCluster.led_by_a(A), B, C)
    cluster.propose(A, b"before")
    changed(cluster, (A,), (B, C))
    assert configurations(cluster) == {Configuration((A,), learners=(B, C))}
    changed(cluster, THREE)
    cluster.let_pass(TIMEOUT)
    assert configurations(cluster) == {Configuration(THREE)}
    assert len({tuple(voter.terms) for voter in cluster.voters.values()}) == 1
    cluster.cut.add(A)
    cluster.elect(B)
    cluster.propose(B, b"after")
    cluster.run()
    assert [entry.payload for entry in cluster[C].applied if not entry.is_for_the_voters] == [
        b"before",
        b"after",
    ]


def test_a_learner_takes_no_part_in_decisions() -> None:
    cluster = joining(RaftCluster.led_by_a(A), B)
    changed(cluster, (A,), (B,))
    cluster.cut.add(B)
    cluster.propose(A, b"x")
    assert cluster[A].raft.commit == cluster[A].raft.last_index
    cluster.drop()
    cluster.tick(B)
    assert (cluster[B].raft.role, cluster.pool) == (Role.FOLLOWER, [])


def test_a_machine_that_joins_waits_until_it_is_asked() -> None:
    voter = Voter(D, ())
    assert voter.tick() == []
    assert voter.raft.role is Role.FOLLOWER
    assert voter.raft.wake_at > voter.clock.now


def test_a_learner_that_the_log_has_no_beginning_for_learns_the_members_from_the_snapshot() -> None:
    cluster = joining(RaftCluster.led_by_a(), D, E)
    changed(cluster, THREE, (D,))
    cluster.give(A, CompactLog(cluster[A].raft.applied, b"state"))
    assert cluster[A].disk.snapshot.configuration == Configuration(THREE, learners=(D,))
    change(cluster, THREE, (D, E))
    cluster.cut.add(D)
    while not cluster.under_way(SnapshotRequest, target=E):
        cluster.deliver(cluster.pool[0])
    cluster.deliver(*cluster.under_way(SnapshotRequest, target=E))
    assert cluster[E].raft.configuration == Configuration(THREE, learners=(D,))
    cluster[E].restart()
    assert cluster[E].raft.configuration == Configuration(THREE, learners=(D,))


def test_a_snapshot_from_before_any_change_names_no_members() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.give(A, CompactLog(cluster[A].raft.applied, b"state"))
    assert cluster[A].disk.snapshot.configuration is None
    assert cluster[A].raft.configuration == Configuration(THREE)


def test_a_snapshot_has_the_members_of_its_own_index() -> None:
    cluster = RaftCluster.led_by_a()
    changed(cluster, (A, B))
    change(cluster, (A,))
    in_force = cluster[A].raft.configuration
    assert in_force.is_joint
    cluster.give(A, CompactLog(cluster[A].raft.applied, b"state"))
    assert cluster[A].disk.snapshot.configuration == Configuration((A, B))
    cluster[A].restart()
    assert cluster[A].raft.configuration == in_force


# --- what is refused ----------------------------------------------------------------------------------------


def test_who_becomes_a_voter_has_to_be_a_learner_that_has_all_and_is_heard() -> None:
    cluster = joining(RaftCluster.led_by_a(), D)
    assert change(cluster, (*THREE, D)) == refused(RefusalReason.BEHIND)
    assert isinstance(change(cluster, THREE, (D,)), Proposed)
    cluster.cut.add(D)
    cluster.run()
    assert change(cluster, (*THREE, D)) == refused(RefusalReason.BEHIND)
    cluster.cut.clear()
    cluster.let_pass(TIMEOUT)
    cluster.cut.add(D)
    cluster.let_pass(TIMEOUT)
    assert change(cluster, (*THREE, D)) == refused(RefusalReason.BEHIND)
    cluster.cut.clear()
    cluster.let_pass(TIMEOUT)
    assert isinstance(change(cluster, (*THREE, D)), Proposed)


def test_changes_come_one_after_the_other() -> None:
    cluster = joining(RaftCluster.led_by_a(), D, E)
    change(cluster, THREE, (D,))
    assert change(cluster, THREE, (D, E)) == refused(RefusalReason.CHANGING)
    cluster.run()
    change(cluster, (A, B, D))
    assert change(cluster, THREE) == refused(RefusalReason.CHANGING)
    cluster.run()
    assert configurations(cluster) >= {Configuration((A, B, D))}


def test_a_new_leader_changes_nothing_before_it_has_committed_in_its_term() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.win(B)
    cluster.drop()
    cluster.give(B, ChangeMembers((A, B), ()))
    assert cluster[B].news[-1] == ProposalRefused(RefusalReason.CHANGING, B)


def test_only_a_leader_that_stays_changes_members() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.give(B, ChangeMembers((A, B), ()))
    assert cluster[B].news[-1] == refused(RefusalReason.NOT_LEADER)
    cluster.cut.add(B)
    cluster.propose(A, b"x")
    cluster.give(A, TransferLeadership(B))
    assert change(cluster, (A, C)) == refused(RefusalReason.HANDING_OVER)


def test_a_configuration_is_not_proposed_like_a_command() -> None:
    cluster = RaftCluster.led_by_a(A)
    with pytest.raises(AssertionError, match="changed otherwise"):
        cluster.give(A, Propose((encode_configuration(Configuration((B,))),)))


def test_a_group_that_would_have_no_majority_at_once_is_refused() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.cut.add(C)
    cluster.let_pass(4 * TIMEOUT)
    assert change(cluster, (A, C)) == refused(RefusalReason.BEHIND)
    assert isinstance(change(cluster, (A, B)), Proposed)


# --- a change of voters under way ---------------------------------------------------------------------------


@pytest.mark.parametrize("silent", [(B, C), (D, E)])
def test_while_voters_change_a_majority_of_either_is_needed(silent: tuple[NodeId, NodeId]) -> None:
    cluster = three_and_two_learners()
    before = cluster[A].raft.commit
    change(cluster, (A, D, E))
    cluster.cut.update(silent)
    cluster.run()
    assert cluster[A].raft.commit == before
    assert cluster[A].raft.configuration == Configuration((A, D, E), outgoing=THREE)
    cluster.cut.remove(silent[0])
    cluster.let_pass(TIMEOUT // 2)
    assert cluster[A].raft.configuration == Configuration((A, D, E))
    assert cluster[A].raft.commit == cluster[A].raft.last_index


@pytest.mark.parametrize("votes", [(C, D), (C, D, E)])
def test_while_voters_change_a_candidate_needs_the_votes_of_either(votes: tuple[NodeId, ...]) -> None:
    cluster = three_and_two_learners()
    change(cluster, (A, D, E))
    cluster.run_without(cluster[A].name)
    voter = cluster[B]
    voter.clock.advance(2 * TIMEOUT)
    voter.tick()
    term = voter.raft.term
    for name in votes:
        voter.receive(PreVoteResponse(name, B, term, term, granted=True))
    is_joint = voter.raft.configuration == Configuration((A, D, E), outgoing=THREE)
    assert is_joint
    assert voter.raft.role is (Role.CANDIDATE if E in votes else Role.PRE_CANDIDATE)
    for name in votes:
        voter.receive(VoteResponse(name, B, voter.raft.term, granted=True))
    assert voter.leads is (E in votes)


def test_the_next_leader_finishes_a_change() -> None:
    cluster = three_and_two_learners()
    change(cluster, (B, D, E))
    cluster.deliver(*cluster.under_way(AppendRequest))
    cluster.drop()
    cluster.cut.add(A)
    cluster.elect(C)
    cluster.let_pass(TIMEOUT)
    left = {name: voter.raft.configuration for name, voter in cluster.voters.items() if name != A}
    assert set(left.values()) == {Configuration((B, D, E))}
    assert not cluster[C].leads, "it is no voter any more"


def test_a_change_that_is_truncated_is_not_in_force() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.cut.add(A)
    change(cluster, (A,))
    assert cluster[A].raft.configuration == Configuration((A,), outgoing=THREE)
    cluster.drop()
    cluster.elect(B)
    cluster.cut.clear()
    cluster.let_pass(TIMEOUT)
    assert configurations(cluster) == {Configuration(THREE)}
    cluster[A].restart()
    assert cluster[A].raft.configuration == Configuration(THREE)


# --- leaving ------------------------------------------------------------------------------------------------


def test_a_leader_that_is_removed_leads_until_that_is_committed_and_has_another_stand_at_once() -> None:
    cluster = three_and_two_learners()
    began_at = cluster.clock.now
    change(cluster, (B, D, E))
    while cluster[A].leads:
        assert not cluster.under_way(ElectNow)
        cluster.deliver(cluster.pool[0])
    assert cluster[A].raft.commit == cluster[A].raft.last_index
    [elect_now] = cluster.under_way(ElectNow)
    cluster.run()
    assert cluster[elect_now.target].leads
    assert cluster.clock.now == began_at
    cluster.let_pass(4 * TIMEOUT)
    assert cluster[A].raft.role is Role.FOLLOWER
    cluster.give(elect_now.target, Propose((b"x",)))
    cluster.run()
    assert cluster[elect_now.target].raft.commit == cluster[elect_now.target].raft.last_index


def test_a_leader_that_leaves_takes_nothing_more_so_that_there_is_an_heir() -> None:
    cluster = three_and_two_learners()
    change(cluster, (B, D, E))
    while cluster[A].raft.configuration.is_joint:
        cluster.propose(A, b"x")
        cluster.deliver(cluster.pool[0])
    cluster.propose(A, b"x")
    assert cluster[A].news[-1] == refused(RefusalReason.HANDING_OVER)
    cluster.run()
    assert not cluster[A].leads
    assert any(cluster[name].leads for name in (B, D, E))


def test_the_heir_of_a_leader_is_one_that_holds_everything() -> None:
    cluster = three_and_two_learners()
    cluster.cut.add(B)
    change(cluster, (B, D, E))
    while cluster[A].leads:
        cluster.deliver(cluster.pool[0])
    assert [message.target for message in cluster.under_way(ElectNow)] == [D]


def test_reads_that_wait_at_a_leader_that_leaves_are_refused() -> None:
    cluster = three_and_two_learners()
    change(cluster, (B, D, E))
    while cluster[A].leads:
        cluster.give(A, Read(len(cluster.pool)))
        cluster.deliver(cluster.pool[0])
    asked = {token for news in cluster[A].news if isinstance(news, ReadRefused) for token in news.tokens}
    assert asked
    assert not cluster[A].give(Read(0))


def test_a_learner_that_is_told_to_stand_does_not() -> None:
    cluster = three_and_two_learners()
    term = cluster[D].raft.term
    assert cluster[D].receive(elect_now(A, D, term)) == []
    assert (cluster[D].raft.term, cluster[D].raft.role) == (term, Role.FOLLOWER)


def test_a_change_of_learners_alone_is_one_entry() -> None:
    cluster = joining(RaftCluster.led_by_a(), D)
    last = cluster[A].raft.last_index
    changed(cluster, THREE, (D,))
    assert (cluster[A].raft.last_index, cluster[A].raft.configuration.is_joint) == (last + 1, False)


def test_a_removed_leader_does_not_count_itself() -> None:
    cluster = RaftCluster.led_by_a()
    change(cluster, (B, C))
    while cluster[A].raft.configuration.is_joint:
        cluster.deliver(cluster.pool[0])
    cluster.cut.add(C)
    cluster.run()
    assert cluster[A].raft.commit < cluster[A].raft.last_index, "B is no majority of B and C"


@pytest.mark.parametrize("leaves", [B, C, D])
def test_who_leaves_learns_that_it_does(leaves: NodeId) -> None:
    cluster = RaftCluster.led_by_a(A, B, C, D)
    changed(cluster, tuple(name for name in (A, B, C, D) if name != leaves))
    cluster.let_pass(TIMEOUT)
    assert cluster[leaves].raft.commit == cluster[A].raft.commit
    cluster.tick(leaves)
    assert not cluster.under_way(PreVoteRequest, source=leaves)
    cluster.drop()
    cluster.let_pass(TIMEOUT)
    cluster.tick(A)
    assert not [message for message in cluster.pool if message.target == leaves]


def test_who_leaves_and_is_silent_is_forgotten() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.cut.add(C)
    changed(cluster, (A, B))
    cluster.let_pass(2 * TIMEOUT)
    cluster.tick(A)
    assert {message.target for message in cluster.pool} == {B}


def test_who_was_removed_and_does_not_know_it_disturbs_nobody() -> None:
    cluster = RaftCluster.led_by_a()
    cluster.cut.add(C)
    changed(cluster, (A, B))
    cluster.let_pass(TIMEOUT)
    cluster.cut.clear()
    term = cluster[A].raft.term
    for _ in range(5):
        cluster.tick(C)
        assert cluster.under_way(PreVoteRequest, source=C)
        cluster.run()
    assert (cluster[A].raft.term, cluster[A].leads) == (term, True)
    assert cluster[C].raft.role is not Role.LEADER


def test_an_answer_of_somebody_who_has_left_counts_for_nothing() -> None:
    cluster = three_and_two_learners()
    changed(cluster, THREE)
    commit = cluster[A].raft.commit
    cluster.cut.update((B, C))
    cluster.propose(A, b"x")
    cluster.drop()
    cluster[A].receive(
        *(AppendResponse(name, A, cluster[A].raft.term, LogIndex(commit + 1)) for name in (D, E))
    )
    assert cluster[A].raft.commit == commit


def test_a_voter_that_only_a_change_without_certainty_removes_may_still_stand() -> None:
    """A, removed by a configuration that nobody else has, has the longer log: B needs its vote to win."""
    cluster = RaftCluster.led_by_a(A, B)
    change(cluster, (B,))
    while cluster[A].raft.configuration.is_joint:
        cluster.deliver(cluster.pool[0])
    cluster.drop()
    for voter in cluster.voters.values():
        voter.restart()
    assert (cluster[A].raft.configuration, cluster[B].raft.configuration) == (
        Configuration((B,)),
        Configuration((B,), outgoing=(A, B)),
    )
    cluster.let_pass(10 * TIMEOUT)
    assert cluster[B].leads
    assert configurations(cluster) == {Configuration((B,))}


def test_a_candidate_gets_the_vote_of_somebody_who_has_not_heard_of_it() -> None:
    cluster = three_and_two_learners()
    cluster.cut.add(B)
    changed(cluster, (B, D, E))
    assert cluster[B].raft.configuration.voters == THREE
    cluster.cut.update((A, C, E))
    cluster.let_pass(2 * TIMEOUT)
    assert not cluster[D].leads
    cluster.cut.remove(B)
    cluster.drop()
    cluster.win(D)


def test_a_leader_that_is_alone_gives_up_a_transfer_in_time() -> None:
    cluster = RaftCluster.led_by_a(A, B)
    changed(cluster, (A,), (B,))
    assert cluster[A].raft.wake_at < cluster.clock.now + TIMEOUT
    changed(cluster, (A,))
    cluster.give(A, TransferLeadership(B))
    cluster.propose(A, b"x")
    assert isinstance(cluster[A].news[-1], Proposed)


# --- what a leader says of its group ------------------------------------------------------------------------


def quorum(cluster: RaftCluster) -> QuorumState:
    state = cluster[A].raft.quorum
    assert state is not None, "A leads"
    return state


def test_a_leader_says_who_its_members_are_and_nobody_else_does() -> None:
    cluster = joining(RaftCluster.led_by_a(), D)
    state = quorum(cluster)
    assert (state.leader, state.configuration, state.is_first) == (A, Configuration(THREE), True)
    assert cluster[B].raft.quorum is None
    changed(cluster, THREE, (D,))
    state = quorum(cluster)
    assert (state.configuration, state.is_first) == (Configuration(THREE, learners=(D,)), False)


def test_a_leader_says_that_a_change_is_under_way_for_as_long_as_it_refuses_another() -> None:
    cluster = RaftCluster.led_by_a()
    assert not quorum(cluster).is_changing
    assert isinstance(change(cluster, (A,)), Proposed)
    while quorum(cluster).is_changing:
        assert change(cluster, THREE) == refused(RefusalReason.CHANGING)
        cluster.deliver(cluster.pool[0])
    assert quorum(cluster).configuration == Configuration((A,))


def test_a_leader_says_when_each_member_was_heard_and_of_a_silent_one_when_it_began_to_send() -> None:
    cluster = RaftCluster.led_by_a()
    began = cluster.clock.now
    cluster.cut.add(C)
    cluster.let_pass(3 * TIMEOUT)
    heard_at = quorum(cluster).heard_at
    assert set(heard_at) == {B, C}
    assert heard_at[C] <= began < cluster.clock.now - TIMEOUT < heard_at[B] <= cluster.clock.now
    joining(cluster, D)
    changed(cluster, THREE, (D,))
    assert quorum(cluster).heard_at[D] == cluster.clock.now
