"""The deliberate bugs in replication, with a seed that finds each.

Searched and tested as those in the Raft core: see `tests.simulation.mutants`.
"""

from typing import Final

from tests.simulation.mutation import Mutant

_LEADER: Final = "jetstream.replica.leader"
_ISR: Final = "jetstream.replica.isr"
_PROGRESS: Final = "jetstream.replica.progress"
_RECONCILE: Final = "jetstream.replica.reconcile"
_FOLLOWER: Final = "jetstream.replica.follower"
_EPOCHS: Final = "jetstream.log.epochs"
_LEADERSHIP: Final = "metadata.catalog.leadership"
_NODES: Final = "metadata.catalog.nodes"
_CONTROLLER: Final = "metadata.controller.machine"


def _mutant(name: str, module: str, snippet: str, instead: str, first: int = 0) -> Mutant:
    return Mutant(name, module, snippet, instead, first, simulator="replica")


_COMMITTING: Final = (
    _mutant(
        "own_synced_end_left_out",
        _LEADER,
        "end = self._log.synced_end\n        for node in self.isr.maximal:",
        "end = self._log.log_end_offset\n        for node in self.isr.maximal:",
    ),
    _mutant("written_counts_as_synced", _LEADER, "min(fetch.synced_end, fetch.log_end)", "fetch.log_end"),
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
        "return self.committed.union(member.node_id for member in self.proposal.isr)",
        "return frozenset(member.node_id for member in self.proposal.isr)",
    ),
    _mutant(
        "no_minimum",
        _LEADER,
        "if len(self.isr.committed) < self._minimum:",
        "if self._minimum < 0:",
        first=9,
    ),
    _mutant(
        "half_of_the_isr_is_enough",
        _LEADER,
        "if len(self.isr.committed) < self._minimum:",
        "if len(self.isr.committed) < self._minimum - 1:",
        first=9,
    ),
    _mutant(
        "no_lease_check",
        _LEADER,
        "return not self.deposed and now < self._lease_until",
        "return not self.deposed",
    ),
    _mutant(
        "high_watermark_goes_back",
        _LEADER,
        "if committable > self.high_watermark:",
        "if committable != self.high_watermark:",
        first=30,
    ),
)
_FETCHING: Final = (
    _mutant(
        "fetch_of_an_old_epoch_counts",
        _LEADER,
        "if fetch.leader_epoch != self.leader_epoch:",
        "if fetch.leader_epoch > self.leader_epoch:",
        first=345,
    ),
    _mutant(
        "diverging_fetch_counts",
        _LEADER,
        "        if isinstance(where, Follows):\n",
        "        progress.acknowledge(min(fetch.synced_end, fetch.log_end), log.log_end_offset, now)\n"
        "        if isinstance(where, Follows):\n",
    ),
    _mutant(
        "fetch_of_an_old_start_counts",
        _LEADER,
        "return FetchRefusal.OLD_NODE_EPOCH if fetch.node_epoch < progress.node_epoch else None",
        "return None",
        first=909,
    ),
    _mutant(
        "new_start_inherits_progress",
        _PROGRESS,
        "self.node_epoch, self.heard, self.synced_end = node_epoch, False, NO_OFFSET",
        "self.node_epoch = node_epoch",
        first=30,
    ),
)
_ISR_CHANGES: Final = (
    _mutant(
        "joins_at_the_high_watermark",
        _LEADER,
        "max(self.high_watermark, self._epoch_start)",
        "self.high_watermark",
        first=9,
    ),
    _mutant(
        "joins_when_heard",
        _LEADER,
        "return progress.heard and progress.synced_end >= max(self.high_watermark, self._epoch_start)",
        "return progress.heard",
    ),
    _mutant(
        "unknown_proposal_is_refused",
        _LEADER,
        "                proposal.sent_at = now\n                yield self._as_action(proposal)\n",
        "                self.isr.proposal = None\n",
    ),
    _mutant(
        "moved_version_is_a_refusal",
        _LEADER,
        "if version_moved:",
        "if version_moved and number < 0:",
        first=24,
    ),
    _mutant(
        "refusal_in_another_reign_is_final",
        _ISR,
        'if "leader_epoch" in reasons:',
        "if not reasons:",
        first=525,
    ),
    _mutant(
        "refusal_of_another_proposal",
        _ISR,
        "if self.proposal is None or self.proposal.number != number:",
        "if self.proposal is None:",
        first=1092,
    ),
    _mutant(
        "never_shrinks",
        _PROGRESS,
        "return self.lost or (not self.has_all(log_end) and now >= self.caught_up_at + lag_max_ns)",
        "return False",
    ),
)
_RECONCILING: Final = (
    _mutant(
        "cut_to_own_high_watermark",
        _FOLLOWER,
        "        self._fetch_at = NEVER\n        return self._fetch(now)\n",
        "        return self._cut(self.high_watermark, Truncate) if self.leader else ()\n",
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
        first=7,
    ),
    _mutant(
        "begins_anew_at_offset_0",
        _FOLLOWER,
        "return self._cut(log.log_start_offset, Reset)",
        "return self._cut(Offset(0), Reset)",
        first=7_002_724,
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
        "if self.leader is None or self._is_cutting or leader_epoch != self.leader_epoch:",
        "if self.leader is None or self._is_cutting:",
        first=581,
    ),
    _mutant(
        "answer_while_cutting",
        _FOLLOWER,
        "if self.leader is None or self._is_cutting or leader_epoch != self.leader_epoch:",
        "if self.leader is None or leader_epoch != self.leader_epoch:",
        first=26,
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
        "                log.log_end_offset,\n                log.synced_end,\n",
        "                log.log_end_offset,\n                log.log_end_offset,\n",
    ),
)
_CATALOGUE: Final = (
    _mutant(
        "any_isr_version",
        _LEADERSHIP,
        "if stream.isr_version != command.expected_isr_version:",
        "if stream.isr_version < command.expected_isr_version:",
        first=29,
    ),
    _mutant(
        "any_leader_epoch",
        _LEADERSHIP,
        "if (stream.leader, stream.leader_epoch) != (command.leader, command.leader_epoch):",
        "if stream.leader != command.leader:",
        first=314,
    ),
    _mutant(
        "any_node_epoch",
        _LEADERSHIP,
        "if current == node_epoch:",
        "if current >= node_epoch:",
        first=137,
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
        first=9,
    ),
    _mutant(
        "any_directory_may_lead",
        _LEADERSHIP,
        "if member is not None and tables.is_registered(member):",
        "if member is not None:",
        first=414,
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
_ALL: Final = (*_COMMITTING, *_FETCHING, *_ISR_CHANGES, *_RECONCILING, *_FOLLOWING, *_CATALOGUE, *_LEASES)
MUTANTS: Final = {mutant.name: mutant for mutant in _ALL}
