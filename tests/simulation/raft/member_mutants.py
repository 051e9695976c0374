"""The deliberate bugs in changes of the members of the Raft core; see `tests.simulation.mutants`."""

from typing import Final

from tests.simulation.mutation import Mutant

_CONFIGURATION: Final = "metadata.raft.configuration"
_ELECTION: Final = "metadata.raft.election"
_LEADING: Final = "metadata.raft.leader.leading"
_LOG: Final = "metadata.raft.log"
_MACHINE: Final = "metadata.raft.machine"
_RECOVERY: Final = "metadata.raft.recovery"
_REPLICATION_SOURCE: Final = "metadata.raft.leader.replication"
_MEMBERS_TEST: Final = "tests/unit/raft/test_member_changes.py"
CHANGES_OF_MEMBERS: Final = (
    Mutant(
        "no_joint_phase",
        _CONFIGURATION,
        "outgoing = () if wanted == self.voters else self.voters",
        "outgoing = ()",
    ),
    Mutant(
        "only_the_new_voters_elect",
        _CONFIGURATION,
        "len(half) for half in self._halves())",
        "len(half) for half in self._halves()[:1])",
    ),
    Mutant(
        "only_the_new_voters_commit",
        _CONFIGURATION,
        "return min(reached_by_majority(map(value_of, half)) for half in self._halves())",
        "return reached_by_majority(map(value_of, self.voters))",
    ),
    Mutant(
        "only_the_old_voters_commit",
        _CONFIGURATION,
        "return min(reached_by_majority(map(value_of, half)) for half in self._halves())",
        "return reached_by_majority(map(value_of, self._halves()[-1]))",
    ),
    Mutant(
        "learners_count",
        _CONFIGURATION,
        "return (self.voters, self.outgoing) if self.outgoing else (self.voters,)",
        "return (self.voters + self.learners, *filter(None, (self.outgoing,)))",
    ),
    Mutant(
        "in_force_once_committed",
        _LOG,
        "return self.configurations.at(self.last_index) or self.beginning",
        "return self.configurations.at(self._commit) or self.beginning",
    ),
    Mutant(
        "final_before_the_joint_one_is_committed",
        _LEADING,
        "        if not self._is_certain:\n            return\n",
        "        if not configuration.is_joint and not self._is_certain:\n            return\n",
    ),
    Mutant(
        "changes_overlap",
        _LEADING,
        "if self.quorum.is_changing:",
        "if configuration.is_joint:",
        scenario=f"{_MEMBERS_TEST}::test_changes_come_one_after_the_other",
    ),
    Mutant(
        "snapshot_without_members",
        _MACHINE,
        "Snapshot(index, term, payload, self.log.configurations.at(index))",
        "Snapshot(index, term, payload)",
        first=169,
    ),
    Mutant(
        "snapshot_with_the_members_in_force",
        _MACHINE,
        "self.log.configurations.at(index))",
        "self.log.configuration)",
        scenario=f"{_MEMBERS_TEST}::test_a_snapshot_has_the_members_of_its_own_index",
    ),
    Mutant(
        "truncated_members_stay",
        _LOG,
        "        self.configurations.truncate_from(index)\n",
        "",
        scenario=f"{_MEMBERS_TEST}::test_a_change_that_is_truncated_is_not_in_force",
    ),
    Mutant(
        "members_forgotten_at_a_snapshot",
        _CONFIGURATION,
        "self._items = [(index, self._items[place][1]), *self._items[place + 1 :]]",
        "self._items = [(index, self._items[place][1])]",
    ),
    Mutant(
        "strangers_become_voters",
        _LEADING,
        "if not up.issuperset(set(voters).difference(configuration.voters)):",
        "if False:",
        scenario=f"{_MEMBERS_TEST}::test_who_becomes_a_voter_has_to_be_a_learner_that_has_all_and_is_heard",
    ),
    Mutant(
        "removed_at_once",
        _ELECTION,
        "return any(node_id in each.electorate for each in log.possible_configurations)",
        "return node_id in log.configuration.electorate",
        first=321,
    ),
    Mutant(
        "learners_stand",
        _ELECTION,
        "return any(node_id in each.electorate for each in log.possible_configurations)",
        "return node_id in log.configuration.members",
        scenario=f"{_MEMBERS_TEST}::test_a_learner_takes_no_part_in_decisions",
    ),
    Mutant(
        "a_removed_leader_stays",
        _MACHINE,
        "if self.leadership.is_dismissed:",
        "if False:",
        scenario=(
            f"{_MEMBERS_TEST}::test_a_leader_that_is_removed_leads_until_that_is_committed"
            "_and_has_another_stand_at_once"
        ),
    ),
    Mutant(
        "a_leader_leaves_before_that_is_committed",
        _LEADING,
        "        if not self._is_certain:\n            return\n",
        "        if configuration.is_joint and not self._is_certain:\n            return\n",
        scenario=(
            f"{_MEMBERS_TEST}::test_a_leader_that_is_removed_leads_until_that_is_committed"
            "_and_has_another_stand_at_once"
        ),
    ),
    Mutant(
        "only_members_get_a_vote",
        _ELECTION,
        "granted = is_free and self._log.is_no",
        "granted = is_free and message.source in self._log.configuration.electorate and self._log.is_no",
        scenario=f"{_MEMBERS_TEST}::test_a_candidate_gets_the_vote_of_somebody_who_has_not_heard_of_it",
    ),
    Mutant(
        "forgotten_once_removed",
        _REPLICATION_SOURCE,
        "return is_heard and progress.commit_sent < progress.left_at",
        "return False",
        scenario=f"{_MEMBERS_TEST}::test_who_leaves_learns_that_it_does[c]",
    ),
    Mutant(
        "remembered_for_ever",
        _REPLICATION_SOURCE,
        "return is_heard and progress.commit_sent < progress.left_at",
        "return progress.commit_sent < progress.left_at",
        scenario=f"{_MEMBERS_TEST}::test_who_leaves_and_is_silent_is_forgotten",
    ),
    Mutant(
        "a_leader_that_leaves_takes_more",
        _LEADING,
        "self._transfer is not None or self._node_id not in self._log.configuration.electorate:",
        "self._transfer is not None:",
        scenario=f"{_MEMBERS_TEST}::test_a_leader_that_leaves_takes_nothing_more_so_that_there_is_an_heir",
    ),
    Mutant(
        "any_heir",
        _LEADING,
        "heir = next(filter(self.replication.holds_everything, configuration.voters), None)",
        "heir = next(iter(configuration.voters), None)",
        scenario=f"{_MEMBERS_TEST}::test_the_heir_of_a_leader_is_one_that_holds_everything",
    ),
    Mutant(
        "reads_wait_for_a_leader_that_has_left",
        _MACHINE,
        "                self._election.step_down(now)\n                self._end_leadership()",
        "                self._election.step_down(now)\n                self.leadership = None",
        scenario=f"{_MEMBERS_TEST}::test_reads_that_wait_at_a_leader_that_leaves_are_refused",
    ),
    Mutant(
        "learners_stand_when_told",
        _ELECTION,
        "if waits and not self.recovery_term and _may_be_voter(self._node_id, self._log):",
        "if waits and not self.recovery_term:",
        scenario=f"{_MEMBERS_TEST}::test_a_learner_that_is_told_to_stand_does_not",
    ),
    Mutant(
        "learners_come_in_two_steps",
        _CONFIGURATION,
        "outgoing = () if wanted == self.voters else self.voters",
        "outgoing = self.voters",
        scenario=f"{_MEMBERS_TEST}::test_a_change_of_learners_alone_is_one_entry",
    ),
    Mutant(
        "a_silent_majority_may_decide",
        _LEADING,
        "if not first.final.is_decided_by(up):",
        "if False:",
        scenario=f"{_MEMBERS_TEST}::test_a_group_that_would_have_no_majority_at_once_is_refused",
    ),
    Mutant(
        "an_empty_disk_is_told_of_founders_alone",
        _RECOVERY,
        "if self._log.configuration.electorate != self._log.beginning.electorate:",
        "if False:",
        scenario=(
            "tests/unit/raft/test_recovery.py"
            "::test_who_knows_of_other_voters_does_not_answer_and_of_other_learners_does"
        ),
    ),
    Mutant(
        "new_members_wait_for_the_next_entry",
        _REPLICATION_SOURCE,
        "PeerProgress(next=last, heard_at=now)",
        "PeerProgress(next=LogIndex(last + 1), heard_at=now)",
        scenario=f"{_MEMBERS_TEST}::test_one_voter_becomes_three",
    ),
)
