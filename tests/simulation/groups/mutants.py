"""The deliberate bugs in consumer groups, with a seed that finds each."""

from typing import Final

from tests.simulation.mutation import Mutant

_CHANGES: Final = "consumer_groups.shard.group_table"
_COMMITS: Final = "consumer_groups.shard.commits"
_COORDINATOR: Final = "consumer_groups.coordinator.coordinator"
_DESK: Final = "consumer_groups.shard.group_requests"
_FENCING: Final = "consumer_groups.coordinator.fencing"
_MEMBERSHIP: Final = "consumer_groups.coordinator.membership"
_QUESTIONS: Final = "consumer_groups.shard.shard"
_RUN: Final = "consumer_groups.shard.group_queue"
_SESSIONS: Final = "consumer_groups.coordinator.sessions"
_SUCCESSION: Final = "consumer_groups.coordinator.succession"


def _mutant(
    name: str, module: str, snippet: str, instead: str, first: int = 0, *, scenario: str | None = None
) -> Mutant:
    return Mutant(
        name=name,
        module=module,
        snippet=snippet,
        instead=instead,
        first=first,
        simulator="groups",
        scenario=scenario,
    )


_ALL: Final = (
    _mutant(
        "granted_before_it_was_given_up",
        _SUCCESSION,
        "grants.setdefault(partition, Grant(member_id, generation))",
        "grants[partition] = grants[partition] if grants.get(partition, ('',))[0] == member_id "
        "else Grant(member_id, generation)",
    ),
    _mutant(
        "answered_before_durable",
        _COORDINATOR,
        "actions = (*self._dispatch(event, now), *self._timer(event))",
        "actions = tuple(said for each in self._dispatch(event, now) for said in "
        "((*each.then, Persist(each.state, ())) if isinstance(each, Persist) else (each,))) "
        "+ tuple(self._timer(event))",
    ),
    _mutant(
        "generation_stands_still",
        _SUCCESSION,
        "generation = Generation(before.generation + 1)",
        "generation = before.generation",
    ),
    _mutant(
        "commit_of_an_earlier_ownership",
        _FENCING,
        "if commit.generation < grant.generation:",
        "if False:",
        26,
    ),
    _mutant(
        "commit_by_anybody",
        _FENCING,
        "if grant is None or grant.member_id != commit.member_id:",
        "if grant is None:",
    ),
    _mutant(
        "late_release_counts",
        _COORDINATOR,
        "if state.grants.get(partition) == Grant(member_id, generation)",
        "if partition in state.grants and state.grants[partition].member_id == member_id",
        13,
    ),
    _mutant(
        "late_join_counts",
        _MEMBERSHIP,
        "and join.request <= present.request",
        "and False",
        29,
    ),
    _mutant(
        "gone_clients_come_back",
        _MEMBERSHIP,
        "if last is not None and join.request <= last:",
        "if False:",
        175,
    ),
    _mutant(
        "two_members_of_one_instance",
        _MEMBERSHIP,
        "former = state.of_instance(join.instance_id)",
        "former = None",
        3,
    ),
    _mutant(
        "takeover_shares_out_anew",
        _MEMBERSHIP,
        "target = {one: member_id if owner == former else owner for one, owner in draft.target.items()}",
        "target = dict(zip(draft.target, reversed([member_id if owner == former else owner "
        "for owner in draft.target.values()])))",
        3,
    ),
    _mutant(
        "takeover_in_the_same_generation",
        _MEMBERSHIP,
        "one: Grant(member_id, generation) if grant.member_id == former else grant",
        "one: Grant(member_id, grant.generation) if grant.member_id == former else grant",
        3,
    ),
    _mutant(
        "no_session_after_failover",
        _SESSIONS,
        "self._sessions.setdefault(member_id, MemberSession(now))",
        "self._sessions.setdefault(member_id, MemberSession(MonotonicNs(0)))",
    ),
    _mutant(
        "heartbeats_are_not_heard",
        _SESSIONS,
        "session.heard_at, session.connection = now, connection",
        "session.connection = connection",
    ),
    _mutant(
        "heartbeats_tell_nothing",
        _COORDINATOR,
        "if beat.generation < self.state.members[beat.member_id].assigned:",
        "if False:",
        1,
    ),
    _mutant(
        "who_holds_on_stays",
        _SESSIONS,
        "elif now >= session.held_on_at(member):",
        "elif False:",
        5,
    ),
    _mutant(
        "the_silent_stay",
        _SESSIONS,
        "if now >= session.silent_at(member):",
        "if False:",
        2,
    ),
    _mutant(
        "added_partitions_go_unnoticed",
        _COORDINATOR,
        "if counts == self.state.streams:",
        "if counts.keys() == self.state.streams.keys():",
        1,
    ),
    _mutant(
        "gone_members_keep_what_they_had",
        _SUCCESSION,
        "return grant.member_id in draft.members and partition",
        "return partition",
        2,
    ),
    _mutant(
        "cursors_go_back",
        _COMMITS,
        "if known is not None and _is_behind(place, known):",
        "if False:",
        2,
    ),
    _mutant(
        "measured_against_what_is_durable_only",
        _COMMITS,
        "        if under_way is not None:\n            return under_way[0]",
        "        pass",
        98,
    ),
    _mutant(
        "a_settled_commit_hides_the_next",
        _COMMITS,
        "if self._newest[partition][1] is commit:\n                del self._newest[partition]",
        "self._newest.pop(partition, None)",
        scenario="tests/unit/consumer_groups/shard/test_commits.py::"
        "test_a_commit_that_is_stored_does_not_hide_one_that_is_still_under_way",
    ),
    _mutant(
        "resets_do_not_go_alone",
        _DESK,
        "is_alone=goes_back, commit=commit",
        "is_alone=False, commit=commit",
        608,
    ),
    _mutant(
        "commit_after_a_later_one",
        _COMMITS,
        "return commit.request < self._durable.get(commit.member_id, commit.request)",
        "return False",
    ),
    _mutant(
        "superseded_by_what_was_refused",
        _COMMITS,
        "        if is_durable:",
        "        if True:",
        2,
    ),
    _mutant(
        "commits_answered_before_they_are_written",
        _DESK,
        "        self._commits.begin(commit)\n",
        "        self._commits.begin(commit)\n        self._outbox.reply(question, CursorsCommitted())\n"
        "        question = None\n",
    ),
    _mutant(
        "refused_commits_answered_as_done",
        _DESK,
        "        self._outbox.refuse(done.question, error)\n        if done.commit is not None:",
        "        self._outbox.reply(done.question, done.answer)\n        if done.commit is not None:",
    ),
    _mutant(
        "refused_changes_count",
        _DESK,
        "        if done.has_state:\n            self._begin(now)",
        "        if False:\n            self._begin(now)",
        2,
    ),
    _mutant(
        "no_session_after_a_refusal",
        _DESK,
        "        if done.has_state:\n            self._begin(now)",
        "        if done.has_state:\n            self._begin(MonotonicNs(0))",
        2,
    ),
    _mutant(
        "heartbeats_tell_what_is_not_durable",
        _DESK,
        "return not (self._under_way and self._under_way[-1].has_state)",
        "return True",
    ),
    _mutant(
        "a_group_goes_on_before_it_is_durable",
        _DESK,
        "return bool(self._under_way) and self._under_way[-1].is_alone",
        "return False",
    ),
    _mutant(
        "cursors_outlive_their_group",
        _CHANGES,
        "keys = (group_key(self.group), *(cursor_key(self.group, each) for each in self.partitions))",
        "keys = (group_key(self.group),)",
        5,
    ),
    _mutant(
        "deleted_under_commits_that_are_under_way",
        _DESK,
        "            case ResetCursors() | DeleteGroup():\n                return not self._under_way",
        "            case ResetCursors() | DeleteGroup():\n                return True",
        246,
    ),
    _mutant(
        "force_is_not_needed_to_reset",
        _DESK,
        "self.give(PutOut(), now, question, cursors=request.cursors)",
        "self._write(UnderWay(change, question, Done()), records)",
        6,
    ),
    _mutant(
        "some_cursors_are_not_told",
        _QUESTIONS,
        "if cursor is not None))",
        "if cursor is not None and cursor.offset % 2))",
    ),
    _mutant(
        "committed_cursors_are_not_seen",
        _CHANGES,
        "for each in self.cursors:\n            table",
        "for each in self.cursors[:1]:\n            table",
    ),
    _mutant(
        "ticks_are_lost_in_writes",
        _RUN,
        "        self._tick_waits = True",
        "        self._tick_waits = not self._desk.is_held",
        2,
    ),
    _mutant(
        "partitions_are_forgotten_with_a_refused_write",
        _RUN,
        "        self._deleted |= failed.deleted\n        self._is_outdated = True",
        "        self._deleted |= failed.deleted",
        8,
    ),
)
MUTANTS: Final = {mutant.name: mutant for mutant in _ALL}
