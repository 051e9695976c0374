"""The deliberate bugs in replication, with a seed that finds each.

Searched and tested as those in the Raft core: see `tests.simulation.mutants`.
"""

from typing import Final

from tests.simulation.mutation import Mutant
from tests.simulation.replica.id_mutants import ID_MUTANTS
from tests.simulation.replica.promise_mutants import PROMISE_MUTANTS

_LEADER: Final = "jetstream.replica.leader"
_STEADY: Final = "jetstream.replica.steady_state"
_ISR: Final = "jetstream.replica.isr"
_PROGRESS: Final = "jetstream.replica.progress"
_RECONCILE: Final = "jetstream.replica.reconcile"
_FOLLOWER: Final = "jetstream.replica.follower"
_EPOCHS: Final = "jetstream.log.state.epochs"
_REPAIR: Final = "jetstream.log.rewriting.repair"
_LEADERSHIP: Final = "metadata.catalog.leadership"
_NODES: Final = "metadata.catalog.nodes"
_CONTROLLER: Final = "metadata.controller.machine"


def _mutant(
    name: str, module: str, snippet: str, instead: str, first: int = 0, scenario: str | None = None
) -> Mutant:
    return Mutant(
        name=name,
        module=module,
        snippet=snippet,
        instead=instead,
        first=first,
        simulator="replica",
        scenario=scenario,
    )


_COMMITTING: Final = (
    _mutant(
        "own_synced_end_left_out",
        _LEADER,
        "end = self.log.synced_end\n        for node in self.isr.maximal:",
        "end = self.log.log_end_offset\n        for node in self.isr.maximal:",
    ),
    _mutant("written_counts_as_synced", _PROGRESS, "log_end < fetch.synced_end:", "log_end:"),
    _mutant(
        "unheard_member_left_out",
        _LEADER,
        "if not progress.heard:\n                return self.high_watermark",
        "if not progress.heard:\n                continue",
    ),
    _mutant(
        "committed_isr_only", _LEADER, "for node in self.isr.maximal:", "for node in self.isr.committed:"
    ),
    _mutant(
        "proposed_isr_only",
        _ISR,
        "self.maximal = self.committed.union(member.node_id for member in isr)",
        "self.maximal = frozenset(member.node_id for member in isr)",
    ),
    _mutant(
        "no_minimum",
        _LEADER,
        "if self.lacks_replicas:",
        "if self._minimum < 0:",
    ),
    _mutant(
        "half_of_the_isr_is_enough",
        _LEADER,
        "return len(self.isr.committed) < self._minimum",
        "return len(self.isr.committed) < self._minimum - 1",
    ),
    _mutant(
        "no_lease_check",
        _LEADER,
        "return not self.deposed and now < self._lease.until",
        "return not self.deposed",
    ),
    _mutant(
        "high_watermark_goes_back",
        _LEADER,
        "if committable <= self.high_watermark:",
        "if committable == self.high_watermark:",
    ),
)
_FETCHING: Final = (
    _mutant(
        "fetch_of_an_old_epoch_counts",
        _LEADER,
        "if fetch.leader_epoch != leader_epoch:",
        "if fetch.leader_epoch > leader_epoch:",
        scenario=(
            "tests/unit/replica/test_leader.py::test_a_fetch_of_another_reign_is_refused_and_changes_nothing[6]"
        ),
    ),
    _mutant(
        "diverging_fetch_counts",
        _LEADER,
        "        if isinstance(where, Follows):\n",
        "        progress.fetched(fetch, log.log_end_offset, now)\n        if isinstance(where, Follows):\n",
    ),
    _mutant(
        "fetch_of_an_old_start_counts",
        _LEADER,
        "return FetchRefusal.OLD_NODE_EPOCH if fetch.node_epoch < progress.node_epoch else None",
        "return None",
        scenario="tests/unit/replica/test_leader.py::test_an_older_start_of_a_follower_is_refused",
    ),
    _mutant(
        "new_start_inherits_progress",
        _PROGRESS,
        "self.node_epoch, self.heard, self.synced_end = node_epoch, False, NO_OFFSET",
        "self.node_epoch = node_epoch",
        first=249,
    ),
)
_ISR_CHANGES: Final = (
    _mutant(
        "joins_at_the_high_watermark",
        _LEADER,
        "max(self.high_watermark, self._epoch_start)",
        "self.high_watermark",
        first=130,
    ),
    _mutant(
        "joins_when_heard",
        _PROGRESS,
        "return self.heard and self.synced_end >= end and self.was_answered",
        "return self.heard and self.was_answered",
    ),
    _mutant(
        "joins_unanswered",
        _PROGRESS,
        "return self.heard and self.synced_end >= end and self.was_answered",
        "return self.heard and self.synced_end >= end",
        scenario="tests/unit/replica/test_in_sync_replicas.py::"
        "test_a_read_replica_that_becomes_a_replica_is_answered_before_it_joins",
    ),
    _mutant(
        "unknown_proposal_is_refused",
        _LEADER,
        "proposal.sent_again(now)\n                yield proposal.as_action(self.leader_epoch)\n",
        "self.isr.proposal = None\n",
    ),
    _mutant(
        "moved_version_is_a_refusal",
        _ISR,
        "if refused.version_moved:",
        "if refused.number < 0:",
        first=21,
    ),
    _mutant(
        "refusal_in_another_reign_is_final",
        _ISR,
        'if "leader_epoch" in reasons:',
        "if not reasons:",
        scenario=(
            "tests/unit/replica/test_isr_proposals.py"
            "::test_a_refusal_in_another_reign_does_not_mean_that_the_proposal_was_not_applied"
        ),
    ),
    _mutant(
        "refusal_of_another_proposal",
        _ISR,
        "if self.proposal is None or self.proposal.number != refused.number:",
        "if self.proposal is None:",
        scenario=(
            "tests/unit/replica/test_isr_proposals.py"
            "::test_a_refusal_that_is_late_is_not_about_the_proposal_that_is_out"
        ),
    ),
    _mutant(
        "never_shrinks",
        _PROGRESS,
        "        if self.lost:\n            return self.caught_up_at\n",
        "        if True:\n            return NEVER\n",
    ),
)
_RECONCILING: Final = (
    _mutant(
        "cut_to_own_high_watermark",
        _FOLLOWER,
        "        self.wake_at, self._owes_fetch = NEVER, False\n        return self._fetch(now)\n",
        "        return self._cut(Truncate(self.high_watermark)) if self.leader else ()\n",
    ),
    _mutant(
        "epoch_of_the_answer_ignored",
        _RECONCILE,
        "    return known\n\n\ndef cut_point",
        "    return EpochEnd(last_epoch, known.end)\n\n\ndef cut_point",
    ),
    _mutant(
        "only_offsets_compared",
        _RECONCILE,
        "if known.epoch == last_epoch and log_end <= known.end:",
        "if log_end <= known.end:",
    ),
    _mutant(
        "only_epochs_compared",
        _RECONCILE,
        "if known.epoch == last_epoch and log_end <= known.end:",
        "if known.epoch == last_epoch:",
    ),
    _mutant("cut_to_own_end_of_epoch", _RECONCILE, "end = min(own.end, answer.end)", "end = own.end"),
    _mutant(
        "cut_to_the_answered_end",
        _RECONCILE,
        "end = min(own.end, answer.end)",
        "end = min(answer.end, follower.log_end_offset)",
    ),
    _mutant(
        "answers_an_epoch_too_low",
        _RECONCILE,
        "row = bisect_right(epochs.starts, epoch, key=lambda start: start.epoch)",
        "row = bisect_right(epochs.starts, epoch, key=lambda start: start.epoch + 1)",
    ),
    _mutant(
        "same_leader_needs_no_new_epoch",
        _FOLLOWER,
        "if reign.leader_epoch <= self.leader_epoch and not ended:",
        "if (reign.leader_epoch <= self.leader_epoch or reign.leader == self.leader) and not ended:",
    ),
    _mutant(
        "begins_anew_at_offset_0",
        _FOLLOWER,
        "return self._cut(ResetLog(log.log_start_offset))",
        "return self._cut(ResetLog(Offset(0)))",
        scenario=(
            "tests/unit/replica/test_follower.py"
            "::test_a_log_without_records_does_not_go_back_behind_its_start"
        ),
    ),
    _mutant(
        "empty_epoch_survives_a_cut",
        _EPOCHS,
        "if entry.start < end))",
        "if entry.start <= end))",
    ),
)
_FOLLOWING: Final = (
    _mutant(
        "answer_to_another_log",
        _FOLLOWER,
        "return (last_epoch, log_end) == (self._log.epochs.last, self._log.log_end_offset)",
        "return True",
    ),
    _mutant(
        "answer_of_another_reign",
        _FOLLOWER,
        "is_cutting or leader_epoch != self.leader_epoch:",
        "is_cutting:",
        scenario="tests/unit/replica/test_follower.py::test_answers_of_another_reign_are_ignored",
    ),
    _mutant(
        "answer_while_cutting",
        _FOLLOWER,
        "is_cutting or leader_epoch != self.leader_epoch:",
        "leader_epoch != self.leader_epoch:",
    ),
    _mutant(
        "high_watermark_before_written",
        _FOLLOWER,
        "high_watermark = min(self._leaders_high_watermark, self._written_end)",
        "high_watermark = self._leaders_high_watermark",
    ),
    _mutant(
        "acknowledges_what_it_asked_for",
        _FOLLOWER,
        "            synced_end=log.synced_end,\n",
        "            synced_end=log.log_end_offset,\n",
    ),
)
_ASKING: Final = (
    _mutant(
        "asks_again_and_is_not_heard",
        _PROGRESS,
        "if fetch.asks or self._served_end != fetch.log_end:",
        "if self._served_end != fetch.log_end:",
    ),
    _mutant(
        "no_fetch_over_a_new_connection",
        _FOLLOWER,
        "            case LeaderConnected():\n                actions = self._fetch(now)\n",
        "            case LeaderConnected():\n                actions = ()\n",
    ),
    _mutant(
        "no_fetch_after_a_refusal",
        _FOLLOWER,
        "self.wake_at, self._owes_fetch = MonotonicNs(now + self._settings.retry_interval_ns), False",
        "self._owes_fetch = False",
    ),
    _mutant(
        "what_is_held_back_is_forgotten",
        _FOLLOWER,
        "asks=self._owes_fetch or self._asks_when_synced",
        "asks=self._asks_when_synced",
        first=276,
    ),
    _mutant(
        "refusal_names_the_leaders_epoch",
        _LEADER,
        "            return _refused(fetch, reason)\n",
        "            return RefusedMessage(self.leader_epoch, reason)\n",
        scenario=(
            "tests/unit/replica/test_leader.py::test_a_fetch_of_another_reign_is_refused_and_changes_nothing[6]"
        ),
    ),
    _mutant(
        "silent_to_who_diverges_without_a_lease",
        _LEADER,
        "            return _refused(fetch, FetchRefusal.NO_LEASE)\n",
        "            return None\n",
        first=118,
    ),
    _mutant(
        "never_wakes_to_tell_the_high_watermark",
        _LEADER,
        "            progress.heartbeat(self.high_watermark, settings.heartbeat_interval_ns)\n",
        "            NEVER\n",
    ),
    _mutant(
        "never_wakes_for_who_lags",
        _LEADER,
        "times = (lagging_at, ",
        "times = (NEVER, ",
        first=159,
    ),
    _mutant(
        "who_lags_stays_while_all_are_in_sync",
        _LEADER,
        "if now < self._keeps_up_until and len(",
        "if len(",
    ),
    _mutant(
        "never_wakes_for_a_proposal",
        _LEADER,
        "self.isr.due_at(settings.retry_interval_ns)",
        "self.isr.propose_after",
        scenario=(
            "tests/unit/replica/test_leader.py::test_time_alone_makes_a_member_lag_and_a_proposal_be_repeated"
        ),
    ),
)
_STEADY_STATE: Final = (
    _mutant("commits_what_it_has_itself", _STEADY, "for member in self._in_sync:", "for member in ():"),
    _mutant(
        "steady_without_a_lease",
        _STEADY,
        "            or now >= self._lease.until\n",
        "",
    ),
    _mutant(
        "steady_for_ever",
        _STEADY,
        "            or now >= self._steady_until\n",
        "",
    ),
    _mutant(
        "steady_after_a_new_start",
        _STEADY,
        "            or fetch.node_epoch != self._known[follower].node_epoch\n",
        "",
    ),
    _mutant(
        "steady_with_another_reign",
        _STEADY,
        "not fetch.leader_epoch == fetch.last_epoch == self.leader_epoch",
        "fetch.last_epoch != self.leader_epoch",
    ),
    _mutant(
        "steady_with_a_log_that_has_parted",
        _STEADY,
        "not fetch.leader_epoch == fetch.last_epoch == self.leader_epoch",
        "fetch.leader_epoch != self.leader_epoch",
    ),
    _mutant(
        "steady_serves_what_is_synced",
        _STEADY,
        "fetch.log_end < log_end\n",
        "fetch.log_end < log.synced_end\n",
    ),
    _mutant(
        "steady_tells_no_high_watermark",
        _STEADY,
        "fetch.high_watermark < high_watermark\n",
        "fetch.high_watermark < 0\n",
    ),
    _mutant(
        "steady_while_a_proposal_is_out",
        _LEADER,
        "if isr.proposal is not None or now < isr.propose_after or self.lacks_replicas:",
        "if now < isr.propose_after or self.lacks_replicas:",
    ),
    _mutant(
        "steady_below_the_minimum",
        _LEADER,
        "if isr.proposal is not None or now < isr.propose_after or self.lacks_replicas:",
        "if isr.proposal is not None or now < isr.propose_after:",
        scenario="tests/unit/replica/test_leader.py::test_an_isr_below_the_minimum_commits_nothing",
    ),
    _mutant(
        "steady_with_who_may_join",
        _LEADER,
        "for node, one in self._followers.items() if node not in outside}",
        "for node, one in self._followers.items()}",
    ),
    _mutant(
        "steady_state_is_not_taken_back",
        _LEADER,
        "        self._steady_until = UNSTEADY\n        if self.deposed:",
        "        if self.deposed:",
        scenario="tests/unit/replica/test_in_sync_replicas.py::test_a_deposed_leader_refuses_and_is_silent[7]",
    ),
)
_CATALOGUE: Final = (
    _mutant(
        "any_isr_version",
        _LEADERSHIP,
        "if stream.isr_version != command.expected_isr_version:",
        "if stream.isr_version < command.expected_isr_version:",
        first=55,
    ),
    _mutant(
        "any_leader_epoch",
        _LEADERSHIP,
        "if (stream.leader, stream.leader_epoch) == (command.leader, command.leader_epoch):",
        "if stream.leader == command.leader:",
        scenario=(
            "tests/unit/metadata/test_catalog_nodes.py::test_an_isr_that_must_not_be_is_refused[members1-1-2-Fenced]"
        ),
    ),
    _mutant(
        "any_node_epoch",
        _LEADERSHIP,
        "if current == node_epoch:",
        "if current >= node_epoch:",
        first=64,
    ),
    _mutant(
        "reign_outlives_a_start",
        _NODES,
        "if after.leader == node.node_id:",
        "if after.leader == node.node_id == '':",
    ),
    _mutant(
        "lost_disk_stays_in_the_isr",
        _NODES,
        "return member.node_id == node.node_id and not (keeps_all and member.directory == node.directory)",
        "return False",
    ),
    _mutant(
        "any_directory_may_lead",
        _LEADERSHIP,
        "if member is not None and tables.has_log(stream, member):",
        "if member is not None:",
        first=105,
    ),
)
_REPAIRING: Final = (
    _mutant(
        "takes_another_epoch",
        _REPAIR,
        "if header.leader_epoch != epoch:",
        "if header.leader_epoch > max(epoch, header.leader_epoch):",
        scenario="tests/crash/test_repair.py::test_batches_that_were_not_there_are_refused"
        "[True-wrong5-of epoch 2]",
    ),
)
_LEASES: Final = (
    _mutant(
        "new_term_knows_who_is_dead",
        "metadata.controller.leases",
        "self._unheard_until = MonotonicNs(now + lease_ns)",
        "self._unheard_until = now",
    ),
    _mutant(
        "lease_ends_early",
        "metadata.controller.leases",
        "last = self._unheard_until if heard is None else MonotonicNs(heard[1] + self._lease_ns)",
        "last = self._unheard_until if heard is None else MonotonicNs(heard[1] + self._lease_ns // 2)",
    ),
)
_ALL: Final = (
    *_COMMITTING,
    *_FETCHING,
    *_ISR_CHANGES,
    *_RECONCILING,
    *_FOLLOWING,
    *_ASKING,
    *_STEADY_STATE,
    *_CATALOGUE,
    *_REPAIRING,
    *PROMISE_MUTANTS,
    *ID_MUTANTS,
    *_LEASES,
)
MUTANTS: Final = {mutant.name: mutant for mutant in _ALL}
