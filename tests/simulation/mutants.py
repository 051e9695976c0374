"""The deliberate bugs in the Raft core, with a seed that finds each.

Seeds are searched and found again by ``python -m tests.simulation mutants``; the product's own assertions are
switched off there and in the test (``python -O``), so that it is the checkers that find them.
"""

from typing import Final

from tests.simulation.mutation import Mutant
from tests.simulation.raft.member_mutants import CHANGES_OF_MEMBERS

_CONFIGURATION: Final = "metadata.raft.configuration"
_ELECTION: Final = "metadata.raft.election"
_FOLLOWING: Final = "metadata.raft.following"
_LEADING: Final = "metadata.raft.leader.leading"
_LOG: Final = "metadata.raft.log"
_MACHINE: Final = "metadata.raft.machine"
_OUTPUT: Final = "metadata.raft.output"
_PROPOSALS: Final = "metadata.raft.proposals"
_RECOVERY: Final = "metadata.raft.recovery"
_REPLICATION_SOURCE: Final = "metadata.raft.leader.replication"

_VOTING: Final = (
    Mutant("double_vote", _ELECTION, " and self._vote in (None, message.source)\n", "\n"),
    Mutant(
        "forgotten_vote",
        _ELECTION,
        "return HardState(self.term, self._vote, self.recovery_term)",
        "return HardState(self.term, self._vote if self._vote == self._node_id else None)",
    ),
    Mutant(
        "forgotten_vote_at_restart",
        _ELECTION,
        "self._vote = output.durable_hard_state.vote",
        "self._vote = None",
    ),
    Mutant(
        "vote_before_durable",
        _ELECTION,
        "self._output.promise(VoteResponse(self._node_id, message.source, self.term, granted=granted))",
        "self._output.send(VoteResponse(self._node_id, message.source, self.term, granted=granted))",
    ),
    Mutant(
        "candidacy_before_durable",
        _ELECTION,
        "self._output.promise(\n                VoteRequest(",
        "self._output.send(\n                VoteRequest(",
    ),
    Mutant(
        "no_up_to_date_check",
        _LOG,
        "return (last_term, last_index) >= (self.last_term, self.last_index)",
        "return True",
    ),
    Mutant(
        "up_to_date_by_length_only",
        _LOG,
        "return (last_term, last_index) >= (self.last_term, self.last_index)",
        "return last_index >= self.last_index",
    ),
    Mutant(
        "up_to_date_by_term_only",
        _LOG,
        "return (last_term, last_index) >= (self.last_term, self.last_index)",
        "return last_term >= self.last_term",
    ),
    Mutant(
        "stale_vote_accepted",
        _ELECTION,
        "isinstance(message, PreVoteResponse)",
        "isinstance(message, PreVoteResponse | VoteResponse)",
    ),
    Mutant(
        "stale_pre_vote_accepted",
        _ELECTION,
        "if self.role is not Role.PRE_CANDIDATE or message.candidate_term != self.term:",
        "if self.role is not Role.PRE_CANDIDATE:",
        first=444,
    ),
    Mutant(
        "no_pre_vote_lease",
        _ELECTION,
        "            and not self._has_lease(now)\n            and self._log",
        "            and self._log",
    ),
    Mutant(
        "no_vote_lease",
        _ELECTION,
        "if message.term > self.term and self._has_lease(now):",
        "if False:",
    ),
    Mutant(
        "no_check_quorum",
        _REPLICATION_SOURCE,
        "return MonotonicNs(heard_of_majority_at + self._settings.election_timeout_ns)",
        "return NEVER",
    ),
    Mutant(
        "half_of_the_votes_are_a_majority",
        _CONFIGURATION,
        "2 * len(set(some).intersection(half)) > len(half)",
        "2 * len(set(some).intersection(half)) >= len(half)",
    ),
)
_REPLICATION: Final = (
    Mutant(
        "append_acknowledged_before_durable",
        _FOLLOWING,
        "self._output.promise(AppendResponse(",
        "self._output.send(AppendResponse(",
    ),
    Mutant(
        "acknowledges_its_whole_log",
        _FOLLOWING,
        "match = LogIndex(message.previous_index + len(message.entries))",
        "match = log.last_index",
        scenario=(
            "tests/unit/raft/leader/test_replication_flow.py"
            "::test_a_follower_acknowledges_what_it_was_sent_and_nothing_that_it_has_behind_that"
        ),
    ),
    Mutant(
        "truncation_without_conflict",
        _LOG,
        "if self.term_at(entry.index) != entry.term:",
        "if True:",
    ),
    Mutant(
        "no_previous_entry_check",
        _FOLLOWING,
        "elif log.term_at(message.previous_index) != message.previous_term:",
        "elif message.previous_index > log.last_index:",
    ),
    Mutant(
        "stale_append_response_accepted",
        _MACHINE,
        "if not self._election.admits(message, now):",
        "if not self._election.admits(message, now) and not isinstance(message, AppendResponse):",
        scenario=(
            "tests/unit/raft/test_late_messages.py"
            "::test_an_acknowledgement_of_an_earlier_term_does_not_commit_what_its_sender_has_lost"
        ),
    ),
    Mutant(
        "match_from_a_rejection",
        _REPLICATION_SOURCE,
        "progress.rejected(message.previous_index, agreement)",
        "progress.acknowledged(min(message.previous_index, self._log.last_index))",
    ),
    Mutant(
        "rejection_goes_nowhere",
        "metadata.raft.leader.progress",
        "min(previous, LogIndex(agreement + 1))",
        "LogIndex(previous + 1)",
    ),
    Mutant(
        "snapshot_wipes_acknowledged_entries",
        _FOLLOWING,
        "if log.term_at(snapshot.index) == snapshot.term:",
        "if False:",
        first=441,
    ),
    Mutant(
        "truncation_leaves_durable_index",
        _OUTPUT,
        "        self._durable_index = min(self._durable_index, index)\n",
        "",
    ),
    Mutant(
        "replaced_write_counts_as_durable",
        _OUTPUT,
        "            write.durable_index = min(write.durable_index, index)",
        "            pass",
        first=191,
    ),
)
_COMMITTING: Final = (
    Mutant(
        "half_of_the_logs_are_a_majority",
        _CONFIGURATION,
        "return ordered[len(ordered) // 2]",
        "return ordered[(len(ordered) - 1) // 2]",
    ),
    Mutant(
        "one_log_too_few_is_a_majority",
        _CONFIGURATION,
        "return ordered[len(ordered) // 2]",
        "return ordered[max(len(ordered) // 2 - 1, 0)]",
    ),
    Mutant(
        "commits_entries_of_old_terms",
        _LEADING,
        "if held > self._log.commit and self._log.term_at(held) == self.term:",
        "if held > self._log.commit:",
    ),
    Mutant(
        "leader_counts_before_durable",
        _REPLICATION_SOURCE,
        "_reached_by_majority(self._output.durable_index, ",
        "_reached_by_majority(self._log.last_index, ",
    ),
    Mutant(
        "commits_beyond_what_matched",
        _FOLLOWING,
        "log.commit_to(min(message.commit, match))",
        "log.commit_to(min(message.commit, log.last_index))",
        scenario=(
            "tests/unit/raft/leader/test_replication_flow.py"
            "::test_a_follower_commits_of_what_it_was_sent_and_nothing_that_it_has_behind_that"
        ),
    ),
    Mutant(
        "heartbeat_commits_beyond_match",
        _REPLICATION_SOURCE,
        "commit = min(progress.match, self._log.commit)",
        "commit = self._log.commit",
    ),
    Mutant(
        "applies_twice",
        _MACHINE,
        "Apply(self.log.between(LogIndex(self._applied + 1), end))",
        "Apply(self.log.between(LogIndex(max(self._applied, snapshot.index + 1)), end))",
    ),
    Mutant("applies_before_durable", _MACHINE, "end = min(self.commit, durable)", "end = self.commit"),
    Mutant(
        "restores_before_durable",
        _MACHINE,
        "if self._applied < snapshot.index <= durable:",
        "if self._applied < snapshot.index:",
    ),
)
_READING: Final = (
    Mutant(
        "read_without_a_round",
        _LEADING,
        "self.reads.confirmed(self.replication.acked_by_majority(self._round))",
        "self.reads.confirmed(self._round)",
        first=357,
    ),
    Mutant(
        "read_in_the_round_before",
        _LEADING,
        "self.reads.join(self._round, self._log.commit)",
        "self.reads.join(self._round - 1, self._log.commit)",
        first=357,
    ),
    Mutant(
        "read_without_own_term_commit",
        _LEADING,
        "return self._log.term_at(self._log.commit) == self.term",
        "return True",
    ),
    Mutant(
        "stale_heartbeat_response_accepted",
        _ELECTION,
        "isinstance(message, PreVoteResponse)",
        "isinstance(message, PreVoteResponse | VoterHeartbeatResponse)",
        first=357,
    ),
)
_RETRYING: Final = (
    Mutant("retry_applied_again", _PROPOSALS, "return proposal_id not in self._index_of", "return True"),
    Mutant(
        "snapshot_forgets_proposals",
        _PROPOSALS,
        "for proposal_id, index in self._index_of.items()]",
        "for proposal_id, index in list(self._index_of.items())[1:]]",
    ),
)
_RECOVERING: Final = (
    Mutant(
        "empty_disk_votes",
        _RECOVERY,
        "() if token is None else parts[0].configuration.others(node_id)",
        "()",
    ),
    Mutant(
        "empty_disk_answers_the_leader",
        _MACHINE,
        "return  # it may have promised otherwise before",
        "pass",
    ),
    Mutant(
        "recovers_in_the_leaders_term",
        _ELECTION,
        "self._enter(Term(highest + 1), now)",
        "self._enter(Term(max(highest, 1)), now)",
    ),
    Mutant(
        "recovers_without_entries",
        _RECOVERY,
        "if held is not None and held >= self._election.recovery_term:",
        "if True:",
    ),
    Mutant(
        "recovers_with_any_entry",
        _RECOVERY,
        "held >= self._election.recovery_term:",
        "held > 0:",
        scenario=(
            "tests/unit/raft/test_recovery.py"
            "::test_it_neither_votes_nor_stands_before_it_holds_an_entry_of_a_term_behind_all_that_were_answered"
        ),
    ),
    Mutant(
        "recovers_before_all_answer",
        _RECOVERY,
        "self.unanswered = tuple(peer for peer in self.unanswered if peer != message.source)",
        "self.unanswered = ()",
        scenario=("tests/unit/raft/test_recovery.py::test_two_votes_of_one_voter_in_one_term_elect_nobody"),
    ),
    Mutant(
        "recovers_by_an_earlier_answer",
        _RECOVERY,
        "message.token == self._token and ",
        "",
        scenario=("tests/unit/raft/test_recovery.py::test_an_answer_to_an_earlier_start_says_nothing"),
    ),
    Mutant(
        "every_group_is_new",
        _RECOVERY,
        "self._is_new_group and message.is_empty",
        "True",
        scenario=(
            "tests/unit/raft/test_recovery.py"
            "::test_it_asks_every_other_voter_again_and_again_until_each_has_answered"
        ),
    ),
    Mutant("votes_while_it_recovers", _ELECTION, "is_free = not self.recovery_term and", "is_free ="),
    Mutant(
        "stands_while_it_recovers",
        _ELECTION,
        "if self.recovery_term or not _may_be",
        "if not _may_be",
        scenario=(
            "tests/unit/raft/test_recovery.py"
            "::test_it_neither_votes_nor_stands_before_it_holds_an_entry_of_a_term_behind_all_that_were_answered"
        ),
    ),
    Mutant(
        "recovery_forgotten_at_restart",
        _ELECTION,
        "self.recovery_term = output.durable_hard_state.recovery_term",
        "self.recovery_term = Term(0)",
        scenario=("tests/unit/raft/test_recovery.py::test_a_restart_goes_on_recovering"),
    ),
)
_ALL: Final[tuple[Mutant, ...]] = (
    *_VOTING,
    *_REPLICATION,
    *_COMMITTING,
    *_READING,
    *_RETRYING,
    *_RECOVERING,
    *CHANGES_OF_MEMBERS,
)
MUTANTS: Final = {mutant.name: mutant for mutant in _ALL}
